"""Runs that are the same until pruning ends are trained once until then.

Constraints act from the end of pruning on, unless a method says otherwise. Until then runs of one seed,
sparsity and loss differ in nothing, whatever their methods constrain: one of them trains for all, and then
each goes on by itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from evenprune import constraint, divergence
from evenprune.fleet import copy_parts_
from evenprune.history import epoch_row
from evenprune.loop import Loop, parameter_groups
from evenprune.recipe import Recipe, Run
from evenprune.resume import load_optimizer

# What a method does before its constraints act: which weights go, which samples are drawn, which loss.
EARLY = ("importance", "sampling", "distill", "temperature", "focus", "floor", "targets")


def start_of(run: Run) -> tuple[Any, ...]:
    """Runs with the same start are the same until pruning ends."""
    return run.seed, run.sparsity, run.without, *(getattr(run.method, name) for name in EARLY)


def starts(runs: Sequence[Run]) -> list[int]:
    """Of every run, the place of its start among the different ones."""
    places = {start: place for place, start in enumerate(dict.fromkeys(map(start_of, runs)))}
    return [places[start_of(run)] for run in runs]


def beginners(runs: Sequence[Run], of: Sequence[int]) -> tuple[Run, ...]:
    """One run of every start."""
    return tuple(runs[list(of).index(place)] for place in range(max(of) + 1))


def can_be_handed_over(recipe: Recipe) -> bool:
    """Whether all that the optimizer remembers is of a parameter: of its shape, or a number."""
    layer = nn.Linear(3, 2)
    optimizer = recipe.optimizer(parameter_groups(layer, recipe))
    for parameter in layer.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    known = {id(parameter): parameter for parameter in layer.parameters()}
    return all(
        id(key) in known and all(_is_of(value, known[id(key)]) for value in entries.values())
        for key, entries in optimizer.state.items()
    )


def _is_of(value: Any, parameter: Tensor) -> bool:
    if isinstance(value, Tensor):
        return not value.ndim or value.shape == parameter.shape
    return value is None or isinstance(value, bool | int | float | str)


def row_of_all(
    early: Loop, loop: Loop, of: Sequence[int], *, epoch: int, splits: Mapping[str, Any]
) -> dict[str, Any]:
    """An epoch's row of the history for all runs of `loop`, which is still to begin."""
    row: dict[str, Any] = _spread(epoch_row(early, epoch) | {"splits": splits}, torch.tensor(of))
    return row | {"multipliers": constraint.multipliers(loop.plan, loop.state).cpu()}


def _spread(value: Any, of: Tensor) -> Any:
    if isinstance(value, Mapping):
        return {name: _spread(own, of) for name, own in value.items()}
    return value.index_select(0, of) if isinstance(value, Tensor) else value


@torch.no_grad()
def hand_over(early: Loop, loop: Loop, of: Sequence[int]) -> None:
    """Every run goes on from where its start ended: weights, statistics, masks, momenta, learning rate."""
    members = torch.tensor(of, device=loop.device)
    for theirs, ours in ((early.network, loop.network), (early.masks, loop.masks)):
        source = theirs.state_dict()
        for name, tensor in ours.state_dict().items():
            copy_parts_(tensor, source[name], members, runs=len(early.runs))
    held = early.optimizer.state_dict()
    parameters = [p for group in loop.optimizer.param_groups for p in group["params"]]
    theirs_too = [p for group in early.optimizer.param_groups for p in group["params"]]
    state = {
        place: {
            name: _widened(value, theirs_too[place], parameters[place], members, len(early.runs))
            for name, value in entries.items()
        }
        for place, entries in held["state"].items()
    }
    load_optimizer(loop.optimizer, {"state": state, "param_groups": held["param_groups"]})
    if loop.scheduler is not None and early.scheduler is not None:
        loop.scheduler.load_state_dict(early.scheduler.state_dict())
    divergence.remember(loop.rest, loop.network.state_dict())


def _widened(value: Any, own: Tensor, wanted: Tensor, members: Tensor, runs: int) -> Any:
    """A momentum of all runs; other things of an optimizer, such as counts of steps, as they are."""
    if not (isinstance(value, Tensor) and value.shape == own.shape and value.ndim):
        return value
    wide = torch.empty_like(wanted, dtype=value.dtype, requires_grad=False)
    copy_parts_(wide, value, members, runs=runs)
    return wide
