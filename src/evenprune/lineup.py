"""Which runs train together, and the network that they begin as."""

import contextlib
import copy
import logging
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from evenprune import fleet
from evenprune.companions import dense_models, with_companions
from evenprune.element_wise import why_steps_mix
from evenprune.loop import parameter_groups
from evenprune.recipe import Data, Recipe, Run
from evenprune.tally import InputProblems

log = logging.getLogger("evenprune")


def fleets(
    model: nn.Module, data: Data, runs: Sequence[Run], recipe: Recipe, *, device: torch.device
) -> list[tuple[Run, ...]]:
    """The runs that train together: all of them, unless the recipe or the model says otherwise.

    They are without their companions, which count, and which are never in another fleet than their run.
    """
    everyone = len(with_companions(runs, data.folds))
    most = recipe.fleet_size or everyone
    if most > 1 and everyone > 1:
        reason = _why_alone(model, data, recipe, device)
        if reason:
            _refuse_companions(runs, reason)
            log.info("Training one run at a time: %s", reason)
            most = 1
    for run in runs:
        size = len(with_companions([run], data.folds))
        if size > most:
            told = f"it trains together with its {size - 1} companions, but recipe.fleet_size is {most}"
            _refuse_companions([run], f"{told}. Give {size} or more.")
    return _cut(runs, data, most)


def _refuse_companions(runs: Sequence[Run], reason: str) -> None:
    crossed = [run for run in runs if run.method.cross_fitted]
    if crossed:
        raise InputProblems([f"{crossed[0]}: multipliers_on='folds' cannot be trained here: {reason}"])


def _cut(runs: Sequence[Run], data: Data, most: int) -> list[tuple[Run, ...]]:
    """In order, as many in one fleet as it holds."""
    found: list[list[Run]] = []
    for run in runs:
        if not found or len(with_companions([*found[-1], run], data.folds)) > most:
            found.append([])
        found[-1].append(run)
    return [tuple(part) for part in found]


def _why_alone(model: nn.Module, data: Data, recipe: Recipe, device: torch.device) -> str:
    """Why runs cannot share one widened network; empty if they can."""
    reason = why_steps_mix(recipe, device)
    if reason:
        return reason
    optimizer = recipe.optimizer(parameter_groups(nn.Linear(3, 4), recipe))
    scheduler = recipe.scheduler(optimizer, recipe.epochs) if recipe.scheduler else None
    if isinstance(scheduler, ReduceLROnPlateau):
        return "ReduceLROnPlateau follows the loss of a single run."
    try:
        fleet.widen(copy.deepcopy(model).cpu(), 2, sample_input=_sample_input(data))
    except fleet.CannotWiden as error:
        return str(error)
    return ""


def _sample_input(data: Data) -> Tensor:
    few = torch.arange(min(4, len(data.train)), device=data.train.labels.device)
    return data.train.at(few).cpu()


def dense_network(
    model: nn.Module, data: Data, runs: Sequence[Run], recipe: Recipe, *, device: torch.device
) -> fleet.Fleet | fleet.Single:
    """Every run as it begins, on the device: the dense model, or that of the fold which it leaves out."""
    own = copy.deepcopy(model).cpu()
    network: fleet.Fleet | fleet.Single = fleet.single(own)
    if len(runs) > 1:  # the check against separate models has been passed by a fleet of two
        network = fleet.widen(own, len(runs), sample_input=_sample_input(data), check=False)
    elif device.type == "cuda":  # for the sake of the faster layers
        with contextlib.suppress(fleet.CannotWiden):
            network = fleet.widen(own, 1, sample_input=_sample_input(data))
    _load_folds(network, model, data, runs)
    if recipe.channels_last:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it
    return network.to(device)


def _load_folds(
    network: fleet.Fleet | fleet.Single, model: nn.Module, data: Data, runs: Sequence[Run]
) -> None:
    dense = dense_models(runs, model, data.folds)
    if all(own is model for own in dense):
        return
    # Of counts of batches there is one for all runs: that of the model itself.
    shared = {name: tensor for name, tensor in model.state_dict().items() if not tensor.ndim}
    fleet.load_(network, [{**own.state_dict(), **shared} for own in dense])
