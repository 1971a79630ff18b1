"""The user's columns, counted or read: a file becomes the Tally or the Scores that an audit needs."""

import datetime
import re
from collections.abc import Sequence
from functools import reduce
from operator import add

import numpy as np
import polars as pl

from evenprune.columns import Columns, View, schema_problems, value_problems, view
from evenprune.formats import missing_columns, open_table, refused
from evenprune.group_rules import GroupRules, merged_tally
from evenprune.groups import Merged, natural_key, text_of
from evenprune.reading import listed, quoted
from evenprune.table_ranges import ranged
from evenprune.tally import Cell, InputProblems, IntArray, Scores, Tally

__all__ = ["Columns", "check", "read", "read_grouped"]

MOST_CELLS = 100_000  # with more, the column is an identifier or a measurement, and no grouping
NUMBER = re.compile(r"[-+]?\d+(\.\d*)?")


def read(source: str, columns: Columns) -> Tally | Scores:
    """Read a file ("-": standard input). Everything that is wrong with it comes in one InputProblems."""
    return read_grouped(source, columns, GroupRules())[0]


def read_grouped(
    source: str, columns: Columns, rules: GroupRules
) -> tuple[Tally | Scores, list[str], Merged]:
    """The same with numbers in ranges and small groups merged, as the rules say; the notes on that, and all
    of the merged groups."""
    try:
        table = open_table(source, (*columns.answered, *columns.groups))
    except InputProblems as error:
        raise InputProblems(columns.problems() + error.problems) from None
    with refused(table.name, source):
        given = view(table, columns)
        seen, problems, notes = ranged(given, rules.bins)
        problems = columns.problems() + schema_problems(given) + problems
        data, sound = (None, False) if problems else _load(seen)
        if not sound:
            problems += _empty(seen) or value_problems(seen) + _group_problems(seen)
    if problems or data is None:
        raise InputProblems(problems)
    if rules.merge_below is None:
        return data, notes, {}
    merged, more, small = merged_tally(data, rules.merge_below)
    return merged, notes + more, small


def check(source: str, names: Sequence[str]) -> list[str]:
    """The problems of a file of which only some columns are named: it cannot be opened, or has them not."""
    try:
        return missing_columns(open_table(source, names), names)
    except InputProblems as error:
        return error.problems


def _load(seen: View) -> tuple[Tally | Scores | None, bool]:
    """The data, where it can be had, and whether it is sound at first sight."""
    if seen.columns.answers in ("score", "loss"):
        return _scores(seen)
    bits = _right(seen)
    pattern = reduce(add, (bit.cast(pl.Int64) * 2**i for i, bit in enumerate(bits)))
    keys = [pl.col(place) for place in seen.groups]
    rows = seen.frame.group_by(*keys, pattern.alias("pattern")).len("count").collect(engine="streaming")
    if rows["pattern"].has_nulls() or not 0 < rows.select(seen.groups).n_unique() <= MOST_CELLS:
        return None, False
    tally = _tally(seen, rows)
    ever_right = int(np.bitwise_or.reduce(tally.pattern))
    sound = len(tally.cells) > 1 and ever_right == (1 << len(bits)) - 1
    return tally, sound and not any(_needs_a_look(seen, i) for i in range(len(seen.answers)))


def _needs_a_look(seen: View, place: int) -> bool:
    """Answers that the counts alone cannot vouch for: fractions, long ids, scores, known correctness."""
    answer = seen.answers[place]
    checked = (
        seen.columns.answers == "correct" and seen.table.frame.collect_schema()[answer.name] != pl.Boolean
    )
    return checked or answer.holds == "scores" or answer.dtype.is_float() or answer.digits


def _right(seen: View) -> list[pl.Expr]:
    """One boolean a model, the dense one first: null where the label or the answer is missing."""
    if seen.columns.answers == "classes":
        label, *models = seen.answers
        return [label.value == model.value for model in models]
    return [a.value.str.to_lowercase() == "true" if a.holds == "text" else a.value == 1 for a in seen.answers]


def _tally(seen: View, rows: pl.DataFrame) -> Tally:
    cells, cell = _cells(rows.select(seen.groups), spelled=seen.table.spelled)
    pattern, count = (rows[name].cast(pl.Int64).to_numpy() for name in ("pattern", "count"))
    bits = len(seen.columns.pruned) + 1
    code, place = np.unique(cell << bits | pattern, return_inverse=True)  # cells may be spelled in two ways
    merged = np.zeros(code.size, dtype=np.int64)
    np.add.at(merged, place.reshape(-1), count)
    return Tally(
        attributes=seen.columns.groups,
        cells=cells,
        models=seen.columns.pruned,
        cell=code >> bits,
        pattern=code & ((1 << bits) - 1),
        count=merged,
    )


def _scores(seen: View) -> tuple[Scores | None, bool]:
    frame = seen.frame.with_row_index("row").collect(engine="streaming").sort("row")
    distinct = frame.group_by(*seen.groups, maintain_order=True).agg("row")
    answers = frame.select(pl.col(a.place).cast(pl.Float64) for a in seen.answers)
    if sum(answers.null_count().row(0)) or not 0 < distinct.height <= MOST_CELLS:
        return None, False
    cells, of_distinct = _cells(distinct.select(seen.groups), spelled=seen.table.spelled)
    cell = np.empty(frame.height, dtype=np.int64)
    cell[distinct["row"].explode().to_numpy()] = np.repeat(of_distinct, distinct["row"].list.len().to_numpy())
    values = answers.to_numpy().T  # [1 + models, samples]
    loss = seen.columns.answers == "loss"
    sound = bool(np.isfinite(values).all() and (loss or (values.min() >= 0 and values.max() <= 1)))
    return Scores(
        measure="loss" if loss else "score",
        attributes=seen.columns.groups,
        cells=cells,
        models=seen.columns.pruned,
        cell=cell,
        dense=np.ascontiguousarray(values[0]),
        pruned=np.ascontiguousarray(values[1:]),
    ), sound and len(cells) > 1


def _cells(keys: pl.DataFrame, *, spelled: bool) -> tuple[tuple[Cell, ...], IntArray]:
    """The distinct cells as texts, in natural order, and the cell of each row of keys."""
    texts = [_texts(column.to_list(), spelled=spelled) for column in keys.get_columns()]
    rows: list[Cell] = list(zip(*texts, strict=True))
    cells = tuple(sorted(set(rows), key=natural_key))
    position = {cell: i for i, cell in enumerate(cells)}
    return cells, np.array([position[row] for row in rows], dtype=np.int64)


def _texts(values: list[object], *, spelled: bool) -> list[str | None]:
    """Group values as people write them; in a spelled column of numbers 1.0 is 1, like in any other."""
    texts = [text_of(v.isoformat() if isinstance(v, datetime.date | datetime.time) else v) for v in values]
    if spelled and all(t is None or NUMBER.fullmatch(t) for t in texts):
        return [None if t is None else re.sub(r"\.0*$", "", t) for t in texts]
    return texts


def _empty(seen: View) -> list[str]:
    rows = seen.table.frame.select(pl.len()).collect(engine="streaming").item()
    return [] if rows else [f"{seen.table.name} has columns, but no rows"]


def _group_problems(seen: View) -> list[str]:
    """Too many groups, or one alone."""
    if len(seen.groups) < len(seen.columns.groups) or not seen.groups:
        return []
    names = listed(seen.columns.groups)
    keys = seen.frame.select(seen.groups).unique().collect(engine="streaming")
    if keys.height > MOST_CELLS:
        each = ", ".join(
            f"{quoted(name)} {keys[place].n_unique():,}"
            for name, place in zip(seen.columns.groups, seen.groups, strict=True)
        )
        return [
            f"the group columns hold {keys.height:,} different groups (distinct values: {each}); at most "
            f"{MOST_CELLS:,} can be audited: put measurements into ranges, and leave identifiers out"
        ]
    cells, _ = _cells(keys, spelled=seen.table.spelled)
    if len(cells) > 1:
        return []
    only = " × ".join("(missing)" if value is None else quoted(value) for value in cells[0])
    return [f"there is one group only, {only} in column {names}: an audit compares two groups or more"]
