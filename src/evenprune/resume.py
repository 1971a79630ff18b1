"""What a checkpoint of the loop holds, and how the loop gets it back."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from evenprune import divergence
from evenprune.checkpoint import DifferentExperiment
from evenprune.loop import Loop
from evenprune.reference import DenseReference

SAME_ACCURACY = 0.005  # the dense model measured anew may differ by rounding, not by more than this
Answers = tuple[Tensor, Tensor]  # predicted classes and losses, each [runs, N]


@dataclass
class Memory:
    """Where the training stands, and what it has found so far; the tensors of the loop aside."""

    reference: DenseReference  # as measured when the training first began
    dense: dict[str, DenseReference]  # the dense model on each evaluated split
    epoch: int = 0
    step: int = 0  # steps of this epoch that are done
    history: list[dict[str, Any]] = field(default_factory=list)
    final: dict[str, Answers] = field(default_factory=dict)
    last: dict[str, Answers] = field(default_factory=dict)  # of the last iterates, if some run keeps another
    traces: list[Tensor] = field(default_factory=list)  # per epoch: [runs, steps, rows] multipliers
    finished: bool = False
    starts: list[int] | None = None  # of each run, while runs with the same start are trained as one


def snapshot(loop: Loop, memory: Memory, *, identity: str) -> dict[str, Any]:
    """Everything that the rest of the training depends on; of a finished one, what its results need."""
    tree = {
        "identity": identity,
        "epoch": memory.epoch,
        "step": memory.step,
        "finished": memory.finished,
        "starts": memory.starts,
        "reference": memory.reference.to_dict(),
        "dense": {name: dense.to_dict() for name, dense in memory.dense.items()},
        "history": memory.history,
        "final": _small(memory.final),
        "last": _small(memory.last),
        "traces": memory.traces,
        "network": loop.network.state_dict(),
        "masks": loop.masks.state_dict(),
        "best": {k: v for k, v in loop.best.items() if k != "network" or not memory.finished},
        "diverged": loop.rest.since,
    }
    if memory.finished:
        return tree
    return tree | {
        "optimizer": loop.optimizer.state_dict(),
        "scheduler": None if loop.scheduler is None else loop.scheduler.state_dict(),
        "constraint": loop.state,
        "totals": loop.totals,
        "good": loop.rest.good if memory.step else {},  # between epochs it is the network
        "trace": loop.now.trace,
        "random": random_state(loop.device),
    }


def _small(answers: dict[str, Answers]) -> dict[str, Answers]:
    return {name: (predicted.int(), losses) for name, (predicted, losses) in answers.items()}


def remembered(
    saved: dict[str, Any], path: Path | None, *, identity: str, reference: DenseReference
) -> Memory:
    """Where a saved training stands; refused if it is of another experiment."""
    held = DenseReference.from_dict(saved["reference"])
    if saved["identity"] != identity:
        raise DifferentExperiment(f"{path} is of a different experiment. Give another folder.")
    apart = abs(held.overall_accuracy - reference.overall_accuracy)
    if apart > SAME_ACCURACY:
        raise DifferentExperiment(
            f"{path} was begun with a dense accuracy of {held.overall_accuracy:.4f}, now it is "
            f"{reference.overall_accuracy:.4f}: another dense model? Give another folder, or remove this one."
        )
    return Memory(
        reference=held,
        dense={name: DenseReference.from_dict(values) for name, values in saved["dense"].items()},
        last=saved.get("last", {}),  # old checkpoints have none
        starts=saved.get("starts"),
        **{name: saved[name] for name in ("epoch", "step", "history", "final", "finished", "traces")},
    )


def restore(loop: Loop, saved: dict[str, Any]) -> None:
    """Put every tensor of the loop back where it was; tensors keep their places in memory."""
    loop.network.load_state_dict(saved["network"])
    loop.masks.load_state_dict(saved["masks"])
    if "diverged" in saved:  # old checkpoints have none
        loop.rest.since.copy_(saved["diverged"])
        loop.rest.awake[loop.rest.runs] = False
    if saved["finished"]:
        loop.best = saved["best"]
        return
    if loop.best:
        loop.best |= {name: saved["best"][name] for name in ("score", "epoch")}
        _copy_all(loop.best["network"], saved["best"]["network"])
    load_optimizer(loop.optimizer, saved["optimizer"])
    if loop.scheduler is not None:
        loop.scheduler.load_state_dict(saved["scheduler"])
    _copy_all(loop.state, saved["constraint"])
    _copy_all(loop.totals, saved["totals"])
    if loop.now.trace is not None:
        loop.now.trace.copy_(saved["trace"])
    good = saved.get("good", {})  # old checkpoints have none
    if good or (saved["step"] == 0 and saved["epoch"] >= max(loop.recipe.pruning_epochs, 1)):
        divergence.remember(loop.rest, loop.network.state_dict())
        _copy_all(loop.rest.good, loop.rest.good | good)
    set_random_state(saved["random"], loop.device)


def _copy_all(target: dict[str, Tensor], source: dict[str, Tensor]) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])


def load_optimizer(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """As load_state_dict, with two differences: momenta get the memory format of their parameters, and a
    learning rate that is a tensor stays the same tensor, which a captured step goes on reading.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for place, entries in saved["state"].items():
        for name, value in entries.items():
            parameter = parameters[place]
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.ndim:
                entries[name] = torch.empty_like(parameter.detach(), dtype=value.dtype).copy_(value)
    held = [{k: v for k, v in group.items() if isinstance(v, Tensor)} for group in optimizer.param_groups]
    for own, other in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        if "capturable" in own:  # what this device wants, not the one that the checkpoint is from
            other["capturable"] = own["capturable"]
    optimizer.load_state_dict(saved)
    for group, tensors in zip(optimizer.param_groups, held, strict=True):
        for name, tensor in tensors.items():
            group[name] = tensor.copy_(torch.as_tensor(group[name]))


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Of the generators that a network's own layers draw from (dropout)."""
    states = {"cpu": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def set_random_state(states: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
