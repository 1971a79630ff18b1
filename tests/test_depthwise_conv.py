"""Depthwise convolutions: the kernels in Triton's interpreter, and where they are used."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from evenprune import depthwise_conv
from evenprune.depthwise_conv import SETTINGS, Lanes, Setting, block_of, fits, small_size
from evenprune.fleet import widen
from evenprune.models import mobilenet_v2
from evenprune.wide_layers import WideConv2d
from tests.kernel_process import interpreted, needs_triton

ROOT = Path(__file__).parent.parent
BOUNDS = {"float32": 1e-6, "transposed": 1e-6, "weight": 1e-6, "images": 2**-7}  # bfloat16 has eight bits


@pytest.mark.slow
@needs_triton
def test_kernels_agree_with_the_plain_convolution() -> None:
    """Result and all gradients. In a process of its own: importing Triton chooses the interpreter."""
    printed = interpreted("depthwise_convs")
    lines = [line.split() for line in printed]
    assert len(lines) == 20
    assert all(float(error) < BOUNDS[what] for *_, what, error in lines), printed


def layer(*size: int, stride: int = 1, pad: int = 1, images: int = 2, side: int = 8) -> bool:
    """Whether a layer with a weight of this size fits; nothing is computed."""
    x = torch.empty(images, 16, side, side, device="meta", dtype=torch.bfloat16)
    return fits(x, torch.empty(size, device="meta"), stride, pad)


def test_which_layers_fit() -> None:
    assert layer(16, 1, 3, 3)
    assert layer(16, 1, 3, 3, stride=2, side=7)
    assert not layer(16, 1, 3, 3, stride=3)
    assert not layer(16, 1, 3, 3, pad=0)
    assert not layer(16, 1, 5, 5, pad=1)
    assert not layer(16, 4, 3, 3)  # groups of four channels
    assert not layer(32, 1, 3, 3)  # two results per channel
    assert layer(16, 1, 3, 3, images=2**13 - 1, side=128)
    assert not layer(16, 1, 3, 3, images=2**13, side=128)  # 2³¹ elements
    assert not layer(16, 1, 3, 3, images=0)


def test_on_the_cpu_the_plain_convolution_serves() -> None:
    x, weight = torch.randn(2, 16, 8, 8, dtype=torch.bfloat16), torch.randn(16, 1, 3, 3)
    assert fits(x, weight, 1, 1)
    assert not depthwise_conv.serves(x, weight, 1, 1)


def test_every_depthwise_layer_of_a_widened_mobilenet_fits() -> None:
    wide = widen(mobilenet_v2(5), 3, sample_input=torch.zeros(2, 3, 32, 32), check=False)
    found = []

    def look(module: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        assert isinstance(module, WideConv2d)
        served = module._plain() and fits(inputs[0], module.weight, module.stride[0], int(module.padding[0]))
        found.append((served, module.weight.shape[1] == 1))

    for module in wide.modules():
        if isinstance(module, WideConv2d):
            module.register_forward_hook(look)
    wide.to("meta")(torch.zeros(3, 2, 3, 32, 32, device="meta"))
    assert sum(served for served, _ in found) == 17
    assert all(served == depthwise for served, depthwise in found)


@given(st.integers(1, 5000), st.sampled_from(sorted(SETTINGS)))
def test_little_of_the_last_block_is_unused(channels: int, kernel: str) -> None:
    block = block_of(channels, kernel)
    larger = [other for other in SETTINGS[kernel] if other > block]
    assert -channels % block <= channels / 8 or block == min(SETTINGS[kernel])
    assert all(-channels % other > channels / 8 for other in larger)


@pytest.mark.parametrize("size", [(8, 8), (7, 5), (1, 3)])
@pytest.mark.parametrize("stride", [1, 2])
def test_the_size_of_the_result(size: tuple[int, int], stride: int) -> None:
    made = nn.Conv2d(1, 1, 3, stride=stride, padding=1)(torch.zeros(1, 1, *size))
    assert small_size(*size, stride) == list(made.shape[2:])


def test_lanes_and_bands_of_a_layer() -> None:
    x = torch.empty(3, 32, 10, 7, device="meta")
    setting = Setting(lanes=8, rows=4, warps=4, stages=1)
    assert Lanes.of(x, 1) == (3, 32, 10, 7, 10, 4)
    assert Lanes.of(x, 1).units(setting) == 2 * 3  # 12 lanes in blocks of 8, 10 rows in bands of 4
    assert Lanes.of(x, 2) == (3, 32, 10, 7, 5, 4)
    assert Lanes.of(x, 2).units(setting) == 2 * 2


def test_settings_are_what_the_kernels_can_take() -> None:
    """Powers of two, and at least as many elements as threads."""
    for name, table in SETTINGS.items():
        for block, (lanes, rows, warps, stages, programs) in table.items():
            assert all(n & (n - 1) == 0 for n in (block, lanes, warps))
            assert block * lanes >= 32 * warps
            assert min(rows, stages) >= 1
            assert (programs > 0) == name.endswith("_back")
