"""The dual step: estimates of the groups -> excess gaps ψ -> rows of A·ψ -> moved multipliers."""

from __future__ import annotations

import torch
from torch import Tensor

from evenprune.estimate import Estimate
from evenprune.plan import Plan, State


def excess_gaps(plan: Plan, measured: Estimate) -> tuple[Tensor, Tensor]:
    """ψ_g = Δ_g - Δ [runs, groups], 0 where the group does not count yet; and which groups count.

    micro: sparse and dense overall are means over the same samples, those of the groups that count.
    macro, as published: the groups that count weigh equally, and the dense side is the mean over all samples.
    """
    gap = measured.value - plan.dense  # [runs, groups + 1], not yet signed
    overall = weighted_mean(gap, measured.counted * measured.share)  # [runs, 1]
    if plan.run.macro.some:
        published = weighted_mean(measured.value, measured.counted.to(plan.dtype)) - plan.dense_overall
        overall = plan.run.macro.pick(published, overall)
    counted = measured.counted[:, :-1]
    return torch.where(counted, plan.run.sign * (gap[:, :-1] - overall), 0), counted


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """[runs, 1]; 0 where nothing weighs."""
    total = weight.sum(1, keepdim=True).clamp_min(torch.finfo(weight.dtype).tiny)
    return (values * weight).sum(1, keepdim=True) / total


def largest(values: Tensor, counted: Tensor) -> Tensor:
    """[runs]: the largest value that counts, 0 where none does."""
    if not values.shape[1]:
        return values.new_zeros(len(values))
    found = torch.where(counted, values, -torch.inf).amax(1)
    return torch.where(torch.isinf(found), 0, found)


def ascend(
    plan: Plan,
    state: State,
    psi: Tensor,
    counted: Tensor,
    *,
    limits: tuple[Tensor, Tensor] | None = None,
    steps: Tensor | None = None,
) -> State:
    """λ <- [λ + η·violation]₊ (no projection for equalities).

    nuPI, e the violation and ξ₋₁ = 0:  λ <- λ + η (Ki e + Kp (ξ_t - ξ_{t-1})),  ξ_t = ν ξ_{t-1} + (1 - ν) e.
    SGD is Kp = 0, Ki = 1. Rows that cannot be evaluated at this step do not move. `limits` are those of ψ,
    lower and upper [runs, groups], for the runs that are cautious. With `steps` [runs, 1] it moves as far as
    so many steps would.
    """
    run, new = plan.run, {}
    for family, (score, known) in _rows(plan, psi, counted).items():
        violation = score - run.tolerance
        if limits is not None and family == "multiplier":
            violation = run.cautious.pick(_by_limits(plan, *limits), violation)
        if run.resting.some:  # beyond the dead zone: v - d above it, v + d below, 0 within
            violation = violation - violation.clamp(-run.dead_zone, run.dead_zone)
        move = violation if steps is None else steps * violation
        if plan.nupi:  # Σ of the changes of ξ over the steps is ξ at their end - ξ before them
            before, fade = state[f"{family}_error"], run.nu if steps is None else run.nu**steps
            change = (1 - fade) * (violation - before)
            new[f"{family}_error"] = torch.where(known, before + change, before)
            move = run.ki * move + run.kp * change
        raised = torch.addcmul(state[family], run.dual_lr, move)
        raised = run.equal.pick(raised, raised.clamp_min(0))
        new[family] = torch.where(known, raised, state[family])
    return new


def _by_limits(plan: Plan, lower: Tensor, upper: Tensor) -> Tensor:
    """Violations as the limits of ψ show them, [runs, groups]: λ <- [λ + η (lower - ε)]₊.

    moves_on="estimate" with caution: lower - ε where that is positive, upper - ε where that is negative, and
    0 while ε lies between the limits.
    """
    below, above = lower - plan.run.tolerance, upper - plan.run.tolerance
    return plan.run.lower.pick(below, below.clamp_min(0) + above.clamp_max(0))


def _rows(plan: Plan, psi: Tensor, counted: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """The rows of A·ψ of each family in use, and which of them can be evaluated: both [runs, rows]."""
    run, rows = plan.run, {}
    if run.mean_rows.some:
        score = run.absolute.pick(psi.abs(), psi) if run.absolute.some else psi
        rows["multiplier"] = score, run.mean_rows.limit(counted)
    if run.two_sided.some:
        rows["multiplier_down"] = -psi, run.two_sided.limit(counted)
    if run.extremes.some:
        spread = (largest(psi, counted) + largest(-psi, counted)).unsqueeze(1)
        rows["multiplier_extreme"] = spread, run.extremes.limit(counted.any(1, keepdim=True))
    if run.pairs.some:
        difference = (psi.unsqueeze(2) - psi.unsqueeze(1)).flatten(1)  # row i·groups + j: ψ_i - ψ_j
        themselves = torch.eye(plan.groups, dtype=torch.bool, device=psi.device)
        both = (counted.unsqueeze(2) & counted.unsqueeze(1) & ~themselves).flatten(1)
        rows["multiplier_pair"] = difference, run.pairs.limit(both)
    return rows
