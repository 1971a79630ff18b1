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

from evenprune.tally import Cell, FloatArray, IntArray

MISSING = "(missing)"
MOST_ATTRIBUTES_FOR_EACH = 6  # 63 families of groups


def to_array(values: Any) -> NDArray[Any]:
    """A list, pandas, polars or torch column as a numpy array, without importing any of these packages."""
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
    """Sorts "2" before "10", and missing values last."""

    def parts(text: str) -> tuple[Any, ...]:
        found = re.findall(r"\d+|\D+", text)
        return tuple((0, int(p), "") if p.isdecimal() else (1, 0, p) for p in found)

    return [(value is None, parts(value or "")) for value in cell]


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
