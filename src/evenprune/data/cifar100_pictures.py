"""CIFAR-100 as pictures: PNG images in Parquet tables, or mosaics in WebP. Decoded with Pillow."""

import io
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from evenprune.data.cifar100_places import (
    SIDE,
    SPLITS,
    Arrays,
    Contents,
    Labels,
    Pixels,
    Place,
    as_labels,
    gathering,
    label_file,
    mosaic_files,
    names_in,
    shown,
)
from evenprune.data.image_decoding import pillow
from evenprune.reading import UNREADABLE, listed, refused
from evenprune.tally import InputProblems

MOST = 5  # damaged images of one split that are told one by one
T = TypeVar("T")
Result = TypeVar("Result")


def read(place: Place) -> Contents:
    """Everything that lies there, and all that is wrong with it."""
    contents, image, reader = Contents(), pillow(), _mosaics
    if place.form == "mosaics":
        _read_names(place.path / "meta.json", contents)
    else:
        from evenprune.data.cifar100_parquet import tables as reader  # polars, which mosaics do without
    for split in SPLITS:
        with gathering(contents.problems):
            contents.splits[split] = reader(place.path, split, image)
    return contents


def _decoded(image: Any, source: Any, form: str, where: str) -> Pixels:
    """A picture as [height, width, 3]."""
    trouble = (*UNREADABLE, SyntaxError, IndexError, image.DecompressionBombError)
    try:
        with image.open(source, formats=[form]) as opened:
            return np.asarray(opened if opened.mode == "RGB" else opened.convert("RGB"))
    except trouble as error:
        raise InputProblems([f"{where} is damaged, or no {form}"]) from error


def _in_threads(work: Callable[[T], Result], items: Sequence[T]) -> list[Result]:
    """The results of all items, or the problems of all; Pillow lets other threads run during a WebP."""
    problems = list[str]()

    def gathered(item: T) -> Result | None:
        with gathering(problems):
            return work(item)
        return None

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        results = list(pool.map(gathered, items))
    _raise_some(sorted(problems))
    return [result for result in results if result is not None]


def _raise_some(problems: list[str]) -> None:
    if problems:
        more = [f"… and {len(problems) - MOST:,} more like it"] * (len(problems) > MOST)
        raise InputProblems(problems[:MOST] + more)


def png_images(rows: Sequence[bytes], where: str, image: Any) -> Pixels:
    """One after the other: for pictures this small, threads only get in each other's way."""
    out, problems = np.empty((len(rows), 3, SIDE, SIDE), np.uint8), list[str]()
    for place, row in enumerate(rows):
        with gathering(problems):
            pixels = _decoded(image, io.BytesIO(row), "PNG", f"row {place:,} of {where}")
            if pixels.shape != (SIDE, SIDE, 3):
                size = f"{pixels.shape[1]}×{pixels.shape[0]}"
                raise InputProblems([f"row {place:,} of {where} has {size} pixels, not {SIDE}×{SIDE}"])
            out[place] = pixels.transpose(2, 0, 1)
    _raise_some(problems)
    return out


# --- mosaics ---


def _read_names(path: Path, contents: Contents) -> None:
    if path.is_file():
        with gathering(contents.problems), refused(shown(path)):
            meta = json.loads(path.read_text(encoding="utf-8"))
            contents.names |= {kind: names_in(meta, f"{kind}_label_names") for kind in ("fine", "coarse")}


def _mosaics(folder: Path, split: str, image: Any) -> Arrays:
    files, problems = mosaic_files(folder, split), _gaps(folder, split)
    tiles, fine, coarse = list[Pixels](), as_labels([]), as_labels([])
    with gathering(problems):
        fine, coarse = _label_arrays(label_file(folder, split))
    with gathering(problems):
        tiles = _in_threads(lambda path: _tiles(image, path), files)
    if problems:
        raise InputProblems(problems)
    there = sum(map(len, tiles))
    if not there - len(tiles[-1]) < len(fine) <= there:  # only the last mosaic may be padded
        told = f"{len(files)} {split} mosaics hold {there:,} tiles for {len(fine):,} labels"
        raise InputProblems(
            [f"{shown(folder)}: {told}; the last is {files[-1].name}: is one missing, or one too many?"]
        )
    return np.concatenate(tiles)[: len(fine)], fine, coarse


def _gaps(folder: Path, split: str) -> list[str]:
    """Mosaics that are missing between others would shift the images against their labels."""
    files = mosaic_files(folder, split)
    numbers = {int(path.stem.rpartition("_")[2]) for path in files}
    absent = sorted(set(range(max(len(files), 1))) - numbers)
    return [f"{shown(folder)} lacks {listed([f'{split}_{n:02d}.webp' for n in absent])}"] * bool(absent)


def _tiles(image: Any, path: Path) -> Pixels:
    """The tiles of a mosaic, row by row: [tiles, 3, 32, 32]."""
    mosaic = _decoded(image, path, "WEBP", shown(path))
    rows, columns = mosaic.shape[0] // SIDE, mosaic.shape[1] // SIDE
    if mosaic.shape != (rows * SIDE, columns * SIDE, 3):
        size = f"{mosaic.shape[1]}×{mosaic.shape[0]}"
        raise InputProblems([f"{shown(path)} has {size} pixels, which are no tiles of {SIDE}×{SIDE}"])
    parts = mosaic.reshape(rows, SIDE, columns, SIDE, 3).transpose(0, 2, 4, 1, 3)
    return np.ascontiguousarray(parts).reshape(-1, 3, SIDE, SIDE)


def _label_arrays(path: Path) -> tuple[Labels, Labels]:
    with refused(shown(path)), open(path, "rb") as stream:  # numpy leaves damaged files of its own open
        file = np.load(stream, allow_pickle=False)
        names = list(getattr(file, "files", []))
        if not {"fine", "coarse"} <= set(names):
            raise InputProblems([f"{shown(path)} needs arrays 'fine' and 'coarse'; it has {listed(names)}"])
        arrays = {name: file[name] for name in ("fine", "coarse")}
    problems = [
        f"{shown(path)}: {name!r} is {array.dtype} of shape {list(array.shape)}; labels are whole numbers"
        for name, array in arrays.items()
        if array.ndim != 1 or array.dtype.kind not in "iu"
    ]
    if problems:
        raise InputProblems(problems)
    return as_labels(arrays["fine"]), as_labels(arrays["coarse"])
