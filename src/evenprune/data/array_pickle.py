"""Arrays of bytes, numbers and texts from a pickle, without running anything that the pickle names.

A pickle is a program: it names functions and calls them, so a file from a stranger can run any code. Here
a name is never looked up. The names by which numpy's arrays, and bytes in old protocols, are spelled stand
for objects of this module, which only store bytes; every other name is an error. Nor does numpy itself see
what the file says of an array: a forged dtype could make it take bytes for addresses. The interpreter is
Python's own one written in Python, as the one written in C can be told to reserve any amount of memory by a
few bytes.
"""

import io
import math
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

ARRAY, TYPE, MAKE = "numpy.ndarray", "numpy.dtype", "_reconstruct"
ENCODE, EMPTY = "_codecs.encode", "bytes"  # how Python 3 spells bytes in the protocols that Python 2 reads
NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): MAKE,
    ("numpy._core.multiarray", "_reconstruct"): MAKE,  # as numpy 2 writes it
    ("numpy", "ndarray"): ARRAY,
    ("numpy", "dtype"): TYPE,
    ("_codecs", "encode"): ENCODE,
    ("__builtin__", "bytes"): EMPTY,
}
BYTES = ("u1", b"u1")


class NotPlainData(ValueError):
    """The pickle is damaged, or holds something other than bytes, numbers, texts, lists and dictionaries."""


class _Name:
    """What a name in the pickle stands for; it can be called, as pickles do, and nothing else."""

    __slots__ = ("meaning",)

    def __init__(self, meaning: str) -> None:
        self.meaning = meaning

    def __call__(self, *arguments: Any) -> Any:
        if self.meaning == TYPE:
            return _Type(*arguments[:1])
        if self.meaning == MAKE:
            return _Array()
        if self.meaning == ENCODE:
            return _bytes_of(*arguments)
        if self.meaning == EMPTY and not arguments:
            return b""
        raise NotPlainData(f"it calls {self.meaning}")

    def __setstate__(self, state: Any) -> None:
        raise NotPlainData("it changes what a name means")


def _bytes_of(text: Any = None, code: Any = None, *more: Any) -> bytes:
    if not isinstance(text, str) or code != "latin1" or more or any(ord(letter) > 255 for letter in text):
        raise NotPlainData("it spells bytes in an unknown way")
    return text.encode("latin1")


class _Type:
    __slots__ = ("code",)

    def __init__(self, code: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        """Byte order, alignment and such: of no meaning for single bytes."""


class _Array:
    __slots__ = ("values",)
    values: NDArray[np.uint8]

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, raw = state
        if not isinstance(kind, _Type) or kind.code not in BYTES or fortran:
            raise NotPlainData("it holds an array of something other than bytes in row order")
        if not isinstance(raw, bytes) or len(raw) != math.prod(shape):
            raise NotPlainData(f"it holds an array of shape {shape} with another number of bytes")
        self.values = np.frombuffer(raw, np.uint8).reshape(shape)


class _Reader(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in NAMES:
            raise NotPlainData(
                f"it names {f'{module}.{name}'[:100]!r}, which is not loaded: such a name can run code"
            )
        return _Name(NAMES[module, name])

    def persistent_load(self, pid: Any) -> Any:
        raise NotPlainData("it refers to objects outside the file")


def read(data: bytes) -> dict[str, Any]:
    """The dictionary in a pickle, also of Python 2: keys as text, arrays of bytes read-only."""
    try:
        loaded = _Reader(io.BytesIO(data), encoding="bytes").load()
        if not isinstance(loaded, dict):
            raise NotPlainData(f"it holds a {type(loaded).__name__}, not a dictionary")
        return {_text(key): _value(value) for key, value in loaded.items()}
    except NotPlainData:
        raise
    except Exception as error:  # a damaged pickle raises anything
        raise NotPlainData(f"it is damaged or cut short ({type(error).__name__})") from error


def _text(value: Any) -> Any:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def _value(value: Any) -> Any:
    if isinstance(value, _Array):
        return value.values
    return [_text(item) for item in value] if isinstance(value, list) else _text(value)
