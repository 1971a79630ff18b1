"""A file of any known format, opened as one lazy table; a file that is none is refused after a short look."""

import difflib
import glob
import io
import stat
import sys
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import polars as pl

from evenprune.tally import InputProblems

Kind = Literal["csv", "tsv", "json", "parquet", "arrow", "stream", "npz"]
Source = Path | bytes

KNOWN = "CSV, TSV, Parquet, Arrow/Feather, JSON lines and NPZ"
LOOK = 1 << 20  # bytes read to tell what a file is; also the longest first line that a table may have

SUFFIXES: dict[str, Kind] = {
    ".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".jsonl": "json", ".ndjson": "json", ".json": "json",
    ".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow",
    ".arrows": "stream", ".npz": "npz",
}  # fmt: skip
MAGIC: dict[bytes, Kind] = {
    b"PAR1": "parquet", b"ARROW1": "arrow", b"\xff\xff\xff\xff": "stream", b"PK\x03\x04": "npz",
}  # fmt: skip
UNREADABLE = (  # what damaged and foreign files raise; other errors are defects of ours
    OSError, ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error,
    pl.exceptions.ComputeError, pl.exceptions.DuplicateError, pl.exceptions.NoDataError,
    pl.exceptions.SchemaError,
)  # fmt: skip
MOST_DESCRIPTION = 1 << 28
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True)
class Table:
    """A table that is opened, not read. In a spelled table (CSV, TSV) every column is text."""

    name: str
    columns: tuple[str, ...]  # every column of the file
    frame: pl.LazyFrame
    spelled: bool = False

    def column(self, name: str) -> pl.Expr:
        """The column by its place: pl.col would read names such as ``^x$`` and ``*`` as patterns."""
        return pl.nth(self.frame.collect_schema().names().index(name))


def quoted(value: object, most: int = 60) -> str:
    """A value as a message shows it: quotes around text, nothing unprintable, not too long."""
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def listed(values: Sequence[object], most: int = 12) -> str:
    shown = ", ".join(quoted(v) for v in values[:most])
    return shown + (f" … and {len(values) - most:,} more" if len(values) > most else "")


def open_table(source: str, wanted: Sequence[str]) -> Table:
    """Open a path, or standard input when it is "-". Of an NPZ only the wanted arrays are loaded."""
    name = "standard input" if source == "-" else quoted(source, most=300)
    with refused(name, source):
        data, head, size = _look(source, name)
        kind = _kind(head, Path(source).suffixes if source != "-" else [".csv"], name)
        if kind == "npz":
            return _open_npz(data, name, wanted)
        if kind in ("csv", "tsv", "json"):
            head = _unpacked(head)
            _check_text(head, data, size, name)
        elif _described_bytes(data, kind, head) > MOST_DESCRIPTION:
            raise InputProblems(
                [
                    f"{name} is damaged: it claims to hold a description of its columns that is "
                    "larger than any real one"
                ]
            )
        return _scan(data, kind, head, name)


def missing_columns(table: Table, wanted: Sequence[str]) -> list[str]:
    """What is wrong with the names: columns that the table has not, and columns that it has twice."""
    absent = [name for name in dict.fromkeys(wanted) if name not in table.columns]
    twice = [
        name for name in dict.fromkeys(wanted) if f"{name}_duplicated_0" in table.columns and table.spelled
    ]
    problems = [f"{table.name} has two columns named {quoted(name)}: rename one of them" for name in twice]
    if absent:
        word = "column" if len(absent) == 1 else "columns"
        named = ", ".join(quoted(name) + _meant(table, name) for name in absent)
        problems.append(f"{table.name} has no {word} {named}. Its columns: {listed(table.columns, 30)}")
    return problems


def _meant(table: Table, name: str) -> str:
    plain = {column: column.strip().lower() for column in table.columns}
    close = difflib.get_close_matches(name.strip().lower(), plain.values())
    near = [column for column in table.columns if plain[column] in close]
    return f" (did you mean {listed(near)}?)" if near else ""


@contextmanager
def refused(name: str, source: str = "-") -> Iterator[None]:
    """Turn whatever goes wrong while reading into one plain problem of that file."""
    try:
        yield
    except InputProblems:
        raise
    except MemoryError:
        raise InputProblems(
            [f"{name} does not fit into memory: keep only the columns that are needed"]
        ) from None
    except UNREADABLE as error:
        raise InputProblems([f"{name} cannot be read: {_plainly(error, source)}"]) from None
    except pl.exceptions.PanicException as error:  # a damaged file can make polars panic
        raise InputProblems([f"{name} is damaged: {_plainly(error, source)}"]) from None


def _plainly(error: BaseException, source: str) -> str:
    text = (getattr(error, "strerror", None) or str(error)).strip().split("\n")[0]
    if "utf-8" in text.lower() or "utf8" in text.lower():
        return f"{_bad_line(source)} is not UTF-8 text; save the file as UTF-8"
    if "more fields" in text:
        return "a row has more fields than the header; quote the values that contain the separator"
    if "could not parse" in text:
        return "a field cannot be parsed; is there a quote that is opened and never closed?"
    if "pickle" in text:
        return "an array in it holds Python objects, which are never loaded; save numbers or text"
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


def _look(source: str, name: str) -> tuple[Source, bytes, int]:
    """The data (its path, or its bytes where it can be read only once), its first bytes, and its size."""
    if source == "-":
        return _drained(sys.stdin.buffer, name, [".csv"])
    path = Path(source)
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise InputProblems([f"{name} is a folder; give a file ({KNOWN})"])
    with open(path, "rb") as file:
        if not stat.S_ISREG(mode):  # a pipe
            return _drained(file, name, path.suffixes)
        head = file.read(LOOK)
    _check_not_empty(head, name)
    return path, head, path.stat().st_size


def _drained(file: BinaryIO, name: str, suffixes: list[str]) -> tuple[bytes, bytes, int]:
    head = file.read(LOOK)
    _check_not_empty(head, name)
    if _kind(head, suffixes, name) in ("csv", "tsv", "json"):
        _check_text(_unpacked(head), head, len(head), name)  # before the rest, which may never end
    data = head + file.read()
    return data, head, len(data)


def _check_not_empty(head: bytes, name: str) -> None:
    if not head.strip():
        raise InputProblems([f"{name} is empty"])


def _kind(head: bytes, suffixes: list[str], name: str) -> Kind:
    for magic, kind in MAGIC.items():
        if head.startswith(magic):
            return kind
    packed = head.startswith((GZIP, ZSTD))
    known = [SUFFIXES[s.lower()] for s in suffixes[-2 if packed else -1 :] if s.lower() in SUFFIXES]
    if known and known[-1] in ("parquet", "arrow", "stream", "npz"):
        raise InputProblems([f"{name} is named like a {known[-1]} file, but its content is not one"])
    return known[-1] if known else _kind_of_text(_unpacked(head), name)


def _kind_of_text(head: bytes, name: str) -> Kind:
    first = head.partition(b"\n")[0]
    if first.lstrip().startswith(b"{"):
        return "json"
    if b"\t" in first and b"," not in first:
        return "tsv"
    if b"\0" in head or not (b"," in first or b";" in first):
        raise InputProblems([f"{name} is no table that is known here ({KNOWN})"])
    return "csv"


def _unpacked(head: bytes) -> bytes:
    return zlib.decompressobj(31).decompress(head, LOOK) if head.startswith(GZIP) else head


def _check_text(head: bytes, data: Source, size: int, name: str) -> None:
    if head.startswith(ZSTD):
        return
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputProblems([f"{name} is UTF-16 text; save it as UTF-8"])
    if b"\0" in head or any(b"\0" in piece for piece in _later_pieces(data, size)):
        raise InputProblems([f"{name} is no table: it holds binary data ({KNOWN} are known)"])
    if len(head) >= LOOK and b"\n" not in head:
        raise InputProblems([f"{name} is no table: its first line is longer than {LOOK:,} bytes"])
    if head.lstrip().startswith(b"["):
        raise InputProblems([f"{name} holds one JSON array; write one object a line (JSON lines)"])
    head.partition(b"\n")[0].decode()  # polars would replace bad bytes in the header


def _later_pieces(data: Source, size: int) -> Iterator[bytes]:
    if isinstance(data, Path) and size > LOOK:
        with open(data, "rb") as file:
            if file.read(2) == GZIP:
                return
            for place in (size // 2, size - LOOK // 16):
                file.seek(max(place, 0))
                yield file.read(LOOK // 16)


def _described_bytes(data: Source, kind: Kind, head: bytes) -> int:
    """The length that a binary file gives for the description of its columns; polars would believe any."""
    if kind == "stream":
        return int.from_bytes(head[4:8], "little")
    tail = data[-10:] if isinstance(data, bytes) else _tail(data)
    if tail.endswith(b"PAR1"):
        return int.from_bytes(tail[-8:-4], "little")
    return int.from_bytes(tail[:4], "little") if tail.endswith(b"ARROW1") else 0


def _tail(path: Path) -> bytes:
    with open(path, "rb") as file:
        file.seek(max(path.stat().st_size - 10, 0))
        return file.read()


def _separator(kind: Kind, head: bytes) -> str:
    first = head.partition(b"\n")[0]
    if kind == "csv" and b"," not in first:
        return ";" if b";" in first else "\t" if b"\t" in first else ","
    return "\t" if kind == "tsv" else ","


def _scan(data: Source, kind: Kind, head: bytes, name: str) -> Table:
    if kind in ("csv", "tsv"):
        separator = _separator(kind, head)
        frame = pl.scan_csv(
            data, separator=separator, infer_schema=False, null_values=["NaN", "nan"], glob=False
        ).filter(~pl.all_horizontal(pl.all().is_null()))  # blank lines
    elif kind == "parquet":
        frame = pl.scan_parquet(data, glob=False, hive_partitioning=False)
    elif kind == "arrow":
        frame = pl.scan_ipc(data, glob=False, hive_partitioning=False)
    elif kind == "stream":
        frame = pl.read_ipc_stream(data).lazy()
    else:
        # polars expands wildcards in the names of JSON files, whether asked to or not
        place = data if isinstance(data, bytes) else glob.escape(str(data))
        frame = pl.scan_ndjson(place, infer_schema_length=None)
    return Table(name, tuple(frame.collect_schema().names()), frame, spelled=kind in ("csv", "tsv"))


def _open_npz(data: Source, name: str, wanted: Sequence[str]) -> Table:
    file = io.BytesIO(data) if isinstance(data, bytes) else data
    with zipfile.ZipFile(file) as archive:
        if not any(entry.endswith(".npy") for entry in archive.namelist()):
            raise InputProblems([f"{name} is a zip file without arrays, no NPZ ({KNOWN} are known)"])
    with np.load(file, allow_pickle=False) as arrays:
        found = {key: _flat(arrays[key]) for key in dict.fromkeys(wanted) if key in arrays.files}
        columns = tuple(arrays.files)
    _check_shapes(found, name)
    series = [pl.Series(key, values) for key, values in found.items()]
    return Table(name, columns, pl.DataFrame(series).lazy())


def _flat(array: np.ndarray) -> np.ndarray:
    """Without a last axis of one entry; text that numpy keeps as bytes becomes text."""
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array


def _check_shapes(arrays: dict[str, np.ndarray], name: str) -> None:
    problems = [
        f"array {quoted(key)} of {name} has shape {list(a.shape)} and type {a.dtype}; "
        "a column is one value a row, or one row of scores a row"
        for key, a in arrays.items()
        if a.ndim not in (1, 2) or a.dtype.kind not in "biufUmM"
    ]
    lengths = {key: len(a) for key, a in arrays.items() if a.ndim}
    if len(set(lengths.values())) > 1:
        each = ", ".join(f"{quoted(key)} {length:,}" for key, length in lengths.items())
        problems.append(f"the arrays of {name} have unequal lengths: {each}")
    if problems:
        raise InputProblems(problems)
