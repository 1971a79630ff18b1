"""A comparison document as a table of text for a terminal."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from evenprune.wording import MISSING, Unit, shorten, visible

Document = Mapping[str, Any]  # a comparison as Result.document() gives it
POINTS = Unit(noun="accuracy", scale=100, digits=1, word=" points")


def to_text(document: Document) -> str:
    """The comparison for a terminal: one line a method, mean ± standard deviation over its runs."""
    dense, tolerance = document["dense"], POINTS.number(document["tolerance"])
    seen = ", ".join(f"{split} {POINTS.level(level['accuracy'])}" for split, level in dense.items())
    left = f"{document['parameters']['left']:,} of {document['parameters']['all']:,} parameters left"
    header = ["method", "accuracy %", "", "max ψ", "", "Ψ_PW", "", f"≤ {tolerance}", "audit"]
    under = ["", "train", "test", "train", "test", "train", "test", "train", "test"]
    rows = [_row(method, document["tolerance"]) for method in document["methods"]]
    return "\n\n".join(
        [
            f"{visible(document['title'])}: {left}; dense accuracy {seen}.",
            _aligned([header, under, *rows]),
            f"Mean ± standard deviation over the runs, in points. ψ: how much more accuracy than the average "
            f"a group lost.\nmax ψ: that of the worst group; ≤ {tolerance}: how many runs kept it within "
            "the tolerance. Ψ_PW: from the best group to the worst.",
        ]
    )


def _row(method: Document, tolerance: float) -> list[str]:
    runs = method["runs"]
    figures = [
        _spread([run[split][key] for run in runs])
        for key in ("accuracy", "max_excess_gap", "pairwise_disparity")
        for split in ("train", "test")
    ]
    met = f"{sum(within(run, tolerance) for run in runs)}/{len(runs)}"
    return [visible(shorten(method["name"], 34)), *figures, met, _verdicts(runs)]


def within(run: Document, tolerance: float) -> bool:
    """Whether a run kept its promise on the training data: max ψ ≤ ε."""
    largest = run["train"]["max_excess_gap"]
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


def _aligned(table: Sequence[Sequence[str]]) -> str:
    """The first and the last column to the left, the others to the right; a line under the two headers."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if i in (0, len(row) - 1) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
    rule = "─" * (sum(widths) + 2 * (len(widths) - 1))
    return "\n".join([*lines[:2], rule, *lines[2:]])
