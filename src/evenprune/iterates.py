"""Which iterate of a run is kept: the last, the most accurate on a named split, or the best feasible one."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from evenprune.method import Method
from evenprune.wide_layers import part

Best = dict[str, Any]  # "score" and "epoch", both [runs], and "network", a state dict


def no_best(network: nn.Module, runs: int) -> Best:
    return {
        "score": torch.full((runs,), -torch.inf, dtype=torch.float64),
        "epoch": torch.full((runs,), -1),
        "network": {name: t.detach().clone() for name, t in network.state_dict().items()},
    }


def keep_best(
    best: Best,
    network: nn.Module,
    methods: Sequence[Method],
    *,
    epoch: int,
    scores: Mapping[str, Mapping[str, Tensor]],
    least: Mapping[str, Tensor],
) -> None:
    """Remember the weights of runs that were never better on their named split; of equals, the earliest.

    least: what max ψ is at least [runs], of the splits that feasible iterates are kept on.
    """
    for i, method in enumerate(methods):
        if method.keep == "last" or method.keep_on is None:
            continue
        found = {name: float(v[i]) for name, v in scores[method.keep_on].items() if v.ndim == 1}
        at_least = float(least[method.keep_on][i]) if method.keep == "feasible" else 0.0
        score = iterate_score(method, found, least=at_least)
        if score > float(best["score"][i]):
            best["score"][i], best["epoch"][i] = score, epoch
            copy_run(best["network"], network.state_dict(), run=i, runs=len(methods))


def iterate_score(method: Method, found: Mapping[str, float], *, least: float) -> float:
    """Higher is better: by accuracy, or with keep="feasible" by merit."""
    if method.keep != "feasible":
        return found["accuracy"]
    return merit(found["accuracy"], gap=found["max_excess_gap"], least=least, tolerance=method.tolerance)


def merit(accuracy: float, *, gap: float, least: float, tolerance: float) -> float:
    """Higher is better. What is within the tolerance beats all else, then comes what the samples do not show
    to be beyond it, of both the more accurate first; last, by its gap, what is beyond.

    The smallest of many noisy gaps is no better than the others, and often of an early, poor iterate. least:
    what the gap, max ψ, is at least, by its lower limit.
    """
    if not is_within(least, tolerance):
        return -gap
    return (4 if is_within(gap, tolerance) else 2) + accuracy


def is_within(gap: float, tolerance: float) -> bool:
    return gap <= tolerance + 1e-9  # 0.02 is not above 0.02


def put_back_best(best: Best, network: nn.Module) -> None:
    """Runs that keep their best iterate get it back; those that have none keep the last."""
    if best:
        runs = len(best["epoch"])
        for i in (best["epoch"] >= 0).nonzero().flatten().tolist():
            copy_run(network.state_dict(), best["network"], run=i, runs=runs)


@torch.no_grad()
def copy_run(target: Mapping[str, Tensor], source: Mapping[str, Tensor], *, run: int, runs: int) -> None:
    """Copy one run's part of every tensor of `source`."""
    for name, tensor in source.items():
        if tensor.ndim or runs == 1:  # not a count of batches, one for all runs
            part(target[name], run, runs).copy_(part(tensor, run, runs))
