"""UTKFace as mosaics: labels.csv and folders of jpgs of many tiles each.

labels.csv       file, age, gender, race (empty: not known); one line a tile, sorted by file
128/utk_00.jpg   tiles of 128×128, row by row; the last mosaic may hold more tiles than there are labels. A
                 folder is named for the side of its tiles, and there may be several
"""

import csv
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from evenprune.data import image_decoding
from evenprune.data.faces import Ids, Images, enlarged
from evenprune.data.image_pool import Progress, shown
from evenprune.reading import counted, listed, quoted, refused
from evenprune.tally import InputProblems

Row = tuple[str, str, str, str]  # file, age, gender, race; race may be empty

# Of an original jpg. The date has 17 digits, and not always a dot or nothing else behind it.
NAME = re.compile(r"(\d{1,3})_([01])_(?:([0-4])_)?\d{12,}\D.*")
MOSAIC = re.compile(r"utk_(\d+)\.jpg")


def is_mosaics(folder: Path) -> bool:
    """Whether a folder holds mosaics, and is named for the side of their tiles."""
    return folder.name.isdecimal() and any(MOSAIC.fullmatch(path.name) for path in folder.iterdir())


def rows(place: Path) -> list[Row]:
    """The lines of labels.csv, checked."""
    path = place / "labels.csv"
    name = quoted(str(path), 300)
    with refused(name, str(path)), open(path, newline="", encoding="utf-8-sig") as file:
        lines = list(csv.DictReader(file))
    wanted = ("file", "age", "gender", "race")
    if not lines or not set(wanted) <= set(lines[0]):
        there = listed([str(column) for column in lines[0]]) if lines else "no lines"
        raise InputProblems([f"{name} needs the columns {', '.join(wanted)}; it has {there}"])
    found = [(r["file"] or "", r["age"] or "", r["gender"] or "", r["race"] or "") for r in lines]
    problems = [f"{name}: {problem}" for problem in _row_problems(found)]
    if problems:
        raise InputProblems(problems)
    return found


def _row_problems(found: list[Row]) -> Iterator[str]:
    for place, (column, pattern) in enumerate(
        (("age", r"\d{1,3}"), ("gender", "[01]"), ("race", "[0-4]?")), start=1
    ):
        wrong = [row for row in found if not re.fullmatch(pattern, row[place])]
        if wrong:
            first = f"{quoted(wrong[0][place])} of {quoted(wrong[0][0])}"
            many = counted(len(wrong), f"value of {column} is", f"values of {column} are")
            yield f"{many} not known (the first is {first})"
    later = [after[0] for before, after in itertools.pairwise(found) if after[0] <= before[0]]
    if later:
        yield (
            f"the files are not in sorted order, each once (the first out of place is {quoted(later[0])}): "
            "the split depends on it"
        )


def images(
    place: Path, orders: Mapping[str, Ids], *, count: int, image_size: int | None, progress: Progress | None
) -> dict[str, Images]:
    """The tiles of each order, of which there are `count` in all, brought to image_size."""
    side, mosaics = _mosaics(place, image_size)
    starts, wanted, image = _starts(mosaics, side, count), image_size or side, image_decoding.pillow()
    out = {name: np.empty((len(order), 3, wanted, wanted), np.uint8) for name, order in orders.items()}
    places = {name: np.full(starts[-1], -1, dtype=np.int64) for name in orders}  # [tiles] places in an order
    for name, order in orders.items():
        places[name][order] = np.arange(len(order))

    def read(at: int) -> None:
        own = {name: every[starts[at] : starts[at + 1]] for name, every in places.items()}
        if not any(bool((some >= 0).any()) for some in own.values()):
            return
        tiles = _tiles(mosaics[at], side, image)
        for name, some in own.items():
            for tile, to in zip(tiles, some.tolist(), strict=True):
                if to >= 0:
                    out[name][to] = tile if wanted == side else _resized(tile, wanted, image)

    problems = list[str]()
    with (
        shown("decoding mosaics", progress) as heard,
        ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool,
    ):
        for at, task in enumerate([pool.submit(read, at) for at in range(len(mosaics))]):
            try:
                task.result()
            except InputProblems as error:
                problems += error.problems
            heard(min(starts[at + 1], count), count)
    if problems:
        raise InputProblems(problems)
    return out


def _mosaics(place: Path, image_size: int | None) -> tuple[int, list[Path]]:
    """The side of the tiles, and the mosaics in their order: the smallest tiles that are large enough."""
    name = quoted(str(place), 300)
    sides = sorted(int(item.name) for item in place.iterdir() if item.is_dir() and item.name.isdecimal())
    if not sides:
        raise InputProblems(
            [f"{name} has labels.csv, but no folder of mosaics named for their tiles, such as 128"]
        )
    fitting = [side for side in sides if image_size is None or side >= image_size]
    if not fitting:
        raise InputProblems([enlarged(image_size or 0, sides[-1], f"the tiles in {name} are")])
    side = fitting[-1] if image_size is None else fitting[0]
    found = {int(m[1]): p for p in (place / str(side)).iterdir() if (m := MOSAIC.fullmatch(p.name))}
    absent = sorted(set(range(max(found, default=0) + 1)) - set(found))
    if absent:
        raise InputProblems([f"{name} lacks {listed([f'{side}/utk_{n:02d}.jpg' for n in absent])}"])
    return side, [found[n] for n in sorted(found)]


def _starts(mosaics: list[Path], side: int, count: int) -> list[int]:
    """The number of the first tile of each mosaic, and of one behind the last: known by their sizes."""
    image = image_decoding.pillow()
    sizes, problems = [0], []
    for path in mosaics:
        name = quoted(str(path), 300)
        try:
            with refused(name), image.open(path, formats=["JPEG"]) as opened:
                width, height = opened.size
        except InputProblems as error:
            problems += error.problems
            continue
        if width % side or height % side:
            problems.append(f"{name} has {width}×{height} pixels, which are no tiles of {side}×{side}")
        sizes.append(sizes[-1] + (width // side) * (height // side))
    if not problems and not sizes[-2] < count <= sizes[-1]:  # only the last mosaic may be padded
        problems.append(f"{quoted(str(mosaics[0].parent), 300)}: {sizes[-1]:,} tiles for {count:,} labels")
    if problems:
        raise InputProblems(problems)
    return sizes


def _tiles(path: Path, side: int, image: Any) -> Images:
    """[tiles, 3, side, side], row by row."""
    try:
        mosaic = image_decoding.pixels(path.read_bytes(), None, image)  # [3, height, width]
    except (OSError, image_decoding.Unreadable) as error:
        raise InputProblems([f"{quoted(str(path), 300)} cannot be read: {error}"]) from None
    rows, columns = mosaic.shape[1] // side, mosaic.shape[2] // side
    return mosaic.reshape(3, rows, side, columns, side).transpose(1, 3, 0, 2, 4).reshape(-1, 3, side, side)


def _resized(tile: Images, side: int, image: Any) -> Images:
    small = image.fromarray(np.ascontiguousarray(tile.transpose(1, 2, 0))).resize(
        (side, side), image.Resampling.BICUBIC
    )
    return np.asarray(small).transpose(2, 0, 1)
