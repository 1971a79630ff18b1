"""The constraint step: estimate -> violation -> multipliers -> sample weights, for many runs at once.

Pure functions on tensors with a leading run axis. The losses of a batch become one weighted sum,

    w_i = (1 + c_mean) / B + c_g(i) / n_g(i),        loss = Σ_i w_i ℓ_i,

where c = Aᵀλ and the rows of A are the constraints on the excess gaps ψ. One forward, one backward; no loop
over groups or samples, no wait for the device, fixed shapes (so: CUDA graphs, torch.compile).

`Method` is in method.py, `Plan` in plan.py, the estimators in estimate.py, what moves the multipliers in
dual_step.py, what they make of a batch in sample_weights.py, `GapConstraint` in gap_constraint.py.

`step` leaves the state it is given alone; `step_` is the same in place, and does not copy the rings.

Samples without a group label (-1) belong to the overall accuracy and loss, and to no constraint: they are
estimated like one more group (with a ring of their own), which weighs in the overall mean but has no row.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from evenprune import dual_step, estimate, sample_weights
from evenprune.estimate import Estimate, Grouped
from evenprune.gap_limits import excess_limits, paired_counts
from evenprune.method import Method
from evenprune.plan import Plan, State, Switch, slow_rings

__all__ = [
    "Method",
    "Outcomes",
    "Plan",
    "State",
    "follow_pass_",
    "group_weights",
    "init",
    "largest_gap",
    "multipliers",
    "slow_rings",
    "step",
    "step_",
]


class Outcomes(NamedTuple):
    """What came of samples, each [runs, batch]."""

    losses: Tensor
    correct: Tensor
    groups: Tensor
    sample: Tensor | None  # ids, for the table


# Written in place by the estimators.
MEMORY = ("ring", "ring_count", "ring_total", "table", "table_total", "table_seen")
FAMILIES = ("multiplier", "multiplier_down", "multiplier_extreme", "multiplier_pair", "group_share")


def init(plan: Plan) -> State:
    """The state before the first step: multipliers at zero, nothing remembered."""
    runs, groups = plan.runs, plan.groups

    def zeros(*shape: int, dtype: torch.dtype = plan.dtype) -> Tensor:
        return torch.zeros(runs, *shape, dtype=dtype, device=plan.device)

    state = {
        "psi": zeros(groups),
        "counted": zeros(groups, dtype=torch.bool),
        "negative_weights": zeros(dtype=torch.int64),
        "steps": zeros(dtype=torch.int64),
    }
    widths = dict(zip(FAMILIES, (groups, groups, 1, groups**2, groups), strict=True))
    for family in sorted(plan.families):
        state[family] = zeros(widths[family])
        if family == "group_share":
            state[family].fill_(1 / groups)
        elif plan.nupi:
            state[f"{family}_error"] = zeros(widths[family])
    if "ring" in plan.estimators:
        state["ring"] = zeros(groups + 2, plan.slots, dtype=plan.outcome_dtype)
        state["ring_count"] = zeros(groups + 2, dtype=torch.int64)
        state["ring_total"] = zeros(groups + 2)
    if "table" in plan.estimators:
        state["table"] = zeros(plan.samples + 1, dtype=plan.outcome_dtype)
        state["table"].fill_(estimate.unseen(plan.outcome_dtype))
        state["table_total"] = zeros(groups + 1, dtype=torch.float64)
        state["table_seen"] = zeros(groups + 1, dtype=torch.int64)
    return state


@torch.no_grad()
def step(
    plan: Plan,
    state: State,
    losses: Tensor,
    correct: Tensor,
    groups: Tensor,
    *,
    index: Tensor | None = None,
    active: Tensor,
    heldout: Outcomes | None = None,
) -> tuple[Tensor, State]:
    """One batch: push the outcomes, move the multipliers, weigh the samples with the *new* multipliers.

    losses, correct, groups, index: [runs, batch] (index: ids of the training samples, for the table).
    active: bool [runs] or []; where it is False the weights are 1/batch and the state stays as it is.
    heldout: a batch of other samples; the multipliers of methods with `multipliers_on` follow these.
    Returns (weights [runs, batch], new state). Minimise (weights * losses).sum().
    """
    copied = {name: value.clone() if name in MEMORY else value for name, value in state.items()}
    return _advance(plan, copied, Outcomes(losses, correct, groups, index), active, heldout)


@torch.no_grad()
def step_(
    plan: Plan,
    state: State,
    losses: Tensor,
    correct: Tensor,
    groups: Tensor,
    *,
    index: Tensor | None = None,
    active: Tensor,
    heldout: Outcomes | None = None,
) -> Tensor:
    """`step` in place: the tensors of `state` are overwritten. Returns the weights [runs, batch]."""
    weights, new = _advance(plan, state, Outcomes(losses, correct, groups, index), active, heldout)
    _write(state, new)
    return weights


def _write(state: State, new: State) -> None:
    for name in state:
        if name not in MEMORY:
            state[name].copy_(new[name])


@torch.no_grad()
def follow_pass_(
    plan: Plan,
    state: State,
    losses: Tensor,
    correct: Tensor,
    groups: Tensor,
    *,
    dense_correct: Tensor,
    due: Tensor,
) -> None:
    """After a full pass over the held-out split: move the multipliers of the runs that are due, in place.

    They move as far as the steps from one pass to the next would move them: dual_lr stays a step's.

    losses, correct: [runs, samples]; groups, dense_correct: [samples]; due: bool [runs].
    """
    run, line = plan.run, torch.where(groups < 0, plan.groups, groups)
    outcome = run.loss.pick(losses.to(plan.dtype), correct.to(plan.dtype))
    nothing = outcome.new_zeros(plan.runs, plan.groups + 1)
    number = nothing.index_add(1, line, torch.ones_like(outcome))
    mean = nothing.index_add(1, line, outcome) / number.clamp_min(1)
    limits = _limits(plan, correct, dense_correct, line) if run.cautious.some else None
    measured, moves = Estimate(mean, number > 0, plan.share), run.passes.limit(due.unsqueeze(1))
    _write(state, {**state, **_reported(plan, state, measured, moves, limits=limits, steps=run.refresh)})


def _limits(plan: Plan, correct: Tensor, dense_correct: Tensor, line: Tensor) -> tuple[Tensor, Tensor]:
    """The audit's limits of ψ at each run's caution, lower and upper [runs, groups]."""
    counts = paired_counts(dense_correct, correct, line, count=plan.groups + 1)
    lower, upper = excess_limits(counts, plan.run.caution.to(torch.float64))
    return lower[:, :-1].to(plan.dtype), upper[:, :-1].to(plan.dtype)


def _advance(
    plan: Plan, state: State, train: Outcomes, active: Tensor, heldout: Outcomes | None
) -> tuple[Tensor, State]:
    losses = train.losses.detach().to(plan.dtype)
    on = active.reshape(-1, 1).expand(plan.runs, 1)  # [runs, 1]
    even, steps = 1 / losses.shape[1], state["steps"] + on.squeeze(1)
    if not plan.families:
        return torch.full_like(losses, even), {**state, "steps": steps}
    batch = estimate.group_batch(train.groups, plan.groups)
    new = {**state, **_updated(plan, state, train, batch, on=on, heldout=heldout), "steps": steps}
    weights = sample_weights.lagrangian_weights(plan, new, batch, losses)
    new["negative_weights"] = state["negative_weights"] + ((weights < 0) & on).sum(1)
    weights = plan.run.clip.pick(sample_weights.clipped(weights), weights)
    if plan.run.dro.some:
        new["group_share"] = sample_weights.dro_shares(plan, state["group_share"], batch, losses, on)
        weights = plan.run.dro.pick(sample_weights.of_samples(new["group_share"], batch), weights)
    return torch.where(on, weights, even), new


def _updated(
    plan: Plan, state: State, train: Outcomes, batch: Grouped, *, on: Tensor, heldout: Outcomes | None
) -> State:
    """Estimates and multipliers after this batch, of the runs that follow batches."""
    run = plan.run
    if not (run.ring.some or run.batch.some or run.table.some):
        return {}
    moves = on & ~run.passes.on if run.passes.some else on
    seen, seen_batch = _followed(plan, train, batch, heldout)
    outcome = run.loss.pick(seen.losses.detach().to(plan.dtype), seen.correct.to(plan.dtype))
    measured = _estimates(plan, state, seen_batch, outcome, index=seen.sample, on=moves)
    return _reported(plan, state, measured, moves)


def _reported(
    plan: Plan,
    state: State,
    measured: Estimate,
    moves: Tensor,
    *,
    limits: tuple[Tensor, Tensor] | None = None,
    steps: Tensor | None = None,
) -> State:
    """Gaps and moved multipliers of the runs that move [runs, 1]; what the others had."""
    psi, counted = dual_step.excess_gaps(plan, measured)
    moved = dual_step.ascend(plan, state, psi, counted & moves, limits=limits, steps=steps)
    report = {"psi": psi, "counted": counted}
    return moved | {name: torch.where(moves, value, state[name]) for name, value in report.items()}


def _followed(
    plan: Plan, train: Outcomes, batch: Grouped, heldout: Outcomes | None
) -> tuple[Outcomes, Grouped]:
    """The samples that each run's multipliers follow: the training batch, or the held-out one."""
    own = plan.run.heldout
    if heldout is None or not own.some:
        return train, batch
    sample = (
        None if train.sample is None or heldout.sample is None else own.pick(heldout.sample, train.sample)
    )
    groups = own.pick(heldout.groups, train.groups)
    seen = Outcomes(
        own.pick(heldout.losses, train.losses), own.pick(heldout.correct, train.correct), groups, sample
    )
    return seen, estimate.group_batch(groups, plan.groups)


def _estimates(
    plan: Plan, state: State, batch: Grouped, outcome: Tensor, *, index: Tensor | None, on: Tensor
) -> Estimate:
    """What each run's own estimator says, after it has seen the batch (the memory in `state` is written)."""
    run, parts = plan.run, []
    share = plan.share.expand(plan.runs, -1)
    if run.batch.some:
        seen = estimate.read_batch(batch, outcome, plan.groups)
        if run.balanced.some:  # the batch has not the shares of the population
            seen = replace(seen, share=run.balanced.pick(share, seen.share))
        parts.append((run.batch, seen))
    if run.ring.some:
        rings = (state["ring"], state["ring_count"], state["ring_total"])
        estimate.push_ring(rings, batch, outcome, k=run.k, write=run.ring.limit(on))
        parts.append((run.ring, estimate.read_ring(*rings[1:], k=run.k, share=share)))
    if run.table.some:
        if index is None:
            raise ValueError("The table estimator needs index: the id of each sample in the training set.")
        tables = (state["table"], state["table_total"], state["table_seen"])
        estimate.push_table(tables, batch, outcome, index=index, write=run.table.limit(on))
        parts.append((run.table, estimate.read_table(*tables[1:], samples=plan.group_samples, share=share)))
    return _merged(parts)


def _merged(parts: list[tuple[Switch, Estimate]]) -> Estimate:
    """Each run takes its own part; runs without a constraint count nothing."""
    first, merged = parts[0]
    merged = Estimate(merged.value, first.limit(merged.counted), merged.share)
    for mine, part in parts[1:]:
        merged = Estimate(
            mine.pick(part.value, merged.value),
            mine.pick(part.counted, merged.counted),
            mine.pick(part.share, merged.share),
        )
    return merged


def multipliers(plan: Plan, state: State) -> Tensor:
    """[runs, rows]: the multipliers of every row, the families of the fleet side by side.

    One method alone has: a row per group (two-sided: the upper, then the lower rows); one row for the
    extremes; groups² rows for all pairs (row i·groups + j bounds Δ_i - Δ_j); none for plain fine-tuning.
    """
    used = [state[family] for family in FAMILIES if family in plan.families]
    return torch.cat(used, dim=1) if used else state["psi"].new_zeros(plan.runs, 0)


def largest_gap(state: State) -> Tensor:
    """[runs]: the largest ψ_g as estimated last, 0 where no group counts yet."""
    return dual_step.largest(state["psi"], state["counted"])


def group_weights(plan: Plan, state: State) -> Tensor:
    """[runs, groups]: the net multiplier on each group's mean loss (for CEAG: λ itself)."""
    net = torch.zeros_like(state["psi"])
    if plan.run.mean_rows.some:
        net = sample_weights.on_groups(plan, state, state["psi"])
    return net + sample_weights.on_pairs(plan, state, torch.ones_like(state["counted"]))
