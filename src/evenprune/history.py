"""The history of a training: one row per epoch, of all runs at once; and a run's own part of it."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from evenprune import constraint
from evenprune.loop import Loop


def epoch_row(loop: Loop, epoch: int) -> dict[str, Any]:
    """One epoch of all runs: numbers, and tensors with a leading run axis on the CPU."""
    seen = loop.steps * loop.recipe.batch_size
    constrained = torch.tensor([run.method.rows != "none" for run in loop.runs])
    multipliers = constraint.multipliers(loop.plan, loop.state).cpu()
    told = constrained & (epoch >= loop.recipe.pruning_epochs)
    return {
        "epoch": epoch,
        "learning_rate": float(loop.optimizer.param_groups[0]["lr"]),
        "sparsity": loop.masks.sparsity.cpu(),
        "loss": loop.totals["loss"].cpu() / loop.steps,
        "accuracy": loop.totals["correct"].cpu() / seen,
        "max_excess_gap": torch.where(told, loop.state["max_psi"].cpu(), torch.nan),
        "multiplier_sum": torch.where(told, multipliers.sum(1), torch.nan),
        "negative_weights": (loop.state["negative_weights"] - loop.totals["negative_before"]).cpu(),
        "multipliers": multipliers,
    }


def of_run(row: Mapping[str, Any], run: int) -> dict[str, Any]:
    """A row of the whole fleet as plain numbers of one run; what is not known is None."""
    return {name: _of_run(value, run) for name, value in row.items()}


def _of_run(value: Any, run: int) -> Any:
    if isinstance(value, Mapping):
        return of_run(value, run)
    if not isinstance(value, Tensor):
        return value
    own = value[run].tolist()
    return [_or_none(v) for v in own] if isinstance(own, list) else _or_none(own)


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
