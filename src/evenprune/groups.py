"""Attribute columns to groups: cells, names, intersections, and sums over groups. Needs numpy alone.

A *cell* is one combination of attribute values that occurs. A *group* is a set of cells: with one attribute,
or when attributes are intersected, each cell is a group; with `each`, every attribute and every intersection
of two or more of them makes groups of its own, which overlap.
"""

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenprune import ranges
from evenprune.ranges import Ranges, bin_problems, ranges_of
from evenprune.reading import counted
from evenprune.tally import Cell, FloatArray, InputProblems, IntArray

MISSING = "(missing)"
MOST_ATTRIBUTES_FOR_EACH = 6  # 63 families of groups
NAMED_IN_NOTES = 8  # merged groups that a note names one by one; an audit's JSON has them all

Merged = dict[str, dict[str, int]]  # by the group that they are in: the merged groups, and samples of each


class Column(np.ndarray[Any, np.dtype[Any]]):
    """Group names, one a sample, None where missing, and what a reader of an audit must know of them.

    An array in every other respect: samples that are chosen from it keep the notes.
    """

    notes: tuple[str, ...]
    merged: Merged  # {}: none

    @staticmethod
    def of(
        names: Sequence[Any] | NDArray[Any], notes: Sequence[str] = (), merged: Merged | None = None
    ) -> "Column":
        column = np.array(names, dtype=object).view(Column)
        column.notes, column.merged = tuple(notes), merged or {}
        return column

    def __array_finalize__(self, origin: Any) -> None:
        self.notes, self.merged = getattr(origin, "notes", ()), getattr(origin, "merged", {})


def notes_of(groups: Any) -> list[str]:
    """What was noted of the columns, each note once."""
    columns = [column for column in as_columns(groups).values() if isinstance(column, Column)]
    return list(dict.fromkeys(note for column in columns for note in column.notes))


def merged_of(groups: Any) -> Merged:
    """Which groups were merged, of all columns together."""
    found: Merged = {}
    for column in as_columns(groups).values():
        for into, small in column.merged.items() if isinstance(column, Column) else ():
            found[into] = found.get(into, {}) | small
    return found


def noted(values: Any, notes: Sequence[str]) -> Column:
    """The same column with further notes, each once."""
    column = to_array(values).view(Column)
    column.notes = tuple(dict.fromkeys((*column.notes, *notes)))
    return column


def renamed(column: Any, names: Sequence[Any]) -> Column:
    """Other names for the samples of a column; what was noted of it stays."""
    return Column.of(names, notes_of(column), merged_of(column))


def to_array(values: Any) -> NDArray[Any]:
    """A list, pandas, polars or torch column as a numpy array, without importing any of these packages."""
    if isinstance(values, Column):
        return values
    if hasattr(values, "detach"):  # a torch tensor, on any device
        values = values.detach().cpu()
        if str(values.dtype) == "torch.bfloat16":  # numpy has no such type
            values = values.float()
    if isinstance(values, np.ma.MaskedArray):
        hidden = np.ma.getmaskarray(values)
        values = values.data.astype(object)
        values[hidden] = None
    try:
        array = np.asarray(values)
    except ValueError:  # rows of unequal length
        return np.asarray(list(values), dtype=object)
    made_text = isinstance(values, list | tuple) and array.dtype.kind == "U" and array.ndim == 1
    if made_text and not all(isinstance(value, str) for value in values):  # of numbers, or of NaN
        return np.array(values, dtype=object)
    return array


def is_missing(value: Any) -> bool:
    """None, NaN, NaT, pandas' NA, or an empty text."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return bool(value == "") if isinstance(value, str) else bool(value != value)


def text_of(value: Any) -> str | None:
    """A value as people write it: 1.0 is "1", True is "true"; None where it is missing."""
    if is_missing(value):
        return None
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float | np.floating) and float(value).is_integer() and abs(float(value)) < 2**53:
        return str(int(value))
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _distinct(values: NDArray[Any]) -> tuple[IntArray, list[Any]]:
    """Codes [n] and the distinct values they stand for."""
    if values.size and values.dtype.kind in "biu" and values.min() >= 0 and values.max() <= 4 * values.size:
        whole = values.astype(np.int64)  # small whole numbers: no sorting
        seen = np.flatnonzero(np.bincount(whole))
        rank = np.zeros(int(whole.max()) + 1, dtype=np.int64)
        rank[seen] = np.arange(seen.size)
        return rank[whole], seen.astype(values.dtype).tolist()
    if values.dtype.kind in "iuf":
        distinct, codes = np.unique(values, return_inverse=True)
        return codes.astype(np.int64).reshape(-1), list(distinct)
    position: dict[Any, int] = {}
    listed = values.astype(str).tolist() if values.dtype.kind == "M" else values.tolist()
    codes = np.fromiter((position.setdefault(v, len(position)) for v in listed), np.int64, len(listed))
    return codes, list(position)


def factorize(values: Any) -> tuple[IntArray, list[str | None]]:
    """A column as codes [n] and texts; each text occurs once, None stands for missing values."""
    codes, distinct = _distinct(to_array(values))
    texts = [text_of(v) for v in distinct]
    merged: dict[str | None, int] = {}
    remap = np.array([merged.setdefault(t, len(merged)) for t in texts], dtype=np.int64)
    return (remap[codes] if codes.size else codes), list(merged)


def cells_of(columns: Mapping[str, Any]) -> tuple[IntArray, tuple[Cell, ...]]:
    """The cell of each sample [n], and the cells that occur."""
    coded = [factorize(values) for values in columns.values()]
    cell = np.zeros(coded[0][0].size, dtype=np.int64)
    cells: list[Cell] = [()]
    for codes, texts in coded:  # coded anew after each column, so that many columns cannot overflow
        occurring, cell = np.unique(cell * len(texts) + codes, return_inverse=True)
        cell = cell.astype(np.int64).reshape(-1)
        pairs = zip(*np.divmod(occurring, len(texts)), strict=True)
        cells = [(*cells[i], texts[j]) for i, j in pairs]
    return cell, tuple(cells)


def natural_key(cell: Cell) -> list[tuple[Any, ...]]:
    """Sorts "2" before "10", "under 18" before "18–29", and missing values last."""

    def parts(text: str) -> tuple[Any, ...]:
        text = re.sub(r"(^| × )under (?=-?\d)", r"\1", text)
        found = re.findall(r"^-\d+(?:\.\d+)?|\d+(?:\.\d+)?|\D+", text)
        return tuple((0, float(p), "") if p[-1].isdecimal() else (1, 0, p) for p in found)

    return [(value is None, parts(value or ""), value or "") for value in cell]


def _names(parents: Sequence[dict[str, str | None]], *, with_attribute: bool) -> list[str]:
    """Names of groups, made of the values of their parents; unambiguous whatever the values are."""

    def word(value: str | None) -> str:
        return MISSING if value is None else json.dumps(value) if value == MISSING else value

    def name(group: dict[str, str | None], prefix: bool) -> str:
        return " × ".join(f"{a}={word(v)}" if prefix else word(v) for a, v in group.items())

    names = [name(g, with_attribute) for g in parents]
    if len(set(names)) < len(names):
        names = [name(g, True) for g in parents]
    if len(set(names)) < len(names):  # values that hold " × " or "=": quote them
        names = [json.dumps(g, ensure_ascii=False) for g in parents]
    return names


@dataclass(frozen=True)
class Grouping:
    """Which cells make up which groups, and what the groups are called."""

    names: tuple[str, ...]  # [groups]
    attributes: tuple[dict[str, str | None], ...]  # [groups] the parents: attribute -> value
    families: tuple[IntArray, ...]  # each [cells]: the group of every cell, one family per attribute set

    def __len__(self) -> int:
        return len(self.names)

    def sum(self, x: FloatArray) -> FloatArray:
        """Sum over the cells of each group: [..., cells] -> [..., groups]."""
        return np.concatenate([_sum_family(x, family) for family in self.families], axis=-1)


def _sum_family(x: FloatArray, family: IntArray) -> FloatArray:
    first = int(family.min())
    if x.shape[-1] == int(family.max()) - first + 1:  # every cell is a group of its own
        return np.ascontiguousarray(x[..., np.argsort(family)])
    order = np.argsort(family, kind="stable")
    starts = np.flatnonzero(np.diff(family[order], prepend=first - 1))
    return np.add.reduceat(x[..., order], starts, axis=-1)


def group_cells(cells: Sequence[Cell], attributes: Sequence[str], *, each: bool) -> Grouping:
    """The groups of an audit: every cell, or (each) every attribute and every intersection of attributes."""
    count = len(attributes)
    subsets = [tuple(range(count))]
    if each:
        subsets = [s for size in range(1, count + 1) for s in itertools.combinations(range(count), size)]
    families: list[IntArray] = []
    parents: list[dict[str, str | None]] = []
    for subset in subsets:
        keys = [tuple(cell[i] for i in subset) for cell in cells]
        position = {key: len(parents) + i for i, key in enumerate(sorted(set(keys), key=natural_key))}
        families.append(np.array([position[key] for key in keys], dtype=np.int64))
        parents += [dict(zip((attributes[i] for i in subset), key, strict=True)) for key in position]
    names = _names(parents, with_attribute=each and count > 1)
    return Grouping(tuple(names), tuple(parents), tuple(families))


def encode(columns: Mapping[str, Any] | Any) -> tuple[IntArray, tuple[str, ...]]:
    """Group ids [n] for training, intersected, and group names; a sample with any value missing gets −1."""
    columns = as_columns(columns)
    cell, cells = cells_of(columns)
    known = sorted((c for c in cells if None not in c), key=natural_key)
    grouping = group_cells(known, tuple(columns), each=False)
    position = dict(zip(known, grouping.families[0], strict=True))
    ids = np.array([position.get(c, -1) for c in cells], dtype=np.int64)
    return ids[cell], grouping.names


def as_columns(groups: Any) -> dict[str, Any]:
    """A mapping or data frame as columns by name; one plain column is called "group"."""
    if isinstance(groups, Mapping):
        return {str(name): values for name, values in groups.items()}
    if hasattr(groups, "columns") and hasattr(groups, "__getitem__"):  # a pandas or polars data frame
        return {str(name): groups[name] for name in groups.columns}
    return {"group": groups}


# --- numbers to ranges ---


def binned(
    values: Any,
    *,
    edges: Sequence[float] | None = None,
    quantiles: int | None = None,
    unit: str = "",
    whole: bool | None = None,
) -> Column:
    """Numbers as ranges with names: "under 18", "18–29", "30–44", "75 and over"; missing values stay missing.

    `edges` are where ranges begin: a value that equals an edge lies above it. `quantiles` finds edges that
    make this many ranges of about equal size. Whole numbers have ranges that name their last number (18–29),
    others ranges that name the first beyond (0.5 to under 1); `whole` says which, where a part of the data
    could look different. Give all samples at once; or splits one by one, with the same edges.
    """
    numbers, problems = _numbers(values)
    problems += bin_problems(edges, quantiles)
    if problems:
        raise InputProblems(problems)
    found = ranges_of(numbers, edges=edges, quantiles=quantiles, unit=unit, whole=whole)
    return Column.of(in_ranges(numbers, found), found.notes)


def in_ranges(numbers: FloatArray, into: Ranges) -> NDArray[Any]:
    """The name of the range of each number; None where it is NaN."""
    known, names = ~np.isnan(numbers), np.array(into.names, dtype=object)
    found = np.full(numbers.shape, None, dtype=object)
    found[known] = names[np.searchsorted(np.asarray(into.edges, dtype=float), numbers[known], side="right")]
    return found


def quantile_edges(values: Any, count: int) -> tuple[float, ...]:
    """Where `count` ranges of about equal size begin, as ranges.quantile_edges finds them."""
    numbers, problems = _numbers(values)
    problems += bin_problems(None, count)
    if problems:
        raise InputProblems(problems)
    return ranges.quantile_edges(numbers, count)


def _numbers(values: Any) -> tuple[FloatArray, list[str]]:
    """A column of numbers, NaN where missing; and what is wrong with it."""
    array = to_array(values)
    if array.ndim != 1:
        return np.empty(0), [
            f"the values to put into ranges have shape {list(array.shape)}: give one a sample"
        ]
    numbers, wrong = numbers_of(array)
    if not wrong:
        return numbers, []
    first, value = next(iter(wrong.items()))
    many = counted(len(wrong), "value is no number", "values are no numbers")
    return numbers, [f"{many}; the first is {value!r} of sample {first:,}"]


def numbers_of(column: NDArray[Any]) -> tuple[FloatArray, dict[int, Any]]:
    """A column of numbers, or of texts that are numbers, NaN where missing; and the others by their place."""
    if column.dtype.kind in "biuf":
        return column.astype(float), {}
    numbers, wrong = np.full(column.size, np.nan), dict[int, Any]()
    for place, value in enumerate(column.tolist()):
        try:
            numbers[place] = np.nan if is_missing(value) else float(value)
        except (TypeError, ValueError, OverflowError):
            wrong[place] = value
    return numbers, wrong


# --- small groups to one ---


def merge_below(columns: Any, n: int, *, into: str = "other", training: Any = None) -> Column:
    """The groups of one or more columns as one column, with groups of fewer than n samples as one group.

    Of several columns the intersections are the groups, as in an audit: pass the result as the one column
    of groups. A sample with a missing value stays missing: of several columns, all such are one group. With
    `training`, the columns of the training data, groups are counted there: so every split is merged alike,
    and groups that are not in it are merged too.
    An audit of the result lists, in its notes, what was merged.
    """
    if not isinstance(n, int | np.integer) or n < 1:
        raise InputProblems([f"n is {n!r}: groups of fewer than how many samples are merged, such as 30?"])
    columns = as_columns(columns)
    cell, cells = cells_of(columns)
    counted, places = (cell, cells) if training is None else cells_of(as_columns(training))
    counts = dict(zip(places, np.bincount(counted, minlength=len(places)).tolist(), strict=True))
    trained = training is not None
    names, notes, merged = merged_names(cells, counts, tuple(columns), n=n, into=into, trained=trained)
    notes, merged = [*notes_of(columns), *notes], merged_of(columns) | merged
    return Column.of(np.array(names, dtype=object)[cell], notes, merged)


def merged_names(
    cells: Sequence[Cell],
    counts: Mapping[Cell, int],
    attributes: Sequence[str],
    *,
    n: int,
    into: str = "other",
    trained: bool = False,
) -> tuple[list[str | None], list[str], Merged]:
    """What each cell is called after groups of fewer than n were merged, None if missing; the notes on it,
    and all of the merged groups. Without a note, nothing need be merged.

    counts: samples of the cells that have any; trained: these are training samples, others are to follow. A
    note on training samples is the same for every split; groups that the training data has not are apart.
    """
    known = sorted({c for c in (*cells, *counts) if None not in c}, key=natural_key)
    name_of = dict(zip(known, group_cells(known, attributes, each=False).names, strict=True))
    small = {c for c in known if counts.get(c, 0) < n}
    names = [None if c not in name_of else into if c in small else name_of[c] for c in cells]
    counted, notes = [c for c in known if c in counts], list[str]()
    sizes = {name_of[c]: counts[c] for c in counted if c in small}
    strangers = [name_of[c] for c in known if c not in counts]
    if sizes:
        before = next((size for c, size in counts.items() if name_of.get(c) == into and c not in small), 0)
        gone, left = ([c for c in counted if (c in small) == merged] for merged in (True, False))
        note = _merged_note(sizes, n, into, before=before, trained=trained)
        notes.append(note + _hidden(gone, left, attributes, into))
    if len(counted) > 1:  # else one group would be left
        notes += _gaps_note(counts, attributes, n=n, anyway=bool(sizes))
    if strangers:
        notes.append(f"{_merged(len(strangers), 'no training samples', into)}: {_named(strangers)}.")
    merged = sizes | dict.fromkeys(strangers, 0)
    return names, notes, {into: merged} if merged else {}


def _merged(count: int, few: str, into: str) -> str:
    many = "One group has {}, and is" if count == 1 else f"{count:,} groups have {{}}, and are"
    return f"{many.format(few)} merged into “{into}”"


def _named(names: Sequence[str]) -> str:
    more = f" … and {len(names) - NAMED_IN_NOTES:,} more" if len(names) > NAMED_IN_NOTES else ""
    return ", ".join(names[:NAMED_IN_NOTES]) + more


def _sized(sizes: Mapping[str, int]) -> str:
    return _named([f"{name} ({size:,})" for name, size in sizes.items()])


def _gaps_note(counts: Mapping[Cell, int], attributes: Sequence[str], *, n: int, anyway: bool) -> list[str]:
    """That all groups with a missing value are one: if some are small, or if others are merged anyway."""
    gaps = sorted((c for c in counts if None in c), key=natural_key)
    if len(gaps) < 2 or not (anyway or any(counts[c] < n for c in gaps)):
        return []
    names = group_cells(gaps, attributes, each=False).names
    sizes = {name: counts[c] for name, c in zip(names, gaps, strict=True)}
    return [f"{len(gaps):,} groups with a missing value are merged into “{MISSING}”: {_sized(sizes)}."]


def _hidden(small: Sequence[Cell], left: Sequence[Cell], attributes: Sequence[str], into: str) -> str:
    """Of several attributes, the values that no group has any more; in words."""
    kept = {pair for cell in left for pair in enumerate(cell)}
    gone = {pair for cell in small for pair in enumerate(cell)} - kept
    if len(attributes) < 2 or not gone:
        return ""
    named = sorted((place, natural_key((value,)), value) for place, value in gone)
    told = _named([f"{attributes[place]} {value}" for place, _, value in named])
    return f" Wholly in “{into}”: {told}."


def _merged_note(small: Mapping[str, int], n: int, into: str, *, before: int, trained: bool) -> str:
    kind, total = "training samples" if trained else "samples", sum(small.values()) + before
    few = f"fewer than {n:,} {kind}"
    sentences = [f"{_merged(len(small), few, into)}: {_sized(small)}."]
    if before:
        sentences.append(f"“{into}” was there before, with {before:,}.")
    if total < n:
        counted = kind if total != 1 else kind.removesuffix("s")
        sentences.append(f"“{into}” has {total:,} {counted} in all, still fewer than {n:,}.")
    return " ".join(sentences)
