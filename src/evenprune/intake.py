"""Arrays as users give them to a tally (accuracy) or per-sample scores, with every problem found at once."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from evenprune.correctness import check_missing, known_correct, right_answers, sample_scores
from evenprune.groups import MISSING, as_columns, cells_of, to_array
from evenprune.tally import MOST_MODELS, Cell, IntArray, Measure, Scores, Tally

ARGUMENTS = ("labels", "dense", "pruned", "dense_correct", "pruned_correct")


@dataclass(frozen=True)
class Answers:
    """What the models said: class ids or scores with labels, known correctness, or one number per sample."""

    measure: Measure
    labels: Any
    dense: Any
    pruned: Any
    dense_correct: Any
    pruned_correct: Any

    @property
    def known(self) -> bool:
        return self.dense_correct is not None or self.pruned_correct is not None

    def models(self) -> dict[str, Any]:
        """The pruned models' values by name; a single one is called "pruned"."""
        values = self.pruned_correct if self.known else self.pruned
        return {str(k): v for k, v in values.items()} if isinstance(values, Mapping) else {"pruned": values}

    def columns(self) -> dict[str, Any]:
        """The dense model's values, then each pruned one's, by the name the user knows them by."""
        ending = "_correct" if self.known else ""
        values = self.pruned_correct if self.known else self.pruned
        several = isinstance(values, Mapping)
        named = {f"dense{ending}": self.dense_correct if self.known else self.dense}
        for model, column in self.models().items():
            named[f"pruned{ending}[{model!r}]" if several else f"pruned{ending}"] = column
        return named

    def _wanted(self) -> tuple[list[str], str]:
        """The arguments that go together, and how to say so."""
        if self.measure != "accuracy":
            form = f"measure={self.measure!r} takes dense= and pruned=, one number a sample each"
            return ["dense", "pruned"], form
        if self.known:
            form = "known correctness takes dense_correct= and pruned_correct="
            return ["dense_correct", "pruned_correct"], form
        return ["labels", "dense", "pruned"], "an audit takes labels=, dense= and pruned="

    def usage_problems(self) -> list[str]:
        """Arguments that do not go together."""
        if self.measure not in get_args(Measure):
            return [f"measure is {self.measure!r}: choose one of {', '.join(get_args(Measure))}"]
        given = [name for name in ARGUMENTS if getattr(self, name) is not None]
        wanted, form = self._wanted()
        if given != wanted:
            return [f"{form}; given: {', '.join(f'{n}=' for n in given) or 'none of them'}"]
        tables = [name for name in wanted if _is_table(getattr(self, name))]
        if tables:
            return [
                f"{tables[0]} is a table: give several models as a mapping {{name: column}}, "
                "and the scores of one model as an array [n, classes]"
            ]
        count = len(self.models())
        if not 1 <= count <= MOST_MODELS:
            return [f"{count} pruned models: give 1 to {MOST_MODELS} at once"]
        return []


def _is_table(values: Any) -> bool:
    """A pandas or polars data frame."""
    return hasattr(values, "columns") and hasattr(values, "shape")


def read(answers: Answers, groups: Any) -> tuple[Tally | Scores | None, list[str]]:
    """The data of an audit, or the problems that stand in the way."""
    attributes = {name: to_array(values) for name, values in as_columns(groups).items()}
    problems = answers.usage_problems() + _attribute_problems(groups, attributes)
    if problems:
        return None, problems
    labels = None if answers.labels is None else to_array(answers.labels)
    columns = {name: to_array(values) for name, values in answers.columns().items()}
    problems += [] if labels is None else _label_problems(labels)
    problems += _length_problems(({} if labels is None else {"labels": labels}) | columns, attributes)
    found = [_read_column(answers, labels, column, name) for name, column in columns.items()]
    problems += [problem for _, some in found for problem in some]
    cell, cells = _cells(attributes)
    if len(cells) == 1:
        problems.append(one_group(attributes, cells[0]))
    if problems:
        return None, list(dict.fromkeys(problems))
    return _assemble(answers, tuple(attributes), cells, cell, [values for values, _ in found]), []


def _cells(attributes: Mapping[str, NDArray[Any]]) -> tuple[IntArray, tuple[Cell, ...]]:
    """The cells, or none where the columns do not go together (which is reported elsewhere)."""
    lengths = {column.shape[0] for column in attributes.values()}
    if len(lengths) > 1 or lengths == {0}:
        return np.empty(0, dtype=np.int64), ()
    return cells_of(attributes)


def one_group(attributes: Iterable[str], cell: Cell, why: str = "an audit compares groups") -> str:
    names = ", ".join(map(repr, attributes))
    return f"one group only: every sample has the value {_value(cell)!r} in {names}; {why}"


def _value(cell: Cell) -> str:
    return " × ".join(MISSING if v is None else v for v in cell)


def crowded(attributes: Iterable[str], cells: Sequence[Cell], samples: int) -> list[str]:
    """The problem of attributes that leave hardly two samples to a group."""
    if 2 * len(cells) <= samples or samples <= 20:
        return []
    names, examples = list(attributes), ", ".join(repr(_value(cell)) for cell in cells[:3])
    make = f"{', '.join(map(repr, names))} {'make' if len(names) > 1 else 'makes'}"
    return [
        f"{make} {len(cells):,} groups of {samples:,} samples, fewer than two each, such as {examples}; bin "
        "numeric attributes, merge small groups, or choose others"
    ]


def _read_column(
    answers: Answers, labels: NDArray[Any] | None, column: NDArray[Any], name: str
) -> tuple[Any, list[str]]:
    if not column.ndim:
        return None, [f"{name} is {column.item()!r}: give one value per sample"]
    if answers.measure != "accuracy":
        return sample_scores(column, name, bounded=answers.measure == "score")
    return known_correct(column, name) if labels is None else right_answers(labels, column, name)


def _attribute_problems(groups: Any, attributes: Mapping[str, NDArray[Any]]) -> list[str]:
    if not attributes:
        return ["groups is empty: give at least one column"]
    problems = []
    if isinstance(groups, Mapping) and len(attributes) < len(groups):
        problems.append(f"groups has columns of the same name: {', '.join(map(repr, groups))}")
    for name, values in attributes.items():
        if values.ndim != 1:
            problems.append(f"groups[{name!r}] has shape {values.shape}: give one value per sample")
        elif values.dtype.kind == "O" and any(v.__hash__ is None for v in values.tolist()):
            problems.append(f"groups[{name!r}] holds lists or mappings: give one plain value per sample")
    return problems


def _label_problems(labels: NDArray[Any]) -> list[str]:
    if labels.ndim != 1:
        return [f"labels has shape {labels.shape}: give one class id per sample"]
    return check_missing(labels, "labels")


def _length_problems(
    columns: Mapping[str, NDArray[Any]], attributes: Mapping[str, NDArray[Any]]
) -> list[str]:
    named = dict(columns) | {f"groups[{name!r}]": values for name, values in attributes.items()}
    lengths = {name: values.shape[0] if values.ndim else 0 for name, values in named.items()}
    if len(set(lengths.values())) > 1:
        return ["unequal lengths: " + ", ".join(f"{name} has {n:,}" for name, n in lengths.items())]
    return ["there are no samples: every column is empty"] if set(lengths.values()) == {0} else []


def _assemble(
    answers: Answers, attributes: tuple[str, ...], cells: tuple[Cell, ...], cell: IntArray, values: list[Any]
) -> Tally | Scores:
    models = tuple(answers.models())
    if answers.measure != "accuracy":
        return Scores(answers.measure, attributes, cells, models, cell, values[0], np.stack(values[1:]))
    bits = len(values)
    joint = cell << bits
    for bit, right in enumerate(values):
        joint |= right.astype(np.int64) << bit
    if len(cells) << bits <= 4 * joint.size + 1024:  # few enough possible patterns: no sorting
        counts = np.bincount(joint)
        rows = np.flatnonzero(counts)
        count = counts[rows]
    else:
        rows, count = np.unique(joint, return_counts=True)
    return Tally(attributes, cells, models, rows >> bits, rows & ((1 << bits) - 1), count.astype(np.int64))
