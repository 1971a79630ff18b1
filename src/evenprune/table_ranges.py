"""Numbers of a table to ranges, before its rows are counted: the rules of group_rules, for polars."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import polars as pl

from evenprune.columns import View
from evenprune.group_rules import Bins, no_numbers, ranges_for
from evenprune.ranges import Ranges


def ranged(seen: View, bins: Mapping[str, Bins]) -> tuple[View, list[str], list[str]]:
    """The view with names of ranges in the columns of `bins`; what is wrong with these; and notes on them."""
    frame, problems, notes = seen.frame, list[str](), list[str]()
    places = {seen.columns.groups[int(place[1:])]: place for place in seen.groups}
    for name, place in ((name, places[name]) for name in bins if name in places):
        schema = seen.frame.collect_schema()
        if schema[place].is_nested() or schema[place] == pl.Object:
            continue  # refused already
        given = seen.frame.select(place).collect(engine="streaming")[place]
        if isinstance(schema[place], pl.Categorical | pl.Enum):
            frame = frame.with_columns(pl.col(place).cast(pl.String))
        numbers = _numbers(given)
        wrong = given.filter(given.is_not_null() & numbers.is_null())
        if len(wrong):
            examples = wrong.unique(maintain_order=True).head(3).to_list()
            problems.append(no_numbers(name, len(wrong), len(given), examples))
            continue
        ranges, more = ranges_for(name, numbers.fill_null(np.nan).to_numpy(), bins[name])
        problems, notes = problems + more, notes + list(ranges.notes)
        frame = frame.with_columns(_in_ranges(place, ranges).alias(place))
    return replace(seen, frame=frame), problems, notes


def _numbers(column: pl.Series) -> pl.Series:
    """As numbers; null where they are none, or missing."""
    if isinstance(column.dtype, pl.Categorical | pl.Enum):
        column = column.cast(pl.String)
    if column.dtype.is_temporal():
        return pl.Series(column.name, [None] * len(column), dtype=pl.Float64)
    return column.cast(pl.Float64, strict=False).fill_nan(None)


def _in_ranges(place: str, ranges: Ranges) -> pl.Expr:
    number = pl.col(place).cast(pl.Float64, strict=False).fill_nan(None)
    text = pl.lit(ranges.names[-1])
    for edge, name in reversed(list(zip(ranges.edges, ranges.names, strict=False))):
        text = pl.when(number < edge).then(pl.lit(name)).otherwise(text)
    return pl.when(number.is_not_null()).then(text)
