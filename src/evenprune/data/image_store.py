"""The files of an image cache: pairs of pixels and a record, looked up by content, listed and removed.

A pair is `images-KEY-ORDER.npy`, the pixels, and `images-KEY-ORDER.json`, which says what was left out, where
the images come from, and how they are ordered: KEY stands for the set of images, ORDER for their sequence.
Names tell contents apart, so that processes may write side by side. Any pair may be removed at any time.
"""

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from evenprune import atomic
from evenprune.data.image_decoding import Pixels
from evenprune.reading import UNREADABLE

Images = NDArray[np.uint8]  # [N, 3, height, width]

FOLDER = Path("runs") / "image-cache"  # of the command line
VERSION = 2  # of the files and of the way to decode
MOST_COPIED = 2**32  # bytes; larger caches are not copied into memory to be ordered anew
# What a damaged pair of files raises.
BROKEN: tuple[type[BaseException], ...] = (*UNREADABLE, TypeError, KeyError, AttributeError)
NAME = re.compile(r"images-[0-9a-f]{32}(-[0-9a-f]{8})?\.(npy|json)")  # of a file; without -ORDER: version 1
ABANDONED = 3600.0  # seconds without a change: whoever was writing this temporary file was killed


@dataclass(frozen=True)
class Stored:
    """The images of a pair, in the order in which they were given."""

    images: Images  # of those that could be read
    unread: dict[int, str]  # by place: why the others are left out
    ranks: NDArray[np.int64]  # [given] the place of each in an order that does not depend on how it is given

    def arranged(self, ranks: NDArray[np.int64]) -> "Stored":
        """The same images in another order, copied into memory; as they are, where it is the same order."""
        if np.array_equal(ranks, self.ranks):
            return self
        place_of = np.argsort(self.ranks)[ranks]  # [given] where each image lies here
        unread = {p: self.unread[at] for p, at in enumerate(place_of.tolist()) if at in self.unread}
        kept = np.array([at not in self.unread for at in range(len(ranks))])
        row = np.cumsum(kept) - 1
        rows = row[[at for at in place_of.tolist() if at not in self.unread]]
        return Stored(np.asarray(self.images)[rows], unread, ranks)


def place_of(folder: Path, key: str, ranks: NDArray[np.int64]) -> Path:
    order = hashlib.blake2b(ranks.astype("<i8").tobytes(), digest_size=4).hexdigest()
    return folder / f"images-{key}-{order}.npy"


def found(folder: Path, key: str, ranks: NDArray[np.int64]) -> Stored | None:
    """The images by their key, in the order asked for; None where they are not kept, or must be ordered anew
    and are too large for that."""
    own = place_of(folder, key, ranks)
    for path in (own, *sorted(folder.glob(f"images-{key}-*.npy"))):
        stored = opened(path, len(ranks))
        if stored is not None and (path == own or stored.images.nbytes <= MOST_COPIED):
            with contextlib.suppress(OSError):  # of somebody else, or read-only
                os.utime(path.with_suffix(".json"))  # when it was used last
            return stored.arranged(ranks)
    return None


def opened(path: Path, given: int) -> Stored | None:
    """A pair that is whole; else None."""
    try:
        record: Any = json.loads(path.with_suffix(".json").read_bytes())
        unread = {int(place): str(reason) for place, reason in record["left out"].items()}
        ranks = np.array(record["order"], dtype=np.int64)
        images: Images = np.lib.format.open_memmap(path, mode="r")  # knows no pickles
    except BROKEN:
        return None
    whole = np.array_equal(np.sort(ranks), np.arange(given)) and set(unread) <= set(range(given))
    fits = images.dtype == np.uint8 and images.ndim == 4 and len(images) == given - len(unread)
    return Stored(images, unread, ranks) if whole and fits else None


def write_record(path: Path, record: Mapping[str, Any], ranks: Sequence[int]) -> None:
    text = json.dumps({"version": VERSION, **record, "order": list(ranks)})
    atomic.write_text(path.with_suffix(".json"), text + "\n")


def write_images(file: BinaryIO, images: Iterator[Pixels], *, most: int) -> None:
    """A .npy whose number of images is put right at the end: its header has room for any number."""
    shape, count = (0, 0, 0), 0
    for count, pixels in enumerate(images, start=1):
        if count == 1:
            shape = pixels.shape
            _write_header(file, (most, *shape))
        file.write(pixels.data)
    if count:
        file.seek(0)
        _write_header(file, (count, *shape))


def _write_header(file: BinaryIO, shape: tuple[int, ...]) -> None:
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})


def make_ready(folder: Path) -> None:
    """The folder, without the unfinished files of killed processes; those in use changed a moment ago."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob(".evenprune-*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > ABANDONED:
                path.unlink()


# --- what a folder keeps ---


@dataclass(frozen=True)
class Kept:
    """One pair, or what is left of one."""

    files: tuple[Path, ...]
    size: int  # bytes
    used: float  # when last, in seconds since 1970
    what: str  # in words


def kept_in(folder: Path) -> list[Kept]:
    """The pairs of a cache folder, the one used last first."""
    names = {path.stem for path in folder.glob("images-*") if NAME.fullmatch(path.name)}
    found = [_kept(folder, name) for name in sorted(names)]
    return sorted((kept for kept in found if kept.files), key=lambda kept: -kept.used)


def _kept(folder: Path, name: str) -> Kept:
    files = tuple(path for path in (folder / f"{name}.npy", folder / f"{name}.json") if path.is_file())
    facts = [path.stat() for path in files]
    used = max((fact.st_mtime for fact in facts), default=0.0)
    return Kept(files, sum(fact.st_size for fact in facts), used, _in_words(folder / f"{name}.npy"))


def _in_words(path: Path) -> str:
    try:
        record: Any = json.loads(path.with_suffix(".json").read_bytes())
        if record["version"] != VERSION:
            return "of another version of evenprune, no longer used"
        stored = opened(path, int(record["given"]))
        source = str(record.get("folder") or "")
    except BROKEN:
        stored = None
    if stored is None:
        return "damaged, no longer used"
    count, _, height, width = stored.images.shape
    return f"{count:,} images of {width}×{height}" + (f" from {source}" if source else "")


def remove(kept: Sequence[Kept]) -> None:
    """The record goes last: what is left of a pair is listed again."""
    for path in (path for one in kept for path in one.files):
        path.unlink(missing_ok=True)
