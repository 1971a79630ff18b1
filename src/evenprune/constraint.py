"""The constraint step: estimate -> violation -> multipliers -> sample weights, for many runs at once.

Pure functions on tensors with a leading run axis. The losses of a batch become one weighted sum,

    w_i = (1 + c_mean) / B + c_g(i) / n_g(i),        loss = Σ_i w_i ℓ_i,

where c = Aᵀλ and the rows of A are the constraints on the excess gaps ψ. One forward, one backward; no loop
over groups or samples, no wait for the device, fixed shapes (so: CUDA graphs, torch.compile).

`Method` and `Plan` are in plan.py, the estimators in estimate.py, `GapConstraint` in gap_constraint.py.

`step` leaves the state it is given alone; `step_` is the same in place, and does not copy the rings.

Samples without a group label (-1) belong to the overall accuracy and loss, and to no constraint: they are
estimated like one more group (with a ring of their own), which weighs in the overall mean but has no row.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from evenprune import estimate
from evenprune.estimate import Estimate, Grouped
from evenprune.plan import Method, Plan, Switch, slow_rings

__all__ = [
    "Method",
    "Outcomes",
    "Plan",
    "State",
    "follow_pass_",
    "group_weights",
    "init",
    "multipliers",
    "slow_rings",
    "step",
    "step_",
]

State = dict[str, Tensor]  # every tensor has the run axis first


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
    slack = None
    if plan.cautious:
        error = standard_errors(correct, dense_correct, line, number, plan.share)[:, :-1]
        slack = run.caution * error.to(plan.dtype)
    measured, moves = Estimate(mean, number > 0, plan.share), run.passes.limit(due.unsqueeze(1))
    _write(state, {**state, **_reported(plan, state, measured, moves, slack=slack, steps=run.refresh)})


def standard_errors(
    correct: Tensor, dense_correct: Tensor, line: Tensor, number: Tensor, share: Tensor
) -> Tensor:
    """Of ψ_g, from the pairs (dense right or wrong, sparse right or wrong) of each sample. [runs, groups + 1]

    d = dense - sparse is -1, 0 or 1, so V_g = (mean d² - mean² d)/(n_g - 1) is the variance of Δ_g; it is
    infinite for a single sample. Then
    Var ψ_g = (1 - π_g)² V_g + Σ_{h≠g} π_h² V_h = (1 - 2π_g) V_g + Σ_h π_h² V_h.
    """
    change = dense_correct.to(share.dtype) - correct.to(share.dtype)  # [runs, samples]
    nothing = torch.zeros_like(share)
    size = number.clamp_min(1)
    mean, square = (nothing.index_add(1, line, part) / size for part in (change, change.square()))
    variance = (square - mean.square()) / (size - 1).clamp_min(1)
    common = (share.square() * variance).sum(1, keepdim=True)
    error = ((1 - 2 * share) * variance + common).clamp_min(0).sqrt()
    return torch.where(number > 1, error, torch.inf)


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
    weights = _weights(plan, new, batch, _sides(plan, new["psi"], batch, losses))
    new["negative_weights"] = state["negative_weights"] + ((weights < 0) & on).sum(1)
    weights = plan.run.clip.pick(_clipped(weights), weights)
    if plan.run.dro.some:
        new["group_share"] = _shares(plan, state["group_share"], batch, losses, on)
        weights = plan.run.dro.pick(_of_samples(new["group_share"], batch), weights)
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
    slack: Tensor | None = None,
    steps: Tensor | None = None,
) -> State:
    """Gaps and moved multipliers of the runs that move [runs, 1]; what the others had."""
    psi, counted = _excess_gaps(plan, measured)
    moved = _ascend(plan, state, psi, counted & moves, slack=slack, steps=steps)
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


def _shares(plan: Plan, share: Tensor, batch: Grouped, losses: Tensor, on: Tensor) -> Tensor:
    """Group DRO: q_g <- q_g exp(η L_g) for the groups of the batch, then Σ q_g = 1."""
    seen = estimate.read_batch(batch, losses, plan.groups)
    step = (plan.run.dual_lr * seen.value * seen.counted)[:, :-1]
    raised = share * (step - step.amax(1, keepdim=True)).exp()  # a common factor, gone after the next line
    return torch.where(plan.run.dro.limit(on), raised / raised.sum(1, keepdim=True), share)


def largest_gap(state: State) -> Tensor:
    """[runs]: the largest ψ_g as estimated last, 0 where no group counts yet."""
    return _largest(state["psi"], state["counted"])


def _largest(values: Tensor, counted: Tensor) -> Tensor:
    """[runs]: the largest value that counts, 0 where none does."""
    if not values.shape[1]:
        return values.new_zeros(len(values))
    largest = torch.where(counted, values, -torch.inf).amax(1)
    return torch.where(torch.isinf(largest), 0, largest)


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


def _excess_gaps(plan: Plan, measured: Estimate) -> tuple[Tensor, Tensor]:
    """ψ_g = Δ_g - Δ [runs, groups], 0 where the group does not count yet; and which groups count.

    micro: sparse and dense overall are means over the same samples, those of the groups that count.
    macro, as published: the groups that count weigh equally, and the dense side is the mean over all samples.
    """
    gap = measured.value - plan.dense  # [runs, groups + 1], not yet signed
    overall = _mean(gap, measured.counted * measured.share)  # [runs, 1]
    if plan.run.macro.some:
        published = _mean(measured.value, measured.counted.to(plan.dtype)) - plan.dense_overall
        overall = plan.run.macro.pick(published, overall)
    counted = measured.counted[:, :-1]
    return torch.where(counted, plan.run.sign * (gap[:, :-1] - overall), 0), counted


def _mean(values: Tensor, weight: Tensor) -> Tensor:
    """[runs, 1]; 0 where nothing weighs."""
    total = weight.sum(1, keepdim=True).clamp_min(torch.finfo(weight.dtype).tiny)
    return (values * weight).sum(1, keepdim=True) / total


def _rows(plan: Plan, psi: Tensor, counted: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """The rows of A·ψ of each family in use, and which of them can be evaluated: both [runs, rows]."""
    run, rows = plan.run, {}
    if run.mean_rows.some:
        score = run.absolute.pick(psi.abs(), psi) if run.absolute.some else psi
        rows["multiplier"] = score, run.mean_rows.limit(counted)
    if run.two_sided.some:
        rows["multiplier_down"] = -psi, run.two_sided.limit(counted)
    if run.extremes.some:
        spread = (_largest(psi, counted) + _largest(-psi, counted)).unsqueeze(1)
        rows["multiplier_extreme"] = spread, run.extremes.limit(counted.any(1, keepdim=True))
    if run.pairs.some:
        difference = (psi.unsqueeze(2) - psi.unsqueeze(1)).flatten(1)  # row i·groups + j: ψ_i - ψ_j
        themselves = torch.eye(plan.groups, dtype=torch.bool, device=psi.device)
        both = (counted.unsqueeze(2) & counted.unsqueeze(1) & ~themselves).flatten(1)
        rows["multiplier_pair"] = difference, run.pairs.limit(both)
    return rows


def _ascend(
    plan: Plan,
    state: State,
    psi: Tensor,
    counted: Tensor,
    *,
    slack: Tensor | None = None,
    steps: Tensor | None = None,
) -> State:
    """λ <- [λ + η·violation]₊ (no projection for equalities).

    nuPI, e the violation and ξ₋₁ = 0:  λ <- λ + η (Ki e + Kp (ξ_t - ξ_{t-1})),  ξ_t = ν ξ_{t-1} + (1 - ν) e.
    SGD is Kp = 0, Ki = 1. Rows that cannot be evaluated at this step do not move. With `slack` [runs, groups]
    only what a violation is beyond the slack counts: its lower limit if positive, its upper if negative. With
    `steps` [runs, 1] it moves as far as so many steps would.
    """
    run, new = plan.run, {}
    for family, (score, known) in _rows(plan, psi, counted).items():
        violation = score - run.tolerance
        if slack is not None and family == "multiplier":
            violation = violation.sign() * (violation.abs() - slack).clamp_min(0)
        move = violation
        if plan.nupi:
            before = state[f"{family}_error"]
            change = (1 - run.nu) * (violation - before)
            new[f"{family}_error"] = torch.where(known, before + change, before)
            move = run.ki * violation + run.kp * change
        rate = run.dual_lr if steps is None else run.dual_lr * steps
        raised = torch.addcmul(state[family], rate, move)
        raised = run.equal.pick(raised, raised.clamp_min(0))
        new[family] = torch.where(known, raised, state[family])
    return new


def _sides(plan: Plan, psi: Tensor, batch: Grouped, losses: Tensor) -> Tensor:
    """[runs, groups]: the excess gap whose sign an absolute value takes in the primal: d|ψ| = sign(ψ) dψ.

    That of the estimate; or of the batch, whose surrogate |L_g - L| is what gets differentiated in the paper.
    """
    if not plan.run.by_batch.some:
        return psi
    seen = estimate.read_batch(batch, losses, plan.groups)
    excess = seen.value - _mean(seen.value, seen.share)
    return plan.run.by_batch.pick(excess[:, :-1], psi)


def _weights(plan: Plan, state: State, batch: Grouped, sides: Tensor) -> Tensor:
    """w_i = (1 + c_mean)/B + c_g(i)/n_g(i), [runs, batch]; a missing label has c = 0.

    Rows that name a group outside the batch are left out: c_mean = -Σ c_g over the groups of the batch, which
    is -Σ c_g(i)/n_g(i) over its samples.
    """
    run, even = plan.run, 1 / batch.row.shape[1]
    pushed = torch.zeros_like(batch.row, dtype=plan.dtype)  # c_g(i)/n_g(i)
    if run.mean_rows.some:
        pushed = _of_samples(_on_groups(plan, state, sides), batch)
    on_mean = run.detached.pick(torch.zeros_like(pushed[:, :1]), -pushed.sum(1, keepdim=True))
    if run.extremes.some or run.pairs.some:
        pushed = pushed + _of_samples(
            _on_pairs(plan, state, estimate.present(batch, plan.groups)[:, :-1]), batch
        )
    return (1 + on_mean) * even + pushed


def _of_samples(on_group: Tensor, batch: Grouped) -> Tensor:
    """c_g(i)/n_g(i) of every sample, [runs, batch]."""
    groups = on_group.shape[1]
    return (
        torch.where(batch.row < groups, on_group.gather(1, batch.row.clamp_max(groups - 1)), 0) / batch.size
    )


def _on_groups(plan: Plan, state: State, sides: Tensor) -> Tensor:
    """c = Aᵀλ [runs, groups] of the rows e_g - mean."""
    on_group = state["multiplier"]
    if plan.run.absolute.some:
        # A gap that is zero but for rounding has no sign: it would differ from device to device.
        rounding = 32 * torch.finfo(plan.dtype).eps
        side = torch.nn.functional.hardshrink(sides, rounding).sign()
        on_group = plan.run.absolute.pick(on_group * side, on_group)
    return on_group - state["multiplier_down"] if plan.run.two_sided.some else on_group


def _on_pairs(plan: Plan, state: State, present: Tensor) -> Tensor:
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


def _clipped(weights: Tensor) -> Tensor:
    """Negative weights become zero; the others shrink so that the sum stays (a negative sum becomes zero)."""
    positive = weights.clamp_min(0)
    total = weights.sum(1, keepdim=True).clamp_min(0)
    return positive * (total / positive.sum(1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny))


def multipliers(plan: Plan, state: State) -> Tensor:
    """[runs, rows]: the multipliers of every row, the families of the fleet side by side.

    One method alone has: a row per group (two-sided: the upper, then the lower rows); one row for the
    extremes; groups² rows for all pairs (row i·groups + j bounds Δ_i - Δ_j); none for plain fine-tuning.
    """
    used = [state[family] for family in FAMILIES if family in plan.families]
    return torch.cat(used, dim=1) if used else state["psi"].new_zeros(plan.runs, 0)


def group_weights(plan: Plan, state: State) -> Tensor:
    """[runs, groups]: the net multiplier on each group's mean loss (for CEAG: λ itself)."""
    net = _on_groups(plan, state, state["psi"]) if plan.run.mean_rows.some else torch.zeros_like(state["psi"])
    return net + _on_pairs(plan, state, torch.ones_like(state["counted"]))
