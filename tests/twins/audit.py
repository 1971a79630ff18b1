"""The audit's figures by loops over rows, and Tango's limits by a root finder on the textbook formula."""

import itertools
import math

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import beta, norm


def rows_to_counts(rows):
    """rows: (group, dense_right, pruned_right) -> {group: (n, broke, fixed, dense_right)}."""
    counts = {}
    for group, dense, pruned in rows:
        n, broke, fixed, right = counts.get(group, (0, 0, 0, 0))
        counts[group] = (n + 1, broke + (dense and not pruned), fixed + (pruned and not dense), right + dense)
    return counts


def excess_gaps(counts):
    """ψ_g = Δ_g − Δ."""
    total = sum(n for n, *_ in counts.values())
    overall = sum(b - c for _, b, c, _ in counts.values()) / total
    return {g: (b - c) / n - overall for g, (n, b, c, _) in counts.items()}


def pairwise_disparity(counts):
    """max over ordered pairs of Δ_g − Δ_h."""
    gaps = [(b - c) / n for n, b, c, _ in counts.values()]
    return max(x - y for x, y in itertools.permutations(gaps, 2))


def excess_variance(sizes, variances):
    """Var ψ_g by the full contrast matrix A with ψ = A Δ."""
    share = np.array(sizes) / sum(sizes)
    contrast = np.eye(len(sizes)) - share
    return np.diag(contrast @ np.diag(variances) @ contrast.T)


def score(b, c, n, delta):
    """Tango's statistic, the constrained likelihood maximised by search rather than in closed form."""
    low, high = max(0.0, -delta), (1 - delta) / 2  # all three shares stay within [0, 1]

    def minus_likelihood(p21):
        p12, rest = p21 + delta, 1 - 2 * p21 - delta
        parts = ((b, p12), (c, p21), (n - b - c, rest))
        return -sum(k * math.log(max(p, 1e-300)) for k, p in parts if k > 0)

    best = minimize_scalar(minus_likelihood, bounds=(low, high), method="bounded", options={"xatol": 1e-13}).x
    return (b - c - n * delta) / math.sqrt(n * max(2 * best + delta * (1 - delta), 1e-300))


def score_upper(b, c, n, z):
    estimate = (b - c) / n
    if estimate >= 1:
        return 1.0
    start, end = estimate + 1e-12, 1 - 1e-12
    return brentq(lambda delta: score(b, c, n, delta) + z, start, end, xtol=1e-12)


def score_limits(b, c, n, z):
    return -score_upper(c, b, n, z), score_upper(b, c, n, z)


def exact_upper(b, n, z):
    """Clopper and Pearson, by the beta distribution."""
    return 1.0 if b >= n else beta.ppf(norm.cdf(z), b + 1, n - b)


def paired_limits(b, c, n, z):
    """Tango's limits, never narrower than the exact ones where at most 3 samples broke (or were fixed)."""
    low, high = score_limits(b, c, n, z)
    high = max(high, exact_upper(b, n, z) - c / n) if b <= 3 else high
    low = min(low, b / n - exact_upper(c, n, z)) if c <= 3 else low
    return low, high


def mover(group, rest, z):
    """Limits of ψ_g from (b, c, n) of the group and of the rest."""
    (b, c, n), (rb, rc, rn) = group, rest
    share, gap, rest_gap = rn / (n + rn), (b - c) / n, (rb - rc) / rn
    low, high = paired_limits(b, c, n, z)
    rest_low, rest_high = paired_limits(rb, rc, rn, z)
    upper = gap - rest_gap + math.sqrt((high - gap) ** 2 + (rest_gap - rest_low) ** 2)
    lower = gap - rest_gap - math.sqrt((gap - low) ** 2 + (rest_high - rest_gap) ** 2)
    return share * lower, share * upper
