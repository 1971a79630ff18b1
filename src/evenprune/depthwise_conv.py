"""Depthwise 3×3 convolutions (padding 1, stride 1 or 2) of many runs: Triton kernels with an eager twin.

Depthwise layers of many runs side by side are one depthwise layer of runs · channels channels, so the kernels
of depthwise_kernels.py do not know of runs. They serve 16-bit images, channels-last, on a GPU; elsewhere
torch.nn.functional.conv2d does. Tests hold the two against each other.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from evenprune.grouped_conv import MOST_ELEMENTS, half_type

if TYPE_CHECKING or importlib.util.find_spec("triton"):
    from evenprune import depthwise_kernels
else:  # no GPU, or a build of torch without Triton
    depthwise_kernels = None

MOST_UNUSED = 1 / 8  # share of the channels that may be missing in the last block


class Setting(NamedTuple):
    """How a kernel is launched for one size of channel block."""

    lanes: int
    rows: int  # walked by a program before the next one takes over
    warps: int
    stages: int  # rows on their way from memory at the same time; 1: none in advance
    programs: int = 0  # of a gradient of the weight, about, in all


# By kernel and block of channels: the fastest on an H200 over MobileNetV2's layers, for one run and for five
# (benchmarks/results/depthwise_conv_settings.json); 3 % slower in sum than each layer's own best.
SETTINGS: dict[str, dict[int, Setting]] = {
    "walk": {32: Setting(8, 32, 2, 3), 64: Setting(8, 8, 2, 3), 128: Setting(4, 32, 2, 3)},
    "shrink": {32: Setting(16, 32, 2, 3), 64: Setting(8, 8, 2, 3), 128: Setting(4, 8, 2, 3)},
    "grow": {32: Setting(8, 8, 2, 3), 64: Setting(4, 8, 2, 3), 128: Setting(4, 8, 2, 3)},
    "walk_back": {
        32: Setting(16, 16, 2, 3, 528),
        64: Setting(8, 16, 2, 3, 2112),
        128: Setting(4, 64, 2, 3, 528),
    },
    "shrink_back": {
        32: Setting(16, 16, 2, 3, 528),
        64: Setting(8, 16, 2, 3, 1056),
        128: Setting(4, 64, 2, 3, 528),
    },
}


class Lanes(NamedTuple):
    """What the kernels walk along: the larger images of a layer, cut into lanes."""

    batch: int
    channels: int
    height: int
    width: int
    down: int  # rows to walk
    across: int  # lanes side by side

    @staticmethod
    def of(large: Tensor, stride: int) -> Lanes:
        batch, channels, height, width = large.shape
        down = height if stride == 1 else _parts(height, 2)
        return Lanes(batch, channels, height, width, down, _parts(width, 2))

    def units(self, setting: Setting) -> int:
        """Blocks of lanes times bands of rows."""
        return _parts(self.batch * self.across, setting.lanes) * _parts(self.down, setting.rows)


def _parts(whole: int, part: int) -> int:
    return -(-whole // part)


def block_of(channels: int, kernel: str) -> int:
    """The largest block of channels that leaves little unused; the smallest if none does."""
    known = sorted(SETTINGS[kernel])
    fits = [block for block in known if _parts(channels, block) * block <= channels * (1 + MOST_UNUSED)]
    return max(fits, default=known[0])


def small_size(height: int, width: int, stride: int) -> list[int]:
    """Height and width of the result: padding 1 keeps a side, stride 2 halves it, rounded up."""
    return [_parts(height, stride), _parts(width, stride)]


def launch(x: Tensor, weight: Tensor, y: Tensor, stride: int, *, transposed: bool) -> None:
    """Fill y with the convolution of x; or (transposed) with the gradient of its input."""
    name = "walk" if stride == 1 else "grow" if transposed else "shrink"
    large = Lanes.of(y if transposed else x, stride)
    block = block_of(large.channels, name)
    setting = SETTINGS[name][block]
    start, (by_channel, _, by_row, by_column) = 0, weight.stride()
    if transposed and stride == 1:  # the taps in reverse order
        start, by_row, by_column = 2 * (by_row + by_column), -by_row, -by_column
    programs = _parts(large.channels, block) * large.units(setting)
    getattr(depthwise_kernels, name)[(programs,)](
        x, weight, y, *large, setting.rows, start, by_channel, by_row, by_column,
        LANES=setting.lanes, BLOCK=block, STAGES=setting.stages, num_warps=setting.warps,
    )  # fmt: skip


def launch_back(x: Tensor, dy: Tensor, stride: int) -> Tensor:
    """Sums of parts of the images: [parts, channels, 3, 3, 1] float32."""
    name = "walk_back" if stride == 1 else "shrink_back"
    large = Lanes.of(x, stride)
    block = block_of(large.channels, name)
    setting, blocks = SETTINGS[name][block], _parts(large.channels, block)
    units = large.units(setting)
    each = _parts(units, max(1, min(units, _parts(setting.programs, blocks))))  # units of a program
    part = _empty_parts(x, _parts(units, each))
    getattr(depthwise_kernels, name)[(blocks * len(part),)](
        x, dy, part, *large, setting.rows, each,
        LANES=setting.lanes, BLOCK=block, STAGES=setting.stages, num_warps=setting.warps,
    )  # fmt: skip
    return part


def _empty_parts(x: Tensor, parts: int) -> Tensor:
    return torch.empty((parts, x.shape[1], 3, 3, 1), dtype=torch.float32, device=x.device)


def _empty_images(x: Tensor, size: list[int]) -> Tensor:
    shape = (*x.shape[:2], *size)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


# What torch.compile and autograd see.


@torch.library.custom_op("evenprune::depthwise_conv", mutates_args=())
def depthwise_conv(x: Tensor, weight: Tensor, size: list[int], stride: int, transposed: bool) -> Tensor:
    """The convolution; or (transposed) the gradient of its input. The result has images of `size`."""
    x = x.contiguous(memory_format=torch.channels_last)
    y = _empty_images(x, size)
    launch(x, weight, y, stride, transposed=transposed)
    return y


@torch.library.custom_op("evenprune::depthwise_conv_back", mutates_args=())
def depthwise_conv_back(x: Tensor, dy: Tensor, stride: int) -> Tensor:
    """The gradient of the weight [channels, 1, 3, 3]: float32, channels-last in memory."""
    x, dy = (t.contiguous(memory_format=torch.channels_last) for t in (x, dy))
    return launch_back(x, dy, stride).sum(0).permute(0, 3, 1, 2)


@depthwise_conv.register_fake
def _(x: Tensor, weight: Tensor, size: list[int], stride: int, transposed: bool) -> Tensor:
    return _empty_images(x, size)


@depthwise_conv_back.register_fake
def _(x: Tensor, dy: Tensor, stride: int) -> Tensor:
    return _empty_parts(x, 1)[0].permute(0, 3, 1, 2)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, ctx.stride, ctx.transposed = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    dx = dw = None
    if ctx.needs_input_grad[0]:
        dx = depthwise_conv(dy, weight, list(x.shape[2:]), ctx.stride, not ctx.transposed)
    if ctx.needs_input_grad[1]:
        large, small = (dy, x) if ctx.transposed else (x, dy)
        dw = depthwise_conv_back(large, small, ctx.stride).to(weight.dtype)
    return dx, dw, None, None, None


depthwise_conv.register_autograd(_backward, setup_context=_remember)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    """The convolution by the kernels. The result has the type of x; sums are float32 on the way."""
    x = x.contiguous(memory_format=torch.channels_last)
    size = small_size(x.shape[2], x.shape[3], stride)
    y = cast(Tensor, depthwise_conv(x, weight, size, stride, False))
    return y if bias is None else y + bias.to(y.dtype).view(1, -1, 1, 1)


def serves(x: Tensor, weight: Tensor, stride: int, pad: int) -> bool:
    """Whether the kernels can be used here; they are meant to be faster than cuDNN wherever they can."""
    if depthwise_kernels is None or not x.is_cuda or half_type(x) is None:
        return False
    return fits(x, weight, stride, pad)


def fits(x: Tensor, weight: Tensor, stride: int, pad: int) -> bool:
    """Whether this is a depthwise 3×3 layer whose places are 32-bit numbers."""
    channels = x.shape[1] if x.ndim == 4 else 0
    plain = tuple(weight.shape) == (channels, 1, 3, 3) and stride in (1, 2) and pad == 1
    return plain and x.numel() > 0 and max(x.numel(), weight.numel()) <= MOST_ELEMENTS
