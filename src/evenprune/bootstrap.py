"""A paired, studentised bootstrap for per-sample scores and losses, where no counts exist.

Samples are drawn anew within each cell (sizes stay as they are), the same samples for both models:
only the per-sample loss d = what the pruned model lost against the dense one matters.
"""

from dataclasses import dataclass

import numpy as np

from evenprune.groups import Grouping
from evenprune.limits import excess_variance
from evenprune.tally import FloatArray, IntArray

DRAWS = 2000
RESAMPLED = 2000  # cells up to this size are resampled; the draws of larger ones are normal, moments matched
CHUNK = 4_000_000  # numbers held at once


@dataclass(frozen=True)
class Moments:
    """Per cell [..., cells]: mean of d and of d²."""

    mean: FloatArray
    square: FloatArray


def split_cells(values: FloatArray, cell: IntArray, cells: int) -> list[FloatArray]:
    """The values of each cell, sorted, so that the order of rows cannot matter."""
    order = np.lexsort((values, cell))
    ends = np.cumsum(np.bincount(cell, minlength=cells))
    return np.split(values[order], ends[:-1])


def moments(parts: list[FloatArray]) -> Moments:
    return Moments(np.array([p.mean() for p in parts]), np.array([(p * p).mean() for p in parts]))


def resample(parts: list[FloatArray], rng: np.random.Generator) -> Moments:
    """Bootstrap draws of both moments of every cell  [draws, cells]."""
    drawn = [_resample_cell(p, rng) if p.size <= RESAMPLED else _normal_cell(p, rng) for p in parts]
    both = np.stack(drawn, axis=-1)  # [2, draws, cells]
    return Moments(both[0], both[1])


def _resample_cell(values: FloatArray, rng: np.random.Generator) -> FloatArray:
    out = np.empty((2, DRAWS))
    rows = max(1, CHUNK // values.size)
    for start in range(0, DRAWS, rows):
        size = (min(rows, DRAWS - start), values.size)
        drawn = values[rng.integers(values.size, size=size, dtype=np.int32)]
        out[0, start : start + size[0]] = drawn.mean(axis=1)
        out[1, start : start + size[0]] = np.einsum("ij,ij->i", drawn, drawn) / values.size
    return out


def _normal_cell(values: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Of a large cell, (mean, mean square) is normal with the covariance of (d, d²)/n, skewness included."""
    pair = np.stack([values, values * values])
    (v1, both), (_, v2) = np.cov(pair, bias=True) / values.size
    slope = both / v1 if v1 > 0 else 0.0
    z = rng.standard_normal((2, DRAWS))
    first = np.sqrt(v1) * z[0]
    second = slope * first + np.sqrt(max(v2 - slope * both, 0.0)) * z[1]
    return np.asarray(pair.mean(axis=1)[:, None] + np.stack([first, second]))


def typical_square(lost: FloatArray, most: float | None) -> float:
    """The square of a change that a small group may not have shown yet, for `mean_variance`.

    Of a score the largest possible one; of a loss, which has no largest, the 99.9 % quantile of those seen.
    """
    if most is not None:
        return most**2
    return max(float(np.quantile(lost**2, 0.999)), 1e-12)


def mean_variance(m: Moments, n: FloatArray, typical: float) -> FloatArray:
    """Variance of a cell's mean, with two more samples ±typical, so that no variance is zero.

    The counterpart of Bonett–Price: with d in {−1, 0, 1} and typical = 1 it is the same formula.
    """
    mean = m.mean * n / (n + 2)
    square = (m.square * n + 2 * typical) / (n + 2)
    return np.asarray(np.maximum(square - mean**2, 1e-300) / (n + 2))


@dataclass(frozen=True)
class Studentised:
    """Estimates, their standard errors and the bootstrap draws around them, per group."""

    estimate: FloatArray  # [groups]
    error: FloatArray  # [groups]
    t: FloatArray  # [draws, groups] (draw − estimate) / error of the draw
    deviation: FloatArray  # [draws, groups] draw − estimate


def excess_gaps(
    grouping: Grouping, n: FloatArray, observed: Moments, drawn: Moments, typical: float
) -> Studentised:
    """ψ_g of every group."""
    share = n / n.sum()
    group_share = grouping.sum(share)

    def excess(mean: FloatArray) -> FloatArray:
        return np.asarray(
            grouping.sum(mean * share) / group_share - (mean * share).sum(axis=-1, keepdims=True)
        )

    def error(m: Moments) -> FloatArray:
        return np.asarray(np.sqrt(excess_variance(grouping, n, mean_variance(m, n, typical))))

    estimate, deviation = excess(observed.mean), excess(drawn.mean - observed.mean)
    return Studentised(estimate, error(observed), deviation / error(drawn), deviation)


def gaps(grouping: Grouping, n: FloatArray, observed: Moments, drawn: Moments, typical: float) -> Studentised:
    """Δ_g of every group."""
    size = grouping.sum(n)

    def error(m: Moments) -> FloatArray:
        return np.asarray(np.sqrt(grouping.sum(n**2 * mean_variance(m, n, typical))) / size)

    estimate, deviation = (
        grouping.sum(observed.mean * n) / size,
        grouping.sum((drawn.mean - observed.mean) * n) / size,
    )
    return Studentised(estimate, error(observed), deviation / error(drawn), deviation)
