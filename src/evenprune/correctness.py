"""Labels and predictions of any kind to right and wrong answers, with every problem found at once."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenprune.groups import is_missing, to_array

Bools = NDArray[np.bool_]


def _kind(values: NDArray[Any]) -> str:
    """ "number", "text" or "mixed"."""
    if values.dtype.kind in "biuf":
        return "number"
    if values.dtype.kind in "US":
        return "text"
    types = {type(v) for v in values.tolist()}
    if all(issubclass(t, str) for t in types):
        return "text"
    return "number" if all(issubclass(t, int | float | np.number | np.bool_) for t in types) else "mixed"


def missing_rows(values: NDArray[Any]) -> NDArray[np.int64]:
    """Row numbers of the values that are missing, or not finite."""
    if not values.size:
        return np.empty(0, dtype=np.int64)
    if values.dtype.kind == "f":  # infinite scores [n, classes] still have a largest; nothing else may
        bad = np.isnan(values) if values.ndim > 1 else ~np.isfinite(values)
        return np.flatnonzero(bad.reshape(len(values), -1).any(axis=1))
    if values.dtype.kind == "O":
        flat = values.reshape(len(values), -1)
        return np.flatnonzero([any(is_missing(v) for v in row) for row in flat.tolist()])
    return np.empty(0, dtype=np.int64)


def examples(values: NDArray[Any], most: int = 4) -> str:
    """A few of the distinct values, for a message."""
    seen = list(dict.fromkeys(values[:10_000].tolist()))
    return ", ".join(map(repr, seen[:most])) + (", …" if len(seen) > most else "")


def check_missing(values: NDArray[Any], name: str) -> list[str]:
    rows = missing_rows(values)
    if not rows.size:
        return []
    some = ", ".join(map(str, rows[:5])) + (", …" if rows.size > 5 else "")
    what = "value is" if rows.size == 1 else "values are"
    return [
        f"{name}: {rows.size:,} of {len(values):,} {what} missing or not finite (rows {some}); remove them"
    ]


def _from_scores(scores: NDArray[Any], labels: NDArray[Any], name: str) -> tuple[Bools | None, list[str]]:
    """Right where the largest score [n, classes] is the label's."""
    classes = scores.shape[1] if scores.ndim == 2 else 0
    if scores.ndim != 2 or classes < 2 or scores.dtype.kind not in "biuf":
        return None, [
            f"{name} has shape {scores.shape}: give class ids [n] or scores [n, classes] of 2 classes or more"
        ]
    if _kind(labels) != "number":
        return None, [
            f"{name} holds scores, so labels must be column numbers 0…{classes - 1}, not {examples(labels)}"
        ]
    ids = labels.astype(np.float64)
    outside = (ids < 0) | (ids >= classes) | (ids != np.floor(ids))
    if outside.any():
        return None, [
            f"labels: {int(outside.sum()):,} lie outside the {classes} classes that {name} scores "
            f"({examples(labels[outside])})"
        ]
    return scores.argmax(axis=1) == ids.astype(np.int64), []


def _inexact(labels: NDArray[Any], predictions: NDArray[Any]) -> bool:
    """Whether whole numbers are compared with floats that cannot hold them."""
    kinds = labels.dtype.kind + predictions.dtype.kind
    if kinds not in ("if", "fi", "uf", "fu"):
        return False
    return bool(max(np.abs(labels).max(), np.abs(predictions).max()) > 2**53)


def right_answers(
    labels: NDArray[Any], predictions: NDArray[Any], name: str
) -> tuple[Bools | None, list[str]]:
    """Which predictions (class ids, or scores [n, classes]) are right [n]; and the problems."""
    if labels.ndim != 1 or len(predictions) != len(labels) or not len(labels):
        return None, []  # reported for all columns together
    problems = check_missing(predictions, name)
    if problems or check_missing(labels, "labels"):
        return None, problems
    if predictions.ndim != 1:
        return _from_scores(predictions, labels, name)
    kinds = _kind(labels), _kind(predictions)
    if "mixed" in kinds or kinds[0] != kinds[1]:
        return None, [
            f"labels hold {kinds[0]} values ({examples(labels)}) and {name} holds {kinds[1]} values "
            f"({examples(predictions)}): give both as the same kind of class id"
        ]
    if _inexact(labels, predictions):
        return None, [f"labels and {name} hold numbers beyond 2^53, one of them as floats: give integers"]
    right = np.asarray(labels == predictions, dtype=bool)
    if not right.any() and not set(labels.tolist()) & set(predictions.tolist()):
        return None, [
            f"no value of {name} ({examples(predictions)}) is a label ({examples(labels)}): "
            "give class ids as the labels have them, or scores [n, classes]"
        ]
    return right, []


def known_correct(values: Any, name: str) -> tuple[Bools | None, list[str]]:
    """Correctness that is known already: booleans, or 0 and 1."""
    array = to_array(values)
    if array.ndim != 1:
        return None, [f"{name} has shape {array.shape}: give one true or false per sample"]
    problems = check_missing(array, name)
    if problems:
        return None, problems
    wrong = [v for v in set(array.tolist()) if v not in (0, 1)]
    if wrong:
        return None, [
            f"{name} holds {', '.join(map(repr, wrong[:4]))}: only true/false or 1/0 can say right or wrong"
        ]
    return array.astype(bool), []


def sample_scores(values: Any, name: str, *, bounded: bool) -> tuple[NDArray[np.float64] | None, list[str]]:
    """Per-sample scores (bounded: in [0, 1]) or losses."""
    array = to_array(values)
    if array.ndim != 1 or _kind(array) != "number":
        return None, [f"{name} has shape {array.shape} and type {array.dtype}: give one number per sample"]
    problems = check_missing(array, name)
    if problems:
        return None, problems
    numbers = array.astype(np.float64)
    if np.abs(numbers).max(initial=0) > 1e100:
        return None, [
            f"{name}: values up to {np.abs(numbers).max():g} are too large to average; rescale them"
        ]
    outside = (numbers < 0) | (numbers > 1)
    if bounded and outside.any():
        return None, [
            f"{name}: {int(outside.sum()):,} scores lie outside [0, 1] ({examples(array[outside])}); "
            'rescale them, or audit them as measure="loss"'
        ]
    return numbers, []
