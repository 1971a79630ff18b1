"""Arrays as users give them to a tally (accuracy) or per-sample scores, with every problem found at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from evenprune.correctness import check_missing, known_correct, right_answers, sample_scores
from evenprune.groups import as_columns, cells_of, to_array
from evenprune.tally import MOST_MODELS, Cell, IntArray, Measure, Scores, Tally


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

    def usage_problems(self) -> list[str]:
        """Arguments that do not go together."""
        given = [
            n
            for n in ("labels", "dense", "pruned", "dense_correct", "pruned_correct")
            if getattr(self, n) is not None
        ]
        if self.measure not in get_args(Measure):
            return [f"measure is {self.measure!r}: choose one of {', '.join(get_args(Measure))}"]
        if self.measure != "accuracy":
            right, form = (
                ["dense", "pruned"],
                f"measure={self.measure!r} takes dense= and pruned=, one number a sample each",
            )
        elif self.known:
            right, form = (
                ["dense_correct", "pruned_correct"],
                "known correctness takes dense_correct= and pruned_correct=",
            )
        else:
            right, form = ["labels", "dense", "pruned"], "an audit takes labels=, dense= and pruned="
        if given != right:
            return [f"{form}; given: {', '.join(f'{n}=' for n in given) or 'none of them'}"]
        count = len(self.models())
        return (
            [] if 1 <= count <= MOST_MODELS else [f"{count} pruned models: give 1 to {MOST_MODELS} at once"]
        )


def read(answers: Answers, groups: Any) -> tuple[Tally | Scores | None, list[str]]:
    """The data of an audit, or the problems that stand in the way."""
    problems = answers.usage_problems()
    attributes = {name: to_array(values) for name, values in as_columns(groups).items()}
    problems += _attribute_problems(attributes)
    if problems:
        return None, problems
    labels = None if answers.labels is None else to_array(answers.labels)
    columns = {name: to_array(values) for name, values in answers.columns().items()}
    problems += [] if labels is None else _label_problems(labels)
    problems += _length_problems(({} if labels is None else {"labels": labels}) | columns, attributes)
    found = [_read_column(answers, labels, column, name) for name, column in columns.items()]
    problems += [problem for _, some in found for problem in some]
    if problems:
        return None, list(dict.fromkeys(problems))
    values = [v for v, _ in found]
    cell, cells = cells_of(attributes)
    return _assemble(answers, tuple(attributes), cells, cell, values), []


def _read_column(
    answers: Answers, labels: NDArray[Any] | None, column: NDArray[Any], name: str
) -> tuple[Any, list[str]]:
    if answers.measure != "accuracy":
        return sample_scores(column, name, bounded=answers.measure == "score")
    return known_correct(column, name) if labels is None else right_answers(labels, column, name)


def _attribute_problems(attributes: Mapping[str, NDArray[Any]]) -> list[str]:
    if not attributes:
        return ["groups is empty: give at least one column"]
    bad = {name: values for name, values in attributes.items() if values.ndim != 1}
    return [f"groups[{name!r}] has shape {v.shape}: give one value per sample" for name, v in bad.items()]


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
