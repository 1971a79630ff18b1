"""Which images a folder holds, with what labels: by a table of paths, or by one folder per class."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from evenprune import formats
from evenprune.data.image_decoding import SUFFIXES
from evenprune.data.labelled import WORDS, Listing
from evenprune.formats import Table, missing_columns, open_table
from evenprune.groups import is_missing
from evenprune.reading import listed, quoted
from evenprune.tally import InputProblems

SHOWN = 5  # examples in a message
USUAL_SPLIT = "split"  # a table need not have this column; one of another name must be there


@dataclass(frozen=True)
class Names:
    """The columns of a table that count."""

    path: str
    label: str
    groups: Sequence[str]
    split: str | None

    def needed(self, table: Table) -> list[str]:
        split = [] if self.split is None or not self._has_split(table) else [self.split]
        return [self.path, self.label, *self.groups, *split]

    def _has_split(self, table: Table) -> bool:
        return self.split != USUAL_SPLIT or USUAL_SPLIT in table.columns


@dataclass(frozen=True)
class Found:
    """The images of a folder, what is known of them, and all that is wrong with that."""

    paths: list[Path]  # those that exist
    listing: Listing  # of these alone
    problems: list[str]


# --- by a table ---


def by_table(folder: Path, source: Path, names: Names) -> Found:
    place = source if source.exists() or source.is_absolute() else folder / source
    wanted = [names.path, names.label, *names.groups, *([names.split] if names.split else [])]
    table = open_table(str(place if place.exists() else source), wanted)
    problems = missing_columns(table, names.needed(table))
    there = [name for name in dict.fromkeys(names.needed(table)) if name in table.columns]
    values = _values(table, there, str(place))
    if names.path not in values:
        raise InputProblems(problems + _folder_problems(folder))
    rows, paths, more = _files(folder, values[names.path])
    problems += _folder_problems(folder) or more
    kept = {name: [column[row] for row in rows] for name, column in values.items()}
    listing = Listing(
        where=table.name,
        names=[os.path.relpath(path, folder) for path in paths],
        labels=kept.get(names.label),
        columns={name: kept[name] for name in names.groups if name in kept},
        splits=kept.get(names.split) if names.split else None,
    )
    return Found(paths, listing, problems)


def _values(table: Table, names: Sequence[str], source: str) -> dict[str, list[Any]]:
    """The columns as lists; everything that a message needs is small beside the images."""
    with formats.refused(table.name, source):
        frame = table.frame.select(table.column(name) for name in names).collect()
    nested = [name for name in names if frame[name].dtype.is_nested() or frame[name].dtype == pl.Object]
    if nested:
        raise InputProblems(
            [f"{table.name}: column {quoted(name)} holds {frame[name].dtype}" for name in nested]
        )
    return {name: frame[name].to_list() for name in names}


def _folder_problems(folder: Path) -> list[str]:
    return [] if folder.is_dir() else [f"there is no folder {quoted(str(folder), 300)}"]


def _files(folder: Path, values: list[Any]) -> tuple[list[int], list[Path], list[str]]:
    """Rows whose file exists and comes for the first time, these files, and what is wrong with the others."""
    problems = []
    empty = [row for row, value in enumerate(values, start=1) if is_missing(value)]
    if empty:
        where = f"row {listed(empty, SHOWN)}, counted from 1 below the header"
        problems.append(f"the path is missing in {len(empty):,} of {len(values):,} rows: {where}")
    named = {row: folder / str(v).replace("\\", "/") for row, v in enumerate(values) if not is_missing(v)}
    absent = [path for path in named.values() if not path.is_file()]
    if absent:
        examples = listed(_relative(absent, folder), SHOWN) + _hint(absent)
        problems.append(f"{len(absent):,} of {len(values):,} files are missing: {examples}")
    times = Counter(map(os.path.normpath, named.values()))
    twice = [Path(path) for path, count in times.items() if count > 1]
    if twice:
        examples = listed(_relative(twice, folder), SHOWN)
        many = f"{len(twice):,} images" if len(twice) > 1 else "one image"
        problems.append(f"the table names {many} more than once: {examples}")
    gone = set(absent)
    rows = {os.path.normpath(path): row for row, path in reversed(named.items()) if path not in gone}
    return sorted(rows.values()), [named[row] for row in sorted(rows.values())], problems


def _relative(paths: Sequence[Path], folder: Path) -> list[str]:
    return [os.path.relpath(path, folder) for path in paths]


def _hint(absent: Sequence[Path]) -> str:
    """Names without their ending are a common slip."""
    for path in absent[:SHOWN]:
        for suffix in SUFFIXES:
            if path.with_name(path.name + suffix).is_file():
                return f"; there is {quoted(path.name + suffix)}: write the names with their ending"
    return ""


# --- by folders ---


def by_folders(folder: Path, names: Names) -> Found:
    """folder/CLASS/x.jpg, or folder/train/CLASS/x.jpg and folder/test/CLASS/x.jpg."""
    problems = _folder_problems(folder)
    if problems:
        raise InputProblems(problems)
    inside = _folders(folder)
    parts = [part for part in inside if part.name.lower() in WORDS]
    split = bool(parts) and len(parts) == len(inside)
    classes = (
        [(part.name, own) for part in parts for own in _folders(part)] if split else [("", f) for f in inside]
    )
    found = [(part, own.name, path) for part, own in classes for path in _images(own)]
    if not found:
        raise InputProblems([_no_images(folder)])
    other = [name for name in names.groups if name != names.label]
    if other:
        problems.append(
            f"without a table the class is the only attribute, {quoted(names.label)}; for group column "
            f"{listed(other)} give a table"
        )
    labels = [label for _, label, _ in found]
    paths = [path for _, _, path in found]
    listing = Listing(
        where=quoted(str(folder), 300),
        names=_relative(paths, folder),
        labels=labels,
        columns={name: labels for name in names.groups if name == names.label},
        splits=[part for part, _, _ in found] if split else None,
    )
    return Found(paths, listing, problems)


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _images(folder: Path) -> list[Path]:
    found = (path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    return sorted(path for path in found if not path.name.startswith(".") and path.is_file())


def _no_images(folder: Path) -> str:
    loose = any(path.suffix.lower() in SUFFIXES for path in folder.iterdir())
    tables = [path.name for path in sorted(folder.iterdir()) if path.suffix.lower() in formats.SUFFIXES]
    where = quoted(str(folder), 300)
    told = f"{where} holds images, but no folders of classes" if loose else f"{where} has no images"
    hint = f", such as {tables[0]}" if tables else ""
    return f"{told}; give a table of paths and labels{hint}, or put the images of each class into a folder"
