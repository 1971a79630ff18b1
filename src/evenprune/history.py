"""The history of a training: one row per epoch, of all runs at once; and a run's own part of it."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from evenprune import constraint
from evenprune.loop import Loop
from evenprune.method import Method
from evenprune.plan import families_of


def epoch_row(loop: Loop, epoch: int) -> dict[str, Any]:
    """One epoch of all runs: numbers, and tensors with a leading run axis on the CPU."""
    seen = loop.steps * loop.recipe.batch_size
    multipliers = constraint.multipliers(loop.plan, loop.state).cpu()
    methods = [run.method for run in loop.runs]
    told = torch.tensor([m.rows != "none" and epoch >= loop.recipe.acting_from(m) for m in methods])
    gaps = told & torch.tensor([_bounds_gaps(method) for method in methods])
    return {
        "epoch": epoch,
        "learning_rate": float(loop.optimizer.param_groups[0]["lr"]),
        "sparsity": loop.masks.sparsity.cpu(),
        "loss": loop.totals["loss"].cpu() / loop.steps,
        "accuracy": loop.totals["correct"].cpu() / seen,
        "max_excess_gap": torch.where(gaps, constraint.largest_gap(loop.state).cpu(), torch.nan),
        "multiplier_sum": torch.where(told, multipliers.sum(1), torch.nan),
        "negative_weights": (loop.state["negative_weights"] - loop.totals["negative_before"]).cpu(),
        "multipliers": multipliers,
    }


def _bounds_gaps(method: Method) -> bool:
    """Whether its ψ is an excess accuracy gap: a loss, as of EL, would be told as one of 177 %."""
    return method.measure == "accuracy" and method.against_dense


def own_rows(loop: Loop) -> list[list[int]]:
    """Which rows of constraint.multipliers belong to each run; the rest are those of its fleet mates."""
    used = [family for family in constraint.FAMILIES if family in loop.plan.families]
    starts = list(itertools.accumulate((loop.state[family].shape[1] for family in used), initial=0))
    place = {family: range(*starts[i : i + 2]) for i, family in enumerate(used)}
    return [
        [row for family in used if family in families_of(run.method) for row in place[family]]
        for run in loop.runs
    ]


def of_run(row: Mapping[str, Any], run: int, rows: Sequence[int]) -> dict[str, Any]:
    """A row of the whole fleet as plain numbers of one run (what is not known is None), its own rows only."""
    told = _mapping_of_run(row, run)
    return told | {"multipliers": [told["multipliers"][own] for own in rows]}


def _mapping_of_run(row: Mapping[str, Any], run: int) -> dict[str, Any]:
    return {name: _of_run(value, run) for name, value in row.items()}


def _of_run(value: Any, run: int) -> Any:
    if isinstance(value, Mapping):
        return _mapping_of_run(value, run)
    if not isinstance(value, Tensor):
        return value
    own = value[run].tolist()
    return [_or_none(v) for v in own] if isinstance(own, list) else _or_none(own)


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
