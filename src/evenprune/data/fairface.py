"""FairFace: 97,698 faces of seven races, from the official label tables and images, and its public ResNet-34.

fairface_label_train.csv      file (train/1.jpg, …), age, gender, race, service_test
fairface_label_val.csv        the same of val/1.jpg, …
fairface-img-margin025-trainval   the folders train and val with the images of margin 0.25, 224×224; these two
                              may also lie beside the tables

The official validation images are the test data. https://github.com/joojs/fairface has all of it.
"""

import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from evenprune.data import faces
from evenprune.data.faces import Faces, Group, Names, People, Target
from evenprune.data.image_pool import Progress
from evenprune.reading import counted, listed, quoted, refused
from evenprune.tally import InputProblems

if TYPE_CHECKING:
    from torch import Tensor

# In the order of the paper's tables.
RACES = ("East Asian", "Indian", "Black", "White", "Middle Eastern", "Latino_Hispanic", "Southeast Asian")
GENDERS = ("Male", "Female")
COUNTS = {"train": 86_744, "val": 10_954}
SIDE = 224  # of the images with a margin of 0.25; those with 1.25 have 448
IMAGES = "fairface-img-margin025-trainval"
COLUMNS = ("file", "age", "gender", "race")

# The public ResNet-34 has 18 outputs: races 0–6 in this order, Male and Female 7–8, nine ages 9–17.
PUBLIC_RACES = (
    "White",
    "Black",
    "Latino_Hispanic",
    "East Asian",
    "Southeast Asian",
    "Indian",
    "Middle Eastern",
)
PUBLIC_OUTPUTS = 18
PUBLIC_ROWS: dict[Target, tuple[int, ...]] = {  # the output that is our class 0, 1, …
    "race": (3, 5, 1, 0, 6, 2, 4),
    "gender": (7, 8),
}

Row = tuple[str, str, str, str]  # file, age, gender, race


def load(
    folder: str | Path,
    *,
    target: Target = "race",
    group: Group = "race",
    image_size: int | None = None,
    cache: str | Path | None = None,
    progress: Progress | None = None,
    strict: bool = True,
) -> Faces:
    """Training and test samples; labels are the target, columns are race, gender, "race x gender" and age.

    To prune on them: prune(model, **faces, groups=faces.group, …). The model sees the images normalised by
    faces.MEAN and faces.STD.
    Ages are ranges, as FairFace has them. image_size: side that the images are brought to (bicubic), never
    larger than they are. cache: folder that keeps the decoded images (see image_cache); at 224 pixels they
    take 15 GB. strict: demands all of the official images, with the margin of 0.25.
    """
    folder = Path(folder)
    problems = faces.task_problems(target=target, group=group, image_size=image_size)
    tables = dict[str, list[Row]]()
    for name in COUNTS:
        try:
            tables[name] = _rows(folder, name)
            problems += _count_problems(folder, name, len(tables[name])) if strict else []
        except InputProblems as error:
            problems += error.problems
    paths, found = _paths(folder, tables)
    problems += found
    if strict and not found:
        problems += _margin_problems([path for some in paths.values() for path in some])
    if found and paths:  # some are missing: what else is wrong with the others?
        problems += faces.unreadable(paths, progress)
    if image_size is not None and not problems:
        problems += faces.too_small([path for some in paths.values() for path in some], image_size)
    if problems:
        raise InputProblems(problems)
    names = Names(RACES, GENDERS)
    images = faces.decoded(paths, image_size=image_size, cache=cache, progress=progress)
    splits = {
        split: faces.samples(images[name], _people(tables[name]), names, target)
        for name, split in (("train", "train"), ("val", "test"))
    }
    return Faces(splits, names=names, target=target, group=group)


def _people(rows: Sequence[Row]) -> People:
    races, genders = ({name: i for i, name in enumerate(names)} for names in (RACES, GENDERS))
    return People(
        race=np.array([races[race] for *_, race in rows], dtype=np.int64),
        gender=np.array([genders[gender] for _, _, gender, _ in rows], dtype=np.int64),
        age=np.array([age or None for _, age, _, _ in rows], dtype=object),
    )


# --- what lies in the folder ---


def _roots(folder: Path) -> list[Path]:
    return [folder, folder / IMAGES, folder / "fairface"]


def _rows(folder: Path, name: str) -> list[Row]:
    file_name = f"fairface_label_{name}.csv"
    path = next(
        (root / file_name for root in _roots(folder) if (root / file_name).is_file()), folder / file_name
    )
    shown = quoted(str(path), 300)
    with refused(shown, str(path)), open(path, newline="", encoding="utf-8-sig") as file:
        lines = list(csv.DictReader(file))
    if not lines or not set(COLUMNS) <= set(lines[0]):
        there = listed([str(column) for column in lines[0]]) if lines else "no lines"
        raise InputProblems([f"{shown} needs the columns {', '.join(COLUMNS)}; it has {there}"])
    rows = [(r["file"] or "", r["age"] or "", r["gender"] or "", r["race"] or "") for r in lines]
    problems = [f"{shown}: {problem}" for problem in _row_problems(rows, name)]
    if problems:
        raise InputProblems(problems)
    return rows


def _row_problems(rows: Sequence[Row], name: str) -> Iterator[str]:
    for place, column, known in ((2, "gender", GENDERS), (3, "race", RACES)):
        wrong = [row for row in rows if row[place] not in known]
        if wrong:
            many = counted(len(wrong), f"value of {column} is", f"values of {column} are")
            yield (
                f"{many} none of {', '.join(known)} "
                f"(the first is {quoted(wrong[0][place])} of {quoted(wrong[0][0])})"
            )
    odd = [row[0] for row in rows if row[0].split("/")[-2:-1] != [name]]
    if odd:
        many = counted(len(odd), "file is", "files are")
        yield f"{many} not named {name}/1.jpg, {name}/2.jpg, …: {listed(odd, 3)}"
    twice = len(rows) - len({row[0] for row in rows})
    if twice:
        yield f"{counted(twice, 'file is', 'files are')} listed more than once"


def _count_problems(folder: Path, name: str, count: int) -> list[str]:
    if count == COUNTS[name]:
        return []
    return [
        f"{quoted(str(folder), 300)}: the table of {name} lists {count:,} images, FairFace has "
        f"{COUNTS[name]:,}. Fetch the official table, or read what is there with strict=False"
    ]


def _paths(folder: Path, tables: Mapping[str, Sequence[Row]]) -> tuple[dict[str, list[Path]], list[str]]:
    """The files of each table that are there, and what is missing."""
    root = next(
        (root for root in reversed(_roots(folder)) if all((root / name).is_dir() for name in COUNTS)), None
    )
    if root is None:
        other = (
            ", although images with a margin of 1.25 are there"
            * (folder / IMAGES.replace("025", "125")).is_dir()
        )
        return {}, [
            f"{quoted(str(folder), 300)} has no folders train and val with the images of margin 0.25{other}. "
            f"Looked for in it and in {IMAGES}. https://github.com/joojs/fairface says where to get them"
        ]
    paths, problems = {}, []
    for name, rows in tables.items():
        there = set(os.listdir(root / name))
        files = [row[0].rpartition("/")[2] for row in rows]
        absent = [f"{name}/{file}" for file in files if file not in there]
        paths[name] = [root / name / file for file in files if file in there]
        if absent:
            problems.append(
                f"{quoted(str(root), 300)} lacks {len(absent):,} of {len(files):,} images: "
                f"{listed(absent, 3)}"
            )
    return paths, problems


def _margin_problems(paths: Sequence[Path]) -> list[str]:
    """The two sets of images bear the same names; they are told apart by their size."""
    sizes = faces.sizes(paths)  # those that cannot be read are told with all others
    wrong = [place for place, size in enumerate(sizes) if size not in (None, (SIDE, SIDE))]
    if not wrong:
        return []
    width, height = sizes[wrong[0]] or (0, 0)
    return [
        f"{quoted(str(paths[wrong[0]]), 300)} has {width}×{height} pixels; the images with a margin of 0.25 "
        f"have {SIDE}×{SIDE}, and {len(wrong):,} of {len(paths):,} here have not. Fetch these, or read what "
        "is there with strict=False"
    ]


# --- the public model ---


def read_checkpoint(path: str | Path) -> "dict[str, Tensor]":
    """The tensors of a .pt or .safetensors file. Nothing but tensors is ever loaded."""
    from evenprune import state_file

    return state_file.read(path)


def weights_for(state: "Mapping[str, Tensor]", *, target: Target) -> "dict[str, Tensor]":
    """The public ResNet-34's state for models.resnet34(7) or (2): output i is class i of this module's order.

    Load it with load_state_dict. Ages are left out. It expects faces of 224×224 pixels, divided by 255 and
    normalised by ImageNet's means and deviations, which are faces.MEAN and faces.STD: prune() does so with
    the images that load() gives.
    """
    import torch

    from evenprune.models import resnet34

    if target not in PUBLIC_ROWS:
        raise InputProblems([f"target is {quoted(target)}: choose 'race' or 'gender'"])
    with torch.device("meta"):  # names and shapes alone
        expected = resnet34(PUBLIC_OUTPUTS).state_dict()
    problems = _state_problems(state, expected)
    if problems:
        raise InputProblems(problems)
    rows = list(PUBLIC_ROWS[target])
    return {name: (state[name][rows] if name.startswith("fc.") else state[name]).clone() for name in expected}


def _state_problems(state: "Mapping[str, Tensor]", expected: "Mapping[str, Tensor]") -> list[str]:
    what = f"a ResNet-34 of {PUBLIC_OUTPUTS} outputs, as res34_fair_align_multi_7_20190809.pt is"
    problems = []
    for word, names in (
        ("lacks", expected.keys() - state.keys()),
        ("has also", state.keys() - expected.keys()),
    ):
        if names:
            problems.append(
                f"the checkpoint is not {what}: it {word} {len(names):,} tensors, {listed(sorted(names), 3)}"
            )
    shapes = [
        f"{name} is {list(state[name].shape)}, not {list(tensor.shape)}"
        for name, tensor in expected.items()
        if name in state and state[name].shape != tensor.shape
    ]
    if shapes:
        problems.append(f"the checkpoint is not {what}: {'; '.join(shapes[:3])}{' …' * (len(shapes) > 3)}")
    return problems
