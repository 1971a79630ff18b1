"""Which of the forms in which CIFAR-100 is handed round lies in a folder.

cifar-100-python   two pickles, train and test: `data` [N, 3072] (1024 red, 1024 green, 1024 blue), labels
cifar-100-binary   train.bin, test.bin: rows of a coarse label, a fine label and 3072 pixels in that order
Parquet            train*.parquet, test*.parquet: PNG images in `img` or `image`, fine_label, coarse_label
mosaics            train_00.webp …: tiles of 32×32, row by row, and {train,test}_labels.npz (fine, coarse)
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenprune.reading import listed, quoted
from evenprune.tally import InputProblems

Pixels = NDArray[np.uint8]  # [N, 3, 32, 32]
Labels = NDArray[np.int64]  # [N]
Arrays = tuple[Pixels, Labels, Labels]  # images, fine labels, coarse labels

SPLITS = ("train", "test")
SIDE = 32
SUBFOLDERS = ("cifar-100-python", "cifar-100-binary", "cifar100", "data")
ARCHIVES = ("cifar-100-python.tar.gz", "cifar-100-binary.tar.gz")
FORMS = {
    "cifar-100-python": "files train, test, meta",
    "cifar-100-binary": "files train.bin, test.bin",
    "archive": " or ".join(ARCHIVES),
    "Parquet": "train*.parquet, test*.parquet",
    "mosaics": "train_00.webp …, test_00.webp …, train_labels.npz, test_labels.npz",
}


@dataclass(frozen=True)
class Place:
    form: str  # a key of FORMS
    path: Path  # the archive, or the folder that holds the files


@dataclass
class Contents:
    """What was read, and what was wrong with it."""

    splits: dict[str, Arrays] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)  # "fine", "coarse": the names in the files
    problems: list[str] = field(default_factory=list)


@contextmanager
def gathering(problems: list[str]) -> Iterator[None]:
    """Let the work go on after a problem, which joins the others."""
    try:
        yield
    except InputProblems as error:
        problems += error.problems


def shown(path: Path) -> str:
    return quoted(str(path), 300)


def as_labels(values: Any) -> Labels:
    return np.asarray(values).astype(np.int64)


def names_in(fields: Any, key: str) -> list[str]:
    """A list of names out of a dictionary that a file holds; empty if there is none."""
    value = fields.get(key) if isinstance(fields, dict) else None
    return [str(name) for name in value] if isinstance(value, list) else []


def find(path: Path) -> Place:
    """The one form that lies there; an error that says what was looked for if there is none, or several."""
    if path.is_file():
        if ".tar" in path.suffixes or path.suffix == ".tgz":
            return Place("archive", path)
        raise InputProblems(
            [f"{shown(path)} is neither a folder nor a .tar.gz of CIFAR-100. {_looked_for()}"]
        )
    if not path.is_dir():
        raise InputProblems([f"{shown(path)} does not exist. {_fetch(path)}"])
    found = _unpacked_once([place for folder in _folders(path) for place in _places(folder)])
    if len(found) > 1:
        each = "; ".join(f"{shown(place.path)} ({place.form})" for place in found)
        raise InputProblems([f"{shown(path)} holds CIFAR-100 more than once: {each}. Name the one to read."])
    if not found:
        raise InputProblems([_nothing(path)])
    return found[0]


def _unpacked_once(places: list[Place]) -> list[Place]:
    """An archive beside the folder that it was unpacked to is one: the archive, which is whole or refused."""
    names = {place.path for place in places if place.form == "archive"}
    return [place for place in places if place.path.with_name(f"{place.path.name}.tar.gz") not in names]


def _folders(path: Path) -> Iterator[Path]:
    yield path
    yield from (path / name for name in SUBFOLDERS if (path / name).is_dir())


def _places(folder: Path) -> Iterator[Place]:
    if any((folder / split).is_file() for split in SPLITS):
        yield Place("cifar-100-python", folder)
    if any((folder / f"{split}.bin").is_file() for split in SPLITS):
        yield Place("cifar-100-binary", folder)
    if any(parquet_files(folder, split) for split in SPLITS):
        yield Place("Parquet", folder)
    if any(mosaic_files(folder, split) or label_file(folder, split).is_file() for split in SPLITS):
        yield Place("mosaics", folder)
    yield from (Place("archive", folder / name) for name in ARCHIVES if (folder / name).is_file())


def parquet_files(folder: Path, split: str) -> list[Path]:
    return sorted([*folder.glob(f"{split}*.parquet"), *folder.glob(f"{split}/*.parquet")])


def mosaic_files(folder: Path, split: str) -> list[Path]:
    """In the order of their numbers."""
    found = (p for p in folder.glob(f"{split}_*.webp") if re.fullmatch(rf"{split}_[0-9]+", p.stem))
    return sorted(found, key=lambda path: int(path.stem.rpartition("_")[2]))


def label_file(folder: Path, split: str) -> Path:
    return folder / f"{split}_labels.npz"


def _nothing(path: Path) -> str:
    there = sorted(f"{item.name}/" if item.is_dir() else item.name for item in path.iterdir())
    found = f"It holds {listed(there)}." if there else "It is empty."
    half = [name for name in ARCHIVES if (path / f"{name}.part").is_file()]
    unfinished = f" {half[0]}.part is an unfinished download." if half else ""
    return f"{shown(path)} holds no CIFAR-100. {found}{unfinished} {_looked_for()} {_fetch(path)}"


def _looked_for() -> str:
    forms = "; ".join(f"{form} ({files})" for form, files in FORMS.items())
    return f"Looked for, in it and in its subfolders {', '.join(SUBFOLDERS)}: {forms}."


def _fetch(path: Path) -> str:
    return f"To fetch it: evenprune data get cifar100 --to {shown(path)}"
