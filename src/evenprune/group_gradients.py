"""∂L_g/∂w of every group at once, from one forward and one backward of the whole batch.

In evaluation mode samples do not see each other, so a gradient is a sum over samples. Of a convolution:

    ∂L_g/∂w = Σ_{i in g} 1/n_g Σ_places  δ_i(place) ⊗ patch_i(place)

with δ_i the gradient of sample i's loss at the layer's output, and patch_i what the filter read there. A pass
leaves both for every layer; one product gives the gradients of the samples, another those of the groups.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from evenprune import fleet

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
MOST_NUMBERS = 2**27  # in one intermediate tensor: half a gigabyte of float32


@dataclass(frozen=True)
class Seen:
    """One call of a layer. `probe` was added to what it gave, as zeros: its gradient is δ."""

    inputs: Tensor
    probe: Tensor


def network_of(
    network: fleet.Fleet | fleet.Single, names: Sequence[str], sample: Tensor
) -> fleet.Fleet | None:
    """A fleet: each layer is called as a module, and the batch has its place in every tensor.

    `sample`: a batch of one run. None where the network cannot be a fleet, where some of the weights with
    these names are not of a linear layer or a convolution, or where samples see each other in evaluation too.
    """
    if not all(name.endswith(".weight") and isinstance(_owner(network, name), _LAYERS) for name in names):
        return None
    if any(isinstance(norm, _BATCH_NORMS) and norm.running_mean is None for norm in network.modules()):
        return None
    if isinstance(network, fleet.Fleet):
        return network
    try:
        only = torch.zeros(1, dtype=torch.long, device=sample.device)
        return fleet.of_runs(network, only, sample_input=sample)
    except fleet.CannotWiden:
        return None


def _owner(network: nn.Module, name: str) -> nn.Module:
    return network.get_submodule(name.rpartition(".")[0])


@contextlib.contextmanager
def watched(network: fleet.Fleet, names: Sequence[str]) -> Iterator[dict[str, list[Seen]]]:
    """The calls of the layers that own these weights, by the weight's name, while the context lasts."""
    calls: dict[str, list[Seen]] = {name: [] for name in names}

    def watch(name: str) -> RemovableHandle:
        def note(_: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
            seen = Seen(arguments[0].detach(), torch.zeros_like(output, requires_grad=True))
            calls[name].append(seen)
            return output + seen.probe  # whatever is done to it in place

        return _owner(network, name).register_forward_hook(note)

    handles = [watch(name) for name in names]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def shares(ids: Tensor, groups: Tensor) -> Tensor:
    """[groups, samples]: 1/n_g where the sample is of the group, else 0."""
    own = (ids == groups.unsqueeze(1)).double()
    return own / own.sum(1, keepdim=True)


@torch.no_grad()
def of_weight(network: fleet.Fleet, name: str, seen: Seen, signal: Tensor, share: Tensor) -> Tensor:
    """∂L_g/∂w, [runs, groups, numbers of a run's weight]. signal: δ; share: as above."""
    layer = cast(nn.Linear | Convolution, _owner(network, name))
    weight, inputs = layer.weight, seen.inputs
    if isinstance(layer, nn.Linear):
        inputs, signal = _by_sample(inputs), _by_sample(signal).transpose(2, 3)
        numbers = inputs[0].numel()
    else:
        signal = signal.unflatten(1, (layer.groups, -1)).flatten(3)  # type: ignore[no-untyped-call]
        numbers = signal.shape[-1] * layer.in_channels * math.prod(layer.kernel_size)
    # signal: [batch, parts, out, places]; a part is a run, or a group of its channels
    sums = weight.new_zeros(len(share), weight.numel())
    at_once = max(1, MOST_NUMBERS // max(numbers, weight.numel()))
    for first in range(0, len(inputs), at_once):
        own = slice(first, first + at_once)
        read = inputs[own].to(weight.dtype)  # [batch, parts, places, in]
        if not isinstance(layer, nn.Linear):
            read = _patches(layer, read)
        each = signal[own].to(weight.dtype) @ read
        sums.addmm_(share[:, own].to(weight.dtype), each.flatten(1))
    return sums.view(len(share), network.runs, -1).transpose(0, 1)


def _by_sample(rows: Tensor) -> Tensor:
    """[runs, batch, …, features] -> [batch, runs, places, features]"""
    return rows.reshape(*rows.shape[:2], -1, rows.shape[-1]).transpose(0, 1)


def _patches(conv: Convolution, inputs: Tensor) -> Tensor:
    """What each filter reads, place by place: [batch, parts, places, in · kernel]."""
    mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
    read = F.pad(inputs, conv._reversed_padding_repeated_twice, mode=mode)
    for axis, size in enumerate(conv.kernel_size):
        apart = conv.dilation[axis]
        read = read.unfold(2 + axis, apart * (size - 1) + 1, conv.stride[axis])[..., ::apart]
    space, parts = len(conv.kernel_size), (conv.groups, -1)
    read = read.unflatten(1, parts)  # type: ignore[no-untyped-call]  # [batch, parts, in, *places, *kernel]
    patches: Tensor = read.movedim(2, 2 + space).flatten(2, 1 + space).flatten(3)
    return patches
