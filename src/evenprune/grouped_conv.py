"""2-D convolutions of many runs side by side, for few channels per run: Triton kernels with an eager twin.

A widened network calls one convolution with `runs` groups of 16 to 64 channels each. cuDNN falls back to one
kernel per group for strided layers and for layers of 3 channels, and is slow for a single run. The kernels of
conv_kernels.py take over there; elsewhere, and without Triton or a GPU, torch.nn.functional.conv2d serves.
Tests hold the two against each other. Of more channels cuDNN also goes from run to run, but may choose an
algorithm that is many times slower than that of a single run: there each run is a convolution of its own.

The kernels that gather, measured on one H200 (CifarResNet-56, batch 128; forward, gradient of input and of
weight, in µs): a strided 3×3 layer of 25 runs: cuDNN 2,337, here 486; strided 1×1: 2,192 and 115; the first
layer: 963 and 475; a 16-channel layer of a single run: 89 and 37
(benchmarks/results/narrow_conv_settings.json).
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING or importlib.util.find_spec("triton"):
    from evenprune import conv_kernels
else:  # no GPU, or a build of torch without Triton
    conv_kernels = None

MOST_CHANNELS = 64  # of one run; above, cuDNN serves
FEW_RUNS = 4  # above, cuDNN is faster in unstrided layers
MOST_ELEMENTS = 2**31 - 1  # of a tensor: places are 32-bit numbers
LEAST_BLOCK = 16  # channels are rounded up to this, and to a power of two, in a product
LEAST_INPUT = 4  # channels that are loaded at once: eight bytes

# Settings by the channels that come in; those of gather are measured on one H200.
# gather: pixels of a program, taps fetched for one product (0: one product per tap), warps, stages.
GATHER = {4: (128, 16, 8, 1), 16: (256, 0, 4, 3), 32: (128, 0, 4, 3), 64: (128, 0, 8, 3)}
GATHER_BACK = (64, 4, 3, 528)  # pixels at a time, warps, stages, programs in all
# walk: pairs of pixels of a row at a time, rows of a program, warps, stages.
# walk_back: pixels of a row at a time, rows of a program, warps, stages, programs in all.
# Both by channels, and whether there are few runs; the padded 4 channels of a first layer count as 16. Where
# walk serves many runs and walk_back does not, the gradient of the weight is cuDNN's. Measured on one H200
# (benchmarks/results/walk_settings.json, and walk_settings_1.json for a single run); of 32 channels and many
# runs the second best, by 1 %, as the best one spills registers.
WALK = {
    (16, False): (32, 16, 2, 3),
    (32, False): (16, 16, 2, 3),
    (16, True): (16, 8, 1, 3),
    (32, True): (16, 4, 2, 3),
}
WALK_BACK = {
    (16, False): (32, 16, 2, 1, 2112),
    (16, True): (64, 16, 4, 1, 1056),
    (32, True): (32, 8, 2, 1, 1056),
}


class Shape(NamedTuple):
    """What a convolution of many runs is, apart from its tensors."""

    kernel: int
    stride: int
    pad: int
    runs: int

    def walks(self, channels: int) -> bool:
        plain = (self.kernel, self.stride, self.pad) == (3, 1, 1)
        return plain and self.key(channels) in WALK

    def key(self, channels: int) -> tuple[int, bool]:
        """Where the settings of the walking kernels are."""
        return _block_of(channels), self.runs <= FEW_RUNS

    def way_back(self, channels: int) -> Callable[[Tensor, Tensor, Shape], Tensor]:
        """What makes the gradient of the weight."""
        if not self.walks(channels):
            return gather_back
        if self.key(channels) in WALK_BACK:
            return walk_back
        return gather_back if self.runs <= FEW_RUNS else cudnn_back

    def result(self, height: int, width: int) -> tuple[int, int]:
        down, right = ((side + 2 * self.pad - self.kernel) // self.stride + 1 for side in (height, width))
        return down, right


def _block_of(channels: int, least: int = LEAST_BLOCK) -> int:
    return max(least, 1 << (channels - 1).bit_length())


def _parts(whole: int, part: int) -> int:
    return -(-whole // part)


def _strides(weight: Tensor, runs: int, transposed: bool) -> tuple[int, ...]:
    """Of the weight: by run, by channel coming in and going out, by row and by column of the kernel."""
    inner, outer = (0, 1) if transposed else (1, 0)
    by_run = weight.shape[0] // runs * weight.stride(0)
    return by_run, weight.stride(inner), weight.stride(outer), weight.stride(2), weight.stride(3)


def gather(x: Tensor, weight: Tensor, y: Tensor, shape: Shape, *, transposed: bool) -> None:
    runs, pixels = shape.runs, y.shape[0] * y.shape[2] * y.shape[3]
    channels, out = x.shape[1] // runs, y.shape[1] // runs
    block, taps, warps, stages = GATHER[
        _block_of(channels, LEAST_INPUT if channels <= LEAST_INPUT else LEAST_BLOCK)
    ]
    conv_kernels.gather[(runs * _parts(pixels, block),)](
        x, weight, y, pixels, runs, *_strides(weight, runs, transposed),
        HEIGHT=x.shape[2], WIDTH=x.shape[3], OUT_HEIGHT=y.shape[2], OUT_WIDTH=y.shape[3],
        IN=channels, OUT=out, KERNEL=shape.kernel, STRIDE=shape.stride, PAD=shape.pad, TRANSPOSED=transposed,
        IN_BLOCK=_block_of(channels, LEAST_INPUT if taps else LEAST_BLOCK), OUT_BLOCK=_block_of(out),
        ALL=taps, BLOCK=block, num_warps=warps, num_stages=stages,
    )  # fmt: skip


def walk(x: Tensor, weight: Tensor, y: Tensor, shape: Shape, *, transposed: bool) -> None:
    (batch, _, height, width), runs = x.shape, shape.runs
    channels, out = x.shape[1] // runs, y.shape[1] // runs
    pairs, rows, warps, stages = WALK[shape.key(channels)]
    across = _block_of(_parts(width, 2), 1)
    images = max(1, pairs // across)
    conv_kernels.walk[(runs, _parts(batch, images), _parts(height, rows))](
        x, weight, y, batch, runs, *_strides(weight, runs, transposed),
        HEIGHT=height, WIDTH=width, IN=channels, OUT=out, FLIP=transposed,
        IN_BLOCK=_block_of(channels), OUT_BLOCK=_block_of(out), PAIRS=across, IMAGES=images, ROWS=rows,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip


def gather_back(x: Tensor, dy: Tensor, shape: Shape) -> Tensor:
    """Sums of chunks of pixels: [chunks, runs · out, kernel, kernel, in] float32."""
    runs, pixels, (block, warps, stages, programs) = shape.runs, dy.numel() // dy.shape[1], GATHER_BACK
    channels, out = x.shape[1] // runs, dy.shape[1] // runs
    splits = max(1, min(_parts(programs, shape.kernel * runs), _parts(pixels, 4 * block)))
    chunk = _parts(_parts(pixels, splits), block) * block
    part = _empty_parts(x, dy, shape, _parts(pixels, chunk))
    conv_kernels.gather_back[(shape.kernel, runs, len(part))](
        x, dy, part, pixels, runs, chunk,
        HEIGHT=x.shape[2], WIDTH=x.shape[3], OUT_HEIGHT=dy.shape[2], OUT_WIDTH=dy.shape[3],
        IN=channels, OUT=out, KERNEL=shape.kernel, STRIDE=shape.stride, PAD=shape.pad,
        IN_BLOCK=_block_of(channels), OUT_BLOCK=_block_of(out), BLOCK=block,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return part


def walk_back(x: Tensor, dy: Tensor, shape: Shape) -> Tensor:
    """Sums of blocks of images: [blocks, runs · out, kernel, kernel, in] float32."""
    (batch, _, height, width), runs = x.shape, shape.runs
    channels, out = x.shape[1] // runs, dy.shape[1] // runs
    pixels, rows, warps, stages, programs = WALK_BACK[shape.key(channels)]
    across = _block_of(width, 1)
    images = max(1, pixels // across)
    bands, blocks = _parts(height, rows), _parts(batch, images)
    each = _parts(blocks, max(1, min(blocks, _parts(programs, runs * bands))))  # blocks of a program
    part = _empty_parts(x, dy, shape, _parts(blocks, each) * bands)
    conv_kernels.walk_back[(runs, _parts(blocks, each), bands)](
        x, dy, part, batch, runs, each, HEIGHT=height, WIDTH=width, IN=channels, OUT=out,
        IN_BLOCK=_block_of(channels), OUT_BLOCK=_block_of(out), WIDTH_BLOCK=across, IMAGES=images, ROWS=rows,
        num_warps=warps * _block_of(out) // LEAST_BLOCK, num_stages=stages,  # wider results: as much a thread
    )  # fmt: skip
    return part


def cudnn_back(x: Tensor, dy: Tensor, shape: Shape) -> Tensor:
    """The sum itself, [1, runs · out, kernel, kernel, in] float32."""
    size = (dy.shape[1], x.shape[1] // shape.runs, shape.kernel, shape.kernel)
    # Only its shape is looked at.
    like = torch.empty(size, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    stride, pad, one = [shape.stride] * 2, [shape.pad] * 2, [1, 1]
    made = torch.ops.aten.convolution_backward(
        dy, x, like, None, stride, pad, one, False, [0, 0], shape.runs, [False, True, False]
    )[1]
    return cast(Tensor, made).float().permute(0, 2, 3, 1).unsqueeze(0)


def _empty_parts(x: Tensor, dy: Tensor, shape: Shape, parts: int) -> Tensor:
    size = (parts, dy.shape[1], shape.kernel, shape.kernel, x.shape[1] // shape.runs)
    return torch.empty(size, dtype=torch.float32, device=x.device)


# What torch.compile and autograd see.


@torch.library.custom_op("evenprune::narrow_conv", mutates_args=())
def narrow_conv(
    x: Tensor,
    weight: Tensor,
    size: list[int],
    kernel: int,
    stride: int,
    pad: int,
    runs: int,
    transposed: bool,
) -> Tensor:
    """The convolution; or (transposed) the gradient of its input. The result has images of `size`."""
    x, shape = x.contiguous(memory_format=torch.channels_last), Shape(kernel, stride, pad, runs)
    y = _empty_images(x, weight, size, runs, transposed)
    way = walk if shape.walks(x.shape[1] // runs) else gather
    way(x, weight, y, shape, transposed=transposed)
    return y


@torch.library.custom_op("evenprune::narrow_conv_back", mutates_args=())
def narrow_conv_back(x: Tensor, dy: Tensor, kernel: int, stride: int, pad: int, runs: int) -> Tensor:
    """The gradient of the weight [runs · out, in, kernel, kernel]: float32, channels-last in memory."""
    x, dy = (t.contiguous(memory_format=torch.channels_last) for t in (x, dy))
    shape = Shape(kernel, stride, pad, runs)
    parts = shape.way_back(x.shape[1] // runs)(x, dy, shape)
    return (parts[0] if len(parts) == 1 else parts.sum(0)).permute(0, 3, 1, 2)


def _empty_images(x: Tensor, weight: Tensor, size: list[int], runs: int, transposed: bool) -> Tensor:
    shape = (x.shape[0], runs * weight.shape[1] if transposed else weight.shape[0], *size)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


@narrow_conv.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    size: list[int],
    kernel: int,
    stride: int,
    pad: int,
    runs: int,
    transposed: bool,
) -> Tensor:
    return _empty_images(x, weight, size, runs, transposed)


@narrow_conv_back.register_fake
def _(x: Tensor, dy: Tensor, kernel: int, stride: int, pad: int, runs: int) -> Tensor:
    return _empty_parts(x, dy, Shape(kernel, stride, pad, runs), 1)[0].permute(0, 3, 1, 2)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, *ctx.shape, _ = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    dx = dw = None
    if ctx.needs_input_grad[0]:
        dx = narrow_conv(dy, weight, list(x.shape[2:]), *ctx.shape, True)
    if ctx.needs_input_grad[1]:
        dw = narrow_conv_back(x, dy, *ctx.shape).to(weight.dtype)
    return dx, dw, None, None, None, None, None, None


narrow_conv.register_autograd(_backward, setup_context=_remember)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, shape: Shape) -> Tensor:
    """The convolution by the kernels. The result has the type of x; sums are float32 on the way."""
    runs, missing = shape.runs, LEAST_INPUT - weight.shape[1]
    if missing > 0:
        apart = x.reshape(x.shape[0], runs, -1, *x.shape[2:])
        x = F.pad(apart, (0, 0, 0, 0, 0, missing)).flatten(1, 2)
        weight = F.pad(weight, (0, 0, 0, 0, 0, missing))
    size = list(shape.result(*x.shape[2:]))
    y = cast(
        Tensor, narrow_conv(x.contiguous(memory_format=torch.channels_last), weight, size, *shape, False)
    )
    return y if bias is None else y + bias.to(y.dtype).view(1, -1, 1, 1)


def serves(x: Tensor, weight: Tensor, shape: Shape) -> bool:
    """Whether the kernels can be used here and are faster than cuDNN."""
    if conv_kernels is None or not x.is_cuda or half_type(x) is None:
        return False
    out, channels = weight.shape[0] // shape.runs, weight.shape[1]
    wide = max(out, channels) > MOST_CHANNELS or LEAST_INPUT < channels < LEAST_BLOCK
    pixels = x.shape[0] * max(x.shape[2] * x.shape[3], math.prod(shape.result(*x.shape[2:])))
    if (
        wide
        or shape.kernel not in (1, 3)
        or pixels * shape.runs * max(out, channels, LEAST_INPUT) > MOST_ELEMENTS
    ):
        return False
    few = shape.runs <= FEW_RUNS or channels <= LEAST_INPUT
    return few or shape.stride > 1 or (shape.walks(channels) and shape.walks(out))


def has_many_channels(x: Tensor, weight: Tensor, shape: Shape) -> bool:
    """Whether `run_by_run` is the better way."""
    wide = max(weight.shape[0] // shape.runs, weight.shape[1]) > MOST_CHANNELS
    return wide and shape.runs > 1 and x.is_cuda and half_type(x) is not None


def run_by_run(x: Tensor, weight: Tensor, bias: Tensor | None, shape: Shape) -> Tensor:
    """The convolution as one of each run: images and weights are copied apart, results together."""
    pairs = zip(x.chunk(shape.runs, 1), weight.to(x.dtype).chunk(shape.runs), strict=True)
    y = torch.cat([F.conv2d(image, own, None, shape.stride, shape.pad) for image, own in pairs], 1)
    return y if bias is None else y + bias.to(y.dtype).view(1, -1, 1, 1)


def half_type(x: Tensor) -> torch.dtype | None:
    """The 16-bit type in which a convolution of x is computed; None if it is not."""
    kind = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    return kind if kind in (torch.bfloat16, torch.float16) else None
