"""The official archives of CIFAR-100, packed or unpacked: cifar-100-python and cifar-100-binary."""

import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from evenprune.data import array_pickle
from evenprune.data.cifar100_places import (
    SIDE,
    SPLITS,
    Arrays,
    Contents,
    Place,
    as_labels,
    gathering,
    names_in,
    shown,
)
from evenprune.reading import listed, refused
from evenprune.tally import InputProblems

PYTHON = ("meta", "train", "test")
BINARY = ("fine_label_names.txt", "coarse_label_names.txt", "train.bin", "test.bin")
ROW = 2 + 3 * SIDE * SIDE  # bytes of a sample in the binary form
LARGEST = 1 << 29  # bytes of one file in an archive; the real ones have 155 million at the most


def read(place: Place) -> Contents:
    """Everything that lies there, and all that is wrong with it."""
    files, problems = _unpacked(place.path) if place.form == "archive" else _opened(place)
    contents = Contents(problems=problems)
    binary = any(name.endswith(".bin") for name in files) or place.form == "cifar-100-binary"
    _read_names(files, place.path, contents)
    for split in SPLITS:
        name = f"{split}.bin" if binary else split
        if name in files:
            with gathering(problems):
                where = f"{name} in {shown(place.path)}"
                contents.splits[split] = (_binary if binary else _pickled)(files[name], where)
        else:
            problems.append(f"{shown(place.path)} has no file {name}, the {split} images")
    return contents


def _opened(place: Place) -> tuple[dict[str, bytes], list[str]]:
    """The files of a folder that are needed."""
    files, problems = dict[str, bytes](), list[str]()
    for name in PYTHON if place.form == "cifar-100-python" else BINARY:
        path = place.path / name
        if path.is_file():
            with gathering(problems), refused(shown(path)):
                files[name] = path.read_bytes()
    return files, problems


def _unpacked(path: Path) -> tuple[dict[str, bytes], list[str]]:
    """The files of an archive that are needed, in memory: nothing is written anywhere."""
    files, problems = dict[str, bytes](), list[str]()
    try:
        with tarfile.open(path, "r:*") as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                if not member.isfile() or name not in PYTHON + BINARY or name in files:
                    continue
                if member.size > LARGEST:
                    problems.append(
                        f"{shown(path)}: {name} has {member.size:,} bytes, too many for CIFAR-100"
                    )
                elif (content := archive.extractfile(member)) is not None:
                    files[name] = content.read()
            _read_to_the_end(archive.fileobj)
    except (tarfile.TarError, OSError, EOFError, zlib.error, ValueError) as error:
        problems.append(f"{shown(path)} is damaged or cut short ({error}); fetch it again")
    return files, problems


def _read_to_the_end(stream: Any) -> None:
    """The checksum of a packed stream stands behind its last byte, and is compared there."""
    while stream.read(1 << 20):
        pass


def _read_names(files: dict[str, bytes], path: Path, contents: Contents) -> None:
    for kind in ("fine", "coarse"):
        if f"{kind}_label_names.txt" in files:
            text = files[f"{kind}_label_names.txt"].decode("utf-8", "backslashreplace")
            contents.names[kind] = text.split()
    if "meta" in files:
        with gathering(contents.problems):
            meta = _plain(files["meta"], f"meta in {shown(path)}")
            for kind in ("fine", "coarse"):
                contents.names[kind] = names_in(meta, f"{kind}_label_names")


def _plain(data: bytes, where: str) -> dict[str, Any]:
    try:
        return array_pickle.read(data)
    except array_pickle.NotPlainData as error:
        raise InputProblems([f"{where} cannot be read: {error}"]) from error


def _pickled(data: bytes, where: str) -> Arrays:
    fields, problems = _plain(data, where), list[str]()
    pixels = fields.get("data")
    if not isinstance(pixels, np.ndarray) or pixels.shape[1:] != (ROW - 2,):
        shape = f"shape {list(pixels.shape)}" if isinstance(pixels, np.ndarray) else "no array"
        problems.append(f"{where}: 'data' has {shape}; rows of {ROW - 2} bytes are expected")
    for key in ("fine_labels", "coarse_labels"):
        if not isinstance(fields.get(key), list) or not all(type(v) is int for v in fields[key]):
            problems.append(f"{where}: {key!r} is no list of whole numbers; it has {listed(list(fields))}")
        elif any(not 0 <= label < 256 for label in fields[key]):
            problems.append(f"{where}: {key!r} holds labels outside 0 … 255")
    if problems:
        raise InputProblems(problems)
    images = np.array(pixels).reshape(-1, 3, SIDE, SIDE)  # a copy that may be written to
    return images, as_labels(fields["fine_labels"]), as_labels(fields["coarse_labels"])


def _binary(data: bytes, where: str) -> Arrays:
    if not data or len(data) % ROW:
        raise InputProblems(
            [f"{where} has {len(data):,} bytes, which are no rows of {ROW:,}: it is cut short"]
        )
    rows = np.frombuffer(data, np.uint8).reshape(-1, ROW)
    images = np.array(rows[:, 2:]).reshape(-1, 3, SIDE, SIDE)
    return images, as_labels(rows[:, 1]), as_labels(rows[:, 0])
