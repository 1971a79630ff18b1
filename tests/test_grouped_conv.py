"""Convolutions for narrow groups: the kernels in Triton's interpreter, and where they are used."""

from pathlib import Path

import pytest
import torch
from torch import nn

from evenprune import grouped_conv
from evenprune.grouped_conv import Shape
from evenprune.wide_layers import WideConv2d, widened
from tests.kernel_process import interpreted, needs_triton

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@needs_triton
def test_kernels_agree_with_the_plain_convolution() -> None:
    """Result and all gradients. In a process of its own: importing Triton chooses the interpreter."""
    printed = interpreted("narrow_convs")
    assert len(printed) == 18
    assert all(float(line.rsplit(" ", 1)[1]) < 1e-6 for line in printed), printed


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(16, 16, 3, padding=1), Shape(3, 1, 1, 4)),
        (nn.Conv2d(16, 32, 1, stride=2, bias=False), Shape(1, 2, 0, 4)),
        (nn.Conv2d(16, 16, 3, padding="same"), None),
        (nn.Conv2d(16, 16, 3, padding=1, groups=16), None),
        (nn.Conv2d(16, 16, 3, padding=2, dilation=2), None),
        (nn.Conv2d(16, 16, (1, 3)), None),
        (nn.Conv2d(16, 16, 3, padding=1, padding_mode="circular"), None),
    ],
)
def test_which_layers_are_plain_enough(layer: nn.Conv2d, shape: Shape | None) -> None:
    wide = widened(layer, 4)
    assert isinstance(wide, WideConv2d)
    assert wide._shape() == shape


def test_on_the_cpu_the_plain_convolution_serves() -> None:
    x, weight = torch.randn(2, 32, 8, 8, dtype=torch.bfloat16), torch.randn(32, 16, 3, 3)
    assert not grouped_conv.serves(x, weight, Shape(3, 2, 1, 2))


@pytest.mark.parametrize("size", [(8, 8), (7, 5), (1, 3)])
def test_the_size_of_the_result(size: tuple[int, int]) -> None:
    for kernel, stride, pad in ((3, 1, 1), (3, 2, 1), (1, 2, 0), (3, 2, 0)):
        if min(size) + 2 * pad >= kernel:
            made = nn.Conv2d(1, 1, kernel, stride=stride, padding=pad)(torch.zeros(1, 1, *size))
            assert Shape(kernel, stride, pad, 1).result(*size) == tuple(made.shape[2:])


@pytest.mark.parametrize("shape", [Shape(3, 1, 1, 3), Shape(3, 2, 1, 2), Shape(1, 2, 0, 4)], ids=str)
def test_run_by_run_is_the_plain_convolution(shape: Shape) -> None:
    x = torch.randn(2, shape.runs * 5, 7, 6, dtype=torch.float64, requires_grad=True)
    size = (shape.runs * 4, 5, shape.kernel, shape.kernel)
    weight = torch.randn(size, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(shape.runs * 4, dtype=torch.float64, requires_grad=True)
    got = grouped_conv.run_by_run(x.to(memory_format=torch.channels_last), weight, bias, shape)
    expected = nn.functional.conv2d(x, weight, bias, shape.stride, shape.pad, groups=shape.runs)
    assert got.is_contiguous(memory_format=torch.channels_last)
    grown, given = torch.randn_like(expected), (x, weight, bias)
    found, truth = ((y, *torch.autograd.grad(y, given, grown)) for y in (got, expected))
    for a, b in zip(found, truth, strict=True):
        torch.testing.assert_close(a, b)
