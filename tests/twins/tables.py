"""The tally of a CSV file, row by row, with nothing but Python's csv module."""

import csv
import re
from collections import Counter
from pathlib import Path

Pattern = tuple[tuple[str | None, ...], int]  # cell, pattern


def tally(path: Path, *, label: str, dense: str, pruned: list[str], groups: list[str]) -> Counter[Pattern]:
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    numeric = {name: _is_numeric([row[name] for row in rows]) for name in rows[0]}
    counted: Counter[Pattern] = Counter()
    for row in rows:
        cell = tuple(_group(row[name], numeric[name]) for name in groups)
        pattern = 0
        for bit, name in enumerate([dense, *pruned]):
            if _class(row[label], numeric[label]) == _class(row[name], numeric[name]):
                pattern += 2**bit
        counted[cell, pattern] += 1
    return counted


def _is_numeric(texts: list[str]) -> bool:
    return all(re.fullmatch(r"[-+]?\d+(\.\d*)?", text) for text in texts if text not in ("", "nan", "NaN"))


def _class(text: str, numeric: bool) -> float | str:
    return float(text) if numeric else text


def _group(text: str, numeric: bool) -> str | None:
    if text in ("", "nan", "NaN"):
        return None
    return text.rstrip("0").rstrip(".") if numeric and re.search(r"\.0*$", text) else text
