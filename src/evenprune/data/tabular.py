"""Tables of one's own: numeric and categorical columns of a CSV, TSV, Parquet … to inputs for an MLP.

Numeric columns are standardised by the mean and deviation of the training rows; a missing value becomes the
mean, and a column "x (missing)" says so. Categorical columns become one input per category of the training
rows, "x=red"; a category that is not among them has zeros in all.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
import polars as pl
from numpy.typing import NDArray

from evenprune.data.arrays import Samples
from evenprune.data.class_labels import FEW_VALUES, too_many
from evenprune.data.folder_listing import USUAL_SPLIT
from evenprune.data.labelled import Inputs, Listing, Loaded, Wanted, Wishes, assemble
from evenprune.formats import Table, missing_columns, open_table, refused
from evenprune.groups import MISSING, factorize, natural_key
from evenprune.reading import counted, listed, quoted
from evenprune.spelling import repeated, spellings
from evenprune.tally import FloatArray, InputProblems, IntArray

MOST_CATEGORIES = 500  # of one column; each is an input of its own
FEW_SLIPS = 0.1  # so many values at the most that are no numbers are slips in a column of numbers
CONSTANT = 1e-12  # a deviation smaller than this part of the largest value is rounding
UNNAMED = "A column without a name is an input; if it counts the rows, take it out of the table."
LIST_IT = "list all inputs, this one as categorical (--numeric, --categorical)"

Kind = Literal["numeric", "categorical"]


@dataclass(frozen=True)
class Scale:
    """How a numeric column was standardised, by its training rows: (x − mean) / deviation."""

    mean: float
    deviation: float  # 0 where all values are one: then only the mean is taken off
    indicator: bool  # whether an input of its own tells the missing values


@dataclass(frozen=True)
class Description:
    """What the inputs and the labels are."""

    features: tuple[str, ...]  # the name of each input
    classes: tuple[str, ...]  # label i is called classes[i]
    numeric: Mapping[str, Scale]
    categories: Mapping[str, tuple[str | None, ...]]  # of the training rows, in the order of their inputs
    notes: tuple[str, ...] = ()


class Tabular(Loaded):
    """Splits by name, as prune(model, **data) takes them, and `description`."""

    def __init__(self, loaded: Loaded, splits: dict[str, Samples], description: Description) -> None:
        super().__init__(
            splits, classes=loaded.classes, counted=loaded.counted, skipped=loaded.skipped, notes=loaded.notes
        )
        self.description = description

    def __repr__(self) -> str:
        return f"{super().__repr__()}, {len(self.description.features):,} inputs"


def load(
    path: str | Path,
    *,
    label: str,
    groups: str | Sequence[str],
    numeric: Sequence[str] | None = None,
    categorical: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    split: str | None = USUAL_SPLIT,
    **wanted: Unpack[Wanted],
) -> Tabular:
    """The rows of a table in splits by name: float32 [N, features], class ids, columns of groups.

    numeric, categorical: the columns that become inputs. Without either: all columns but the label, the
        groups and the split; those that hold numbers, or true and false, alone are numeric, and identifiers
        are refused. Groups are inputs only if listed.
    ignore: columns that are no inputs either.
    split: column with train, test or validation. A table without the column "split", or None: a split of each
        class is drawn, `test_share` of it to test, by `seed` and the places of the rows; the same at every
        call.
    heldout_share: share of each class that is held out beside the test rows; see folder.load.
    bins, merge_below: numbers of groups in ranges, small groups merged; see folder.load.
    classes: the labels in the order of the model's outputs. Else whole numbers stay as they are, and texts
        are numbered in sorted order.
    """
    chosen = [groups] if isinstance(groups, str) else list(groups)
    table = _opened(str(path))
    split = None if split == USUAL_SPLIT and split not in table.columns else split
    others = [label, *chosen, *([split] if split is not None else [])]
    features = None if numeric is None and categorical is None else [*(numeric or []), *(categorical or [])]
    problems = _name_problems(table, others, features, ignore)
    problems += [
        f"column {quoted(name)} is the {what}, and cannot be an input"
        for what, name in (("label", label), ("split", split))
        if name in (features or [])
    ]
    if label not in table.columns and not set(chosen) & set(table.columns):
        raise InputProblems(problems)  # another table than the one that was meant
    with refused(table.name, str(path)):
        kinds = _kinds(table, [*others, *ignore], numeric, categorical)
        frame = _collected(table, [*others, *kinds])
        read, found = _read(table, frame, kinds, guessed=features is None)
    found += [
        f"column {quoted(name)} of {table.name} holds {frame[name].dtype}: give one plain value a row"
        for name in dict.fromkeys(others)
        if name in frame.columns and (frame[name].dtype.is_nested() or frame[name].dtype == pl.Object)
    ]
    listing = Listing(
        where=table.name,
        names=[f"row {i + 1}" for i in range(frame.height)],
        labels=frame[label].to_list() if label in frame.columns else None,
        columns={name: frame[name].to_list() for name in chosen if name in frame.columns},
        splits=None if split is None or split not in frame.columns else frame[split].to_list(),
    )
    wishes = Wishes(groups=chosen, **wanted)
    loaded = assemble(listing, _places, wishes, problems + found)  # the inputs are rows of the table, for now
    rows: dict[str, IntArray] = {name: places for name, (places, _, _) in loaded.items()}
    inputs, description = _encoded(read, rows["train"], loaded.classes)
    splits: dict[str, Samples] = {
        name: (inputs[rows[name]], labels, columns) for name, (_, labels, columns) in loaded.items()
    }
    return Tabular(loaded, splits, description)


def _places(order: list[int]) -> Inputs:
    return Inputs(np.array(order, dtype=np.int64), np.arange(len(order)))


def _opened(path: str) -> Table:
    table = open_table(path, ())
    return table if table.frame.collect_schema().names() else open_table(path, table.columns)  # an NPZ


# --- columns ---


def _name_problems(
    table: Table, others: Sequence[str], features: Sequence[str] | None, ignore: Sequence[str]
) -> list[str]:
    """Columns that are not there, or twice. features: None if they are all that is left."""
    absent = [name for name in ignore if name not in table.columns]
    if features is None:
        problems = missing_columns(table, [*others, *absent, *table.repeated])
        left = set(table.columns) - set(others) - set(ignore)
        return problems + [f"{table.name} has no column left for inputs: {listed(table.columns)}"] * (
            not left
        )
    problems = missing_columns(table, [*others, *features, *absent])
    both = sorted(set(features) & set(ignore))
    problems += [f"column {quoted(name)} is listed as an input, and to be ignored" for name in both]
    problems += [f"column {quoted(name)} is listed twice as an input" for name in repeated(features)]
    return problems + ["no inputs are listed: name columns as numeric or categorical"] * (not features)


def _kinds(
    table: Table, others: Sequence[str], numeric: Sequence[str] | None, categorical: Sequence[str] | None
) -> dict[str, Kind]:
    """The columns that become inputs, in the order of the table, and what they are taken for."""
    if numeric is not None or categorical is not None:
        told: dict[str, Kind] = dict.fromkeys(numeric or [], "numeric")
        told |= dict.fromkeys(categorical or [], "categorical")
        return {name: told[name] for name in table.columns if name in told and name not in table.repeated}
    rest = [name for name in table.columns if name not in others]
    if table.spelled:
        types = _spelled(table, rest)
    else:
        schema = table.frame.collect_schema()
        types = [schema[name] for name in rest]
    return {
        name: "numeric" if dtype.is_numeric() or dtype == pl.Boolean else "categorical"
        for name, dtype in zip(rest, types, strict=True)
    }


def _spelled(table: Table, names: Sequence[str]) -> list[pl.DataType]:
    """What columns of texts hold: numbers, true and false, or texts."""
    texts = [_present(table.column(name), pl.String()) for name in names]
    types = [found.dtype for found in spellings(table.frame, texts, ids=False)]
    truths = [_is_truth(text).all().alias(str(i)) for i, text in enumerate(texts)]
    flags = table.frame.select(truths).collect(engine="streaming").row(0) if truths else ()
    return [pl.Boolean() if flag else dtype for flag, dtype in zip(flags, types, strict=True)]


def _present(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Null where a text is empty, or a number is NaN."""
    if dtype.is_float():
        return column.fill_nan(None)
    return pl.when(column != "").then(column) if dtype == pl.String else column


def _is_truth(text: pl.Expr) -> pl.Expr:
    """Whether a text is true or false, as a file of texts spells a column of Booleans."""
    return text.str.to_lowercase().is_in(["true", "false"])


def _collected(table: Table, names: Sequence[str]) -> pl.DataFrame:
    schema = table.frame.collect_schema()
    there = [name for name in dict.fromkeys(names) if name in schema]
    columns = [_present(table.column(name), schema[name]).alias(name) for name in there]
    return table.frame.select(columns).collect(engine="streaming")


def _without(name: str) -> str:
    return f"ignore=[{quoted(name)}] (--ignore {quoted(name)})"


# --- values ---


@dataclass
class Read:
    """The columns of all rows, before the training rows are known."""

    order: list[str] = field(default_factory=list)
    numbers: dict[str, FloatArray] = field(default_factory=dict)  # NaN where missing
    texts: dict[str, tuple[IntArray, list[str | None]]] = field(default_factory=dict)  # codes, what they say


def _read(
    table: Table, frame: pl.DataFrame, kinds: Mapping[str, Kind], *, guessed: bool
) -> tuple[Read, list[str]]:
    read, problems = Read(order=list(kinds)), list[str]()
    for name, kind in kinds.items():
        dtype = frame[name].dtype
        what = f"column {quoted(name)} of {table.name}"
        if dtype.is_nested() or dtype.is_temporal() or dtype in (pl.Object, pl.Binary):
            problems.append(
                f"{what} holds {dtype}: make numbers or texts of it, or leave it out: {_without(name)}"
            )
        elif kind == "numeric":
            read.numbers[name], found = _as_numbers(frame[name], what)
            problems += found
        else:
            read.texts[name] = factorize(frame[name])
            texts = read.texts[name][1]
            doubts = _no_category(frame[name], what, name) if guessed and len(texts) > FEW_VALUES else []
            problems += doubts
            if len(texts) > MOST_CATEGORIES and not doubts:
                shown = listed([text for text in texts if text is not None][:3])
                problems.append(
                    f"{what} holds {len(texts):,} categories, such as {shown}; at most {MOST_CATEGORIES} can "
                    f"be inputs: merge rare ones, or leave it out: {_without(name)}"
                )
    return read, problems


def _no_category(column: pl.Series, what: str, name: str) -> list[str]:
    """Why texts that nobody listed as categories are none: numbers but for some slips, or names of rows."""
    given = column.cast(pl.String).drop_nulls()
    number, other = (text.cast(pl.Float64, strict=False) for text in (given, _with_points(given)))
    odd = given.filter(number.is_null())
    if len(odd) and other.n_unique() > FEW_VALUES and other.null_count() <= FEW_SLIPS * len(given):
        shown = listed(odd.unique(maintain_order=True).head(3).to_list())
        if len(odd) > FEW_SLIPS * len(given):
            thousands = bool(odd.str.contains(r"^[+-]?\d{1,3}(,\d{3})+(\.\d*)?$").all())
            how = "without commas" if thousands else "with points"
            return [
                f"{what} holds numbers with commas, such as {shown}: write them {how}, leave the column out: "
                f"{_without(name)}; or {LIST_IT}"
            ]
        slips = counted(len(odd), "value", "values")
        return [
            f"{what} holds numbers, but for {slips} of {len(given):,}, such as {shown}: leave such values "
            f"empty, or the column out: {_without(name)}; or {LIST_IT}"
        ]
    many = too_many(column.to_list())
    if not many:
        return []
    return [
        f"{what} holds {many}: is it an identifier, or a date? Leave it out: {_without(name)}; or {LIST_IT}"
    ]


def _row_numbers(name: str, numbers: FloatArray) -> list[str]:
    """A note on numbers that count the rows, in some order."""
    ordered = np.sort(numbers)
    counts = len(numbers) > FEW_VALUES and ordered[0].is_integer() and bool((np.diff(ordered) == 1).all())
    if not name.strip() or not counts:
        return []
    return [
        f"{name} holds the whole numbers from {ordered[0]:,.0f} to {ordered[-1]:,.0f}, each once, as an "
        f"input; if it counts the rows, leave it out: {_without(name)}."
    ]


def _with_points(numbers: pl.Series) -> pl.Series:
    """The first comma of each text as a point: 170,5 is a number in many countries."""
    return numbers.str.replace(",", ".", literal=True)


def _as_numbers(column: pl.Series, what: str) -> tuple[FloatArray, list[str]]:
    series = _truths(column).cast(pl.Float64, strict=False)
    unread = column.filter(series.is_null() & column.is_not_null())
    numbers = series.fill_null(np.nan).to_numpy().astype(np.float64)
    infinite = np.flatnonzero(np.isinf(numbers))
    problems = []
    if len(unread):
        shown = listed(unread.unique(maintain_order=True).head(3).to_list())
        of = f"of {len(column):,} values"
        many = counted(len(unread), f"{of} is no number", f"{of} are no numbers")
        problems.append(
            f"{what} is to be numeric, but {many}, such as {shown}: list it as categorical (--categorical), "
            "or leave such values empty"
        )
    if infinite.size:
        many = counted(infinite.size, "infinite value", "infinite values")
        problems.append(f"{what} has {many}, the first in row {infinite[0] + 1:,}")
    return numbers, problems


def _truths(column: pl.Series) -> pl.Series:
    """Texts that are all true or false as Booleans; else the column as it is."""
    spelled = column.dtype == pl.String and pl.select(_is_truth(pl.lit(column)).all()).item()
    return column.str.to_lowercase() == "true" if spelled else column


# --- inputs ---


def _encoded(read: Read, train: IntArray, classes: Sequence[str]) -> tuple[NDArray[np.float32], Description]:
    """The inputs of all rows, by what is known of the training rows; and what they are."""
    blocks, names, notes = list[NDArray[np.float32]](), list[str](), list[str]()
    scales, categories = dict[str, Scale](), dict[str, tuple[str | None, ...]]()
    problems = list[str]()
    for name in read.order:
        notes += [] if name.strip() else [UNNAMED]
        if name in read.numbers:
            numbers = read.numbers[name]
            if np.isnan(numbers[train]).all():
                problems.append(
                    f"column {quoted(name)} has no value in any training row; leave it out: {_without(name)}"
                )
                continue
            scale = scales[name] = _scale(numbers[train])
            notes += [] if scale.deviation else [f"{name} has one value in all training rows."]
            notes += _row_numbers(name, numbers)
            block, own = _standardised(numbers, scale, name)
        else:
            codes, texts = read.texts[name]
            known = {texts[code] for code in np.unique(codes[train])}
            categories[name] = tuple(text for (text,) in sorted(((t,) for t in known), key=natural_key))
            block, own = _one_hot(codes, texts, categories[name], name)
        blocks.append(block)
        names += own
    if problems:
        raise InputProblems(problems)
    inputs = np.concatenate(blocks, axis=1)
    _check_finite(inputs, names)
    return inputs, Description(tuple(names), tuple(classes), scales, categories, tuple(notes))


def _scale(numbers: FloatArray) -> Scale:
    known = numbers[~np.isnan(numbers)]
    unit = math.ldexp(0.5, math.frexp(float(np.abs(known).max()))[1])  # so that no square is too large
    mean, deviation = float((known / unit).mean()), float((known / unit).std())
    indicator = known.size < numbers.size
    if deviation <= CONSTANT:
        return Scale(float(known[0]), 0.0, indicator)
    return Scale(unit * mean, unit * deviation, indicator)


def _standardised(numbers: FloatArray, scale: Scale, name: str) -> tuple[NDArray[np.float32], list[str]]:
    """[rows, 1], or [rows, 2] with the indicator."""
    missing = np.isnan(numbers)
    with np.errstate(over="ignore"):
        values = ((numbers - scale.mean) / (scale.deviation or 1.0)).astype(np.float32)
    columns = [np.where(missing, np.float32(0), values)]
    columns += [missing.astype(np.float32)] if scale.indicator else []
    return np.stack(columns, axis=1), [name, f"{name} (missing)"][: len(columns)]


def _one_hot(
    codes: IntArray, texts: Sequence[str | None], categories: Sequence[str | None], name: str
) -> tuple[NDArray[np.float32], list[str]]:
    """[rows, categories]; a row of zeros where the category is not among them."""
    place = {category: i for i, category in enumerate(categories)}
    table = np.zeros((len(texts), len(categories)), dtype=np.float32)
    for code, text in enumerate(texts):
        if text in place:
            table[code, place[text]] = 1
    return table[codes], [f"{name}={MISSING if category is None else category}" for category in categories]


def _check_finite(inputs: NDArray[Any], names: Sequence[str]) -> None:
    bad = ~np.isfinite(inputs)
    if bad.any():
        raise InputProblems(
            [
                f"row {int(bad[:, i].argmax()) + 1:,}: {name} is so far from the training rows that it is no "
                "number any more after scaling; is it a mistake?"
                for i, name in enumerate(names)
                if bad[:, i].any()
            ]
        )
