"""What to make of the largest of many noisy excess gaps: the noise floor, and the de-biased maximum."""

from dataclasses import dataclass

import numpy as np

from evenprune.limits import Counts, number_of_draws
from evenprune.tally import FloatArray

NORMAL_FROM = 15  # expected disagreements from which a cell's null gap is drawn as normal
EM_STEPS = 100


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


def disparity(excess: FloatArray) -> FloatArray:
    """Ψ_PW = max Δ_g − min Δ_g = max ψ_g − min ψ_g  over the last axis."""
    return np.asarray(excess.max(axis=-1) - excess.min(axis=-1))


# --- the noise floor ---


def null_gaps(cells: Counts, rng: np.random.Generator) -> FloatArray:
    """Draws of the cells' observed gaps if no group had been harmed: Δ_k = Δ for all  [draws, cells].

    Each cell keeps its size and its disagreement q_k = (b + c)/n, the latter drawn towards the overall
    one, since the raw shares of small cells spread more than the true ones.
    """
    gap = (cells.b.sum() - cells.c.sum()) / cells.n.sum()
    q = np.clip(shrunken_shares(cells.b + cells.c, cells.n), abs(gap), 1.0)
    draws = number_of_draws(50 * cells.n.size, most=500)
    gaps = rng.standard_normal((draws, cells.n.size))
    gaps *= np.sqrt((q - gap**2) / cells.n)
    gaps += gap
    few = np.flatnonzero(cells.n * q < NORMAL_FROM)
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


# --- the de-biased maximum ---


@dataclass(frozen=True)
class Posterior:
    """What is believed of every ψ_g: a mixture of normals  [groups, components]."""

    weight: FloatArray
    mean: FloatArray
    variance: FloatArray

    @property
    def expected(self) -> FloatArray:
        """[groups]: ψ_g as a new sample would likely show it."""
        return np.asarray((self.weight * self.mean).sum(axis=1))


def posterior_gaps(excess: FloatArray, variances: FloatArray) -> Posterior:
    """Empirical Bayes: normal estimates, and a prior that is a mixture of normals of several widths.

    Paule and Mandel's τ² is one of the widths; zero and wider ones let the data say that nobody was harmed,
    or one group among many: a single normal would draw a lone outlier all the way to the mean.
    """
    centre, tau2 = paule_mandel(excess, variances)
    off = excess - centre
    narrow, wide = float(variances.min()) / 4, 4 * float((off**2).max()) + 1e-12
    widths = np.array([0.0, tau2, *np.geomspace(min(narrow, wide / 2), wide, 12)])  # [components]
    total = widths + variances[:, None]
    log_density = -0.5 * (off[:, None] ** 2 / total + np.log(total))
    density = np.exp(log_density - log_density.max(axis=1, keepdims=True))
    share = np.full(widths.size, 1 / widths.size)
    doubt = min(excess.size / 10, 10) * (widths == 0)  # as if so many more groups had been found unharmed
    for _ in range(EM_STEPS):  # maximum a posteriori of the mixture's shares
        weight = density * share
        weight /= weight.sum(axis=1, keepdims=True)
        share = weight.sum(axis=0) + doubt
        share /= share.sum()
    keep = widths / total
    return Posterior(weight, centre + keep * off[:, None], keep * variances[:, None])


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


def debiased_maximum(belief: Posterior, shares: FloatArray, rng: np.random.Generator) -> float:
    """The posterior mean of max_g ψ_g, each draw centred so that Σ π_g ψ_g = 0."""
    order = np.lexsort((shares, belief.variance[:, -1], belief.expected))  # draws must not hang on names
    weight, mean, variance, shares = (x[order] for x in (belief.weight, belief.mean, belief.variance, shares))
    groups = np.arange(shares.size)
    size = (number_of_draws(50 * groups.size, most=400), groups.size)
    uniform, which = rng.random(size), np.zeros(size, dtype=np.int64)
    for edge in np.cumsum(weight, axis=1).T[:-1]:
        which += uniform > edge
    psi = mean[groups, which] + np.sqrt(variance[groups, which]) * rng.standard_normal(size)
    psi -= (psi @ shares / shares.sum())[:, None]
    return max(float(psi.max(axis=1).mean()), 0.0)
