"""Multipliers at rest on held-out samples, in a world whose true gaps are known.

Groups of equal size with true excess gaps ψ_g, one of them worse than the rest, are seen once through n
held-out samples each. A multiplier λ_g pushes its own group's gap down, and all others up:

    ψ_g(λ) = ψ_g(0) − a (λ_g − mean λ)

The multipliers are followed to rest on these same samples, and judged by the true gaps. They move on the
estimate of ψ_g ("plain"), on its lower limit, or on the estimate with a dead zone of one standard error.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from evenprune import limits
from evenprune.gap_limits import psi_standard_errors
from evenprune.limits import Counts
from evenprune.tally import FloatArray

WORSE = 0.04  # by how much the gap of the first group is worse than it would be
TOLERANCE = 0.01  # as in the study
CAUTION = 1.645  # the deviate of the lower limit, as in the study: 95 %
MEASURES = ("spread", "max_excess_gap", "worse_group")


class Rates(NamedTuple):
    """Of all samples together: shares that pruning broke and fixed."""

    broke: float
    fixed: float

    @property
    def gap(self) -> float:
        return self.broke - self.fixed  # Δ

    @property
    def disagreement(self) -> float:
        return self.broke + self.fixed


class Seen(NamedTuple):
    """What the held-out samples show: whole counts [trials, groups], and samples a group."""

    samples: int
    broke: FloatArray
    fixed: FloatArray

    @property
    def psi(self) -> FloatArray:
        gap = (self.broke - self.fixed) / self.samples
        return np.asarray(gap - gap.mean(-1, keepdims=True))  # ψ_g = Δ_g − Δ


# --- truth and samples ---


def true_gaps(rng: np.random.Generator, *, trials: int, groups: int, spread: float) -> FloatArray:
    """ψ_g [trials, groups], of mean 0 in every trial; the first group is worse by w than it was drawn.

    The gaps are drawn with a standard deviation σ such that those of all groups spread as they should:

        spread² = (1 − 1/G) (σ² + w²/G)
    """
    variance = spread**2 * groups / (groups - 1) - WORSE**2 / groups
    if variance < 0:
        least = WORSE * math.sqrt(groups - 1) / groups
        raise ValueError(
            f"spread is {spread}: with {groups} groups, one worse by {WORSE}, give {least:.4f} or more"
        )
    psi = rng.normal(0, math.sqrt(variance), (trials, groups))
    psi[:, 0] += WORSE
    return np.asarray(psi - psi.mean(-1, keepdims=True))


def observed(rng: np.random.Generator, psi: FloatArray, rates: Rates, samples: int) -> Seen:
    """Counts of a held-out sample of every group, drawn once.

    P(broke) = (q + Δ_g)/2 and P(fixed) = (q − Δ_g)/2 with Δ_g = Δ + ψ_g; q is the disagreement, and never
    less than the gap needs.
    """
    gap = rates.gap + psi
    q = np.maximum(rates.disagreement, np.abs(gap))
    drawn = rng.multinomial(samples, np.stack([(q + gap) / 2, (q - gap) / 2, 1 - q], -1)).astype(np.float64)
    return Seen(samples, drawn[..., 0], drawn[..., 1])


def standard_error(rates: Rates, *, groups: int, samples: int | float) -> float:
    """Of ψ_g, all groups alike: Var ψ_g = (1 − 1/G) (q − Δ²)/n."""
    return math.sqrt((1 - 1 / groups) * (rates.disagreement - rates.gap**2) / samples)


# --- multipliers at rest ---


def resting_multipliers(wanted: FloatArray, response: float = 1.0) -> FloatArray:
    """λ [trials, groups] at rest: groups with λ_g > 0 are pushed by just what is wanted, the others by more.

    `wanted` w_g is by how much ψ_g must fall for its violation to be zero. At rest a (λ_g − m) = w_g where
    λ_g > 0, and ≥ w_g elsewhere, so that λ_g = [w_g/a + m]₊ with m = mean λ. Then m = Σ [w_g/a + m]₊ / G;
    with S_k the sum of the k largest w_g/a

        m = max(0, max_{k<G} S_k/(G − k)),        if Σ w_g < 0: not all groups can be below the mean.
    """
    if not (wanted.sum(-1) < 0).all():
        raise ValueError(
            "the gaps to close sum up to 0 or more: no multipliers come to rest; raise TOLERANCE"
        )
    need = wanted / response
    largest_first = -np.sort(-need, axis=-1)[..., :-1]
    others = np.arange(need.shape[-1] - 1, 0, -1)  # G − k
    mean = np.max(np.cumsum(largest_first, axis=-1) / others, axis=-1, keepdims=True)
    return np.asarray(np.maximum(need + np.maximum(mean, 0), 0))


def pushed(psi: FloatArray, multipliers: FloatArray, response: float = 1.0) -> FloatArray:
    """ψ_g(λ) = ψ_g(0) − a (λ_g − mean λ)."""
    return np.asarray(psi - response * (multipliers - multipliers.mean(-1, keepdims=True)))


# --- rules: how much must ψ_g fall until its multiplier no longer moves? [trials, groups] ---


def wanted_plain(seen: Seen) -> FloatArray:
    return seen.psi - TOLERANCE


def wanted_dead_zone(seen: Seen) -> FloatArray:
    """λ rises only while ψ_g − ε is above one standard error, that of the counts as they were first seen.

    From λ = 0 and with small steps multipliers only rise, so that the zone's lower side plays no part.
    """
    n = np.full_like(seen.broke, seen.samples)
    error = psi_standard_errors(*(torch.from_numpy(x) for x in (n, seen.broke, seen.fixed)))
    return np.asarray(seen.psi - TOLERANCE - error.numpy())


def wanted_lower_limit(seen: Seen) -> FloatArray:
    """Where the lower limit of ψ_g crosses ε as the group's counts change: by bisection, in whole images.

    Between whole images the limit is taken as a straight line.
    """
    n, net = seen.samples, seen.broke - seen.fixed
    low, high = net - n, net + n  # all broken, all fixed
    at_low, at_high = lower_limits(seen, low), lower_limits(seen, high)
    for _ in range(math.ceil(math.log2(2 * n))):
        middle = np.floor((low + high) / 2)
        limit = lower_limits(seen, middle)
        above = limit > TOLERANCE
        low, at_low = np.where(above, middle, low), np.where(above, limit, at_low)
        high, at_high = np.where(above, high, middle), np.where(above, at_high, limit)
    return np.asarray((low + (high - low) * (at_low - TOLERANCE) / (at_low - at_high)) / n)


def lower_limits(seen: Seen, images: FloatArray) -> FloatArray:
    """The audit's lower limit of each ψ_g once its group has so many broken images less, or fixed ones more.

    The mean stays as it is, and so do the counts of all groups together: the rest is what they leave.
    """
    broke, fixed = moved(seen.broke, seen.fixed, images)
    total = seen.samples * broke.shape[-1]
    own = _counts(seen.samples, broke, fixed)
    sums = (x.sum(-1, keepdims=True) for x in (seen.broke, seen.fixed))
    rest = _counts(total - seen.samples, *(all_ - x for all_, x in zip(sums, (broke, fixed), strict=True)))
    lower = limits.excess_limits(own, rest, (CAUTION, CAUTION))[0][0]
    return lower.reshape(broke.shape)


def moved(broke: FloatArray, fixed: FloatArray, images: FloatArray) -> tuple[FloatArray, FloatArray]:
    """By turns an image is no longer broken and another one fixed; where none are left, all by the other."""
    b, c = broke - np.ceil(images / 2), fixed + np.floor(images / 2)
    short = np.maximum(-np.minimum(b, c), 0)
    return b + short, c + short


def _counts(samples: int, broke: FloatArray, fixed: FloatArray) -> Counts:
    b, c = broke.ravel(), fixed.ravel()
    return Counts(np.full_like(b, samples), b, c, np.full_like(b, np.nan))  # limits do not need the last


RULES: dict[str, Callable[[Seen], FloatArray]] = {
    "plain": wanted_plain,
    "lower_limit": wanted_lower_limit,
    "dead_zone": wanted_dead_zone,
}
NOTHING = "nothing"


# --- judged ---


def measured(psi: FloatArray) -> dict[str, FloatArray]:
    """Of true gaps [trials, groups], each measure [trials]."""
    return dict(zip(MEASURES, (psi.std(-1), psi.max(-1), psi[..., 0]), strict=True))


def judged(psi: FloatArray, seen: Seen) -> dict[str, dict[str, FloatArray]]:
    """By rule and measure [trials]: the true gaps with multipliers at rest; and doing nothing."""
    after = {name: pushed(psi, resting_multipliers(wanted(seen))) for name, wanted in RULES.items()}
    return {name: measured(gaps) for name, gaps in {NOTHING: psi, **after}.items()}
