"""What the two sets of faces, UTKFace and FairFace, have in common: tasks, names, images not enlarged."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from evenprune.data import image_cache, image_decoding
from evenprune.data.arrays import Normalised, Samples
from evenprune.data.image_pool import Progress, in_order, nothing_shown
from evenprune.reading import counted, quoted
from evenprune.tally import InputProblems

if TYPE_CHECKING:
    from evenprune.recipe import Split

Target = Literal["race", "gender"]
Group = Literal["race", "gender", "race x gender"]
TARGETS = ("race", "gender")
GROUPS = ("race", "gender", "race x gender")
Ids = NDArray[np.int64]
Images = NDArray[np.uint8]  # [N, 3, side, side]

# What the paper's code normalises both sets by: ImageNet's means and deviations of the channels.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Names:
    """What the ids of a data set stand for."""

    races: tuple[str, ...]
    genders: tuple[str, ...]

    def of(self, attribute: str) -> tuple[str, ...]:
        """The names of an attribute's values, in the order of the paper's tables."""
        both = tuple(f"{race} × {gender}" for race in self.races for gender in self.genders)
        return {"race": self.races, "gender": self.genders, "race x gender": both}[attribute]


@dataclass(frozen=True)
class People:
    """What is known of the people in some images. [N] each"""

    race: Ids
    gender: Ids
    age: NDArray[Any]

    def __len__(self) -> int:
        return len(self.race)

    def at(self, places: Ids) -> "People":
        return People(self.race[places], self.gender[places], self.age[places])


class Faces(dict[str, Samples]):
    """Samples (images, labels, columns of groups) by split, and what their labels and groups are called.

    prune(model, **faces, groups=faces.group, …) trains and audits on them: the images stay bytes, the model
    sees them normalised by MEAN and STD, and the groups have their names.
    """

    def __init__(self, splits: Mapping[str, Samples], *, names: Names, target: str, group: str) -> None:
        super().__init__(splits)
        self.classes = names.of(target)  # label i is called classes[i]
        self.group = group  # the column of the task's groups
        self.groups = names.of(group)  # their names, in the order of the paper's tables

    def split(self, name: str) -> "Split":
        """One split as fit() takes it: normalised, group i is groups[i]; shares memory with the images.

        prune(train=faces.split("train"), …, groups=faces.group) takes it as well, and knows the names.
        """
        import torch

        from evenprune.data.named_split import NamedSplit
        from evenprune.recipe import Split

        images, labels, columns = self[name]
        place = {group: i for i, group in enumerate(self.groups)}
        ids = np.array([place[group] for group in columns[self.group].tolist()], dtype=np.int64)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            inputs = torch.from_numpy(images)  # a read-only memory map, perhaps: nothing writes to it
        split = Split(
            inputs=inputs,
            labels=torch.from_numpy(labels),
            groups=torch.from_numpy(ids),
            mean=torch.tensor(MEAN),
            std=torch.tensor(STD),
        )
        return NamedSplit.of(split, self.groups)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(labels):,} {name}" for name, (_, labels, _) in self.items())
        return f"{sizes} images of {len(self.classes)} classes, {len(self.groups)} groups by {self.group}"


def samples(images: Images, people: People, names: Names, target: str) -> Samples:
    """The common form: images that prune() normalises, labels, and all attributes as columns."""
    ids = {"race": people.race, "gender": people.gender}
    ids["race x gender"] = people.race * len(names.genders) + people.gender
    columns: dict[str, NDArray[Any]] = {name: np.array(names.of(name))[own] for name, own in ids.items()}
    columns["age"] = people.age
    return Normalised.of(images, mean=MEAN, std=STD), ids[target].astype(np.int64), columns


def task_problems(*, target: str, group: str, image_size: object) -> list[str]:
    found = []
    if target not in TARGETS:
        found.append(f"target is {quoted(target)}: choose {' or '.join(map(repr, TARGETS))}")
    if group not in GROUPS:
        found.append(f"group is {quoted(group)}: choose one of {', '.join(map(repr, GROUPS))}")
    return found + image_cache.size_problems(image_size)


def enlarged(image_size: int, stored: int, what: str) -> str:
    """The refusal to enlarge images."""
    return (
        f"image_size is {image_size}, but {what} only {stored} pixels wide or high: enlarging adds no "
        f"detail, and is not done. Give {stored} or less, or larger images"
    )


def sizes(paths: Sequence[Path]) -> list[tuple[int, int] | None]:
    """Width and height of images, told by their headers; None for those that cannot be read."""
    image = image_decoding.pillow()

    def size(place: int) -> tuple[int, int] | None:
        try:
            with image.open(paths[place], formats=image_decoding.FORMATS) as opened:
                return int(opened.size[0]), int(opened.size[1])
        except Exception:  # whatever damaged files make a decoder raise
            return None

    with image_decoding.minding_bombs(image):
        return list(in_order(size, len(paths), nothing_shown))


def too_small(paths: Sequence[Path], image_size: int) -> list[str]:
    """The refusal to enlarge some of these files; unreadable ones are told later."""
    sides = np.array([image_size if size is None else min(size) for size in sizes(paths)], dtype=np.int64)
    small = np.flatnonzero(sides < image_size)
    if not small.size:
        return []
    first = small[int(sides[small].argmin())]
    of = f"of {len(paths):,} images"
    many = counted(small.size, f"{of} is", f"{of} are")
    return [
        enlarged(image_size, int(sides[first]), f"{many} smaller, and {quoted(str(paths[first]), 200)} is")
    ]


def unreadable(paths: Mapping[str, Sequence[Path]], progress: Progress | None) -> list[str]:
    """Which of the images cannot be read; they are made tiny, so that they need no room."""
    try:
        decoded(paths, image_size=1, cache=None, progress=progress)
    except InputProblems as error:
        return error.problems
    return []


def decoded(
    paths: Mapping[str, Sequence[Path]],
    *,
    image_size: int | None,
    cache: str | Path | None,
    progress: Progress | None,
) -> dict[str, Images]:
    """The images of each split; those that cannot be read are refused, those of all splits at once."""
    images, problems = dict[str, Images](), list[str]()
    kept = None if cache is None else Path(cache)
    for name, some in paths.items():
        try:
            images[name] = image_cache.decode(some, size=image_size, cache=kept, progress=progress).images
        except InputProblems as error:  # a set of faces is whole or refused: none can be skipped
            problems += [problem.partition(", or leave them out")[0] for problem in error.problems]
    if len({some.shape[1:] for some in images.values()}) > 1 and not problems:
        told = [f"those of {name} have {i.shape[3]}×{i.shape[2]} pixels" for name, i in images.items()]
        problems.append(f"{', '.join(told)}. Give one size for all, such as image_size=64")
    if problems:
        raise InputProblems(problems)
    return images
