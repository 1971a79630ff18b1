"""Pruned models against each other on the same samples, paired per sample, never as if independent.

The maximum of estimates is biased upward, the more so the noisier the model, so the difference of two maxima
cannot be read off resampled maxima. Its limits here follow from limits of every group: with d_g = ψ_g(second)
− ψ_g(first), and g* the worst group of the second model,

    max ψ(second) − max ψ(first) ≤ d_g*,      and from below by d at the worst group of the first model;

which groups may be the worst is known from each model's own simultaneous limits, which also bound the two
maxima one by one. All of these limits hold together, so the tighter one is taken.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenprune import bootstrap, limits
from evenprune.evidence import Demand
from evenprune.groups import Grouping
from evenprune.limits import Counts
from evenprune.tally import FloatArray, Scores, Tally
from evenprune.verdict import Comparison, Difference


def paired_counts(tally: Tally, first: int, second: int) -> Counts:
    """Counts per cell for two models, named by their bits (0 is the dense one)."""
    a, b = (tally.pattern >> first) & 1, (tally.pattern >> second) & 1

    def total(where: NDArray[Any]) -> FloatArray:
        return np.bincount(tally.cell, tally.count * where, len(tally.cells)).astype(float)

    return Counts(total(np.ones(a.size)), total(a * (1 - b)), total((1 - a) * b), total(a))


@dataclass(frozen=True)
class Band:
    """Excess gaps (or their difference) and simultaneous two-sided limits  [groups]."""

    estimate: FloatArray
    lower: FloatArray
    upper: FloatArray

    @property
    def may_be_largest(self) -> NDArray[np.bool_]:
        return np.asarray(self.upper >= self.lower.max())

    def turned(self) -> "Band":
        """With the sign turned: the largest is now the smallest."""
        return Band(-self.estimate, -self.upper, -self.lower)


def compare(data: Tally | Scores, grouping: Grouping, demand: Demand) -> Iterator[Comparison]:
    """Every pair of pruned models: differences of accuracy, max ψ and Ψ_PW, and the groups that differ."""
    for i, j in itertools.combinations(range(len(data.models)), 2):
        if isinstance(data, Tally):
            yield _compare_counts(data, i, j, grouping, demand)
        else:
            yield _compare_scores(data, i, j, grouping, demand)


def of_maxima(first: Band, second: Band, change: Band) -> Difference:
    """max ψ(second) − max ψ(first)."""
    by_group = change.lower[first.may_be_largest].min(), change.upper[second.may_be_largest].max()
    apart = second.lower.max() - first.upper.max(), second.upper.max() - first.lower.max()
    return Difference(
        estimate=float(second.estimate.max() - first.estimate.max()),
        lower=float(max(by_group[0], apart[0])),
        upper=float(min(by_group[1], apart[1])),
    )


def of_spreads(first: Band, second: Band, change: Band) -> Difference:
    """Ψ_PW(second) − Ψ_PW(first), Ψ_PW = max ψ − min ψ; the minimum is bounded as the maximum is."""
    highest = of_maxima(first, second, change)
    lowest = of_maxima(second.turned(), first.turned(), change)  # min ψ(second) − min ψ(first)
    estimate = float(np.ptp(second.estimate) - np.ptp(first.estimate))
    return Difference(estimate, highest.lower - lowest.upper, highest.upper - lowest.lower)


def _thirds(demand: Demand) -> Demand:
    """Three bands must hold at once: each gets a third of the chance to err."""
    return replace(demand, confidence=1 - (1 - demand.confidence) / 3)


def _compare_counts(tally: Tally, i: int, j: int, grouping: Grouping, demand: Demand) -> Comparison:
    cells = paired_counts(tally, i + 1, j + 1)
    group, total = cells.sum_to(grouping), cells.total()
    many = demand.z_of_many(len(grouping))
    low, high = limits.paired_limits(total, demand.z_two_sided, demand.z_two_sided)
    group_low, group_high = limits.paired_limits(group, many, many)
    strict = _thirds(demand)
    first, second = (_count_band(paired_counts(tally, 0, m + 1), grouping, strict) for m in (i, j))
    change = _count_band(cells, grouping, strict)  # what the second model lost against the first
    names = np.array(grouping.names, dtype=object)
    return Comparison(
        first=tally.models[i],
        second=tally.models[j],
        accuracy=Difference(-float(total.gap[0]), -float(high[0]), -float(low[0])),
        max_excess_gap=of_maxima(first, second, change),
        pairwise_disparity=of_spreads(first, second, change),
        better=tuple(names[group_high < 0]),
        worse=tuple(names[group_low > 0]),
    )


def _count_band(cells: Counts, grouping: Grouping, demand: Demand) -> Band:
    """Šidák's deviate for all groups at once: needs no draws, and is a little wider than max-t."""
    group, total = cells.sum_to(grouping), cells.total()
    z = demand.z_of_many(len(grouping))
    return Band(group.gap - total.gap, *limits.excess_limits(group, group.outside_of(total), (z, z))[0])


def _compare_scores(scores: Scores, i: int, j: int, grouping: Grouping, demand: Demand) -> Comparison:
    sign = -1.0 if scores.measure == "loss" else 1.0
    dense, first, second = (sign * x for x in (scores.dense, scores.pruned[i], scores.pruned[j]))
    change = _Lost.of(first - second, scores, demand)
    group = change.gaps(grouping)
    critical = limits.upper_quantile(np.abs(group.t).max(axis=1), demand.confidence)
    whole = change.gaps(Grouping(("all",), ({},), (np.zeros(len(scores.cells), dtype=np.int64),)))
    half = limits.upper_quantile(np.abs(whole.t[:, 0]), demand.confidence) * float(whole.error[0])
    # Shown in the measure's own direction: of a loss, second minus first, lower is better.
    middle = -sign * float(whole.estimate[0])
    strict = _thirds(demand)
    bands = [
        _Lost.of(x, scores, strict).band(grouping) for x in (dense - first, dense - second, first - second)
    ]
    names = np.array(grouping.names, dtype=object)
    return Comparison(
        first=scores.models[i],
        second=scores.models[j],
        accuracy=Difference(middle, middle - half, middle + half),
        max_excess_gap=of_maxima(*bands),
        pairwise_disparity=of_spreads(*bands),
        better=tuple(names[group.estimate + critical * group.error < 0]),
        worse=tuple(names[group.estimate - critical * group.error > 0]),
    )


@dataclass(frozen=True)
class _Lost:
    """What one model lost per sample against another, and its bootstrap."""

    n: FloatArray  # [cells]
    observed: bootstrap.Moments
    drawn: bootstrap.Moments
    typical: float
    confidence: float

    @staticmethod
    def of(lost: FloatArray, scores: Scores, demand: Demand) -> "_Lost":
        parts = bootstrap.split_cells(lost, scores.cell, len(scores.cells))
        typical = bootstrap.typical_square(lost, 1.0 if scores.measure == "score" else None)
        n = np.array([part.size for part in parts], dtype=float)
        drawn = bootstrap.resample(parts, demand.rng())
        return _Lost(n, bootstrap.moments(parts), drawn, typical, demand.confidence)

    def gaps(self, grouping: Grouping) -> bootstrap.Studentised:
        return bootstrap.gaps(grouping, self.n, self.observed, self.drawn, self.typical)

    def band(self, grouping: Grouping) -> Band:
        found = bootstrap.excess_gaps(grouping, self.n, self.observed, self.drawn, self.typical)
        half = limits.upper_quantile(np.abs(found.t).max(axis=1), self.confidence) * found.error
        return Band(found.estimate, found.estimate - half, found.estimate + half)
