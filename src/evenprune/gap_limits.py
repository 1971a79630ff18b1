"""How far off an estimated excess gap ψ_g may be: the audit's statistics as tensors, for any number of runs.

Everything follows from three counts per group, as in limits.py: n samples, b that broke (dense right, pruned
wrong) and c that were fixed (dense wrong, pruned right). Groups are the last axis; what stands before it
(runs, passes) is kept. No loop over groups and no wait for the device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from evenprune.limits import BISECTIONS, FEW, NEWTONS, TINY

SHOWN = 0.95  # with which confidence a group is shown to be beyond a tolerance, of all groups together


class PairedCounts(NamedTuple):
    """Of every group [..., groups], as float64."""

    samples: Tensor
    broke: Tensor
    fixed: Tensor


def paired_counts(dense_correct: Tensor, correct: Tensor, groups: Tensor, *, count: int) -> PairedCounts:
    """The counts of the groups 0 … count − 1: dense_correct, groups [samples], correct [..., samples].

    Samples without a group (−1) are in no count.
    """
    line = torch.where(groups < 0, count, groups).expand(correct.shape)
    nothing = torch.zeros(*correct.shape[:-1], count + 1, dtype=torch.float64, device=correct.device)

    def number(where: Tensor) -> Tensor:
        return nothing.scatter_add(-1, line, where.expand(correct.shape).to(nothing.dtype))[..., :count]

    before, after = dense_correct.bool(), correct.bool()
    return PairedCounts(number(torch.ones_like(after)), number(before & ~after), number(~before & after))


def psi_standard_errors(samples: Tensor, broke: Tensor, fixed: Tensor) -> Tensor:
    """Of ψ_g, [..., groups]; infinite for a group without samples.

    Bonett–Price: one more broken and one more fixed sample, so that no variance of a gap is zero:

        v_g = ((b + c + 2)/(n + 2) − ((b − c)/(n + 2))²)/(n + 2)
        Var ψ_g = (1 − 2π_g) v_g + Σ_k π_k² v_k,        π_g = n_g/N
    """
    n, b, c = (counts.to(torch.float64) for counts in (samples, broke, fixed))
    variance = ((b + c + 2) / (n + 2) - ((b - c) / (n + 2)).square()) / (n + 2)
    share = n / n.sum(-1, keepdim=True).clamp_min(1)
    common = (share.square() * variance).sum(-1, keepdim=True)
    error = ((1 - 2 * share) * variance + common).clamp_min(0).sqrt()
    return torch.where(n > 0, error, torch.inf)


def excess_limits(counts: PairedCounts, deviate: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper limits of ψ_g at a normal deviate (1.645: 95 % each), [..., groups].

    MOVER, as limits.excess_limits: with l, u the limits of Δ of the group and of all other samples,

        lower = (1 − π_g) [Δ_g − Δ_rest − sqrt((Δ_g − l_g)² + (u_rest − Δ_rest)²)],  upper by symmetry.
    """
    totals = [own.sum(-1, keepdim=True) for own in counts]
    both = PairedCounts(*(torch.stack([own, all_ - own]) for own, all_ in zip(counts, totals, strict=True)))
    low, high = _gap_limits(both, deviate)
    gap = (both.broke - both.fixed) / both.samples.clamp_min(1)  # [group or rest, ..., groups]
    difference, share = gap[0] - gap[1], both.samples[1] / totals[0].clamp_min(1)
    lower = difference - torch.hypot(gap[0] - low[0], high[1] - gap[1])
    upper = difference + torch.hypot(high[0] - gap[0], gap[1] - low[1])
    return share * lower, share * upper


def least_excess_gap(
    dense_correct: Tensor, correct: Tensor, groups: Tensor, *, count: int, deviate: float | None = None
) -> Tensor:
    """What max ψ of the groups 0 … count − 1 is at least, [...]; see least_maximum.

    dense_correct, groups [samples], correct [..., samples]. Samples without a group (−1) are in the mean.
    """
    line = torch.where(groups < 0, count, groups)
    counts = paired_counts(dense_correct, correct, line, count=count + 1)
    return least_maximum(counts, first=count, deviate=deviate)


def least_maximum(counts: PairedCounts, *, first: int | None = None, deviate: float | None = None) -> Tensor:
    """What max ψ_g is at least, with confidence SHOWN, [...]; NaN where no group has samples.

    Bonferroni: each of the G groups that have samples is given α/G, α = 1 − SHOWN. Counts behind the `first`
    ones are no groups, but part of the mean. `deviate`: that of each group's limit, in place of Bonferroni's.
    """
    known = counts.samples[..., :first] > 0
    share = (1 - SHOWN) / known.sum(-1, keepdim=True).clamp_min(1).double()
    z = -torch.special.ndtri(share) if deviate is None else torch.full_like(share, deviate)
    lower = excess_limits(counts, z)[0][..., :first]
    return largest(torch.where(known, lower, torch.nan))


def largest(values: Tensor) -> Tensor:
    """Along groups, the last axis, absent ones (NaN) aside; NaN if all are absent."""
    if values.shape[-1] == 0:
        return values.new_full(values.shape[:-1], torch.nan)
    highest = values.nan_to_num(nan=-torch.inf).amax(-1)
    return torch.where(highest.isneginf(), torch.nan, highest)


def _gap_limits(counts: PairedCounts, deviate: Tensor) -> tuple[Tensor, Tensor]:
    """Of Δ: Tango's score limits, but where few samples broke never within the exact limit of their share."""
    samples, broke, fixed = counts
    n = samples.clamp_min(1)
    b, c = torch.stack([broke, fixed]), torch.stack([fixed, broke])  # lower: they change places
    limit = torch.maximum(_score_upper(b, c, n, deviate), _exact_upper(b, n, deviate) - c / n)
    return -limit[1], limit[0]


def _score_upper(b: Tensor, c: Tensor, n: Tensor, z: Tensor) -> Tensor:
    """The δ ≥ (b − c)/n at which the score statistic reaches −z; the equations are in limits.py."""
    low, high = (b - c) / n, torch.ones_like(b)
    for _ in range(BISECTIONS):
        delta = (low + high) / 2
        spread = delta * (1 - delta)
        half = (b + c - (2 * n - b + c) * delta) / (4 * n)
        p = half + (half.square() + c * spread / (2 * n)).clamp_min(0).sqrt()
        below = (n * delta - (b - c)).square() < z.square() * n * (2 * p + spread).clamp_min(0)
        low, high = torch.where(below, delta, low), torch.where(below, high, delta)
    return high


def _exact_upper(b: Tensor, n: Tensor, z: Tensor) -> Tensor:
    """Clopper and Pearson's upper limit of a share: P(B ≤ b) = 1 − Φ(z). For b > FEW: −1.

    Newton's method on log P(B ≤ b), as in limits.py; here always with as many steps.
    """
    log_alpha = torch.special.log_ndtr(-z)
    p = ((b + 1) / (n + 2)).clamp_max(0.5)
    for _ in range(NEWTONS):
        odds, term = p / (1 - p), torch.ones_like(p)  # P(B = j) is (1 − p)^n times the term
        total, last = term, term
        for j in range(1, FEW + 1):
            term = term * (n - j + 1) / j * odds
            total, last = total + torch.where(b >= j, term, 0), torch.where(b == j, term, last)
        value = n * torch.log1p(-p) + total.log() - log_alpha
        slope = -(n - b) * last / (1 - p) / total
        p = torch.clamp(p - value / slope.clamp_max(-TINY), b / n, (1 + p) / 2)
    return torch.where(b > FEW, -1, torch.where(b >= n, 1, p))
