"""What the samples say about every group: estimates, limits, violations, noise floor; for one pruned model.

Two ways lead to it: paired counts (accuracy; score limits) and a paired bootstrap (scores and losses).
Both return the same arrays, so the verdict and the page need not know which it was.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evenprune import bootstrap, limits, maximum
from evenprune.groups import Grouping
from evenprune.limits import Counts, Noise
from evenprune.maximum import Range
from evenprune.tally import FloatArray, IntArray


@dataclass(frozen=True)
class Demand:
    """What is asked of the evidence."""

    tolerance: float
    confidence: float
    seed: int

    @property
    def z(self) -> float:
        return limits.quantile(self.confidence)

    @property
    def z_two_sided(self) -> float:
        return limits.quantile((1 + self.confidence) / 2)

    def z_of_many(self, groups: int) -> float:
        """Šidák's two-sided deviate for so many groups at once."""
        return limits.quantile((1 + self.confidence ** (1 / groups)) / 2)

    def rng(self) -> np.random.Generator:
        return np.random.Generator(np.random.SFC64(self.seed))


@dataclass(frozen=True)
class Estimates:
    """Per group [groups]; positive gaps mean that the group lost."""

    samples: IntArray
    dense: FloatArray
    pruned: FloatArray
    gap: FloatArray  # Δ_g
    excess: FloatArray  # ψ_g
    variance: FloatArray  # of ψ_g, not padded
    broke: IntArray
    fixed: IntArray


@dataclass(frozen=True)
class Limits:
    """Per group [groups]."""

    test_lower: FloatArray  # of ψ_g, one-sided, simultaneous: beyond the tolerance means fail
    test_upper: FloatArray  # of ψ_g, one-sided, pointwise: all within the tolerance means pass
    lower: FloatArray  # of ψ_g, two-sided, simultaneous
    upper: FloatArray
    gap_lower: FloatArray  # of Δ_g, two-sided, simultaneous
    gap_upper: FloatArray
    violates: NDArray[np.bool_]  # by step-down: ψ_g > tolerance
    critical: float  # of test_lower


@dataclass(frozen=True)
class Overall:
    """The whole sample; limits of its gap, two-sided."""

    dense: float
    pruned: float
    lower: float
    upper: float
    disagreement: float


@dataclass(frozen=True)
class Worst:
    """What to make of the largest excess gap."""

    floor_max: Range  # max ψ̂ if no group had been harmed
    floor_disparity: Range  # Ψ̂_PW if no group had been harmed
    debiased: float
    shrunken: FloatArray  # [groups] ψ_g as a new sample would likely show it


@dataclass(frozen=True)
class Evidence:
    estimates: Estimates
    limits: Limits
    overall: Overall
    worst: Worst


def from_counts(cells: Counts, grouping: Grouping, demand: Demand) -> Evidence:
    """Evidence about accuracy, from the paired counts of each cell."""
    rng = demand.rng()
    group, total = cells.sum_to(grouping), cells.total()
    noise = Noise(grouping, cells.n, cells.variance)
    pruned_right = group.dense_right - group.b + group.c
    # Cells without a single change still have some disagreement: the shares are drawn together.
    disagreement = np.maximum(maximum.shrunken_shares(cells.b + cells.c, cells.n), 1e-9)
    estimates = Estimates(
        samples=group.n.astype(np.int64),
        dense=group.dense_right / group.n,
        pruned=pruned_right / group.n,
        gap=group.gap,
        excess=group.gap - total.gap,
        variance=limits.excess_variance(grouping, cells.n, disagreement / cells.n),
        broke=group.b.astype(np.int64),
        fixed=group.c.astype(np.int64),
    )
    found = _count_limits(group, total, limits.t_draws(noise, rng), demand)
    null = noise.errors(maximum.null_gaps(cells, rng))
    return Evidence(estimates, found, _count_overall(total, demand), _worst(estimates, null, found, demand))


def _count_limits(group: Counts, total: Counts, t: NDArray[np.float32], demand: Demand) -> Limits:
    rest = group.outside_of(total)
    highest, lowest = t.max(axis=1), t.min(axis=1)
    critical = limits.upper_quantile(highest, demand.confidence)
    two_sided = limits.upper_quantile(np.maximum(highest, -lowest), demand.confidence)
    (test_lower, test_upper), (lower, upper) = limits.excess_limits(
        group, rest, (critical, demand.z), (two_sided, two_sided)
    )
    many = demand.z_of_many(group.n.size)
    gap_lower, gap_upper = limits.paired_limits(group, many, many)
    violates = test_lower > demand.tolerance
    if violates.any():

        def beyond(z: float) -> NDArray[np.bool_]:
            return limits.excess_limits(group, rest, (z, demand.z))[0][0] > demand.tolerance

        violates = limits.step_down(t, demand.confidence, beyond)
    return Limits(test_lower, test_upper, lower, upper, gap_lower, gap_upper, violates, critical)


def _count_overall(total: Counts, demand: Demand) -> Overall:
    lower, upper = limits.paired_limits(total, demand.z_two_sided, demand.z_two_sided)
    n, b, c, right = (float(x[0]) for x in (total.n, total.b, total.c, total.dense_right))
    return Overall(right / n, (right - b + c) / n, float(lower[0]), float(upper[0]), (b + c) / n)


def _worst(found: Estimates, null: FloatArray, bounds: Limits, demand: Demand) -> Worst:
    """`null` holds draws of the estimated excess gaps if no group had been harmed  [draws, groups]."""
    belief = maximum.posterior_gaps(found.excess, found.variance)
    debiased = maximum.debiased_maximum(belief, found.samples.astype(float), demand.rng())
    return Worst(
        floor_max=Range.of(null.max(axis=1), demand.confidence),
        floor_disparity=Range.of(maximum.disparity(null), demand.confidence),
        # No guess is allowed below what is proven.
        debiased=max(debiased, float(bounds.test_lower.max())),
        shrunken=np.maximum(belief.expected, bounds.test_lower),
    )


@dataclass(frozen=True)
class PairedScores:
    """Per-sample scores, signed so that higher is better, and the cell of each sample."""

    dense: FloatArray  # [samples]
    pruned: FloatArray  # [samples]
    cell: IntArray  # [samples]
    most: float | None = None  # the largest change that a sample can undergo: 1 for scores in [0, 1]


def from_scores(scores: PairedScores, grouping: Grouping, demand: Demand) -> Evidence:
    """Evidence about per-sample scores, by a paired bootstrap within cells."""
    rng = demand.rng()
    cells = grouping.families[0].size
    lost = scores.dense - scores.pruned
    n = np.bincount(scores.cell, minlength=cells).astype(float)
    parts = bootstrap.split_cells(lost, scores.cell, cells)
    typical = bootstrap.typical_square(lost, scores.most)
    observed, drawn = bootstrap.moments(parts), bootstrap.resample(parts, rng)
    excess = bootstrap.excess_gaps(grouping, n, observed, drawn, typical)
    gap = bootstrap.gaps(grouping, n, observed, drawn, typical)
    size = grouping.sum(n)

    def per_group(values: FloatArray) -> FloatArray:
        return grouping.sum(np.bincount(scores.cell, values, cells).astype(float))

    estimates = Estimates(
        samples=size.astype(np.int64),
        dense=per_group(scores.dense) / size,
        pruned=per_group(scores.pruned) / size,
        gap=gap.estimate,
        excess=excess.estimate,
        variance=excess.error**2,
        broke=per_group((lost > 0).astype(float)).astype(np.int64),
        fixed=per_group((lost < 0).astype(float)).astype(np.int64),
    )
    overall = _score_overall(scores, _overall_gap(n, observed, drawn, typical), demand)
    found = _score_limits(
        excess,
        gap,
        demand,
        _unseen(per_group(np.maximum(lost, 0)), size, scores.most, demand) * (1 - size / n.sum()),
    )
    return Evidence(estimates, found, overall, _worst(estimates, excess.deviation, found, demand))


def _overall_gap(
    n: FloatArray, observed: bootstrap.Moments, drawn: bootstrap.Moments, typical: float
) -> bootstrap.Studentised:
    whole = Grouping(("all",), ({},), (np.zeros(n.size, dtype=np.int64),))
    return bootstrap.gaps(whole, n, observed, drawn, typical)


def _score_overall(scores: PairedScores, gap: bootstrap.Studentised, demand: Demand) -> Overall:
    low, high = np.quantile(gap.t[:, 0], [(1 - demand.confidence) / 2, (1 + demand.confidence) / 2])
    estimate, error = float(gap.estimate[0]), float(gap.error[0])
    lower, upper = min(estimate - high * error, estimate), max(estimate - low * error, estimate)
    changed = float((scores.dense != scores.pruned).mean())
    return Overall(float(scores.dense.mean()), float(scores.pruned.mean()), lower, upper, changed)


def _unseen(lost: FloatArray, size: FloatArray, most: float | None, demand: Demand) -> FloatArray:
    """How much more than it has shown a group may lose, where it has shown little: the exact limit of counts.

    Of all scores in [0, 1] with the same mean, those that are 0 or 1 vary most, so their limit is on the safe
    side. `lost` [groups] is the sum of what was lost. Of losses, which have no largest, nothing can be said.
    """
    if most is None:
        return np.zeros_like(size)
    exact = limits.exact_upper(np.ceil(lost / most - 1e-9), size, demand.z)
    return np.asarray(most * np.maximum(exact - lost / most / size, 0.0))


def _score_limits(
    excess: bootstrap.Studentised, gap: bootstrap.Studentised, demand: Demand, unseen: FloatArray
) -> Limits:
    """Bootstrap-t: estimate − (quantile of t) × error; of the maximum t where limits are simultaneous."""
    level, x, error = demand.confidence, excess.estimate, excess.error
    critical = max(limits.upper_quantile(excess.t.max(axis=1), level), demand.z)
    many = demand.z_of_many(x.size)
    two_sided = max(limits.upper_quantile(np.abs(excess.t).max(axis=1), level), many)
    # Never narrower than the normal limit: the bootstrap of a small, skewed group has not seen its long tail.
    pointwise = np.minimum(np.quantile(excess.t, 1 - level, axis=0), -demand.z)
    gap_two_sided = max(limits.upper_quantile(np.abs(gap.t).max(axis=1), level), many)
    violates = limits.step_down(excess.t, level, lambda z: x - max(z, demand.z) * error > demand.tolerance)
    return Limits(
        test_lower=x - critical * error,
        test_upper=np.maximum(x - pointwise * error, x + unseen),
        lower=x - two_sided * error,
        upper=x + two_sided * error,
        gap_lower=gap.estimate - gap_two_sided * gap.error,
        gap_upper=gap.estimate + gap_two_sided * gap.error,
        violates=violates,
        critical=critical,
    )
