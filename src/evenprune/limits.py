"""The statistics of paired counts: score limits, max-t, noise floor, de-biased maximum, sample size.

Everything follows from three counts per group: n samples, b that broke (dense right, pruned wrong) and
c that were fixed (dense wrong, pruned right).

    Δ_g = (b_g − c_g)/n_g     π_g = n_g/N     ψ_g = Δ_g − Δ = (1 − π_g)(Δ_g − Δ_rest)
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from evenprune.groups import Grouping
from evenprune.tally import FloatArray, InputProblems

BISECTIONS = 45  # of [−1, 1]: to 1e-13
MOST_DRAWS = 4000
NORMAL_FROM = 15  # expected disagreements
_normal = NormalDist()


def quantile(p: float) -> float:
    """The standard normal quantile."""
    return _normal.inv_cdf(p)


@dataclass(frozen=True)
class Counts:
    """Paired counts per cell: samples, broke, fixed (and how often the dense model was right)."""

    n: FloatArray
    b: FloatArray
    c: FloatArray
    dense_right: FloatArray

    @property
    def gap(self) -> FloatArray:
        return (self.b - self.c) / self.n  # Δ

    @property
    def variance(self) -> FloatArray:
        """Bonett–Price: one more broken and one more fixed sample, so that no variance is zero."""
        n = self.n + 2
        return ((self.b + self.c + 2) / n - ((self.b - self.c) / n) ** 2) / n

    def sum_to(self, grouping: Grouping) -> "Counts":
        return Counts(*(grouping.sum(x) for x in (self.n, self.b, self.c, self.dense_right)))

    def total(self) -> "Counts":
        return Counts(*(x.sum(keepdims=True) for x in (self.n, self.b, self.c, self.dense_right)))

    def outside_of(self, total: "Counts") -> "Counts":
        """The rest: what the total holds beside each group."""
        pairs = (
            (total.n, self.n),
            (total.b, self.b),
            (total.c, self.c),
            (total.dense_right, self.dense_right),
        )
        return Counts(*(all_ - own for all_, own in pairs))


def score_limits(
    b: FloatArray, c: FloatArray, n: FloatArray, z: float | FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Tango's score limits of the paired difference (b − c)/n, each at normal deviate z."""
    b, c, n, z = np.broadcast_arrays(b, c, n, z)
    both = _score_upper(np.stack([b, c]), np.stack([c, b]), n, z)
    return -both[1], both[0]  # lower by symmetry: swap broke and fixed


def _score_upper(b: FloatArray, c: FloatArray, n: FloatArray, z: FloatArray) -> FloatArray:
    """The δ ≥ (b − c)/n at which the score statistic reaches −z.

    z(δ) = (b − c − nδ) / sqrt(n (2 p̃ + δ(1 − δ))), where p̃ is the maximum-likelihood estimate of the
    fixed share under Δ = δ: the larger root of 2n p² + (−b − c + (2n − b + c)δ) p − c δ(1 − δ) = 0.
    """
    low, high = (b - c) / n, np.ones_like(b)
    for _ in range(BISECTIONS):
        delta = (low + high) / 2
        spread = delta * (1 - delta)
        half = (b + c - (2 * n - b + c) * delta) / (4 * n)
        p = half + np.sqrt(np.maximum(half * half + c * spread / (2 * n), 0))
        below = (n * delta - (b - c)) ** 2 < z * z * n * np.maximum(2 * p + spread, 0)
        low, high = np.where(below, delta, low), np.where(below, high, delta)
    return high


def excess_limits(
    group: Counts, rest: Counts, z_lower: float | FloatArray, z_upper: float | FloatArray
) -> tuple[FloatArray, FloatArray]:
    """MOVER limits of ψ_g = (1 − π_g)(Δ_g − Δ_rest) from the score limits of the group and of the rest.

    upper = (1 − π_g) [Δ_g − Δ_rest + sqrt((u_g − Δ_g)² + (Δ_rest − l_rest)²)], lower by symmetry.
    """
    share = rest.n / (group.n + rest.n)  # 1 − π_g
    difference = group.gap - rest.gap
    group_lower, group_upper = _both_limits(group, z_lower, z_upper)
    rest_lower, rest_upper = _both_limits(rest, z_upper, z_lower)
    upper = difference + np.hypot(group_upper - group.gap, rest.gap - rest_lower)
    lower = difference - np.hypot(group.gap - group_lower, rest_upper - rest.gap)
    return share * lower, share * upper


def _both_limits(
    counts: Counts, z_lower: float | FloatArray, z_upper: float | FloatArray
) -> tuple[FloatArray, FloatArray]:
    b, c, n = counts.b, counts.c, counts.n
    z = np.stack([np.broadcast_to(z_upper, n.shape), np.broadcast_to(z_lower, n.shape)])
    upper, minus_lower = _score_upper(np.stack([b, c]), np.stack([c, b]), n, z)
    return -minus_lower, upper


@dataclass(frozen=True)
class Noise:
    """The joint sampling error of the excess gaps: how cells' errors mix into groups' errors."""

    grouping: Grouping
    n: FloatArray  # [cells]
    variance: FloatArray  # [cells] of the cell's gap

    @property
    def share(self) -> FloatArray:
        return np.asarray(self.n / self.n.sum())  # π

    def errors(self, cell_errors: FloatArray) -> FloatArray:
        """Errors of ψ_g from errors of the cells' gaps: Σ_{k in g} (n_k/n_g) e_k − Σ_k π_k e_k."""
        weighted = cell_errors * self.share.astype(cell_errors.dtype)
        share = self.grouping.sum(self.share).astype(cell_errors.dtype)
        errors = self.grouping.sum(weighted)
        errors /= share
        errors -= weighted.sum(axis=-1, keepdims=True)
        return errors

    def standard_errors(self) -> FloatArray:
        return np.asarray(np.sqrt(excess_variance(self.grouping, self.n, self.variance)))


def excess_variance(grouping: Grouping, n: FloatArray, variance: FloatArray) -> FloatArray:
    """Var ψ_g = Σ_{k in g} (π_k/π_g)² v_k − 2 Σ_{k in g} (π_k²/π_g) v_k + Σ_k π_k² v_k  [..., groups].

    For a group of one cell this is (1 − 2π_g) v_g + Σ_k π_k² v_k.
    """
    share = n / n.sum()
    squares = share**2 * variance
    within, group_share = grouping.sum(squares), grouping.sum(share)
    total = squares.sum(axis=-1, keepdims=True)
    return np.asarray(np.maximum(within / group_share**2 - 2 * within / group_share + total, 1e-300))


def number_of_draws(columns: int, most: int = MOST_DRAWS) -> int:
    """As many draws as keep the matrix of draws near 20 million numbers: at most 4,000, at least 200."""
    return int(np.clip(20_000_000 // max(columns, 1), 200, most))


def t_draws(noise: Noise, rng: np.random.Generator) -> FloatArray:
    """Gaussian draws of the studentised errors, z_k ~ N(0, v_k), t = A z / se  [draws, groups]."""
    draws = number_of_draws(noise.n.size)
    z = rng.standard_normal((draws, noise.n.size), dtype=np.float32)
    z *= np.sqrt(noise.variance).astype(np.float32)
    t = noise.errors(z)
    t /= noise.standard_errors().astype(np.float32)
    return t


def upper_quantile(values: FloatArray, level: float) -> float:
    """The smallest drawn value that at least `level` of the draws do not exceed."""
    position = min(math.ceil(level * values.size), values.size) - 1
    return float(np.partition(values, position)[position])


def step_down(t: FloatArray, level: float, beyond: Callable[[float], NDArray[np.bool_]]) -> NDArray[np.bool_]:
    """Romano–Wolf: name groups beyond the tolerance, then test the others among themselves, until none is.

    `beyond(critical)` says which groups' lower limits at that critical value exceed the tolerance.
    """
    named = np.zeros(t.shape[1], dtype=bool)
    while not named.all():
        critical = upper_quantile(t[:, ~named].max(axis=1), level)
        found = beyond(critical) & ~named
        if not found.any():
            break
        named |= found
    return named


@dataclass(frozen=True)
class Range:
    """A mean and the central range (at the audit's confidence) of a simulated quantity."""

    mean: float
    low: float
    high: float

    @staticmethod
    def of(values: FloatArray, confidence: float) -> "Range":
        tail = (1 - confidence) / 2
        low, high = np.quantile(values, [tail, 1 - tail])
        return Range(float(values.mean()), float(low), float(high))


def null_gaps(cells: Counts, rng: np.random.Generator) -> FloatArray:
    """Draws of the cells' observed gaps if no group had been harmed: Δ_k = Δ for all  [draws, cells].

    Each cell keeps its size and its disagreement q_k = (b + c)/n, the latter drawn towards the overall
    one, since the raw shares of small cells spread more than the true ones.
    """
    gap = (cells.b.sum() - cells.c.sum()) / cells.n.sum()
    q = np.clip(shrunken_shares(cells.b + cells.c, cells.n), abs(gap), 1.0)
    draws = number_of_draws(20 * cells.n.size, most=1000)
    gaps = rng.standard_normal((draws, cells.n.size))
    gaps *= np.sqrt((q - gap**2) / cells.n)
    gaps += gap
    few = np.flatnonzero(cells.n * q < NORMAL_FROM)  # too few disagreements for a normal draw
    if few.size:
        gaps[:, few] = _multinomial_gaps(cells.n[few], q[few], gap, draws, rng)
    return gaps


def _multinomial_gaps(
    n: FloatArray, q: FloatArray, gap: float, draws: int, rng: np.random.Generator
) -> FloatArray:
    """(b − c)/n with P(broke) = (q + Δ)/2 and P(fixed) = (q − Δ)/2."""
    changed = rng.binomial(n.astype(np.int64), q, (draws, n.size))
    broke = rng.binomial(changed, np.divide(q + gap, 2 * q, out=np.full_like(q, 0.5), where=q > 0))
    return np.asarray((2 * broke - changed) / n)


def shrunken_shares(successes: FloatArray, n: FloatArray) -> FloatArray:
    """Shares per cell, drawn towards the common share as far as binomial noise explains their spread."""
    common = successes.sum() / n.sum()
    binomial = common * (1 - common) / n
    spread = float(np.average((successes / n - common) ** 2 - binomial, weights=n))
    true = np.maximum(spread, 0.0)  # variance of the true shares, by moments
    keep = np.divide(true, true + binomial, out=np.zeros_like(n), where=true + binomial > 0)
    return np.asarray(common + keep * (successes / n - common))


def disparity(excess: FloatArray) -> FloatArray:
    """Ψ_PW = max Δ_g − min Δ_g = max ψ_g − min ψ_g  over the last axis."""
    return np.asarray(excess.max(axis=-1) - excess.min(axis=-1))


def paule_mandel(estimates: FloatArray, variances: FloatArray) -> tuple[float, float]:
    """Mean μ and between-group variance τ² with Σ (x_g − μ)²/(τ² + s_g²) = G − 1."""

    def centre(tau2: float) -> float:
        return float(np.average(estimates, weights=1 / (tau2 + variances)))

    def excess(tau2: float) -> float:
        q = (estimates - centre(tau2)) ** 2 / (tau2 + variances)
        return float(q.sum()) - (estimates.size - 1)

    low, high = 0.0, float(np.ptp(estimates)) ** 2 + 1e-12
    if excess(low) <= 0:
        return centre(0.0), 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return centre(high), high


def shrunken_gaps(excess: FloatArray, variances: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Normal–normal empirical Bayes: posterior mean and variance of every ψ_g."""
    centre, tau2 = paule_mandel(excess, variances)
    keep = tau2 / (tau2 + variances)
    return centre + keep * (excess - centre), keep * variances


def debiased_maximum(
    means: FloatArray, variances: FloatArray, shares: FloatArray, rng: np.random.Generator
) -> float:
    """The posterior mean of max_g ψ_g, each draw centred so that Σ π_g ψ_g = 0."""
    draws = number_of_draws(10 * means.size, most=1000)
    order = np.lexsort((shares, variances, means))  # which group gets which draw must not hang on its name
    means, variances, shares = means[order], variances[order], shares[order]
    psi = means + np.sqrt(variances) * rng.standard_normal((draws, means.size))
    psi -= (psi @ shares / shares.sum())[:, None]
    return float(psi.max(axis=1).mean())


def needed_samples(
    *, groups: int, distance: FloatArray, unit_variance: FloatArray, confidence: float, power: float
) -> FloatArray:
    """Samples per group so that all G upper limits fall below ε with the given power.

    n_g = u_g ((z_{1−α} + z_{power^{1/G}}) / distance_g)², with u_g/n_g = Var ψ_g and distance_g = ε − ψ_g.
    """
    deviate = quantile(confidence) + quantile(power ** (1 / groups))
    safe = np.where(distance > 0, distance, np.nan)
    return np.asarray(unit_variance * (deviate / safe) ** 2)


def sample_size(
    *, groups: int, tolerance: float, disagreement: float, confidence: float = 0.95, power: float = 0.8
) -> int:
    """Test samples needed per group so that a harmless pruning passes with the given power.

    `disagreement` is the share of samples on which exactly one of the two models is right (10 % is usual for
    moderate pruning, 20–30 % for heavy). Groups of equal size, none harmed more than another.
    """
    problems = [
        message
        for wrong, message in [
            (groups < 2, f"groups is {groups}: an audit compares at least 2 groups"),
            (not 0 < tolerance <= 1, f"tolerance is {tolerance}: give a fraction in (0, 1], such as 0.02"),
            (
                not 0 < disagreement <= 1,
                f"disagreement is {disagreement}: give a fraction in (0, 1], such as 0.1",
            ),
            (
                not 0.5 < confidence < 1,
                f"confidence is {confidence}: give a fraction in (0.5, 1), such as 0.95",
            ),
            (not 0 < power < 1, f"power is {power}: give a fraction in (0, 1), such as 0.8"),
        ]
        if wrong
    ]
    if problems:
        raise InputProblems(problems)
    unit = np.array([disagreement * (1 - 1 / groups)])
    needed = needed_samples(
        groups=groups, distance=np.array([tolerance]), unit_variance=unit, confidence=confidence, power=power
    )
    return math.ceil(float(needed[0]))
