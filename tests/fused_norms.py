"""The kernels of norm_kernels.py against the plain operations; with TRITON_INTERPRET=1 on any CPU."""

import copy
import itertools
from typing import Any

import torch
from torch import Tensor, nn

from evenprune import fused_norm

# channels, height, width, images
SIZES = [(16, 5, 3, 4), (20, 4, 4, 3), (80, 3, 3, 2)]


def drawn(*size: int, generator: torch.Generator) -> Tensor:
    values = 3 * torch.randn(size, generator=generator) + 2
    return values.contiguous(memory_format=torch.channels_last).requires_grad_()


def results(
    norm: nn.BatchNorm2d, kernels: bool, *, size: Any, act: Any, more: bool, twice: bool
) -> list[Tensor]:
    """The result, all gradients and the running statistics."""
    channels, height, width, images = size
    generator = torch.Generator().manual_seed(channels)
    shape = (images, channels, height, width)
    x = drawn(*shape, generator=generator)
    residual = drawn(*shape, generator=generator) if more else None
    if kernels:
        made = fused_norm.fused(norm, x, residual, act, twice=twice)
    else:
        one = fused_norm.plain(norm, x, residual, act)
        made = (one, one) if twice else one
    both = made if isinstance(made, tuple) else (made,)
    grown = [torch.randn(shape, generator=generator) for _ in both]
    inputs = [t for t in (x, residual, norm.weight, norm.bias) if t is not None]
    gradients = torch.autograd.grad(both, inputs, grown)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    held = [norm.running_mean, norm.running_var, norm.num_batches_tracked.float()]
    return [both[-1].detach(), *gradients, *held]


def largest_error(**case: Any) -> float:
    norm = nn.BatchNorm2d(case["size"][0], momentum=0.3)
    generator = torch.Generator().manual_seed(1)
    for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        assert tensor is not None
        tensor.data.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    norm.train(case.pop("training"))
    pairs = [results(copy.deepcopy(norm), kernels, **case) for kernels in (False, True)]
    return max(float((a - b).norm() / a.norm().clamp(min=1e-3)) for a, b in zip(*pairs, strict=True))


if __name__ == "__main__":
    fused_norm.TILE, fused_norm.SUMS = (4, 4, 1), (4, 4, 1, 6)
    acts = ("none", "relu", "relu6")
    for size, act, more, training in itertools.product(SIZES, acts, (True, False), (True, False)):
        twice = size is not SIZES[1]
        error = largest_error(size=size, act=act, more=more, twice=twice, training=training)
        print(size, act, "residual" if more else "alone", "training" if training else "evaluating", error)
