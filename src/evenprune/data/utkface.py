"""UTKFace: 23,705 aligned faces with age, gender and race, from the original jpgs or from mosaics of them.

The original jpgs are 200×200 and named [age]_[gender]_[race]_[date].jpg.chip.jpg; three known files have no
race, and are left out. The split is that of the paper's code: the others, in sorted order, are permuted by
numpy's RandomState(1357), and the first fifth is the test data.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evenprune.data import faces, utkface_mosaics
from evenprune.data.faces import Faces, Group, Ids, Images, Names, People, Target
from evenprune.data.image_pool import Progress
from evenprune.data.utkface_mosaics import NAME, Row
from evenprune.reading import counted, listed, quoted
from evenprune.tally import InputProblems

RACES = ("White", "Black", "Asian", "Indian", "Others")
GENDERS = ("male", "female")
COUNTS = (10078, 4526, 3434, 3975, 1692)  # images of each race
SPLIT_SEED = 1357
TEST_SHARE = 0.2

SUBFOLDERS = ("UTKFace", "utkface", "utkface_aligned_cropped/UTKFace")


@dataclass(frozen=True)
class Labelled:
    """The images of one folder in the order of their names, and who is in them."""

    files: tuple[str, ...]
    people: People  # race −1: not known


def load(
    folder: str | Path,
    *,
    target: Target = "race",
    group: Group = "race",
    others: bool = True,
    image_size: int | None = None,
    cache: str | Path | None = None,
    progress: Progress | None = None,
    strict: bool = True,
) -> Faces:
    """Training and test samples; labels are the target, columns are race, gender, "race x gender" and age.

    To prune on them: prune(model, **faces, groups=faces.group, …). The model sees the images normalised by
    faces.MEAN and faces.STD.
    others: False leaves out the people of race Others, and the class of that name, after the split.
    image_size: side that the images are brought to (bicubic), never larger than they are.
    cache: folder that keeps the decoded jpgs (see image_cache); mosaics are decoded in seconds.
    strict: demands the official number of images of every race: with fewer, the split is another one.
    """
    problems = faces.task_problems(target=target, group=group, image_size=image_size)
    try:
        place = _find(Path(folder))
        labelled = _labelled(utkface_mosaics.rows(place) if _is_mosaic(place) else _named_rows(place))
        problems += _count_problems(labelled.people, place) if strict else []
    except InputProblems as error:
        raise InputProblems(problems + error.problems) from None
    if problems:
        raise InputProblems(problems)
    orders = {name: _kept(order, labelled, others=others) for name, order in split_of(labelled).items()}
    if _is_mosaic(place):
        images = utkface_mosaics.images(
            place, orders, count=len(labelled.files), image_size=image_size, progress=progress
        )
    else:
        images = _from_jpgs(place, orders, labelled.files, image_size, cache, progress)
    names = Names(RACES if others else RACES[:-1], GENDERS)
    splits = {
        name: faces.samples(images[name], labelled.people.at(order), names, target)
        for name, order in orders.items()
    }
    return Faces(splits, names=names, target=target, group=group)


def split_of(labelled: Labelled) -> dict[str, Ids]:
    """Places of the training and test images among the files, in the order of the paper's code."""
    usable = np.flatnonzero(labelled.people.race >= 0)
    order = usable[np.random.RandomState(SPLIT_SEED).permutation(len(usable))]
    tests = int(TEST_SHARE * len(usable))
    return {"train": order[tests:], "test": order[:tests]}


def _kept(order: Ids, labelled: Labelled, *, others: bool) -> Ids:
    return order if others else order[labelled.people.race[order] < len(RACES) - 1]


# --- what lies in the folder ---


def _find(folder: Path) -> Path:
    """The folder that holds the jpgs, or labels.csv and the mosaics: the one named, or one inside it."""
    shown = quoted(str(folder), 300)
    if not folder.is_dir():
        raise InputProblems([f"{shown} is no folder; give the one with UTKFace's images"])
    inside = [folder, *(folder / name for name in SUBFOLDERS)]
    found = [place for place in inside if _is_mosaic(place) or next(_jpgs(place), None)]
    if found:
        return found[0]
    there = sorted(f"{item.name}/" if item.is_dir() else item.name for item in folder.iterdir())
    raise InputProblems(
        [
            f"{shown} holds no UTKFace. It holds {listed(there) or 'nothing'}. Looked for, in it and in "
            f"{', '.join(SUBFOLDERS)}: images named [age]_[gender]_[race]_[date].jpg.chip.jpg, or labels.csv "
            "with mosaics in a folder such as 128. To be had from https://susanqq.github.io/UTKFace"
        ]
    )


def _is_mosaic(place: Path) -> bool:
    return (place / "labels.csv").is_file()


def _jpgs(place: Path) -> Iterator[str]:
    if place.is_dir():
        yield from (name for name in os.listdir(place) if name.endswith(".jpg") and NAME.fullmatch(name))


def _named_rows(place: Path) -> list[Row]:
    files = sorted(name for name in os.listdir(place) if name.endswith(".jpg"))
    found = {name: NAME.fullmatch(name) for name in files}
    odd = [name for name, match in found.items() if match is None]
    if odd:
        many = counted(len(odd), f"of {len(files):,} images is", f"of {len(files):,} images are")
        raise InputProblems(
            [
                f"{quoted(str(place), 300)}: {many} not named "
                f"[age]_[gender 0–1]_[race 0–4]_[date].jpg: {listed(odd, 5)}. Move them elsewhere"
            ]
        )
    return [(name, match[1], match[2], match[3] or "") for name, match in found.items() if match is not None]


def _labelled(rows: list[Row]) -> Labelled:
    files, age, gender, race = zip(*rows, strict=True)
    people = People(
        race=np.array([int(value or -1) for value in race], dtype=np.int64),
        gender=np.array([int(value) for value in gender], dtype=np.int64),
        age=np.array([int(value) for value in age], dtype=np.int64),
    )
    return Labelled(files, people)


def _count_problems(people: People, place: Path) -> list[str]:
    counts = np.bincount(people.race[people.race >= 0], minlength=len(RACES))
    if counts.tolist() == list(COUNTS):
        return []
    each = ", ".join(
        f"{race} {there:,} of {full:,}" for race, there, full in zip(RACES, counts, COUNTS, strict=True)
    )
    return [
        f"{quoted(str(place), 300)} holds {int(counts.sum()):,} images with a race, UTKFace has "
        f"{sum(COUNTS):,} ({each}): the split would not be the paper's. Fetch the rest, or read what is "
        "there with strict=False"
    ]


# --- the images ---


def _from_jpgs(
    place: Path,
    orders: Mapping[str, Ids],
    files: tuple[str, ...],
    image_size: int | None,
    cache: str | Path | None,
    progress: Progress | None,
) -> dict[str, Images]:
    paths = {name: [place / files[i] for i in order] for name, order in orders.items()}
    if image_size is not None:
        problems = faces.too_small([path for some in paths.values() for path in some], image_size)
        if problems:
            raise InputProblems(problems)
    return faces.decoded(paths, image_size=image_size, cache=cache, progress=progress)
