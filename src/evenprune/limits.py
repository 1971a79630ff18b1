"""The statistics of paired counts: score limits, max-t with step-down, sample size.

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

BISECTIONS = 40  # of [−1, 1]: to 1e-12
NEWTONS = 24
TINY = 1e-12
Deviate = float | FloatArray
MOST_DRAWS = 4000
FEW = 3  # broken or fixed samples up to which limits are never narrower than the exact ones
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

    @staticmethod
    def joined(parts: "list[Counts]") -> "Counts":
        columns = zip(*((x.n, x.b, x.c, x.dense_right) for x in parts), strict=True)
        return Counts(*(np.concatenate(column) for column in columns))

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
    b: FloatArray, c: FloatArray, n: FloatArray, z_lower: Deviate, z_upper: Deviate
) -> tuple[FloatArray, FloatArray]:
    """Tango's score limits of the paired difference (b − c)/n, each at its normal deviate."""
    b, c, n, z_lower, z_upper = np.broadcast_arrays(b, c, n, z_lower, z_upper)
    both = _score_upper(np.stack([b, c]), np.stack([c, b]), n, np.stack([z_upper, z_lower]))
    return -both[1], both[0]  # lower: broke and fixed change places


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


def paired_limits(counts: Counts, z_lower: Deviate, z_upper: Deviate) -> tuple[FloatArray, FloatArray]:
    """Limits of Δ: Tango's, but where few samples broke never below the exact limit of their share.

    Score limits of rare, one-sided changes are too narrow: with b = c = 0 they end at z²/(n + z²), the exact
    ones at 1 − α^(1/n).
    """
    b, c, n = counts.b, counts.c, counts.n
    lower, upper = score_limits(b, c, n, z_lower, z_upper)
    upper = np.maximum(upper, exact_upper(b, n, z_upper) - c / n)
    return np.minimum(lower, b / n - exact_upper(c, n, z_lower)), upper


def exact_upper(b: FloatArray, n: FloatArray, z: Deviate) -> FloatArray:
    """Clopper and Pearson's upper limit of a share: P(B ≤ b) = 1 − Φ(z). For b > FEW: −1.

    Newton's method on log P(B ≤ b), which is concave in the share: after one step it comes from one side.
    """
    alphas = {deviate: _normal.cdf(-deviate) for deviate in np.unique(z).tolist()}
    b, n, z = np.broadcast_arrays(b, n, z)
    few = b <= FEW
    out = np.full(b.shape, -1.0)
    b, n, log_alpha = b[few], n[few], np.log([alphas[deviate] for deviate in z[few].tolist()])
    p = np.minimum((b + 1) / (n + 2), 0.5)
    for _ in range(NEWTONS):
        odds, term = p / (1 - p), np.ones_like(p)  # P(B = j) is (1 − p)^n times the term
        total, last = term, term
        for j in range(1, FEW + 1):
            term = term * (n - j + 1) / j * odds
            total, last = total + np.where(j <= b, term, 0), np.where(j == b, term, last)
        value = n * np.log1p(-p) + np.log(total) - log_alpha
        slope = -(n - b) * last / (1 - p) / total
        before, p = p, np.clip(p - value / np.minimum(slope, -TINY), b / n, (1 + p) / 2)
        if np.abs(p - before).max(initial=0) < TINY:
            break
    out[few] = np.where(b >= n, 1.0, p)
    return out


def excess_limits(
    group: Counts, rest: Counts, *deviates: tuple[float, float]
) -> list[tuple[FloatArray, FloatArray]]:
    """MOVER limits of ψ_g = (1 − π_g)(Δ_g − Δ_rest), a pair for each pair of (lower, upper) deviates.

    upper = (1 − π_g) [Δ_g − Δ_rest + sqrt((u_g − Δ_g)² + (Δ_rest − l_rest)²)], lower by symmetry.
    """
    # One call for all: [pairs, group or rest, groups].
    size, shape = group.n.size, (len(deviates), 2, group.n.size)
    z = np.array([[pair, pair[::-1]] for pair in deviates])  # [pairs, group or rest, lower or upper]
    z_lower, z_upper = (np.repeat(z[..., i].ravel(), size) for i in (0, 1))
    low, high = paired_limits(Counts.joined([group, rest] * len(deviates)), z_lower, z_upper)
    low, high = low.reshape(shape), high.reshape(shape)
    share = rest.n / (group.n + rest.n)  # 1 − π_g
    difference = group.gap - rest.gap
    upper = difference + np.hypot(high[:, 0] - group.gap, rest.gap - low[:, 1])
    lower = difference - np.hypot(group.gap - low[:, 0], high[:, 1] - rest.gap)
    return list(zip(share * lower, share * upper, strict=True))


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


def score_variance(disagreement: FloatArray, delta: FloatArray) -> FloatArray:
    """n times the variance that the score test at Δ = δ takes, where b = c = n·disagreement/2 was seen."""
    half = (disagreement - 2 * delta) / 4
    p = half + np.sqrt(half**2 + disagreement * delta * (1 - delta) / 4)
    return np.asarray(2 * p + delta * (1 - delta))


def needed_samples(
    *, groups: int, distance: FloatArray, disagreement: FloatArray, confidence: float, power: float
) -> FloatArray:
    """Samples per group so that all G upper limits of Δ_g fall below the truth + distance with that power.

    n_g = ((z_{1−α} √V₀ + z_{power^{1/G}} √q_g) / distance_g)², V₀ the variance at the tolerance, q_g the one
    at the truth. Even a group without one broken sample needs (1 − distance)^n ≤ α.  NaN where distance ≤ 0.
    """
    safe = np.where(distance > 1e-9, np.minimum(distance, 1 - 1e-9), np.nan)
    z_power = max(quantile(power ** (1 / groups)), 0.0)
    both = quantile(confidence) * np.sqrt(score_variance(disagreement, safe))
    both += z_power * np.sqrt(disagreement)
    return np.asarray(np.maximum((both / safe) ** 2, math.log(1 - confidence) / np.log1p(-safe)))


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
    needed = needed_samples(
        groups=groups,
        distance=np.array([tolerance]),
        disagreement=np.array([disagreement]) * (1 - 1 / groups),
        confidence=confidence,
        power=power,
    )
    return max(math.ceil(float(needed[0])), 10)  # smaller groups never pass
