"""Pruned models against each other on the same samples, paired per sample, never as if independent."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenprune import bootstrap, limits
from evenprune.evidence import Demand
from evenprune.groups import Grouping
from evenprune.limits import Counts
from evenprune.tally import FloatArray, Scores, Tally
from evenprune.verdict import Comparison, Difference

DRAWS = 2000


def paired_counts(tally: Tally, first: int, second: int) -> Counts:
    """Counts per cell for two models, named by their bits (0 is the dense one)."""
    a, b = (tally.pattern >> first) & 1, (tally.pattern >> second) & 1

    def total(where: NDArray[Any]) -> FloatArray:
        return np.bincount(tally.cell, tally.count * where, len(tally.cells)).astype(float)

    return Counts(total(np.ones(a.size)), total(a * (1 - b)), total((1 - a) * b), total(a))


@dataclass(frozen=True)
class GapDraws:
    """Two pruned models' gaps per cell, and joint draws around them  ([cells], [draws, cells])."""

    first: FloatArray
    second: FloatArray
    first_draws: FloatArray
    second_draws: FloatArray


def compare(data: Tally | Scores, grouping: Grouping, demand: Demand) -> Iterator[Comparison]:
    """Every pair of pruned models: differences of accuracy, max ψ and Ψ_PW, and the groups that differ."""
    for i, j in itertools.combinations(range(len(data.models)), 2):
        if isinstance(data, Tally):
            yield _compare_counts(data, i, j, grouping, demand)
        else:
            yield _compare_scores(data, i, j, grouping, demand)


def _difference(estimate: float, draws: FloatArray, confidence: float) -> Difference:
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Difference(estimate, min(float(low), estimate), max(float(high), estimate))


def _spread(
    gaps: GapDraws, n: FloatArray, grouping: Grouping, confidence: float
) -> tuple[Difference, Difference]:
    """Second minus first, of max ψ and of Ψ_PW, with the range of the joint draws."""
    mix = limits.Noise(grouping, n, np.ones_like(n)).errors
    first, second = mix(gaps.first[None]), mix(gaps.second[None])
    first_draws, second_draws = mix(gaps.first_draws), mix(gaps.second_draws)
    worst = _difference(
        float(second.max() - first.max()), second_draws.max(axis=1) - first_draws.max(axis=1), confidence
    )
    spread = _difference(
        float(limits.disparity(second)[0] - limits.disparity(first)[0]),
        limits.disparity(second_draws) - limits.disparity(first_draws),
        confidence,
    )
    return worst, spread


def _compare_counts(tally: Tally, i: int, j: int, grouping: Grouping, demand: Demand) -> Comparison:
    cells = paired_counts(tally, i + 1, j + 1)
    group, total = cells.sum_to(grouping), cells.total()
    low, high = limits.score_limits(total.b, total.c, total.n, demand.z_two_sided)
    group_low, group_high = limits.score_limits(group.b, group.c, group.n, demand.z_of_many(len(grouping)))
    draws = _joint_draws(tally, i, j, cells, demand.rng())
    worst, spread = _spread(draws, cells.n, grouping, demand.confidence)
    return Comparison(
        first=tally.models[i],
        second=tally.models[j],
        accuracy=Difference(-float(total.gap[0]), -float(high[0]), -float(low[0])),
        max_excess_gap=worst,
        pairwise_disparity=spread,
        better=tuple(np.array(grouping.names, dtype=object)[group_high < 0]),
        worse=tuple(np.array(grouping.names, dtype=object)[group_low > 0]),
    )


def _joint_draws(tally: Tally, i: int, j: int, pair: Counts, rng: np.random.Generator) -> GapDraws:
    """Normal draws of both gaps per cell; Cov(Δ_i, Δ_j) follows from Var(Δ_i − Δ_j), the pair's own."""
    first, second = paired_counts(tally, 0, i + 1), paired_counts(tally, 0, j + 1)
    covariance = (first.variance + second.variance - pair.variance) / 2
    slope = covariance / first.variance
    left = np.sqrt(np.maximum(second.variance - slope * covariance, 0))
    z = rng.standard_normal((2, DRAWS if first.n.size <= 5000 else 500, first.n.size))
    first_error = z[0] * np.sqrt(first.variance)
    return GapDraws(
        first.gap, second.gap, first.gap + first_error, second.gap + slope * first_error + left * z[1]
    )


def _compare_scores(scores: Scores, i: int, j: int, grouping: Grouping, demand: Demand) -> Comparison:
    sign = -1.0 if scores.measure == "loss" else 1.0
    dense, first, second = (sign * x for x in (scores.dense, scores.pruned[i], scores.pruned[j]))
    n = np.bincount(scores.cell, minlength=len(scores.cells)).astype(float)
    gained = bootstrap.split_cells(second - first, scores.cell, n.size)
    lost = np.stack([dense - first, dense - second])
    typical = max(float(((second - first) ** 2).mean()), 1e-12)
    observed, drawn = bootstrap.moments(gained), bootstrap.resample(gained, demand.rng())
    group = bootstrap.gaps(grouping, n, observed, drawn, typical)
    critical = limits.upper_quantile(np.abs(group.t).max(axis=1), demand.confidence)
    worst, spread = _spread(_score_draws(lost, scores, n, demand), n, grouping, demand.confidence)
    share = n / n.sum()
    names = np.array(grouping.names, dtype=object)
    # A loss is shown as a loss: second minus first, lower is better.
    overall = _difference(
        sign * float((second - first).mean()), sign * (drawn.mean @ share), demand.confidence
    )
    return Comparison(
        first=scores.models[i],
        second=scores.models[j],
        accuracy=overall,
        max_excess_gap=worst,
        pairwise_disparity=spread,
        better=tuple(names[group.estimate - critical * group.error > 0]),
        worse=tuple(names[group.estimate + critical * group.error < 0]),
    )


def _score_draws(lost: FloatArray, scores: Scores, n: FloatArray, demand: Demand) -> GapDraws:
    """Normal draws of both gaps per cell with their sample covariance."""
    count = n.size
    mean = np.stack([np.bincount(scores.cell, x, count) / n for x in lost])
    centred = lost - mean[:, scores.cell]
    v1, v2, cov = (
        np.bincount(scores.cell, a * b, count) / n**2
        for a, b in ((centred[0], centred[0]), (centred[1], centred[1]), (centred[0], centred[1]))
    )
    slope = np.divide(cov, v1, out=np.zeros_like(v1), where=v1 > 0)
    left = np.sqrt(np.maximum(v2 - slope * cov, 0))
    z = demand.rng().standard_normal((2, DRAWS if count <= 5000 else 500, count))
    error = z[0] * np.sqrt(v1)
    return GapDraws(mean[0], mean[1], mean[0] + error, mean[1] + slope * error + left * z[1])
