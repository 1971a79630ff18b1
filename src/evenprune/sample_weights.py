"""The primal step: multipliers -> the weight of every sample of a batch.

w_i = (1 + c_mean) / B + c_g(i) / n_g(i),        c = Aᵀλ
"""

from __future__ import annotations

import torch
from torch import Tensor

from evenprune import estimate
from evenprune.dual_step import weighted_mean
from evenprune.estimate import Grouped
from evenprune.plan import Plan, State


def lagrangian_weights(plan: Plan, state: State, batch: Grouped, losses: Tensor) -> Tensor:
    """w_i = (1 + c_mean)/B + c_g(i)/n_g(i), [runs, batch]; a missing label has c = 0.

    Rows that name a group outside the batch are left out: c_mean = -Σ c_g over the groups of the batch, which
    is -Σ c_g(i)/n_g(i) over its samples.
    """
    run, even = plan.run, 1 / batch.row.shape[1]
    pushed = torch.zeros_like(batch.row, dtype=plan.dtype)  # c_g(i)/n_g(i)
    if run.mean_rows.some:
        pushed = of_samples(on_groups(plan, state, _sides(plan, state["psi"], batch, losses)), batch)
    on_mean = run.detached.pick(torch.zeros_like(pushed[:, :1]), -pushed.sum(1, keepdim=True))
    if run.extremes.some or run.pairs.some:
        present = estimate.present(batch, plan.groups)[:, :-1]
        pushed = pushed + of_samples(on_pairs(plan, state, present), batch)
    return (1 + on_mean) * even + pushed


def clipped(weights: Tensor) -> Tensor:
    """Negative weights become zero; the others shrink so that the sum stays (a negative sum becomes zero)."""
    positive = weights.clamp_min(0)
    total = weights.sum(1, keepdim=True).clamp_min(0)
    return positive * (total / positive.sum(1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny))


def of_samples(on_group: Tensor, batch: Grouped) -> Tensor:
    """c_g(i)/n_g(i) of every sample, [runs, batch]."""
    groups = on_group.shape[1]
    return (
        torch.where(batch.row < groups, on_group.gather(1, batch.row.clamp_max(groups - 1)), 0) / batch.size
    )


def _sides(plan: Plan, psi: Tensor, batch: Grouped, losses: Tensor) -> Tensor:
    """[runs, groups]: the excess gap whose sign an absolute value takes in the primal: d|ψ| = sign(ψ) dψ.

    That of the estimate; or of the batch, whose surrogate |L_g - L| is what gets differentiated in the paper.
    """
    if not plan.run.by_batch.some:
        return psi
    seen = estimate.read_batch(batch, losses, plan.groups)
    excess = seen.value - weighted_mean(seen.value, seen.share)
    return plan.run.by_batch.pick(excess[:, :-1], psi)


def on_groups(plan: Plan, state: State, sides: Tensor) -> Tensor:
    """c = Aᵀλ [runs, groups] of the rows e_g - mean."""
    on_group = state["multiplier"]
    if plan.run.absolute.some:
        # A gap that is zero but for rounding has no sign: it would differ from device to device.
        rounding = 32 * torch.finfo(plan.dtype).eps
        side = torch.nn.functional.hardshrink(sides, rounding).sign()
        on_group = plan.run.absolute.pick(on_group * side, on_group)
    return on_group - state["multiplier_down"] if plan.run.two_sided.some else on_group


def on_pairs(plan: Plan, state: State, present: Tensor) -> Tensor:
    """c = Aᵀλ [runs, groups] of the rows e_i - e_j whose groups are both `present` [runs, groups]."""
    on_group = torch.zeros_like(state["psi"])
    if plan.run.extremes.some:
        most = torch.where(state["counted"], state["psi"], -torch.inf).argmax(1, keepdim=True)  # [runs, 1]
        least = torch.where(state["counted"], state["psi"], torch.inf).argmin(1, keepdim=True)
        push = state["multiplier_extreme"] * (present.gather(1, most) & present.gather(1, least))
        on_group = on_group.scatter_add(1, most, push).scatter_add(1, least, -push)
    if plan.run.pairs.some:
        square = state["multiplier_pair"].reshape(plan.runs, plan.groups, plan.groups)
        on_group = on_group + ((square - square.mT) * present.unsqueeze(1)).sum(2) * present
    return on_group


def dro_shares(plan: Plan, share: Tensor, batch: Grouped, losses: Tensor, on: Tensor) -> Tensor:
    """Group DRO: q_g <- q_g exp(η L_g) for the groups of the batch, then Σ q_g = 1.

    In logarithms, as a step that is too large must not leave 0 / 0; a share of zero could never grow again.
    """
    seen = estimate.read_batch(batch, losses, plan.groups)
    step = (plan.run.dual_lr * seen.value * seen.counted)[:, :-1]
    raised = (share.clamp_min(torch.finfo(share.dtype).tiny).log() + step).softmax(1)
    return torch.where(plan.run.dro.limit(on), raised, share)
