"""CIFAR-100: 60,000 images of 32×32 in 100 classes and 20 superclasses, read from whatever form is there."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from evenprune.data import cifar100_official, cifar100_pictures, cifar100_places
from evenprune.download import Remote, differences
from evenprune.reading import listed, quoted
from evenprune.tally import InputProblems

if TYPE_CHECKING:
    from evenprune.recipe import Split

# Deviations and means of the channels over all pixels of the training images, divided by 255.
MEAN = (0.50707516, 0.48654887, 0.44091784)
STD = (0.26733429, 0.25643846, 0.27615047)
COUNTS = {"train": 500, "test": 100}  # images of each class

ARCHIVES = {  # as published at https://www.cs.toronto.edu/~kriz/cifar.html
    "python": Remote(
        url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        size=169_001_437,
        checksums={
            "md5": "eb9058c3a382ffc7106e4002c42a8d85",
            "sha256": "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        },
    ),
    "binary": Remote(
        url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        size=168_513_733,
        checksums={
            "md5": "03b5dce01913d631647c71ecec9e9cb8",
            "sha256": "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        },
    ),
}

MEMBERS = {
    "aquatic_mammals": "beaver dolphin otter seal whale",
    "fish": "aquarium_fish flatfish ray shark trout",
    "flowers": "orchid poppy rose sunflower tulip",
    "food_containers": "bottle bowl can cup plate",
    "fruit_and_vegetables": "apple mushroom orange pear sweet_pepper",
    "household_electrical_devices": "clock keyboard lamp telephone television",
    "household_furniture": "bed chair couch table wardrobe",
    "insects": "bee beetle butterfly caterpillar cockroach",
    "large_carnivores": "bear leopard lion tiger wolf",
    "large_man-made_outdoor_things": "bridge castle house road skyscraper",
    "large_natural_outdoor_scenes": "cloud forest mountain plain sea",
    "large_omnivores_and_herbivores": "camel cattle chimpanzee elephant kangaroo",
    "medium_mammals": "fox porcupine possum raccoon skunk",
    "non-insect_invertebrates": "crab lobster snail spider worm",
    "people": "baby boy girl man woman",
    "reptiles": "crocodile dinosaur lizard snake turtle",
    "small_mammals": "hamster mouse rabbit shrew squirrel",
    "trees": "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "vehicles_1": "bicycle bus motorcycle pickup_truck train",
    "vehicles_2": "lawn_mower rocket streetcar tank tractor",
}
SUPERCLASSES = tuple(MEMBERS)  # in the order of the coarse labels
CLASSES = tuple(sorted(name for names in MEMBERS.values() for name in names.split()))  # fine labels
SUPERCLASS_OF = np.array(  # [100] the coarse label of each fine one
    [next(i for i, names in enumerate(MEMBERS.values()) if c in names.split()) for c in CLASSES]
)

Groups = Literal["class", "superclass"]
GROUPS = {"class": CLASSES, "superclass": SUPERCLASSES}


@dataclass(frozen=True)
class Images:
    images: NDArray[np.uint8]  # [N, 3, 32, 32]
    fine: NDArray[np.int64]  # [N] places in CLASSES
    coarse: NDArray[np.int64]  # [N] places in SUPERCLASSES

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        return f"{len(self):,} images of {len(np.unique(self.fine))} classes"


@dataclass(frozen=True)
class Cifar100:
    train: Images
    test: Images
    classes: tuple[str, ...]  # 100
    superclasses: tuple[str, ...]  # 20
    groups: tuple[str, ...]  # the names of the groups in use: one of the two

    def __repr__(self) -> str:
        return f"CIFAR-100: {self.train!r} to train on, {self.test!r} to test on, {len(self.groups)} groups"


def load(folder: str | Path, *, groups: Groups = "class", strict: bool = True) -> Cifar100:
    """CIFAR-100 from a folder or an archive: official (python, binary), Parquet, or mosaics.

    Labels, names and superclasses are always checked. `strict` also demands the official number of images
    of every class, and of an archive by its official name the published checksums. The samples keep the order
    of the files, which may be by class: shuffle them.
    """
    problems = _unknown_groups(groups)
    try:
        place = cifar100_places.find(Path(folder))
        pictures = place.form in ("Parquet", "mosaics")
        contents = (cifar100_pictures if pictures else cifar100_official).read(place)
    except InputProblems as error:
        raise InputProblems(problems + error.problems) from None
    problems += contents.problems
    problems += _unofficial(place.path) if strict and place.form == "archive" else []
    for kind, names in contents.names.items():
        problems += _name_problems(f"{quoted(str(place.path), 300)}: {kind}_label_names", kind, names)
    splits = {name: Images(*arrays) for name, arrays in contents.splits.items()}
    for name, images in splits.items():
        where = f"{name} images in {quoted(str(place.path), 300)}"
        problems += [f"{where}: {problem}" for problem in _problems(images, COUNTS[name] if strict else None)]
    if problems:
        raise InputProblems(problems)
    return Cifar100(splits["train"], splits["test"], CLASSES, SUPERCLASSES, GROUPS[groups])


def split(images: Images, groups: Groups | Sequence[str] = "class") -> "Split":
    """The samples as fit() and prune() take them: tensors that share memory with the arrays, labels = fine
    classes, normalised by MEAN and STD when they are used; prune() knows the names of the groups.

    `groups` is "class", "superclass", or the names in use, `Cifar100.groups`.
    """
    import torch

    from evenprune.data.named_split import NamedSplit
    from evenprune.recipe import Split

    word = groups if isinstance(groups, str) else _word_for(groups)
    problems = _unknown_groups(word)
    if problems:
        raise InputProblems(problems)
    own = Split(
        inputs=torch.from_numpy(images.images),
        labels=torch.from_numpy(images.fine),
        groups=torch.from_numpy(images.fine if word == "class" else images.coarse),
        mean=torch.tensor(MEAN),
        std=torch.tensor(STD),
    )
    return NamedSplit.of(own, GROUPS[word])


def _word_for(names: Sequence[str]) -> str:
    return next((word for word, known in GROUPS.items() if tuple(names) == known), listed(names, 3))


def _unknown_groups(groups: str) -> list[str]:
    if groups in GROUPS:
        return []
    return [f'groups is {quoted(groups)}; it is "class" (100 groups) or "superclass" (20 groups)']


# --- checks ---


def _unofficial(path: Path) -> list[str]:
    """How an archive by an official name differs from the published one."""
    remote = next((remote for remote in ARCHIVES.values() if remote.name == path.name), None)
    wrong = [] if remote is None else differences(path, remote)
    if remote is None or not wrong:
        return []
    return [
        f"{quoted(str(path), 300)} is not the archive published at {remote.url}: {'; '.join(wrong)}. Fetch "
        "it again, or read what is there with strict=False"
    ]


def _name_problems(where: str, kind: str, names: list[str]) -> list[str]:
    """Other names, or another order of them, mean that the labels stand for something else."""
    known = CLASSES if kind == "fine" else SUPERCLASSES
    if len(names) != len(known):
        return [f"{where} holds {len(names)} names; CIFAR-100 has {len(known)}"]
    other = [f"{quoted(n)} for {quoted(k)}" for n, k in zip(names, known, strict=True) if n != k]
    return [f"{where} is not that of CIFAR-100: {', '.join(other[:3])}{' …' * (len(other) > 3)}"] * bool(
        other
    )


def _problems(images: Images, per_class: int | None) -> Iterator[str]:
    sizes = {"images": len(images), "fine labels": len(images.fine), "coarse labels": len(images.coarse)}
    if len(set(sizes.values())) > 1:
        yield f"unequal numbers: {', '.join(f'{count:,} {what}' for what, count in sizes.items())}"
        return
    outside = [
        *_outside(images.fine, "fine", len(CLASSES)),
        *_outside(images.coarse, "coarse", len(SUPERCLASSES)),
    ]
    yield from outside
    if not outside:
        yield from _wrong_superclasses(images)
        yield from _wrong_counts(images, per_class)


def _outside(labels: NDArray[np.int64], kind: str, count: int) -> Iterator[str]:
    wrong = np.flatnonzero((labels < 0) | (labels >= count))
    if wrong.size:
        first = int(wrong[0])
        yield (
            f"{wrong.size:,} {kind} labels outside 0 … {count - 1}; "
            f"the first is {labels[first]} of sample {first:,}"
        )


def _wrong_superclasses(images: Images) -> Iterator[str]:
    wrong = np.flatnonzero(images.coarse != SUPERCLASS_OF[images.fine])
    if wrong.size:
        first = int(wrong[0])
        fine, coarse = int(images.fine[first]), int(images.coarse[first])
        yield (
            f"{wrong.size:,} samples in a superclass that is not theirs; the first is sample {first:,}, "
            f"class {CLASSES[fine]!r}, which belongs to {SUPERCLASSES[SUPERCLASS_OF[fine]]!r}, "
            f"not {SUPERCLASSES[coarse]!r}"
        )


def _wrong_counts(images: Images, per_class: int | None) -> Iterator[str]:
    if not len(images):
        yield "there are none"
    elif per_class is not None:
        counts = np.bincount(images.fine, minlength=len(CLASSES))
        wrong = np.flatnonzero(counts != per_class)
        if wrong.size:
            each = ", ".join(f"{CLASSES[c]} {counts[c]:,}" for c in wrong[:3])
            due = per_class * len(CLASSES)
            total = f"{len(images):,} instead of {due:,}; " if len(images) != due else ""
            yield (
                f"{total}not {per_class} of each class: {each}{' …' * (wrong.size > 3)}. "
                "The files are not complete, or not the official ones"
            )
