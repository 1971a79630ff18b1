"""Which images a folder holds, with what labels: by a table of paths, or by one folder per class."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from evenprune import formats
from evenprune.data import utkface_mosaics
from evenprune.data.image_decoding import SUFFIXES
from evenprune.data.labelled import WORDS, Listing
from evenprune.formats import Table, missing_columns, open_table
from evenprune.groups import is_missing
from evenprune.reading import counted, listed, quoted
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
    if values[names.path] and not paths:
        raise InputProblems(problems)  # it lists samples, but none is there
    kept = {name: [column[row] for row in rows] for name, column in values.items()}
    gone = sorted(set(range(len(values[names.path]))) - set(rows))
    splits = values.get(names.split) if names.split else None
    listing = Listing(
        where=table.name,
        names=[os.path.relpath(path, folder) for path in paths],
        labels=kept.get(names.label),
        columns={name: kept[name] for name in names.groups if name in kept},
        splits=kept.get(names.split) if names.split else None,
        lost=[None if splits is None else splits[row] for row in gone],
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
    absent = {row: why for row, path in named.items() if (why := _absence(path)) is not None}
    if absent:
        lost = [named[row] for row in absent]
        reasons = [f" ({why})" if why else "" for why in absent.values()]
        told = [quoted(n) + why for n, why in zip(_relative(lost, folder), reasons, strict=True)]
        many = counted(len(absent), f"of {len(values):,} files is", f"of {len(values):,} files are")
        problems.append(f"{many} missing: {_examples(told)}; {_hint(lost, folder)}")
    there = [row for row in named if row not in absent]
    same = _same([named[row] for row in there])
    gone = Counter(os.path.normpath(named[row]) for row in absent)
    twice = [_also([named[there[i]] for i in places], folder) for places in same if len(places) > 1]
    twice += [_also([Path(path)], folder) for path, count in gone.items() if count > 1]
    if twice:
        many = f"{len(twice):,} images" if len(twice) > 1 else "one image"
        problems.append(f"the table names {many} more than once: {_examples(twice)}")
    rows = sorted(there[places[0]] for places in same)
    return rows, [named[row] for row in rows], problems


def _absence(path: Path) -> str | None:
    """None for a file that is there; else why it cannot be, if the system says more than that."""
    try:
        return None if path.is_file() else ""
    except OSError as error:
        return error.strerror or str(error)
    except ValueError as error:  # no name of a file, such as one with a zero byte
        return str(error)


def _same(paths: Sequence[Path]) -> list[list[int]]:
    """The places of each file: several where it comes more than once, by links or other spellings too."""
    folders: dict[str, str] = {}  # most files share theirs, and to resolve one takes many calls
    found: dict[str, list[int]] = {}
    for place, path in enumerate(paths):
        parent, name = os.path.split(os.path.normpath(path) if ".." not in path.parts else path)
        if name in ("", ".."):
            real = os.path.realpath(path)
        else:
            if parent not in folders:
                folders[parent] = os.path.realpath(parent)
            real = os.path.join(folders[parent], name)
            real = os.path.realpath(real) if os.path.islink(real) else real
        found.setdefault(real, []).append(place)
    return list(found.values())


def _also(paths: Sequence[Path], folder: Path) -> str:
    """All names of one file."""
    return " = ".join(quoted(name) for name in dict.fromkeys(_relative(paths, folder)))


def _examples(texts: Sequence[str]) -> str:
    more = len(texts) - SHOWN
    return ", ".join(texts[:SHOWN]) + (f" … and {more:,} more" if more > 0 else "")


def _relative(paths: Sequence[Path], folder: Path) -> list[str]:
    return [os.path.relpath(path, folder) for path in paths]


def _hint(absent: Sequence[Path], folder: Path) -> str:
    """What to do: names without their ending, and with the folder itself in front, are common slips."""
    for path in absent[:SHOWN]:
        for suffix in SUFFIXES:
            if path.name and _absence(path.parent / (path.name + suffix)) is None:
                return f"there is {quoted(path.name + suffix)}: write the names with their ending"
        inner = Path(*path.relative_to(folder).parts[1:]) if path.is_relative_to(folder) else Path()
        if inner.parts and _absence(folder / inner) is None:
            return f"there is {quoted(str(inner))}: paths are relative to {quoted(str(folder), 300)}"
    where = quoted(str(folder), 300)
    return f"paths are relative to {where}: put the files there, or take their rows out of the table"


# --- by folders ---


def by_folders(folder: Path, names: Names) -> Found:
    """folder/CLASS/x.jpg, or folder/train/CLASS/x.jpg and folder/test/CLASS/x.jpg.

    It is split if train and test hold folders of images, or if no other folder holds any.
    """
    problems = _folder_problems(folder)
    if problems:
        raise InputProblems(problems)
    inside = _folders(folder)
    if (folder / "labels.csv").is_file() and any(utkface_mosaics.is_mosaics(own) for own in inside):
        told = "holds UTKFace as mosaics, many faces to an image, and no folder per class"
        raise InputProblems([f"{quoted(str(folder), 300)} {told}; {_reader('utkface', folder)}"])
    parts = {
        part: [(part.name, own.name, path) for own in _folders(part) for path in _images(own)]
        for part in inside
        if part.name.lower() in WORDS
    }
    others = {own: paths for own in inside if own not in parts and (paths := _images(own))}
    held = {WORDS[part.name.lower()] for part, inner in parts.items() if inner}
    split = held >= {"train", "test"} or (bool(parts) and not others)
    if split:
        found = [image for inner in parts.values() for image in inner]
    else:
        found = [("", own.name, path) for own in inside for path in others.get(own) or _images(own)]
    if not found:
        raise InputProblems([_no_images(folder)])
    if split and others:
        many = counted(sum(map(len, others.values())), "image lies", "images lie")
        problems.append(
            f"{quoted(str(folder), 300)} has train and test, but {many} beside them, in "
            f"{listed([own.name for own in others], SHOWN)}: move them into a split, or out of the folder"
        )
    other = [name for name in names.groups if name != names.label]
    if other:
        problems.append(
            f"without a table the class is the only attribute, {quoted(names.label)}; for group column "
            f"{listed(other)} give a table"
        )
    labels = [label for _, label, _ in found]
    paths = [path for _, _, path in found]
    twice = [_also([paths[i] for i in places], folder) for places in _same(paths) if len(places) > 1]
    if twice:
        many = f"{len(twice):,} files are" if len(twice) > 1 else "one file is"
        problems.append(f"{many} there more than once, by links: {_examples(twice)}")
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
    """Also those of folders inside, but nothing that is hidden, as copies of editors are."""
    found = (path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    return sorted(path for path in found if not _hidden(path.relative_to(folder)) and path.is_file())


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _no_images(folder: Path) -> str:
    loose = any(path.suffix.lower() in SUFFIXES for path in folder.iterdir())
    tables = [path.name for path in sorted(folder.iterdir()) if path.suffix.lower() in formats.SUFFIXES]
    where = quoted(str(folder), 300)
    told = f"{where} holds images, but no folders of classes" if loose else f"{where} has no images"
    hint = f", such as {tables[0]}" if tables else ""
    put = f"give a table of paths and labels{hint}, or put the images of each class into a folder"
    known = _known(folder)
    return f"{told}; {put}" + (f". Is it {known}? Then {_reader(known.lower(), folder)}" if known else "")


def _known(folder: Path) -> str:
    """A well-known set of faces, told by the names of its files; else nothing."""
    names = [path.name for path in folder.iterdir()]
    if any(re.fullmatch(r"fairface_label_\w+\.csv", name) for name in names):
        return "FairFace"
    return "UTKFace" if any(utkface_mosaics.NAME.fullmatch(name) for name in names) else ""


def _reader(name: str, folder: Path) -> str:
    return f"read it from Python: evenprune.data.{name}.load({quoted(str(folder), 300)})"
