"""A comparison document as a table of text for a terminal."""

import statistics
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from evenprune.wording import MISSING, Unit, shorten, visible

Document = Mapping[str, Any]  # a comparison as Result.document() gives it
WORDS = {"train": "train", "heldout": "held-out", "test": "test"}
WIDTH = 110  # of a terminal
LONGEST = 34  # characters of a name
POINTS = Unit(noun="accuracy", scale=100, digits=1, word=" points")


def to_text(document: Document) -> str:
    """The comparison for a terminal: one line a method, mean ± standard deviation over its runs."""
    dense, tolerance = document["dense"], POINTS.number(document["tolerance"])
    seen = ", ".join(f"{WORDS[split]} {POINTS.level(level['accuracy'])}" for split, level in dense.items())
    left = f"{document['parameters']['left']:,} of {document['parameters']['all']:,} parameters left"
    header = ["method", "accuracy %", "", "max ψ", "", "Ψ_PW", "", f"≤ {tolerance}", "audit"]
    under = ["", "train", "test", "train", "test", "train", "test", "train", "test"]
    rows = [[name, *_row(method, document["tolerance"])] for name, method in _named(document)]
    return "\n\n".join(
        [
            f"{visible(document['title'])}: {left}; dense accuracy {seen}.",
            _aligned([header, under, *rows]),
            *_heldout(document),
            f"Mean ± standard deviation over the runs, in points. ψ: how much more accuracy than the average "
            f"a group lost.\nmax ψ: that of the worst group; ≤ {tolerance}: how many runs kept it within "
            "the tolerance. Ψ_PW: from the best group to the worst.",
            *_wrapped(document.get("selected_because") or ""),
            *(line for note in document.get("notes") or [] for line in _wrapped(f"Note: {note}")),
        ]
    )


def _heldout(document: Document) -> list[str]:
    """The figures of the held-out split as a table of their own, if there is one."""
    if "heldout" not in document["dense"]:
        return []
    tolerance = document["tolerance"]
    header = ["on held-out data", "accuracy %", "max ψ", "Ψ_PW", f"≤ {POINTS.number(tolerance)}", ""]
    rows = [
        [name, *_figures(method, ("heldout",)), _met(method["runs"], tolerance, "heldout"), ""]
        for name, method in _named(document)
    ]
    return [_aligned([header, *rows], headers=1)]


def _wrapped(text: str) -> list[str]:
    return [textwrap.fill(visible(text), WIDTH, break_on_hyphens=False)] if text else []


def _named(document: Document) -> list[tuple[str, Document]]:
    """The methods under their names, cut only if these then stay apart."""
    names = [method["name"] for method in document["methods"]]
    short = [shorten(name, LONGEST) for name in names]
    shown = short if len({*short}) == len({*names}) else names
    return [(visible(name), method) for name, method in zip(shown, document["methods"], strict=True)]


def _row(method: Document, tolerance: float) -> list[str]:
    runs = method["runs"]
    return [*_figures(method, ("train", "test")), _met(runs, tolerance, "train"), _verdicts(runs)]


def _figures(method: Document, splits: Sequence[str]) -> list[str]:
    """Each measure of a method on these splits."""
    measures = ("accuracy", "max_excess_gap", "pairwise_disparity")
    return [_spread([run[split][key] for run in method["runs"]]) for key in measures for split in splits]


def _met(runs: Sequence[Document], tolerance: float, split: str) -> str:
    if all(run[split]["max_excess_gap"] is None for run in runs):
        return MISSING
    return f"{sum(within(run, tolerance, split) for run in runs)}/{len(runs)}"


def within(run: Document, tolerance: float, split: str = "train") -> bool:
    """Whether a run kept its promise on a split: max ψ ≤ ε."""
    largest = run[split]["max_excess_gap"]
    return largest is not None and bool(largest <= tolerance + 1e-9)  # 0.02 is not above 0.02


def _spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return MISSING
    mean = POINTS.number(statistics.fmean(known))
    return f"{mean} ± {POINTS.number(statistics.stdev(known))}" if len(known) > 1 else mean


def _verdicts(runs: Sequence[Document]) -> str:
    """ "fail", or "2 fail, 3 inconclusive" where the runs differ."""
    words = [run["test"]["verdict"] for run in runs]
    counts = {word: words.count(word) for word in ("fail", "inconclusive", "pass") if word in words}
    return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{n} {word}" for word, n in counts.items())


def _aligned(table: Sequence[Sequence[str]], headers: int = 2) -> str:
    """The first and the last column to the left, the others to the right; a line under the headers."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if i in (0, len(row) - 1) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
    rule = "─" * (sum(widths) + 2 * (len(widths) - 1))
    return "\n".join([*lines[:headers], rule, *lines[headers:]])
