"""The kernels of norm_kernels.py against the plain operations; with TRITON_INTERPRET=1 on any CPU."""

import copy
import itertools
from typing import Any

import torch
from torch import Tensor, nn

from evenprune import fleet, fused_norm

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


def still_error() -> float:
    """The kernels' result and gradient of channels of threes and of zeros, against what they should be."""
    norm, x = nn.BatchNorm2d(16), torch.zeros(2, 16, 3, 3)
    x[:, :8] = 3
    x.requires_grad_()
    nn.init.normal_(norm.bias)
    y = fused_norm.fused(norm, x, None, "none", twice=False)
    assert isinstance(y, Tensor)
    grown = torch.randn(y.shape)
    (dx,) = torch.autograd.grad(y, x, grown)
    off = float((y - norm.bias[None, :, None, None]).detach().abs().max()) + float(dx[:, :8].abs().max())
    return off + float(bool((dx[:, 8:] == 0).all()))  # a filter of zeros can learn


class Block(nn.Module):
    """Two layers and a shortcut, three times: every result has two uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 1, bias=False), nn.BatchNorm2d(16)
        self.convs = nn.ModuleList([nn.Conv2d(16, 16, 1, bias=False) for _ in range(6)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(16) for _ in range(6)])
        self.last = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        for i in (0, 2, 4):
            within = torch.relu(self.norms[i](self.convs[i](x)))
            x = torch.relu(self.norms[i + 1](self.convs[i + 1](within)) + x)
        logits: Tensor = self.last(x.mean((2, 3)))
        return logits


def whole_network_error() -> float:
    """A widened network with the kernels in it, against the same without: gradients and statistics."""
    torch.manual_seed(0)
    usual, found = fused_norm.serves, []
    wide = fleet.widen(Block(), 2, sample_input=torch.zeros(2, 3, 4, 4), check=False)
    inputs, grown = torch.randn(2, 3, 3, 4, 4), torch.randn(2, 3, 4)
    for kernels in (False, True):
        fused_norm.serves = lambda *given, kernels=kernels: kernels
        one = copy.deepcopy(wide)
        one(inputs).backward(grown)
        found.append([t.double() for t in (*(p.grad for p in one.parameters()), *one.buffers())])
    fused_norm.serves = usual
    return max(float((a - b).norm() / a.norm().clamp(min=1e-3)) for a, b in zip(*found, strict=True))


if __name__ == "__main__":
    fused_norm.TILE = (1, 4, 1)
    fused_norm.MOMENTS = fused_norm.BACK_SUMS = (1, 4, 1, 6, 128)
    acts, ways = ("none", "relu", "relu6"), [*itertools.product((True, False), (True, False))]
    cases = [(SIZES[0], act, *way) for act in acts for way in ways]
    cases += [(size, acts[i % 3], *way) for size in SIZES[1:] for i, way in enumerate(ways)]
    for size, act, more, training in cases:
        twice = size is not SIZES[1]
        error = largest_error(size=size, act=act, more=more, twice=twice, training=training)
        print(size, act, "residual" if more else "alone", "training" if training else "evaluating", error)
    print("still", still_error())
    print("network", whole_network_error())
