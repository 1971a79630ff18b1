"""1×1 convolutions (stride 1, no padding) of many runs side by side: Triton kernels with an eager twin.

Such a layer is one product of matrices per run, pixels by channels, and its operands are strided views of the
images: nothing is copied. cuDNN takes it for a convolution of `runs` groups, and its grouped kernels are made
for a few dozen channels. The kernels of pointwise_kernels.py serve 16-bit images, channels-last, on a GPU;
elsewhere torch.nn.functional.conv2d does. Tests hold the two against each other.

All 1×1 layers of MobileNetV2 at 128 px, batch 128, on one H200 (forward, gradient of input and of weight, in
µs; benchmarks/results/pointwise_conv.json): five runs 1,190 / 1,082 / 1,174, cuDNN 4,226 / 4,746 / 5,660, the
time to read and write the images 682 each; a single run 317 / 309 / 504, cuDNN 281 / 313 / 363.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from evenprune.grouped_conv import MOST_ELEMENTS, Shape, half_type

if TYPE_CHECKING or importlib.util.find_spec("triton"):
    from evenprune import pointwise_kernels
else:  # no GPU, or a build of torch without Triton
    pointwise_kernels = None

LEAST_RUNS = 2  # of a single one cuDNN is faster
LEAST_BLOCK = 16  # of a product
LEAST_CHUNK = 1024  # pixels that are added up before a sum is written: sums are few against the images
MOST_PADDED = (4, 3)  # a block may make 4 of 3 channels, not more
SIZES = (16, 32, 64, 128, 256)  # of channels, in the tables; the last stands for all above, too


class Setting(NamedTuple):
    """How a kernel is launched for layers of one size."""

    pixels: int  # at a time
    inner: int  # channels in at a time; of a gradient of the weight: channels of the wider tensor, at most
    outer: int  # channels out of a program, at most; or channels of the narrower tensor
    warps: int
    stages: int  # blocks on their way from memory at the same time
    programs: int = 0  # about, in all; `collect` has as many as there are blocks
    rounded: bool = False  # the weight is rounded beforehand, not whenever it is loaded


# By channels in and out. Reasoned, and looked at as machine code for compute capability 9.0; measured as they
# are, others were not tried (`python -m benchmarks.pointwise_conv tune` does):
# - Where channels in fit into one block, the weight stays with a program. Two warps make products without
#   fences, which the shallow ones need; from 64 channels in and out on, warp groups read shared memory alone.
# - Blocks are small where images are large (many programs hide the wait for memory), and large where weights
#   are: 128 × 128 reads 960 → 320 channels from the cache half as often as 64 × 64 does.
# - Weights of many channels are read by every block of pixels: 16 bits halve that, and leave the loop
#   nothing to convert.
PRODUCT = {
    (16, 16): Setting(128, 16, 16, 2, 3, 4224),
    (16, 32): Setting(128, 16, 32, 2, 3, 4224),
    (16, 64): Setting(64, 16, 64, 2, 3, 4224),
    (16, 128): Setting(64, 16, 32, 2, 3, 4224),
    (16, 256): Setting(64, 16, 64, 2, 3, 4224),
    (32, 16): Setting(128, 32, 16, 2, 3, 4224),
    (32, 32): Setting(64, 32, 32, 4, 3, 4224),
    (32, 64): Setting(64, 32, 64, 2, 3, 4224),
    (32, 128): Setting(64, 32, 64, 2, 3, 4224),
    (32, 256): Setting(64, 32, 64, 2, 3, 4224),
    (64, 16): Setting(64, 64, 16, 2, 3, 4224),
    (64, 32): Setting(64, 64, 32, 2, 3, 4224),
    (64, 64): Setting(64, 64, 64, 4, 3, 2112),
    (64, 128): Setting(128, 64, 128, 8, 3, 1056),
    (64, 256): Setting(128, 64, 128, 8, 3, 1056),
    (128, 16): Setting(64, 128, 16, 2, 3, 2112),
    (128, 32): Setting(64, 128, 32, 2, 3, 2112),
    (128, 64): Setting(64, 128, 64, 4, 3, 1056),
    (128, 128): Setting(128, 32, 128, 8, 4, rounded=True),
    (128, 256): Setting(128, 32, 128, 8, 4, rounded=True),
    (256, 16): Setting(128, 64, 16, 4, 3),
    (256, 32): Setting(128, 64, 32, 4, 3),
    (256, 64): Setting(128, 64, 64, 4, 3, rounded=True),
    (256, 128): Setting(128, 64, 128, 8, 3, rounded=True),
    (256, 256): Setting(128, 64, 128, 8, 3, rounded=True),
}
# By channels of the wider and of the narrower tensor. The wider one gives the rows of a product: 64 of them
# make a product of a warp group. The more sums there are, the fewer programs should write their own.
PAIR_UP = {
    (16, 16): Setting(128, 16, 16, 1, 3, 2112),
    (32, 16): Setting(128, 32, 16, 2, 3, 1056),
    (32, 32): Setting(128, 32, 32, 2, 3, 1056),
    (64, 16): Setting(64, 64, 16, 4, 3, 1056),
    (64, 32): Setting(64, 64, 32, 4, 3, 1056),
    (64, 64): Setting(64, 64, 64, 4, 3, 1056),
    (128, 16): Setting(64, 128, 16, 4, 3, 1056),
    (128, 32): Setting(64, 128, 32, 4, 3, 1056),
    (128, 64): Setting(64, 128, 64, 4, 3, 528),
    (128, 128): Setting(64, 128, 128, 8, 3, 264),
    (256, 16): Setting(64, 64, 16, 4, 3, 1056),
    (256, 32): Setting(64, 64, 32, 4, 3, 1056),
    (256, 64): Setting(64, 128, 64, 4, 4, 264),
    (256, 128): Setting(64, 128, 128, 8, 3, 264),
    (256, 256): Setting(64, 128, 128, 8, 3, 132),
}


def _parts(whole: int, part: int) -> int:
    return -(-whole // part)


def size_of(first: int, second: int) -> tuple[int, int]:
    """The row of a table for these two numbers of channels."""
    one, other = (next((size for size in SIZES if count <= size), SIZES[-1]) for count in (first, second))
    return one, other


def block_of(channels: int, most: int) -> int:
    """The largest block of at most `most` channels that leaves little unused; the smallest if none does."""
    padded, full = MOST_PADDED
    block = most
    while block > LEAST_BLOCK and full * _parts(channels, block) * block > padded * channels:
        block //= 2
    return block


def launch(x: Tensor, weight: Tensor, y: Tensor, runs: int, *, turned: bool) -> None:
    """Fill y with the convolution of x; or (turned) with the gradient of its input."""
    channels, out, pixels = x.shape[1] // runs, y.shape[1] // runs, x.numel() // x.shape[1]
    setting = PRODUCT[size_of(channels, out)]
    block = block_of(out, setting.outer)
    blocks, beside = _parts(pixels, setting.pixels), runs * _parts(out, block)  # of pixels; programs for each
    if setting.rounded:
        weight = weight.to(x.dtype)
    sizes = {"IN": channels, "OUT": out, "TURNED": turned, "PIXELS": setting.pixels, "OUT_BLOCK": block}
    sizes |= {"IN_BLOCK": setting.inner, "num_warps": setting.warps, "num_stages": setting.stages}
    if channels > setting.inner:
        pointwise_kernels.collect[(beside * blocks,)](x, weight, y, pixels, runs, **sizes)
    else:
        steps = max(1, beside * blocks // setting.programs)
        programs = beside * _parts(blocks, steps)
        pointwise_kernels.spread[(programs,)](x, weight, y, pixels, runs, steps, **sizes)


def launch_back(x: Tensor, dy: Tensor, runs: int) -> Tensor:
    """Sums of chunks of pixels: [chunks, runs · out, in] float32."""
    channels, out, pixels = x.shape[1] // runs, dy.shape[1] // runs, x.numel() // x.shape[1]
    turned = channels > out
    (wide, a), (narrow, b) = ((channels, x), (out, dy)) if turned else ((out, dy), (channels, x))
    setting = PAIR_UP[size_of(wide, narrow)]
    rows, columns = block_of(wide, setting.inner), block_of(narrow, setting.outer)
    beside = runs * _parts(wide, rows) * _parts(narrow, columns)
    chunks = max(1, min(setting.programs // beside, pixels // LEAST_CHUNK))
    chunk = _parts(_parts(pixels, chunks), setting.pixels) * setting.pixels
    part = _empty_parts(x, dy, runs, _parts(pixels, chunk))
    pointwise_kernels.pair_up[(beside * len(part),)](
        a, b, part, pixels, runs, chunk, A=wide, B=narrow, TURNED=turned,
        PIXELS=setting.pixels, A_BLOCK=rows, B_BLOCK=columns,
        num_warps=setting.warps, num_stages=setting.stages,
    )  # fmt: skip
    return part


def add_up(part: Tensor) -> Tensor:
    """The gradient of the weight [runs · out, in, 1, 1] from the sums of chunks."""
    total = part[0] if len(part) == 1 else part.sum(0)
    return total[:, :, None, None]


def _empty_parts(x: Tensor, dy: Tensor, runs: int, parts: int) -> Tensor:
    size = (parts, dy.shape[1], x.shape[1] // runs)
    return torch.empty(size, dtype=torch.float32, device=x.device)


def _empty_images(x: Tensor, weight: Tensor, runs: int, turned: bool) -> Tensor:
    shape = (x.shape[0], runs * weight.shape[1] if turned else weight.shape[0], *x.shape[2:])
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


# What torch.compile and autograd see.


@torch.library.custom_op("evenprune::pointwise_conv", mutates_args=())
def pointwise_conv(x: Tensor, weight: Tensor, runs: int, turned: bool) -> Tensor:
    """The convolution; or (turned) the gradient of its input."""
    x = x.contiguous(memory_format=torch.channels_last)
    y = _empty_images(x, weight, runs, turned)
    launch(x, weight.contiguous(), y, runs, turned=turned)
    return y


@torch.library.custom_op("evenprune::pointwise_conv_back", mutates_args=())
def pointwise_conv_back(x: Tensor, dy: Tensor, runs: int) -> Tensor:
    """The gradient of the weight [runs · out, in, 1, 1]: float32."""
    x, dy = (t.contiguous(memory_format=torch.channels_last) for t in (x, dy))
    return add_up(launch_back(x, dy, runs))


@pointwise_conv.register_fake
def _(x: Tensor, weight: Tensor, runs: int, turned: bool) -> Tensor:
    return _empty_images(x, weight, runs, turned)


@pointwise_conv_back.register_fake
def _(x: Tensor, dy: Tensor, runs: int) -> Tensor:
    return add_up(_empty_parts(x, dy, runs, 1))


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, ctx.runs, ctx.turned = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    dx = dw = None
    if ctx.needs_input_grad[0]:
        dx = pointwise_conv(dy, weight, ctx.runs, not ctx.turned)
    if ctx.needs_input_grad[1]:
        inner, outer = (dy, x) if ctx.turned else (x, dy)
        dw = pointwise_conv_back(inner, outer, ctx.runs).to(weight.dtype)
    return dx, dw, None, None


pointwise_conv.register_autograd(_backward, setup_context=_remember)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, runs: int) -> Tensor:
    """The convolution by the kernels. The result has the type of x; sums are float32 on the way."""
    x = x.contiguous(memory_format=torch.channels_last)
    y = cast(Tensor, pointwise_conv(x, weight, runs, False))
    return y if bias is None else y + bias.to(y.dtype).view(1, -1, 1, 1)


def serves(x: Tensor, weight: Tensor, shape: Shape) -> bool:
    """Whether the kernels can be used here and are known to be faster than cuDNN."""
    usable = pointwise_kernels is not None and x.is_cuda and half_type(x) is not None
    return usable and shape.runs >= LEAST_RUNS and fits(x, weight, shape)


def fits(x: Tensor, weight: Tensor, shape: Shape) -> bool:
    """Whether this is a 1×1 layer, one group per run, whose places are 32-bit numbers."""
    if x.ndim != 4 or not x.numel() or (shape.kernel, shape.stride, shape.pad) != (1, 1, 0):
        return False
    plain = x.shape[1] == shape.runs * weight.shape[1] and tuple(weight.shape[2:]) == (1, 1)
    most = x.numel() // x.shape[1] * max(x.shape[1], weight.shape[0])
    return plain and max(most, weight.numel()) <= MOST_ELEMENTS
