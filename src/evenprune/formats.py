"""A file of any known format, opened as one lazy table; a file that is none is refused after a short look."""

import difflib
import glob
import io
import stat
import sys
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import polars as pl

from evenprune import reading
from evenprune.reading import listed, quoted
from evenprune.spelling import header_of, repeated, separator_of, told_apart
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
    *reading.UNREADABLE,
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
    repeated: tuple[str, ...] = ()  # names that the header of a spelled table holds more than once

    def column(self, name: str) -> pl.Expr:
        """The column by its place: pl.col would read names such as ``^x$`` and ``*`` as patterns."""
        return pl.nth(self.frame.collect_schema().names().index(name))


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
    twice = [name for name in dict.fromkeys(wanted) if name in table.repeated]
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


def refused(name: str, source: str = "-") -> AbstractContextManager[None]:
    """Turn whatever goes wrong while reading into one plain problem of that file."""
    return reading.refused(name, source, unreadable=UNREADABLE, damaged=pl.exceptions.PanicException)


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


def _scan(data: Source, kind: Kind, head: bytes, name: str) -> Table:
    if kind in ("csv", "tsv"):
        return _scan_spelled(data, kind, head, name)
    if kind == "parquet":
        frame = pl.scan_parquet(data, glob=False, hive_partitioning=False)
    elif kind == "arrow":
        frame = pl.scan_ipc(data, glob=False, hive_partitioning=False)
    elif kind == "stream":
        frame = pl.read_ipc_stream(data).lazy()
    else:
        # polars expands wildcards in the names of JSON files, whether asked to or not
        place = data if isinstance(data, bytes) else glob.escape(str(data))
        frame = pl.scan_ndjson(place, infer_schema_length=None)
    return Table(name, tuple(frame.collect_schema().names()), frame)


def _scan_spelled(data: Source, kind: Kind, head: bytes, name: str) -> Table:
    if head.startswith(ZSTD):
        head = _first_lines(data)
    separator = "\t" if kind == "tsv" else separator_of(head)
    header = header_of(head, separator)

    def unescaped(found: list[str]) -> list[str]:
        """The names that polars found, without its doubled quotes."""
        return told_apart(header) if len(header) == len(found) else found

    frame = pl.scan_csv(
        data,
        separator=separator,
        infer_schema=False,
        null_values=["NaN", "nan"],
        glob=False,
        with_column_names=unescaped,
    ).filter(~pl.all_horizontal(pl.all().is_null()))  # blank lines
    columns = tuple(frame.collect_schema().names())
    return Table(name, columns, frame, spelled=True, repeated=tuple(repeated(header)))


def _first_lines(data: Source) -> bytes:
    """The beginning of a text that only polars can unpack: every line as one field."""
    lines = pl.scan_csv(
        data, has_header=False, separator="\x1f", quote_char=None, infer_schema=False, glob=False, n_rows=100
    )
    return "\n".join(line or "" for line in lines.collect().to_series()).encode()


def _open_npz(data: Source, name: str, wanted: Sequence[str]) -> Table:
    file = io.BytesIO(data) if isinstance(data, bytes) else data
    with zipfile.ZipFile(file) as archive:
        columns = tuple(e.removesuffix(".npy") for e in archive.namelist() if e.endswith(".npy"))
        if not columns:
            raise InputProblems([f"{name} is a zip file without arrays, no NPZ ({KNOWN} are known)"])
        kinds = {key: _described(archive, key) for key in wanted if key in columns}
    table, problems = Table(name, columns, pl.LazyFrame()), _array_problems(kinds, name)
    if problems:
        raise InputProblems(missing_columns(table, wanted) + problems)
    with np.load(file, allow_pickle=False) as arrays:
        series = [pl.Series(key, _flat(arrays[key])) for key in kinds]
    return replace(table, frame=pl.DataFrame(series).lazy())


def _described(archive: zipfile.ZipFile, key: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of an array, which is not loaded."""
    with archive.open(f"{key}.npy") as file:
        first = np.lib.format.read_magic(file) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    return shape, dtype


def _flat(array: np.ndarray) -> np.ndarray:
    """Without a last axis of one entry; text that numpy keeps as bytes becomes text."""
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array


def _array_problems(kinds: dict[str, tuple[tuple[int, ...], np.dtype[Any]]], name: str) -> list[str]:
    """Arrays that are no columns, and arrays that do not belong together."""
    problems = []
    for key, (shape, dtype) in kinds.items():
        if dtype.hasobject:
            problems.append(
                f"array {quoted(key)} of {name} holds Python objects, which are never loaded; "
                "save numbers or text"
            )
        elif len(shape) not in (1, 2) or dtype.kind not in "biufSUmM":
            problems.append(
                f"array {quoted(key)} of {name} has shape {list(shape)} and type {dtype}; "
                "a column is one value a row, or one row of scores a row"
            )
    lengths = {key: shape[0] for key, (shape, _) in kinds.items() if shape}
    if len(set(lengths.values())) > 1:
        each = ", ".join(f"{quoted(key)} {length:,}" for key, length in lengths.items())
        problems.append(f"the arrays of {name} have unequal lengths: {each}")
    return problems
