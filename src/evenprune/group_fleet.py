"""A network once per run and group: a single pass gives the gradients of many groups.

On a GPU a pass over the few samples of one group costs as much time as one over many, as kernels wait for
their launch. Here the groups of a batch stand side by side as the runs of a fleet do. The network must be in
evaluation mode, where samples do not see each other: so filling up the smaller groups changes nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evenprune import fleet

MOST_MEMBERS = 512  # runs times groups


class GroupFleet:
    """Copies of a network's runs, `at_once` of each, with the weights that it has now."""

    def __init__(self, network: fleet.Fleet | fleet.Single, *, groups: int, sample: Tensor) -> None:
        """`sample`: a batch of one run. Raises fleet.CannotWiden where the network cannot be widened."""
        self.runs = network.runs
        self.at_once = max(1, min(groups, MOST_MEMBERS // self.runs))
        members = torch.arange(self.runs).repeat_interleave(self.at_once)
        self.network = fleet.of_runs(network, members.to(sample.device), sample_input=sample)

    def arranged(self, values: Tensor) -> Tensor:
        """[groups at once, samples, …] -> [members, samples, …]: every run sees the same."""
        members = values.unsqueeze(0).expand(self.runs, *values.shape)
        return members.reshape(-1, *values.shape[1:])


def side_by_side(ids: Tensor, groups: Tensor, at_once: int) -> tuple[Tensor, Tensor]:
    """Samples of each group and their weights in its mean, [at_once, most samples of a group] each.

    Groups with fewer samples are filled up with any, of weight 0; so are places beyond the last group.
    """
    own = ids == torch.nn.functional.pad(groups, (0, at_once - len(groups)), value=-2).unsqueeze(1)
    number = own.sum(1, keepdim=True)
    most = int(number.max())
    order = own.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]  # own samples first
    there = torch.arange(most, device=ids.device) < number
    return order, there.double() / number.clamp_min(1)
