"""Which columns the user named, what they hold, and everything that is wrong with them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import polars as pl

from evenprune.formats import Table, missing_columns
from evenprune.reading import listed, quoted
from evenprune.spelling import Spelling, is_whole, plain_digits, repeated, spellings
from evenprune.tally import MOST_MODELS

Answers = Literal["classes", "correct", "score", "loss"]
Holds = Literal["number", "text", "scores", "unfit"]
ROWS_SHOWN = 5
BITS_OF_FLOATS = {"Float16": 11, "Float32": 24, "Float64": 53}


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The user's choice: what the answers of the models are, and the columns that hold them."""

    answers: Answers = "classes"
    label: str | None = None  # for classes only
    dense: str
    pruned: tuple[str, ...]
    groups: tuple[str, ...]

    @property
    def answered(self) -> tuple[str, ...]:
        """Label, dense and pruned columns: where a missing value is a problem."""
        return ((self.label,) if self.label is not None else ()) + (self.dense, *self.pruned)

    def problems(self) -> list[str]:
        found = [f"column {quoted(c)} is given twice as a group" for c in repeated(self.groups)]
        if len(self.pruned) > MOST_MODELS:
            found.append(
                f"{len(self.pruned)} pruned models are given; at most {MOST_MODELS} fit into one audit"
            )
        return found + [
            f"column {quoted(c)} is given twice among the label, the dense and the pruned answers; "
            "an audit of a column against itself says nothing"
            for c in repeated(self.answered)
        ]


@dataclass(frozen=True)
class Answer:
    """One column of labels or answers under its place in the frame: ``a0``, ``a1`` …"""

    name: str  # the user's
    place: str
    holds: Holds
    dtype: pl.DataType
    digits: bool = False  # text of whole numbers that are too long for any other kind

    @property
    def value(self) -> pl.Expr:
        return pl.col(self.place)


@dataclass(frozen=True)
class View:
    """The named columns alone, under names of our own; missing values are null, scores are class ids."""

    table: Table
    columns: Columns
    answers: tuple[Answer, ...]
    groups: tuple[str, ...]  # places of the groups that exist: g0, g1 …
    frame: pl.LazyFrame


def view(table: Table, columns: Columns) -> View:
    """Select the columns that exist and make their values comparable. Nothing is read yet but spellings."""
    names = [name for name in columns.answered if name in table.columns]
    kinds = _spelled_kinds(table, names, columns) if table.spelled else _stored_kinds(table, names)
    answers = tuple(
        Answer(name, f"a{i}", _holds(kind.dtype), kind.dtype, kind.digits)
        for i, (name, kind) in enumerate(zip(names, kinds, strict=True))
    )
    alike = all(answer.digits for answer in answers)  # beside words, long numbers compare as they are written
    values = [_value(table, answer, alike=alike).alias(answer.place) for answer in answers]
    places = [f"g{i}" for i, name in enumerate(columns.groups) if name in table.columns]
    schema = table.frame.collect_schema()
    for place in places:
        name = columns.groups[int(place[1:])]
        values.append(_without_nan(table.column(name), schema[name]).alias(place))
    return View(table, columns, answers, tuple(places), table.frame.select(values))


def schema_problems(seen: View) -> list[str]:
    """What can be told without reading the rows: columns that are not there or hold the wrong things."""
    problems = missing_columns(seen.table, (*seen.columns.answered, *seen.columns.groups))
    schema = seen.frame.collect_schema()
    for place in seen.groups:
        if _holds(schema[place], as_group=True) == "unfit":
            name = seen.columns.groups[int(place[1:])]
            problems.append(f"group column {quoted(name)} holds {schema[place]}; a group is one value a row")
    problems += [_wrong_type(seen, a) for a in seen.answers if not _fits(seen.columns, a)]
    label = _label(seen)
    unlike = [a for a in _fitting(seen) if label and (a.holds == "text") != (label.holds == "text")]
    return problems + [
        _unlike(seen, label, a) for a in unlike if label and pl.Null not in (a.dtype, label.dtype)
    ]


def value_problems(seen: View) -> list[str]:
    """Every problem that lies in the values themselves. Reads the rows as often as it needs."""
    fit, label = _fitting(seen), _label(seen)
    problems = [p for a in fit for p in _missing_values(seen, a)]
    if seen.columns.answers != "classes":
        return problems + [p for a in fit for p in _out_of_range(seen, a)]
    problems += [p for a in fit for p in _inexact(seen, a)]
    return problems + [p for a in fit if label and a is not label for p in _against(seen, label, a)]


def _fits(columns: Columns, answer: Answer) -> bool:
    fitting: dict[Answers, tuple[Holds, ...]] = {
        "classes": ("number", "text") if answer.name == columns.label else ("number", "text", "scores"),
        "correct": ("number", "text"),
        "score": ("number",),
        "loss": ("number",),
    }
    return answer.holds in fitting[columns.answers] or answer.dtype == pl.Null


def _fitting(seen: View) -> list[Answer]:
    return [a for a in seen.answers if _fits(seen.columns, a)]


def _label(seen: View) -> Answer | None:
    return next((a for a in _fitting(seen) if a.name == seen.columns.label), None)


def _holds(dtype: pl.DataType, *, as_group: bool = False) -> Holds:
    if dtype.is_numeric() or dtype == pl.Boolean:
        return "number"
    if dtype in (pl.String, pl.Categorical, pl.Enum):
        return "text"
    if as_group:
        return "unfit" if dtype.is_nested() or dtype == pl.Object else "text"
    inner = dtype.inner if isinstance(dtype, pl.List | pl.Array) else None
    return "scores" if isinstance(inner, pl.DataType) and inner.is_numeric() else "unfit"


def _stored_kinds(table: Table, names: Sequence[str]) -> list[Spelling]:
    schema = table.frame.collect_schema()
    return [Spelling(schema[name]) for name in names]


def _spelled_kinds(table: Table, names: Sequence[str], columns: Columns) -> list[Spelling]:
    texts = [_without_nan(table.column(name), pl.String()) for name in names]
    return spellings(table.frame, texts, ids=columns.answers == "classes")


def _without_nan(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    if dtype.is_float():
        return column.fill_nan(None)
    return pl.when(column != "").then(column) if dtype == pl.String else column


def _value(table: Table, answer: Answer, *, alike: bool) -> pl.Expr:
    column = table.column(answer.name)
    if table.spelled:
        text = _without_nan(column, pl.String())
        if answer.holds == "text":
            return plain_digits(text) if alike else text
        return _without_nan(text.cast(answer.dtype), answer.dtype)
    if answer.holds == "number":
        exact = {pl.Boolean(): pl.UInt8(), pl.UInt64(): pl.Int128()}  # UInt64 may meet Int64 as Float64
        return _without_nan(column.cast(exact.get(answer.dtype, answer.dtype)), answer.dtype)
    if answer.holds == "text":
        return _without_nan(column.cast(pl.String), pl.String())
    return _highest(column, answer.dtype) if answer.holds == "scores" else column


def _highest(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """The place of the highest score; null where a score is missing."""
    scores = (column.arr.to_list() if isinstance(dtype, pl.Array) else column).cast(pl.List(pl.Float64))
    absent = scores.list.eval(pl.element().is_null() | pl.element().is_nan()).list.any()
    return pl.when(~absent).then(scores.list.arg_max().cast(pl.Int64))


def _examples(seen: View, answer: Answer, *, where: pl.Expr | None = None) -> str:
    chosen = seen.frame.filter(answer.value.is_not_null() if where is None else where)
    values = chosen.select(answer.value).head(1000).collect(engine="streaming").to_series()
    return listed(values.unique(maintain_order=True).head(3).to_list()) or "nothing"


def _wrong_type(seen: View, answer: Answer) -> str:
    needed = {
        "classes": "class ids are numbers or text, or one list of scores a row",
        "correct": "known correctness is true or false, or 1 or 0",
        "score": "scores are numbers from 0 to 1",
        "loss": "losses are numbers",
    }[seen.columns.answers]
    if answer.holds == "text":
        reads = answer.value.cast(pl.Float64, strict=False)
        return (
            f"column {quoted(answer.name)} holds text, for example "
            f"{_examples(seen, answer, where=answer.value.is_not_null() & reads.is_null())}; {needed}"
        )
    return f"column {quoted(answer.name)} holds {answer.dtype}; {needed}"


def _rows(seen: View, where: pl.Expr) -> tuple[int, str]:
    """How many rows, and the numbers of the first of them."""
    rows = seen.frame.select(where.fill_null(False).alias("bad")).with_row_index("row", offset=1)
    numbers = rows.filter(pl.col("bad")).select("row").collect(engine="streaming").to_series().sort()
    first = ", ".join(f"{n:,}" for n in numbers.head(ROWS_SHOWN))
    return len(numbers), f"row {first}" if len(numbers) == 1 else f"rows {first}"


def _missing_values(seen: View, answer: Answer) -> list[str]:
    count, rows = _rows(seen, answer.value.is_null())
    if not count:
        return []
    many = f"{count:,} missing values" if count > 1 else "a missing value"
    first = "first in" if count > ROWS_SHOWN else "in"
    return [
        f"column {quoted(answer.name)} has {many} (NaN, null or empty), {first} {rows} "
        "(counted from 1 below the header): fill them in, or leave these rows out of the file"
    ]


def _inexact(seen: View, answer: Answer) -> list[str]:
    """Class ids so long that rounding may have made two of them one."""
    if answer.digits:
        rounded, why = ~is_whole(answer.value), "beside class ids this long, each must be written in full"
    elif answer.dtype.is_float():
        first = 2 ** BITS_OF_FLOATS[str(answer.dtype)]
        rounded = answer.value.abs() >= first
        why = f"from {first:,} on {answer.dtype} mixes up neighbouring class ids; save whole numbers or text"
    else:
        return []
    count, rows = _rows(seen, rounded)
    if not count:
        return []
    shown = _examples(seen, answer, where=rounded)
    many = f"{count:,} such values, first in " if count > 1 else ""
    return [f"column {quoted(answer.name)} holds {shown} ({many}{rows}): {why}"]


def _out_of_range(seen: View, answer: Answer) -> list[str]:
    value = answer.value
    if seen.columns.answers == "correct":
        known = (value == 0) | (value == 1) if answer.holds == "number" else _is_word(value)
        wrong, rule = ~known, "known correctness is true or false, or 1 or 0"
    elif seen.columns.answers == "score":
        wrong, rule = ~value.is_between(0, 1), "scores lie between 0 and 1; for other scales audit losses"
    else:
        wrong, rule = value.cast(pl.Float64).is_infinite(), "losses must be finite"
    count, rows = _rows(seen, wrong)
    if not count:
        return []
    return [
        f"column {quoted(answer.name)} holds {_examples(seen, answer, where=wrong)} ({count:,} such values, "
        f"first in {rows}): {rule}"
    ]


def _is_word(value: pl.Expr) -> pl.Expr:
    return value.str.to_lowercase().is_in(["true", "false"])


def _against(seen: View, label: Answer, answer: Answer) -> list[str]:
    """What keeps the answers of one model from being compared with the labels."""
    if pl.Null in (label.dtype, answer.dtype) or (label.holds == "text") != (answer.holds == "text"):
        return []
    if answer.holds == "scores":
        return _scores_against(seen, label, answer)
    broken = answer.value != answer.value.floor() if answer.dtype.is_float() else pl.lit(False)
    if _rows(seen, broken)[0] and not _rows(seen, label.value != label.value.floor())[0]:
        return [
            f"column {quoted(answer.name)} holds fractions, for example "
            f"{_examples(seen, answer, where=broken)}, where column {quoted(label.name)} holds whole "
            "class ids: turn probabilities into class ids"
        ]
    return _share_nothing(seen, label, answer)


def _unlike(seen: View, label: Answer, answer: Answer) -> str:
    def described(a: Answer) -> str:
        if a.holds == "scores":
            return f"column {quoted(a.name)} lists of scores, which stand for the classes 0, 1, 2 …"
        unread = a.value.is_not_null() & a.value.cast(pl.Float64, strict=False).is_null()
        where = unread if a.holds == "text" and _rows(seen, unread)[0] else None
        word = "text" if a.holds == "text" else "numbers"
        return f"column {quoted(a.name)} holds {word}, for example {_examples(seen, a, where=where)}"

    return f"{described(label)}; {described(answer)}: class ids must be all numbers or all text"


def _scores_against(seen: View, label: Answer, answer: Answer) -> list[str]:
    column = seen.table.column(answer.name)
    lengths = column.arr.to_list().list.len() if isinstance(answer.dtype, pl.Array) else column.list.len()
    short, long = seen.table.frame.select(lengths.min().alias("s"), lengths.max().alias("l")).collect().row(0)
    if long is None or short != long:
        return [f"column {quoted(answer.name)} holds lists of {short} to {long} scores; each needs as many"]
    if long < 2:
        return [
            f"column {quoted(answer.name)} holds one score a row; give class ids, or a score for each class"
        ]
    ends = seen.frame.select(label.value.min().alias("low"), label.value.max().alias("high")).collect().row(0)
    if None in ends or (ends[0] >= 0 and ends[1] < long):
        return []
    return [
        f"the labels in column {quoted(label.name)} run from {ends[0]} to {ends[1]}, but the {long} scores "
        f"a row in column {quoted(answer.name)} stand for the classes 0 to {long - 1}"
    ]


def _share_nothing(seen: View, label: Answer, answer: Answer) -> list[str]:
    labels, answers = (
        seen.frame.select(a.value.unique()).collect(engine="streaming").to_series().drop_nulls().to_list()
        for a in (label, answer)
    )
    if not labels or not answers or set(labels) & set(answers):
        return []
    return [
        f"no label in column {quoted(label.name)} ({listed(sorted(labels), 3)}) occurs among the predictions "
        f"in column {quoted(answer.name)} ({listed(sorted(answers), 3)}): are the classes named alike?"
    ]
