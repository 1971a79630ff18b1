"""What becomes of attributes before they make groups: numbers to ranges, small groups to one.

The flags --bin and --merge-below are read here, for tables that are audited and for data that is pruned on.
Everything that was done is told in notes, which the audits show.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenprune.groups import (
    Column,
    Merged,
    cells_of,
    factorize,
    in_ranges,
    merge_below,
    merged_names,
    notes_of,
    numbers_of,
    to_array,
)
from evenprune.ranges import Ranges, bin_problems, ranges_of, written
from evenprune.reading import listed, quoted
from evenprune.tally import Cell, FloatArray, InputProblems, IntArray, Scores, Tally

Bins = Sequence[float] | int | str  # where ranges begin, how many of about equal size; or a flag's text
Columns = dict[str, NDArray[Any]]

EXAMPLE = "--bin age=18,30,45 or --bin income=quantiles:4"
MANY_NUMBERS, FEW_EACH = 20, 30  # of a measurement: more values than the first, fewer samples each
QUANTILES = re.compile(r"quantiles:(.*)", re.DOTALL)


@dataclass(frozen=True)
class GroupRules:
    """How attributes are grouped. `problems` lists what is wrong, whatever the data."""

    bins: Mapping[str, Bins] = field(default_factory=dict)  # by column
    merge_below: int | None = None  # groups with fewer samples become one

    def problems(self, groups: Iterable[str]) -> list[str]:
        there = list(groups)
        found = [_stranger(name, there) for name in self.bins if name not in there]
        for name, bins in self.bins.items():
            wrong = _parsed(bins)[1] if isinstance(bins, str) else bin_problems(**_told(bins))
            found += [f"bin of {quoted(name)}: {problem}" for problem in wrong]
        n = self.merge_below
        if n is not None and (not isinstance(n, int | np.integer) or n < 1):
            found.append(
                f"merge_below is {n!r}: groups of fewer than how many samples are merged, such as 30?"
            )
        return found


def _stranger(name: str, groups: Sequence[str]) -> str:
    there = f"the groups are {listed(groups)}" if groups else "there are none"
    return f"bin names column {quoted(name)}, which is no group ({there}): add it to these, or leave it out"


def _told(bins: Bins) -> dict[str, Any]:
    told = _parsed(bins)[0] if isinstance(bins, str) else bins
    number = isinstance(told, int | float | np.number)
    return {"edges": None, "quantiles": told} if number else {"edges": told, "quantiles": None}


# --- flags ---


def parse_bins(texts: Sequence[str]) -> tuple[dict[str, Bins], list[str]]:
    """age=18,30,45 and income=quantiles:4 as ranges by column, and what is wrong with the texts."""
    found, problems = dict[str, Bins](), list[str]()
    for text in texts:
        name, equals, wish = (part.strip() for part in text.rpartition("="))
        if not (equals and name and wish):
            problems.append(f"bin is {quoted(text)}: write COLUMN=EDGES or COLUMN=quantiles:N, as {EXAMPLE}")
        elif name in found:
            problems.append(f"bin names column {quoted(name)} twice: give all its edges at once")
        else:
            found[name], wrong = _parsed(wish)
            problems += [f"bin is {quoted(text)}: {why}; write it as {EXAMPLE}" for why in wrong]
    return found, problems


def _parsed(wish: str) -> tuple[Bins, list[str]]:
    """Edges or a number of quantiles; where they make no sense, some that do, and why."""
    quantiles = QUANTILES.fullmatch(wish)
    if quantiles:
        number = quantiles[1].strip()
        fits = number.isdecimal() and int(number) >= 2
        return (int(number), []) if fits else (2, [f"{quoted(number)} is no whole number from 2 on"])
    edges, wrong = list[float](), list[str]()
    for part in wish.split(","):
        try:
            edges.append(float(part))
        except ValueError:
            wrong.append(part.strip())
    if wrong:
        return 2, [f"{listed(wrong)} {'is no number' if len(wrong) == 1 else 'are no numbers'}"]
    return (2, ["the edges must rise, each finite"]) if bin_problems(edges, None) else (tuple(edges), [])


# --- numbers to ranges ---


def ranged(
    columns: Mapping[str, Any], bins: Mapping[str, Bins], *, training: NDArray[np.bool_]
) -> tuple[dict[str, Any], list[str]]:
    """The columns, those of `bins` as names of ranges; and what is wrong with these.

    A column has one value a sample, all splits in a row. Quantiles are those of the training samples.
    """
    found, problems = dict(columns), list[str]()
    for name in (name for name in bins if name in columns):
        numbers, wrong = numbers_of(to_array(columns[name]))
        if wrong:
            problems.append(no_numbers(name, len(wrong), numbers.size, list(wrong.values())))
            continue
        ranges, more = ranges_for(name, numbers, bins[name], training=training)
        found[name], problems = Column.of(in_ranges(numbers, ranges), ranges.notes), problems + more
    return found, problems


def no_numbers(name: str, count: int, total: int, examples: Sequence[Any]) -> str:
    shown = listed(list(dict.fromkeys(map(str, examples)))[:3])
    many = f"{count:,} of {total:,} values are no numbers" if count > 1 else f"one of {total:,} is no number"
    return (
        f"group column {quoted(name)} is to be put into ranges, but {many}, such as {shown}: leave such "
        "values empty, or the column as it is, without a bin"
    )


def ranges_for(
    name: str, numbers: FloatArray, bins: Bins, *, training: NDArray[np.bool_] | None = None
) -> tuple[Ranges, list[str]]:
    """The ranges of a column with a note on them, and what is wrong: no value at all, or all in one range."""
    told = _told(bins)
    found = ranges_of(numbers, **told, training=None if training is None else numbers[training])
    known = numbers[~np.isnan(numbers)]
    used = np.unique(np.searchsorted(found.edges, known, side="right"))
    if used.size < 2:
        return found, [_one_range(name, known, found, used)]
    how = f", quantiles of the {'samples' if training is None else 'training samples'}"
    at = ", ".join(written(edge) for edge in found.edges)
    note = f"{name} is in ranges that begin at {at}{how if told['edges'] is None else ''}."
    return replace(found, notes=(note, *(f"{name}: {text}" for text in found.notes))), []


def _one_range(name: str, known: FloatArray, found: Ranges, used: IntArray) -> str:
    if not known.size:
        return f"group column {quoted(name)} holds no number at all: there is nothing to put into ranges"
    low, high = written(float(known.min())), written(float(known.max()))
    lie = f"all {known.size:,} values lie in one range, {quoted(found.names[used[0]])}"
    return f"group column {quoted(name)}: {lie} (they go from {low} to {high}); choose edges between these"


def measured(columns: Mapping[str, Any]) -> list[str]:
    """A note on each column of many different numbers with few samples each: ranges make better groups."""
    notes = []
    for name, values in columns.items():
        column = to_array(values)
        codes, texts = factorize(column)
        if len(texts) > MANY_NUMBERS and codes.size < FEW_EACH * len(texts) and not numbers_of(column)[1]:
            notes.append(
                f"group column {quoted(name)} holds {len(texts):,} different numbers on {codes.size:,} "
                f"training samples; ranges are larger groups: --bin {name}=quantiles:4"
            )
    return notes


# --- small groups to one ---


def merged(splits: Mapping[str, Columns], n: int) -> dict[str, Columns]:
    """The columns of each split as one, if some group has fewer than n samples in the split "train"."""
    training = splits["train"]
    columns = {name: merge_below(own, n, training=training) for name, own in splits.items()}
    if all(column.notes == tuple(notes_of(splits[name])) for name, column in columns.items()):
        return dict(splits)  # nothing to merge
    cell, cells = cells_of(training)
    _check_left(columns["train"].tolist(), n, cells, np.bincount(cell, minlength=len(cells)).tolist())
    title = " × ".join(training)
    return {name: {title: column} for name, column in columns.items()}


def merged_tally(data: Tally | Scores, n: int) -> tuple[Tally | Scores, list[str], Merged]:
    """The same for samples that are counted, or scored, by cell; the note on it, and all merged groups."""
    weights = data.count if isinstance(data, Tally) else None
    counts = np.bincount(data.cell, weights, minlength=len(data.cells)).astype(int).tolist()
    by_cell = dict(zip(data.cells, counts, strict=True))
    names, notes, small = merged_names(data.cells, by_cell, data.attributes, n=n)
    if not notes:
        return data, [], {}
    _check_left(names, n, data.cells, counts)
    place = {name: i for i, name in enumerate(dict.fromkeys(names))}
    cell = np.array([place[name] for name in names], dtype=np.int64)[data.cell]
    title = " × ".join(data.attributes)
    changed: Any = {"attributes": (title,), "cells": tuple((name,) for name in place), "cell": cell}
    if isinstance(data, Tally):
        changed |= _recounted(data, cell)
    return replace(data, **changed), notes, small


def _check_left(names: Iterable[str | None], n: int, cells: Iterable[Cell], counts: Iterable[int]) -> None:
    """Refuse where no second group is left."""
    if len(set(names) - {None}) < 2:
        known = [count for cell, count in zip(cells, counts, strict=True) if None not in cell]
        largest = max(known, default=0)
        what = f"every group has fewer samples, the largest {largest:,}, and one group is left of them all"
        if largest >= n:
            what = f"one group is left, of {largest:,} samples"
        raise InputProblems([f"merge_below is {n:,}: {what}; lower it"])


def _recounted(data: Tally, cell: IntArray) -> dict[str, IntArray]:
    """Rows whose cell and pattern have become the same are one."""
    bits = len(data.models) + 1
    code, row = np.unique(cell << bits | data.pattern, return_inverse=True)
    count = np.zeros(code.size, dtype=np.int64)
    np.add.at(count, row.reshape(-1), data.count)
    return {"cell": code >> bits, "pattern": code & ((1 << bits) - 1), "count": count}
