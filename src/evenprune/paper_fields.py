"""What the fields of a results file may hold, and what is wrong with them."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from evenprune.wording import shorten, visible

SPLITS = ("train", "test")
MEASURES = ("accuracy", "pairwise_disparity", "max_excess_gap")
LISTS = ("runs", "traces", "dense", "timings")  # what a results file may hold
Json = Mapping[str, Any]
Check = Callable[[Any], str | None]  # what is wrong with a value, if anything


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _between(low: float, high: float) -> Check:
    def check(value: Any) -> str | None:
        if not _is_number(value):
            return "must be a finite number"
        if low <= value <= high:
            return None
        percent = high == 1 and 1 < abs(value) <= 100
        hint = f": results are fractions, {value / 100:g} for {value:g} %" if percent else ""
        return f"must lie within [{low:g}, {high:g}]{hint}"

    return check


def _whole(value: Any) -> str | None:
    whole = _is_number(value) and float(value).is_integer() and value >= 0
    return None if whole else "must be a whole number, 0 or more"


def _count(value: Any) -> str | None:
    return _whole(value) or (None if value > 0 else "must be at least 1")


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) and value else "must be a text that is not empty"


def _overall(value: Any) -> str | None:
    return None if value in ("micro", "macro") else 'must be "micro" or "macro"'


def _object(value: Any) -> str | None:
    return None if isinstance(value, dict) else "must be an object"


def _list_of(check: Check, *, gaps: bool = False) -> Check:
    def check_all(value: Any) -> str | None:
        if not isinstance(value, list) or not value:
            return "must be a list that is not empty"
        wrong = ((i, check(v)) for i, v in enumerate(value) if not (gaps and v is None))
        return next((f"has an entry, place {i}, that {said}" for i, said in wrong if said), None)

    return check_all


_share, _gap, _amount = _between(0, 1), _between(-2, 2), _between(0, math.inf)
_any_number = _between(-math.inf, math.inf)
RUN = {
    "dataset": _text, "target": _text, "group": _text, "method": _text, "sparsity": _share, "seed": _whole,
    **{f"{s}.accuracy": _share for s in SPLITS}, **{f"{s}.max_excess_gap": _gap for s in SPLITS},
    **{f"{s}.pairwise_disparity": _between(0, 2) for s in SPLITS},
}  # fmt: skip
RUN_EXTRAS = {
    "tolerance": _share, "dual_lr": _amount, "buffer": _whole, "seconds": _amount, "fleet": _count,
    "negative_weights": _whole, "multiplier_sum": _any_number, "versions": _object,
    "commit": _text, "overall": _overall, "image_size": _count, "recipe": _text, "epochs": _count,
    "diverged": _whole,
    **{f"group_accuracy.{s}": _list_of(_share, gaps=True) for s in SPLITS},
    **{f"changes.{s}.{what}": _list_of(_whole) for s in SPLITS for what in ("samples", "broke", "fixed")},
}  # fmt: skip
DENSE = {f"{s}.accuracy": _share for s in SPLITS}
DENSE_EXTRAS = {
    "dataset": _text, "target": _text, "group": _text, "weights": _text, "groups": _list_of(_text),
    "recipe": _object, "seconds": _amount, "image_size": _count,
    **{f"group_accuracy.{s}": _list_of(_share, gaps=True) for s in SPLITS},
}  # fmt: skip
TIMING = {"method": _text, "sparsity": _share, "fleet": _count, "seconds": _amount}
TIMING_EXTRAS = {
    "dataset": _text, "target": _text, "group": _text, "seconds_per_60_epochs": _amount, "versions": _object,
    "recipe": _text, "epochs": _count,
}  # fmt: skip
TRACE = {
    "method": _text, "sparsity": _share, "seed": _whole, "multiplier": _list_of(_any_number),
    "stride": _count, "steps_per_epoch": _count, "first_epoch": _whole,
}  # fmt: skip
TRACE_EXTRAS = {
    "buffer": _whole, "tolerance": _share, "group": _text, "diverged": _whole,
    "pairwise_disparity": _list_of(_between(0, 2), gaps=True), "max_excess_gap": _list_of(_gap, gaps=True),
}  # fmt: skip


def at(document: Any, place: str) -> Any:
    """The value at a dotted place; None where it is absent, or null."""
    for key in place.split("."):
        document = document.get(key) if isinstance(document, dict) else None
    return document


def _field_problems(document: Any, required: Mapping[str, Check], extras: Mapping[str, Check]) -> list[str]:
    if not isinstance(document, dict):
        return ["must be an object"]
    found = []
    for place, check in {**required, **extras}.items():
        value = at(document, place)
        if value is None:
            if place in required:
                found.append(f"{place} is missing")
        elif said := check(value):
            shown = "" if isinstance(value, dict | list) else f" is {shorten(visible(repr(value)), 40)}: it"
            found.append(f"{place}{shown} {said}")
    return found


def _sizes(document: Json) -> list[str]:
    """What the lists of a run say against each other."""
    found = []
    for split in SPLITS:
        n, b, c = (at(document, f"changes.{split}.{what}") for what in ("samples", "broke", "fixed"))
        accuracies = at(document, f"group_accuracy.{split}")
        lists = {"samples": n, "broke": b, "fixed": c, "group accuracies": accuracies}
        lengths = {name: len(values) for name, values in lists.items() if values is not None}
        given = [x for x in (n, b, c) if x is not None]
        if 0 < len(given) < 3:
            found.append(f"changes.{split} needs samples, broke and fixed together")
        elif len(set(lengths.values())) > 1:
            said = ", ".join(f"{size} {name}" for name, size in lengths.items())
            found.append(f"the lists of {split} differ in length: {said}")
        elif given and any(x + y > z for x, y, z in zip(b, c, n, strict=True)):
            found.append(f"changes.{split} has a group in which more samples changed than there are")
        elif given and not any(n):
            found.append(f"changes.{split} has no samples")
    return found


def listed(value: Any) -> list[Any]:
    """A list as it is; one thing alone, or none, as a list."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _brief(run: Any) -> str:
    """Which run it is, as far as it says so."""
    known = [at(run, key) for key in ("method", "sparsity", "seed")]
    words = [
        f"{word}{value}" for word, value in zip(("", "", "seed "), known, strict=True) if value is not None
    ]
    return f" ({visible(shorten(', '.join(words), 60))})" if words else ""


def document_problems(document: Json) -> list[str]:
    """Everything that is wrong with a results file, each with its place in it."""
    runs, traces, dense, timings = (listed(document.get(key)) for key in LISTS)
    problems = []
    for i, run in enumerate(runs, start=1):
        found = _field_problems(run, RUN, RUN_EXTRAS) or _sizes(run)
        problems += [f"run {i}{_brief(run)}: {problem}" for problem in found]
    for i, trace in enumerate(traces, start=1):
        problems += [f"trace {i}: {p}" for p in _field_problems(trace, TRACE, TRACE_EXTRAS)]
    for i, timing in enumerate(timings, start=1):
        problems += [f"timing {i}: {p}" for p in _field_problems(timing, TIMING, TIMING_EXTRAS)]
    for model in dense:
        problems += [f"dense: {p}" for p in _field_problems(model, DENSE, DENSE_EXTRAS)]
    note = document.get("note")
    return problems + [f"note {said}" for said in [_text(note)] if said and note is not None]
