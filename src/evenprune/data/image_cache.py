"""Many encoded images to one array of bytes: decoded in parallel, and kept on disk if asked to.

A cache is a folder with a pair of files for each set of images at each size: see image_store. The pixels are
memory-mapped when they are used again. A set is known by a hash over the names (relative to the folder that
they share), every byte of every file, the size and VERSION. Any change of a file, a name or the list is
noticed, and makes a new pair; another order, another date, or the whole folder moved elsewhere, is no change.
Not noticed: pixels in the cache that somebody changed without changing their number. Old pairs stay until
somebody removes them (`evenprune data caches` lists them); the folder may be deleted at any time.
"""

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from evenprune import atomic
from evenprune.data import image_decoding, image_store, twins
from evenprune.data.image_decoding import Pixels, Unreadable
from evenprune.data.image_pool import Progress, in_order, nothing_shown, shown
from evenprune.data.image_store import VERSION, Images
from evenprune.reading import quoted
from evenprune.tally import InputProblems

Corrupt = Literal["refuse", "skip"]
Read = Callable[[int], bytes]  # the encoded bytes of an image by its place; called from any thread
Name = TypeVar("Name", Path, str)

MOST_SHOWN = 5  # examples in a message
MOST_UNREAD = 100  # files in a message that are to be repaired
TURNED = ("JPEG", "PNG", "WEBP")  # formats whose EXIF says how to turn the pixels; others do so themselves
SIDE = (5, 6, 7, 8)  # EXIF orientations that exchange width and height


@dataclass(frozen=True)
class Decoded(Generic[Name]):
    """The images that could be read, in the order given, and the others."""

    images: Images  # a read-only memory map where they are cached
    kept: NDArray[np.int64]  # [N] their places among those given
    skipped: list[tuple[Name, str]]  # those left out, and why
    twins: list[list[int]] = field(default_factory=list)  # places whose files are the same, byte by byte


def decode(
    paths: Sequence[Path],
    *,
    size: int | None,
    cache: Path | None = None,
    corrupt: Corrupt = "refuse",
    progress: Progress | None = None,
) -> Decoded[Path]:
    """Image files as one array, each squeezed to size × size (bicubic); None: they must be of one size.

    cache: folder that keeps the array (see above); made if absent. Without one, it is kept in memory alone.
    corrupt: files that cannot be read are refused, all in one error; or skipped, and told in the result.
    progress: told how many images of how many are done. Without one: a bar, where there is a terminal.
    """
    shared = os.path.commonpath([path.absolute().parent for path in paths]) if paths else ""
    return decode_encoded(
        lambda place: paths[place].read_bytes(),
        paths,
        keys=[os.path.relpath(path.absolute(), shared) for path in paths],
        size=size,
        cache=cache,
        corrupt=corrupt,
        progress=progress,
        source=shared,
    )


def decode_encoded(
    read: Read,
    names: Sequence[Name],
    *,
    keys: Sequence[str],
    size: int | None,
    cache: Path | None = None,
    corrupt: Corrupt = "refuse",
    progress: Progress | None = None,
    source: str = "",
) -> Decoded[Name]:
    """The same for images that lie anywhere. `names` are for people, `keys` (as many) go into the hash.

    source: where they come from, for people who look into the cache.
    """
    problems = _wish_problems(size, corrupt, cache)
    if problems:
        raise InputProblems(problems)
    digests: dict[int, bytes] = {}

    def hashed(place: int) -> bytes:
        data = read(place)
        if place not in digests:
            digests[place] = twins.digest(data)
        return data

    task = _Task(hashed, digests, len(names), size, corrupt, progress)
    found = _Found(len(names))
    images = _into_memory(task, found) if cache is None else _cached(task, found, cache, keys, source)
    problems = found.problems(names, corrupt)
    if problems:
        raise InputProblems(problems)
    kept = np.array([i for i in range(len(names)) if i not in found.unread], dtype=np.int64)
    skipped = [(names[i], reason) for i, reason in sorted(found.unread.items())]
    return Decoded(images, kept, skipped, twins.grouped(digests))


@dataclass(frozen=True)
class _Task:
    """Images to decode, and how."""

    read: Read
    digests: dict[int, bytes]  # of the images that were read, by place
    count: int
    size: int | None
    corrupt: Corrupt
    progress: Progress | None

    @contextlib.contextmanager
    def results(self) -> Iterator[Iterator[Pixels | str]]:
        """The pixels of each image in order, or why there are none; at the end all threads are gone."""
        image = image_decoding.pillow()
        with (
            shown("decoding images", self.progress) as heard,
            image_decoding.minding_bombs(image),
            contextlib.closing(in_order(lambda place: self.one(place, image), self.count, heard)) as results,
        ):
            yield results

    def one(self, place: int, image: Any) -> Pixels | str:
        """The pixels of an image, or why there are none."""
        try:
            return image_decoding.pixels(self.read(place), self.size, image)
        except OSError as error:
            return error.strerror or str(error)
        except Unreadable as error:
            return str(error)

    def size_of(self, place: int, image: Any) -> tuple[int, int] | str:
        """(width, height) by the header of an image, mostly as it will be seen; or why it has none."""
        try:
            with image.open(io.BytesIO(self.read(place)), formats=image_decoding.FORMATS) as opened:
                width, height = opened.size
                turned = opened.format in TURNED and opened.getexif().get(image_decoding.ORIENTATION) in SIDE
                return (height, width) if turned else (width, height)
        except Exception:  # as varied as in decoding, which tells them apart
            found = self.one(place, image)
            return found if isinstance(found, str) else (found.shape[2], found.shape[1])

    def none(self) -> Images:
        return np.empty((0, 3, self.size or 0, self.size or 0), np.uint8)


@dataclass
class _Found:
    """What became of the images."""

    count: int
    unread: dict[int, str] = field(default_factory=dict)  # place -> why
    sizes: dict[tuple[int, int], list[int]] = field(default_factory=dict)  # (width, height) -> places

    def fitting(self, results: Iterator[Pixels | str]) -> Iterator[Pixels]:
        """The images of the size of the first; all others are noted."""
        for place, result in enumerate(results):
            if isinstance(result, str):
                self.unread[place] = result
                continue
            size = (result.shape[2], result.shape[1])
            self.sizes.setdefault(size, []).append(place)
            if size == next(iter(self.sizes)):
                yield result

    def note(self, sizes: Iterator[tuple[int, int] | str]) -> None:
        """The sizes alone, or why an image has none."""
        for place, size in enumerate(sizes):
            if isinstance(size, str):
                self.unread[place] = size
            else:
                self.sizes.setdefault(size, []).append(place)

    def refused(self, corrupt: Corrupt) -> bool:
        unread = len(self.unread)
        return len(self.sizes) > 1 or unread > (0 if corrupt == "refuse" else self.count - 1)

    def problems(self, names: Sequence[Path] | Sequence[str], corrupt: Corrupt) -> list[str]:
        if not self.refused(corrupt):
            return []
        problems = []
        if len(self.unread) == self.count or (self.unread and corrupt == "refuse"):
            told = [f"{_shown(names[i])} ({reason})" for i, reason in sorted(self.unread.items())]
            skip = ', or leave them out with corrupt="skip" (--corrupt skip)' if corrupt == "refuse" else ""
            many = f"{len(told):,} of {self.count:,} images cannot be read"
            problems.append(f"{many}: {_first(told, MOST_UNREAD)}. Repair them{skip}")
        if len(self.sizes) > 1:
            common = sorted(self.sizes.items(), key=lambda item: -len(item[1]))
            told = [f"{w}×{h} ({len(at):,}, such as {_shown(names[at[0]])})" for (w, h), at in common]
            problems.append(
                f"the images have {len(told):,} different sizes: {_first(told)}. Give one that all are "
                "brought to, such as image_size=64 (--image-size 64)"
            )
        return problems


def _shown(name: Path | str) -> str:
    return quoted(str(name), 200)


def _first(texts: Sequence[str], most: int = MOST_SHOWN) -> str:
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" … and {more:,} more" if more > 0 else "")


def _wish_problems(size: object, corrupt: str, cache: Path | None) -> list[str]:
    known = get_args(Corrupt)
    problems = size_problems(size)
    if corrupt not in known:
        problems.append(f"corrupt is {quoted(corrupt)}; it must be {' or '.join(map(quoted, known))}")
    return problems + ([] if cache is None else atomic.folder_problems("cache", cache))


def size_problems(size: object) -> list[str]:
    whole = isinstance(size, int | np.integer) and not isinstance(size, bool)
    if size is None or (whole and size >= 1):  # type: ignore[operator]  # it is whole
        return []
    return [f"image_size is {quoted(size)}: give a side in pixels, or None for images as they are"]


def _unequal(task: _Task, found: _Found) -> bool:
    """Whether the images have several sizes, told before all are decoded; if so, `found` has them.

    Headers may mislead, as those of damaged files do: two images of different sizes must be there indeed.
    """
    if task.size is not None:
        return False
    image = image_decoding.pillow()
    seen, shapes = _Found(task.count), set[tuple[int, ...]]()
    with image_decoding.minding_bombs(image):
        with contextlib.closing(
            in_order(lambda place: task.size_of(place, image), task.count, nothing_shown)
        ) as sizes:
            seen.note(sizes)
        for places in seen.sizes.values() if len(seen.sizes) > 1 else ():
            pixels = (task.one(place, image) for place in places)
            shapes |= {next((one.shape for one in pixels if not isinstance(one, str)), ())}
    if len(shapes - {()}) < 2:
        return False
    found.unread, found.sizes = seen.unread, seen.sizes
    return True


def _into_memory(task: _Task, found: _Found) -> Images:
    images, filled = task.none(), 0
    if _unequal(task, found):
        return images
    with task.results() as results:
        for filled, pixels in enumerate(found.fitting(results), start=1):
            images = np.empty((task.count, *pixels.shape), np.uint8) if filled == 1 else images
            images[filled - 1] = pixels
    return images[:filled]


# --- from the cache ---


def _key(task: _Task, keys: Sequence[str]) -> tuple[str, NDArray[np.int64]]:
    """A hash that changes with any byte of any image, with any name, the size and the version.

    And the rank [count] of each image in the order that the hash goes by, whatever the order given.
    """

    def of_one(place: int) -> bytes:
        try:
            task.read(place)
            return task.digests[place]
        except OSError:
            return b"unread"

    names = [key.replace(os.sep, "/").encode("utf-8", "surrogateescape") for key in keys]
    entries = list(zip(names, in_order(of_one, len(keys), nothing_shown), strict=True))
    order = sorted(range(len(keys)), key=entries.__getitem__)  # equal entries are equal images
    whole = hashlib.blake2b(json.dumps([VERSION, task.size, len(keys)]).encode(), digest_size=16)
    for name, content in (entries[place] for place in order):
        whole.update(len(name).to_bytes(4, "little") + name + content)
    return whole.hexdigest(), np.argsort(np.array(order, dtype=np.int64))


def _cached(task: _Task, found: _Found, folder: Path, keys: Sequence[str], source: str) -> Images:
    """The images of the cache; made first where they are not there, but not if they are to be refused."""
    key, ranks = _key(task, keys)
    stored = image_store.found(folder, key, ranks)
    if stored is None:
        path = image_store.place_of(folder, key, ranks)
        if not _made(task, found, path, ranks.tolist(), source):
            return task.none()
        stored = image_store.opened(path, task.count)
        if stored is None:
            raise OSError(f"{path} was written, but somebody has removed or changed it")
    found.unread |= stored.unread
    return stored.images


def _made(task: _Task, found: _Found, path: Path, ranks: Sequence[int], source: str) -> bool:
    """Write a pair of files, unless the images are to be refused."""
    image_store.make_ready(path.parent)
    if _unequal(task, found):
        return False
    with contextlib.suppress(_NotToBeKept), atomic.replace(path) as file:
        with task.results() as results:
            image_store.write_images(file, found.fitting(results), most=task.count)
        if not found.sizes or found.refused(task.corrupt):
            raise _NotToBeKept
        left_out = {str(place): reason for place, reason in found.unread.items()}
        record = {"given": task.count, "size": task.size, "folder": source, "left out": left_out}
        image_store.write_record(path, record, ranks)
        return True
    return False


class _NotToBeKept(Exception):
    """Takes back the file that was being written."""
