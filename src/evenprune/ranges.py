"""Numbers to ranges: where the ranges begin, and names that people read. Needs numpy alone."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenprune.tally import FloatArray


@dataclass(frozen=True)
class Ranges:
    """A range below the first edge, between edges, and from the last one on: one name more than edges."""

    edges: tuple[float, ...]
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()


def ranges_of(
    numbers: FloatArray,
    *,
    edges: Sequence[float] | None,
    quantiles: int | None,
    training: FloatArray | None = None,
    unit: str = "",
    whole: bool | None = None,
) -> Ranges:
    """Ranges by edges, or (quantiles) so many of about equal size among the training numbers, if given."""
    known, notes = numbers[~np.isnan(numbers)], []
    if edges is None:
        edges = quantile_edges(numbers if training is None else training, quantiles or 1)
        if quantiles is not None and len(edges) < quantiles - 1:
            notes.append(
                f"{quantiles} ranges of about equal size were asked for, and there are {len(edges) + 1}: "
                "some values are so frequent that they fill more than one."
            )
    if whole is None:
        whole = _all_whole(known[np.isfinite(known)])
    at = tuple(float(edge) for edge in edges)
    return Ranges(at, tuple(_range_names(at, known, whole=whole, unit=unit)), tuple(notes))


def bin_problems(edges: Sequence[float] | None, quantiles: int | None) -> list[str]:
    if (edges is None) == (quantiles is None):
        return ["give either edges, such as [18, 30, 45], or quantiles, such as 4"]
    if edges is None:
        fits = isinstance(quantiles, int | np.integer) and quantiles >= 2
        return [] if fits else [f"quantiles is {quantiles!r}: it must be a whole number, 2 or more"]
    if _rising(edges):
        return []
    shown = list(edges) if isinstance(edges, list | tuple | np.ndarray) else repr(edges)
    return [f"edges is {shown}: give one or more numbers, each larger than the one before"]


def _rising(edges: Any) -> bool:
    """Whether they are finite numbers, at least one, each larger than the one before."""
    try:
        numbers = [] if isinstance(edges, str) else [float(edge) for edge in edges]
    except (TypeError, ValueError):
        return False
    rising = all(a < b for a, b in itertools.pairwise(numbers))
    return bool(numbers) and rising and all(map(math.isfinite, numbers))


def quantile_edges(numbers: FloatArray, count: int) -> tuple[float, ...]:
    """Where `count` ranges of about equal size begin, the first left out: fewer where values are frequent.

    Of all numbers that change the sizes by a twentieth at the most, each edge is the roundest.
    """
    known = np.sort(numbers[np.isfinite(numbers)])
    if not known.size:
        return ()
    count = min(count, known.size)
    edges = {_quantile_edge(known, place / count, slack=0.05 / count) for place in range(1, count)}
    return tuple(sorted(edge for edge in edges if edge > known[0]))  # a range below the smallest is empty


def _quantile_edge(known: FloatArray, share: float, *, slack: float) -> float:
    """The roundest number with about this share of the sorted values below it."""
    size, whole = known.size, _all_whole(known)
    at = min(math.ceil(size * share), size - 1)
    first = min(math.ceil(size * (share - slack)), at)
    last = min(max(math.floor(size * (share + slack)), at), size - 1)
    low, middle, high = (float(known[place]) for place in (first, at, last))
    if low < high:
        if np.searchsorted(known, low, side="left") < first:  # a frequent value: an edge at it cuts too early
            middle = max(middle, float(known[np.searchsorted(known, low, side="right")]))
            low = math.floor(low) + 1.0 if whole else math.nextafter(low, math.inf)
        return _roundest(low, high, near=middle, whole=whole)
    below, up_to = np.searchsorted(known, middle, side="left"), np.searchsorted(known, middle, side="right")
    if up_to == size or share - below / size <= up_to / size - share:
        return middle
    beyond = float(known[up_to])  # a frequent value: all of it is better below the edge than above
    return _roundest(
        math.floor(middle) + 1.0 if whole else math.nextafter(middle, math.inf),
        beyond,
        near=beyond,
        whole=whole,
    )


def _all_whole(numbers: FloatArray) -> bool:
    return bool((numbers == np.floor(numbers)).all())


def _roundest(low: float, high: float, *, near: float, whole: bool) -> float:
    """Of the numbers from low to high one with the fewest digits; of several, the one next to `near`."""
    if low == high:
        return near
    top = min(math.ceil(math.log10(max(abs(low), abs(high)))), 308)
    for power in range(top, 0 if whole else max(top - 17, -300), -1):
        for step in (10.0**power, 5 * 10.0 ** (power - 1)):
            first, last = math.ceil(low / step), math.floor(high / step)
            if first <= last:
                rounded = round(min(max(round(near / step), first), last) * step, 1 - power)
                if low <= rounded <= high:
                    return rounded
    return near


def _range_names(edges: Sequence[float], numbers: FloatArray, *, whole: bool, unit: str) -> list[str]:
    """Names of the ranges below, between and above the edges."""
    after = f" {unit}" if unit else ""
    inclusive = whole and _all_whole(np.array(edges)) and all(abs(edge) < 2**53 for edge in edges)

    def between(low: float, high: float) -> str:
        if not inclusive:
            return f"{written(low)} to under {written(high)}{after}"
        last = high - 1
        if last == low:
            return f"{written(low)}{after}"
        return f"{written(low)}{' to ' if low < 0 else '–'}{written(last)}{after}"

    if not edges:
        if not numbers.size:
            return [""]
        low, high = float(numbers.min()), float(numbers.max())
        return [f"{written(low)}{'' if low == high else f' to {written(high)}'}{after}"]
    middle = [between(low, high) for low, high in itertools.pairwise(edges)]
    return [f"under {written(edges[0])}{after}", *middle, f"{written(edges[-1])}{after} and over"]


def written(number: float) -> str:
    """The shortest text that is this number and no other; no thousands separators, which would not sort."""
    whole = number.is_integer() and abs(number) < 2**53
    return str(int(number)) if whole else np.format_float_positional(number, trim="-")
