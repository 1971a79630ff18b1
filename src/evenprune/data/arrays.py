"""The common form of samples, and the arrays of an NPZ file: x (inputs), y (labels), groups, split."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenprune.reading import UNREADABLE, counted, listed, quoted
from evenprune.tally import InputProblems

Array = NDArray[Any]
Samples = tuple[Array, Array, dict[str, Array]]  # inputs, labels, columns of groups
SPLITS = ("train", "test", "validation")


class Normalised(np.ndarray[Any, np.dtype[Any]]):
    """Images as bytes, and by what prune() normalises them when it uses them: (x / 255 − mean) / deviation.

    An array in every other respect: images that are chosen from it keep the scaling. Numbers that are
    computed from it are no bytes any more, and have none.
    """

    scaling: tuple[tuple[float, ...], tuple[float, ...]] | None  # mean, deviation of each channel

    @staticmethod
    def of(images: NDArray[np.uint8], *, mean: Sequence[float], std: Sequence[float]) -> "Normalised":
        found = images.view(Normalised)  # shares the memory, that of a memory map too
        found.scaling = tuple(mean), tuple(std)
        return found

    def __array_finalize__(self, origin: Any) -> None:
        self.scaling = getattr(origin, "scaling", None) if self.dtype == np.uint8 else None


@dataclass(frozen=True)
class Arrays:
    """What an NPZ file holds, or two of them."""

    inputs: Array
    labels: Array
    columns: dict[str, Array]
    split: Array | None  # None: there is none


def load(path: str | Path, *, groups: Sequence[str], test: str | Path | None = None) -> Arrays:
    """The arrays of a file, as they are. `test`: a file of the test samples; the others are for training."""
    whole, problems = _read(path, groups, with_split=not test)
    apart, more = _read(test, groups, with_split=False) if test else ({}, [])
    problems += more
    if test and not problems:
        problems += _unlike(whole["x"], apart["x"], str(path), str(test))
    if problems:
        raise InputProblems(problems)
    if not test:
        return Arrays(whole["x"], whole["y"], {name: whole[name] for name in groups}, whole.get("split"))
    both = {name: _joined(whole[name], apart[name]) for name in whole}
    split = np.repeat(["train", "test"], [len(whole["y"]), len(apart["y"])])
    return Arrays(both["x"], both["y"], {name: both[name] for name in groups}, split)


def not_finite(count: int, first: int) -> str:
    """The problem of samples whose inputs are no numbers."""
    many = counted(count, "sample has", "samples have")
    return (
        f"{many} inputs that are NaN or infinite, the first is sample {first}: fill them in, or leave these "
        "samples out"
    )


def _joined(first: Array, second: Array) -> Array:
    alike = first.dtype.kind == second.dtype.kind
    return np.concatenate([a if alike else a.astype(object) for a in (first, second)])


def _unlike(train: Array, test: Array, path: str, other: str) -> list[str]:
    """Inputs of two files must be of one shape, and both or neither bytes: these are divided by 255."""
    forms = {f"{list(x.shape[1:])} of {'bytes' if x.dtype == np.uint8 else 'numbers'}" for x in (train, test)}
    if len(forms) == 1:
        return []
    each = [f"{list(x.shape)} {x.dtype} in {quoted(at, 300)}" for x, at in ((train, path), (test, other))]
    return [f"x is {' and '.join(each)}: give both alike"]


def _read(path: str | Path, groups: Sequence[str], *, with_split: bool) -> tuple[dict[str, Array], list[str]]:
    """The arrays x, y, the groups, and split if there is one; or why there are none. Nothing is unpickled."""
    try:
        with open(path, "rb") as stream:  # numpy leaves files of its own open where they are damaged
            file = np.load(stream, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                return {}, [f"{quoted(str(path), 300)} holds a single array; save several with numpy.savez"]
            split = ["split"] if with_split and "split" in file.files else []
            wanted = list(dict.fromkeys(("x", "y", *groups, *split)))
            absent = [name for name in wanted if name not in file.files]
            if absent:
                return {}, [_absent(path, name, file.files) for name in absent]
            arrays = {name: file[name] for name in wanted}
    except UNREADABLE as error:
        return {}, [f"{quoted(str(path), 300)} cannot be read as NPZ: {_reason(error)}"]
    return arrays, _shape_problems(path, arrays)


def _absent(path: str | Path, name: str, names: Sequence[str]) -> str:
    what = {"x": " (the inputs)", "y": " (the labels)"}
    return f"{quoted(str(path), 300)} has no array {name!r}{what.get(name, '')}; it has {listed(names)}"


def _shape_problems(path: str | Path, arrays: Mapping[str, Array]) -> list[str]:
    """Arrays that are single values; all else is looked at when samples are made of them."""
    return [
        f"{quoted(str(path), 300)}: {name} is a single value, {quoted(array.item())}: give one per sample"
        for name, array in arrays.items()
        if not array.ndim
    ]


def _reason(error: BaseException) -> str:
    text = (getattr(error, "strerror", None) or str(error)).split("\n")[0]
    if "pickle" in text:
        return "it is no NPZ of numbers and texts (Python objects are never loaded)"
    return text
