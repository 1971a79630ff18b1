"""What readers of files share: how values are shown in messages, and errors turned into plain problems."""

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from evenprune.tally import InputProblems

# What damaged and foreign files raise; other errors are defects of ours.
UNREADABLE: tuple[type[BaseException], ...] = (
    OSError, ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def quoted(value: object, most: int = 60) -> str:
    """A value as a message shows it: quotes around text, nothing unprintable, not too long."""
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def listed(values: Sequence[object], most: int = 12) -> str:
    shown = ", ".join(quoted(v) for v in values[:most])
    return shown + (f" … and {len(values) - most:,} more" if len(values) > most else "")


def counted(count: int, one: str, several: str) -> str:
    """A number and what it counts: counted(1, "sample has", "samples have") is "1 sample has"."""
    return f"{count:,} {one if count == 1 else several}"


@contextmanager
def refused(
    name: str,
    source: str = "-",
    *,
    unreadable: tuple[type[BaseException], ...] = UNREADABLE,
    damaged: type[BaseException] | tuple[()] = (),
) -> Iterator[None]:
    """Turn whatever goes wrong while reading into one plain problem of that file."""
    try:
        yield
    except InputProblems:
        raise
    except MemoryError:
        raise InputProblems(
            [f"{name} does not fit into memory: keep only the columns that are needed"]
        ) from None
    except unreadable as error:
        raise InputProblems([f"{name} cannot be read: {_plainly(error, source)}"]) from None
    except damaged as error:  # a library that panics
        raise InputProblems([f"{name} is damaged: {_plainly(error, source)}"]) from None


def _plainly(error: BaseException, source: str) -> str:
    text = (getattr(error, "strerror", None) or str(error)).strip().split("\n")[0]
    if "utf-8" in text.lower() or "utf8" in text.lower():
        return f"{_bad_line(source)} is not UTF-8 text; save the file as UTF-8"
    if "more fields" in text:
        return "a row has more fields than the header; quote the values that contain the separator"
    if "could not parse" in text:
        return "a field cannot be parsed; is there a quote that is opened and never closed?"
    return text


def _bad_line(source: str) -> str:
    if source == "-" or not Path(source).is_file():
        return "a line"
    with open(source, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return f"line {number:,}"
    return "a line"
