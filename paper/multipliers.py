"""Multipliers step by step, for the figure that shows how they move with and without replay buffers."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from evenprune import run_figures
from evenprune.recipe import Recipe
from evenprune.training import Fitted
from paper.cells import Cell
from paper.runner import Start


def traced(fitted: Fitted) -> Tensor:
    """[steps after pruning, rows]"""
    if fitted.trace is None:
        raise ValueError("The run has no trace; train it with Recipe(trace=True).")
    return fitted.trace


def traces_of(
    start: Start, cell: Cell, fitted: Fitted, recipe: Recipe, *, places: Sequence[int], stride: int
) -> list[dict[str, Any]]:
    """Multipliers step by step, one entry per class; a method with one row for all classes has one entry.

    None of a run that diverged before its first epoch with multipliers had ended.
    """
    trace = traced(fitted)
    if not len(trace):
        return []
    single = trace.shape[1] == 1
    told = [row["splits"].get("train", {}) for row in fitted.history]
    shared = {name: getattr(cell, name) for name in ("method", "sparsity", "seed", "buffer")}
    shared |= {"tolerance": cell.tolerance, "dual_lr": cell.dual_lr}
    shared |= run_figures.if_diverged(fitted)
    return [
        shared
        | {
            "steps_per_epoch": recipe.steps(len(start.data.train)),
            "first_epoch": recipe.pruning_epochs,
            "group": None if single else start.names[place],
            "place": None if single else place,
            "multiplier": [round(value, 9) for value in trace[::stride, place].tolist()],
            "stride": stride,
            "pairwise_disparity": [row.get("pairwise_disparity") for row in told],
            "max_excess_gap": [row.get("max_excess_gap") for row in told],
        }
        for place in ([0] if single else places)
    ]


def steady_and_resting(trace: Tensor, *, rest: float = 0.75) -> list[int]:
    """Two classes: the one whose multiplier is least often zero, and one that is zero in 3 of 4 steps.

    Of classes that are equally often zero, the one with the larger mean. trace: [steps, classes]; of one
    without steps, the first two.
    """
    if not len(trace):
        return [0, 1]
    at_zero, mean = (trace == 0).double().mean(0), trace.double().mean(0)
    order = sorted(range(trace.shape[1]), key=lambda place: (float(at_zero[place]), -float(mean[place])))
    steady = order[0]
    return [steady, min(order[1:], key=lambda place: abs(float(at_zero[place]) - rest))]
