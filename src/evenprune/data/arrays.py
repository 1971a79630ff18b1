"""Samples from an NPZ file: arrays x (inputs), y (labels), one array per group column, and perhaps split."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenprune.reading import UNREADABLE, listed, quoted
from evenprune.tally import InputProblems

Array = NDArray[Any]
Samples = tuple[Array, Array, dict[str, Array]]  # inputs, labels, columns of groups
SPLITS = ("train", "test", "validation")


def load(path: str | Path, *, groups: Sequence[str], test: str | Path | None = None) -> dict[str, Samples]:
    """The splits of a file by name. Either its array `split` says "train" or "test", or `test` is a file."""
    whole, problems = _read(path, (*groups, *([] if test else ["split"])))
    apart, more = _read(test, groups) if test else ({}, [])
    problems += more
    if problems:
        raise InputProblems(problems)
    if test:
        return {"train": _samples(whole, groups), "test": _samples(apart, groups)}
    names = np.char.lower(whole["split"].astype(str))
    problems = _split_problems(str(path), names)
    if problems:
        raise InputProblems(problems)
    return {name: _samples(whole, groups, names == name) for name in SPLITS if bool((names == name).any())}


def _samples(arrays: Mapping[str, Array], groups: Sequence[str], rows: Array | None = None) -> Samples:
    def taken(name: str) -> Array:
        return arrays[name] if rows is None else arrays[name][rows]

    return _inputs(taken("x")), taken("y"), {name: taken(name) for name in groups}


def _inputs(values: Array) -> Array:
    """Bytes stay bytes (they are divided by 255 later), all other numbers become float32."""
    return values if values.dtype == np.uint8 else values.astype(np.float32)


def _read(path: str | Path, more: Sequence[str]) -> tuple[dict[str, Array], list[str]]:
    """The arrays x, y and `more`, and everything that is wrong with the file. Nothing is unpickled."""
    try:
        with open(path, "rb") as stream:  # numpy leaves files of its own open where they are damaged
            file = np.load(stream, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                return {}, [f"{quoted(str(path), 300)} holds a single array; save several with numpy.savez"]
            wanted = list(dict.fromkeys(("x", "y", *more)))
            absent = [name for name in wanted if name not in file.files]
            if absent:
                return {}, [_absent(path, name, file.files) for name in absent]
            arrays = {name: file[name] for name in wanted}
    except UNREADABLE as error:
        return {}, [f"{quoted(str(path), 300)} cannot be read as NPZ: {_reason(error)}"]
    return arrays, _array_problems(path, arrays)


def _absent(path: str | Path, name: str, names: Sequence[str]) -> str:
    what = {
        "x": " (the inputs)",
        "y": " (the labels)",
        "split": ' ("train" or "test" for each sample; or give the test samples as a file of their own)',
    }
    return f"{quoted(str(path), 300)} has no array {name!r}{what.get(name, '')}; it has {listed(names)}"


def _array_problems(path: str | Path, arrays: Mapping[str, Array]) -> list[str]:
    file, lengths = quoted(str(path), 300), {name: len(a) if a.ndim else 0 for name, a in arrays.items()}
    found = []
    if len(set(lengths.values())) > 1:
        found.append(f"{file}: unequal lengths: {', '.join(f'{name} {n:,}' for name, n in lengths.items())}")
    if arrays["x"].dtype.kind not in "biuf":
        found.append(f"{file}: x holds {arrays['x'].dtype}, inputs are numbers")
    if arrays["y"].dtype.kind not in "biu":
        found.append(f"{file}: y holds {arrays['y'].dtype}, labels are whole numbers 0, 1, 2 …")
    return found + [
        f"{file}: {name} has shape {list(array.shape)}, give one value per sample"
        for name, array in arrays.items()
        if name != "x" and array.ndim != 1
    ]


def _split_problems(path: str, names: Array) -> list[str]:
    words = sorted(set(names.tolist()))
    unknown = [word for word in words if word not in SPLITS]
    found = (
        [f"{quoted(path, 300)}: split holds {listed(unknown)}, but knows {listed(SPLITS)} only"]
        if unknown
        else []
    )
    return found + [
        f"{quoted(path, 300)}: split marks no sample as {name!r}"
        for name in ("train", "test")
        if name not in words
    ]


def _reason(error: BaseException) -> str:
    text = (getattr(error, "strerror", None) or str(error)).split("\n")[0]
    if "pickle" in text:
        return "it is no NPZ of numbers and texts (Python objects are never loaded)"
    return text
