"""FairGRAPE as one would do it by hand: sort each group's weights, give to the neediest, one at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


def targets(importance: Sequence[Sequence[float]], alive: Sequence[bool]) -> list[float]:
    """Each group's share of the total importance; all zero if there is none."""
    totals = []
    for row in importance:
        total = 0.0
        for value, living in zip(row, alive, strict=True):
            total += value if living else 0.0
        totals.append(total)
    everything = 0.0
    for total in totals:
        everything += total
    return [total / everything if everything else 0.0 for total in totals]


def kept(importance: Sequence[Sequence[float]], alive: Sequence[bool], keep: int) -> list[bool]:
    """importance[group][weight]; True for the weights that stay."""
    target = targets(importance, alive)
    groups = range(len(importance))
    queues = [
        sorted((w for w in range(len(alive)) if alive[w]), key=lambda w, row=row: (-row[w], w))
        for row in importance
    ]
    place = [0 for _ in groups]
    held = [0.0 for _ in groups]
    stay = [False for _ in alive]
    for _ in range(keep):
        total = 0.0
        for value in held:
            total += value
        deficits = [target[g] - (held[g] / total if total else 0.0) for g in groups]
        neediest = deficits.index(max(deficits))
        while stay[queues[neediest][place[neediest]]]:
            place[neediest] += 1
        weight = queues[neediest][place[neediest]]
        stay[weight] = True
        for g in groups:
            held[g] += importance[g][weight]
    return stay


def importance(
    model: nn.Module, names: Sequence[str], batches: Sequence[tuple[Tensor, Tensor, Tensor]], groups: int
) -> dict[str, Tensor]:
    """Per name [groups, *shape]: sample by sample, the whole batch forward anew for each group."""
    model.eval()
    own = {name: model.get_parameter(name) for name in names}
    found = {name: torch.zeros(groups, *weight.shape, dtype=torch.float64) for name, weight in own.items()}
    for inputs, labels, ids in batches:
        for group in range(groups):
            members = [i for i in range(len(ids)) if int(ids[i]) == group]
            sums = {name: torch.zeros_like(weight) for name, weight in own.items()}
            for i in members:
                model.zero_grad()
                functional.cross_entropy(model(inputs)[i : i + 1], labels[i : i + 1]).backward()
                for name, weight in own.items():
                    sums[name] += weight.grad
            for name, weight in own.items() if members else ():
                gradient = sums[name] / len(members)
                found[name][group] += (weight.abs() * gradient.abs()).detach().double() ** 2
    model.zero_grad()
    return found
