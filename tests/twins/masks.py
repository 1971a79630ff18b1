"""Magnitude pruning as one would do it by hand: sort, then strike out from the low end."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil


def count(sparsity: str, size: int) -> int:
    """ceil(s · n) in exact arithmetic, for a sparsity written as a decimal."""
    return ceil(Fraction(sparsity) * size)


def survivors(scores: Sequence[float], alive: Sequence[bool], gone: int) -> list[bool]:
    """True for what stays when `gone` entries go: first the dead, then the lowest, then the earliest."""
    order = sorted(range(len(scores)), key=lambda i: (alive[i], scores[i] if alive[i] else 0, i))
    struck = set(order[:gone])
    return [i not in struck for i in range(len(scores))]


def pattern_survivors(rows: Sequence[Sequence[float]], *, kept: int, of: int, gone: int) -> list[list[bool]]:
    """The same for a matrix [out, in] where every `of` neighbours in a row keep at least `kept`."""
    free = []
    for i, row in enumerate(rows):
        for start in range(0, len(row), of):
            block = sorted(range(start, start + of), key=lambda j, row=row: (row[j], j))
            free += [(row[j], i, j) for j in block[: of - kept]]
    struck = {(i, j) for _, i, j in sorted(free)[:gone]}
    return [[(i, j) not in struck for j in range(len(row))] for i, row in enumerate(rows)]
