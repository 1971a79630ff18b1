"""Runs whose loss or weights stop being finite: they go back to their last good epoch and rest there.

The other runs of the network go on as if nothing had happened: no tensor mixes two runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from evenprune.iterates import copy_run
from evenprune.wide_layers import part


@dataclass
class Rest:
    """Which runs rest, and the weights that all runs would go back to."""

    since: Tensor  # [runs] on the CPU: the epoch in which a run diverged, -1 of the others
    awake: Tensor  # [runs] bool; samples of the others weigh nothing, and their multipliers stay
    good: dict[str, Tensor]  # the network after the last epoch; empty before the first at the final sparsity

    @property
    def runs(self) -> list[int]:
        return (self.since >= 0).nonzero().flatten().tolist()


def nobody(runs: int, device: torch.device) -> Rest:
    return Rest(torch.full((runs,), -1), torch.ones(runs, dtype=torch.bool, device=device), {})


@torch.no_grad()
def lay_down(
    rest: Rest,
    run: int,
    epoch: int,
    *,
    network: nn.Module,
    optimizer: Optimizer,
    states: Iterable[tuple[Tensor, Tensor]],
) -> None:
    """The run goes back to its last good weights, without momenta, and its samples weigh nothing any more.

    states: tensors [runs, …], and what they are where nothing has happened yet.
    """
    runs = len(rest.since)
    if rest.awake[run]:
        rest.since[run] = epoch
    rest.awake[run] = False
    copy_run(network.state_dict(), rest.good, run=run, runs=runs)
    for parameter, entries in optimizer.state.items():
        for value in entries.values():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                part(value, run, runs).zero_()
    for state, fresh in states:
        state[run] = fresh[run]


def end_epoch(rest: Rest, network: nn.Module, *, final: bool) -> None:
    """Put resting runs back to where they rest; if their sparsity is `final`, remember all the others."""
    now, runs = network.state_dict(), len(rest.since)
    for run in rest.runs:
        copy_run(now, rest.good, run=run, runs=runs)
    if final:
        remember(rest, now)


@torch.no_grad()
def remember(rest: Rest, network: Mapping[str, Any]) -> None:
    """A state dict, which may hold more than tensors."""
    tensors = {name: value for name, value in network.items() if isinstance(value, Tensor)}
    if not rest.good:
        rest.good = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        rest.good[name].copy_(tensor)
