"""2-D convolutions of many runs side by side, for few channels per run: Triton kernels with an eager twin.

A widened network calls one convolution with `runs` groups of 16 to 64 channels each. cuDNN moves such data at
a third of the memory's speed and falls back to one kernel per group for strided 1×1 and 3-channel layers.
Here every program takes a block of pixels of one run, gathers their neighbours and multiplies on the tensor
cores. Images are channels-last: [batch, height, width, runs · channels] in memory. Sums are float32, in a
fixed order: the result is the same at every call.

`convolve` is `torch.nn.functional.conv2d` where the kernels do not serve (CPU, float32, wide or dilated
layers); tests hold the two against each other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

try:
    import triton
    import triton.language as tl
except ImportError:  # no GPU, or a build of torch without Triton: the eager twin serves
    triton = None

MOST_CHANNELS = 64  # of one run; above, cuDNN is faster
FEW_RUNS = 4  # above, cuDNN is faster in unstrided layers
LEAST_BLOCK = 16  # channels are rounded up to this, and to a power of two, in a product


if triton is not None:

    @triton.jit
    def _place(image, row, column, down, right,
        HEIGHT: tl.constexpr, WIDTH: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, TRANSPOSED: tl.constexpr,
    ):  # fmt: skip
        """Where a tap of an output pixel lies in the input, and whether that is inside of the image."""
        if TRANSPOSED:
            r = row + PAD - down
            c = column + PAD - right
            inside = (r >= 0) & (c >= 0)
            if STRIDE > 1:
                inside = inside & (r % STRIDE == 0) & (c % STRIDE == 0)
                r = r // STRIDE
                c = c // STRIDE
            inside = inside & (r < HEIGHT) & (c < WIDTH)
        else:
            r = row * STRIDE - PAD + down
            c = column * STRIDE - PAD + right
            inside = (r >= 0) & (r < HEIGHT) & (c >= 0) & (c < WIDTH)
        return (image * HEIGHT + r) * WIDTH + c, inside

    @triton.jit
    def _gather_kernel(
        x, w, y, pixels, runs,
        w_run, w_in, w_out, w_row, w_column,  # strides of the weight: by run, by channel in and out, by tap
        HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr,
        IN: tl.constexpr, OUT: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
        TRANSPOSED: tl.constexpr, IN_BLOCK: tl.constexpr, OUT_BLOCK: tl.constexpr,
        ALL: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """y[p, o] = Σ_tap Σ_i x[place(p, tap), i] · w[o, i, tap] for a block of output pixels of one run.

        TRANSPOSED: the gradient of the input; then x is the gradient of the output and place() is inverse.
        ALL = 0: one product per tap. Otherwise ALL ≥ KERNEL² taps are gathered for a single one.
        """
        run = tl.program_id(0)
        pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        image = pixel // (OUT_HEIGHT * OUT_WIDTH)
        row = (pixel // OUT_WIDTH) % OUT_HEIGHT
        column = pixel % OUT_WIDTH
        live = pixel < pixels
        out = tl.arange(0, OUT_BLOCK)
        total = tl.zeros((BLOCK, OUT_BLOCK), dtype=tl.float32)
        if ALL > 0:
            depth = tl.arange(0, ALL * IN_BLOCK)
            channel = depth % IN_BLOCK
            tap = depth // IN_BLOCK
            known = (tap < KERNEL * KERNEL) & (channel < IN)
            place, inside = _place(
                image[:, None], row[:, None], column[:, None], (tap // KERNEL)[None, :], (tap % KERNEL)[None, :],
                HEIGHT, WIDTH, STRIDE, PAD, TRANSPOSED,
            )  # fmt: skip
            at = place * (runs * IN) + run * IN + channel[None, :]
            seen = tl.load(x + at, mask=inside & known[None, :] & live[:, None], other=0.0)
            at = run * w_run + channel * w_in + (tap // KERNEL) * w_row + (tap % KERNEL) * w_column
            kept = known[:, None] & (out < OUT)[None, :]
            weight = tl.load(w + at[:, None] + out[None, :] * w_out, mask=kept, other=0.0)
            total = tl.dot(seen, weight.to(seen.dtype), total)
        else:
            channel = tl.arange(0, IN_BLOCK)
            kept = (channel < IN)[:, None] & (out < OUT)[None, :]
            w_at = w + run * w_run + channel[:, None] * w_in + out[None, :] * w_out
            for tap in tl.range(0, KERNEL * KERNEL):
                place, inside = _place(
                    image, row, column, tap // KERNEL, tap % KERNEL, HEIGHT, WIDTH, STRIDE, PAD, TRANSPOSED
                )
                at = (place * (runs * IN) + run * IN)[:, None] + channel[None, :]
                seen = tl.load(x + at, mask=(inside & live)[:, None] & (channel < IN)[None, :], other=0.0)
                weight = tl.load(
                    w_at + (tap // KERNEL) * w_row + (tap % KERNEL) * w_column, mask=kept, other=0.0
                )
                total = tl.dot(seen, weight.to(seen.dtype), total)
        where = (pixel * (runs * OUT) + run * OUT)[:, None] + out[None, :]
        tl.store(y + where, total.to(y.dtype.element_ty), mask=live[:, None] & (out < OUT)[None, :])

    @triton.jit
    def _tapped(
        total, x, grown, image, row, column, live, channel, run, runs, down, right,
        HEIGHT: tl.constexpr, WIDTH: tl.constexpr, IN: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    ):  # fmt: skip
        """total[i, o] += Σ_p x[place(p, tap), i] · dy[p, o] for one tap."""
        place, inside = _place(image, row, column, down, right, HEIGHT, WIDTH, STRIDE, PAD, False)
        at = (place * (runs * IN) + run * IN)[:, None] + channel[None, :]
        seen = tl.load(x + at, mask=(inside & live)[:, None] & (channel < IN)[None, :], other=0.0)
        return tl.dot(tl.trans(seen), grown, total)

    @triton.jit
    def _weight_kernel(
        x, dy, part, pixels, runs, chunk,
        HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr,
        IN: tl.constexpr, OUT: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
        IN_BLOCK: tl.constexpr, OUT_BLOCK: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """part[o, tap, i] = Σ_p dy[p, o] · x[place(p, tap), i] over one chunk of the output pixels of one run.

        One program takes one row of the kernel, with one or three taps (KERNEL is 1 or 3).
        """
        down = tl.program_id(0)
        run = tl.program_id(1)
        begin = tl.program_id(2) * chunk
        channel = tl.arange(0, IN_BLOCK)
        out = tl.arange(0, OUT_BLOCK)
        left = tl.zeros((IN_BLOCK, OUT_BLOCK), dtype=tl.float32)
        middle = left
        right = left
        for start in tl.range(0, chunk, BLOCK):
            pixel = begin + start + tl.arange(0, BLOCK)
            live = pixel < pixels
            image = pixel // (OUT_HEIGHT * OUT_WIDTH)
            row = (pixel // OUT_WIDTH) % OUT_HEIGHT
            column = pixel % OUT_WIDTH
            where = (pixel * (runs * OUT) + run * OUT)[:, None] + out[None, :]
            grown = tl.load(dy + where, mask=live[:, None] & (out < OUT)[None, :], other=0.0)
            left = _tapped(
                left,
                x,
                grown,
                image,
                row,
                column,
                live,
                channel,
                run,
                runs,
                down,
                0,
                HEIGHT,
                WIDTH,
                IN,
                STRIDE,
                PAD,
            )
            if KERNEL == 3:
                middle = _tapped(
                    middle, x, grown, image, row, column, live, channel, run, runs, down, 1,
                    HEIGHT, WIDTH, IN, STRIDE, PAD,
                )  # fmt: skip
                right = _tapped(
                    right, x, grown, image, row, column, live, channel, run, runs, down, 2,
                    HEIGHT, WIDTH, IN, STRIDE, PAD,
                )  # fmt: skip
        kept = (channel < IN)[:, None] & (out < OUT)[None, :]
        own = tl.program_id(2) * (runs * OUT * KERNEL * KERNEL * IN) + down * KERNEL * IN
        at = part + own + ((run * OUT + out) * KERNEL * KERNEL * IN)[None, :] + channel[:, None]
        tl.store(at, left, mask=kept)
        if KERNEL == 3:
            tl.store(at + IN, middle, mask=kept)
            tl.store(at + 2 * IN, right, mask=kept)


# Block of pixels, taps gathered for one product (0: one product per tap), warps, stages; by channels going in.
# Measured on one H200 for 1 and 25 runs; of the weight's gradient: block, warps, stages, programs in all.
GATHER = {4: (128, 16, 8, 1), 16: (256, 0, 4, 3), 32: (128, 0, 4, 3), 64: (128, 0, 8, 3)}
WEIGHT = (64, 4, 3, 528)


def block_of(channels: int, least: int = LEAST_BLOCK) -> int:
    return max(least, 1 << (channels - 1).bit_length())


@torch.library.custom_op("evenprune::gather_conv", mutates_args=())
def gather_conv(
    x: Tensor, weight: Tensor, height: int, width: int, stride: int, pad: int, runs: int, transposed: bool
) -> Tensor:
    """The convolution; or (transposed) the gradient of its input. The result has images of height × width."""
    x = x.contiguous(memory_format=torch.channels_last)
    batch, _, in_height, in_width = x.shape
    first, second = weight.shape[0] // runs, weight.shape[1]
    channels, out = (first, second) if transposed else (second, first)
    inner, outer = (0, 1) if transposed else (1, 0)
    block, taps, warps, stages = GATHER[block_of(channels, 4 if channels <= 4 else LEAST_BLOCK)]
    y = _empty_images(x, runs * out, height, width)
    pixels = batch * height * width
    _gather_kernel[(runs, triton.cdiv(pixels, block))](
        x, weight, y, pixels, runs,
        first * weight.stride(0), weight.stride(inner), weight.stride(outer), *weight.stride()[2:],
        HEIGHT=in_height, WIDTH=in_width, OUT_HEIGHT=height, OUT_WIDTH=width, IN=channels, OUT=out,
        KERNEL=weight.shape[2], STRIDE=stride, PAD=pad, TRANSPOSED=transposed,
        IN_BLOCK=block_of(channels, 4 if taps else LEAST_BLOCK), OUT_BLOCK=block_of(out), ALL=taps, BLOCK=block,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return y


@torch.library.custom_op("evenprune::conv_weight_gradient", mutates_args=())
def weight_gradient(x: Tensor, dy: Tensor, kernel: int, stride: int, pad: int, runs: int) -> Tensor:
    """[runs · out, in, kernel, kernel] float32, channels-last in memory."""
    x, dy = (t.contiguous(memory_format=torch.channels_last) for t in (x, dy))
    (batch, _, height, width), (out_height, out_width) = x.shape, dy.shape[2:]
    channels, out = x.shape[1] // runs, dy.shape[1] // runs
    pixels, (block, warps, stages, programs) = batch * out_height * out_width, WEIGHT
    splits = max(1, min(triton.cdiv(programs, kernel * runs), triton.cdiv(pixels, 4 * block)))
    chunk = triton.cdiv(triton.cdiv(pixels, splits), block) * block
    splits = triton.cdiv(pixels, chunk)
    part = torch.empty((splits, runs * out, kernel, kernel, channels), dtype=torch.float32, device=x.device)
    _weight_kernel[(kernel, runs, splits)](
        x, dy, part, pixels, runs, chunk,
        HEIGHT=height, WIDTH=width, OUT_HEIGHT=out_height, OUT_WIDTH=out_width, IN=channels, OUT=out,
        KERNEL=kernel, STRIDE=stride, PAD=pad,
        IN_BLOCK=block_of(channels), OUT_BLOCK=block_of(out), BLOCK=block, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return part.sum(0).permute(0, 3, 1, 2)


def _empty_images(like: Tensor, channels: int, height: int, width: int) -> Tensor:
    shape = (like.shape[0], channels, height, width)
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


@gather_conv.register_fake
def _(
    x: Tensor, weight: Tensor, height: int, width: int, stride: int, pad: int, runs: int, transposed: bool
) -> Tensor:
    return _empty_images(x, runs * weight.shape[1] if transposed else weight.shape[0], height, width)


@weight_gradient.register_fake
def _(x: Tensor, dy: Tensor, kernel: int, stride: int, pad: int, runs: int) -> Tensor:
    shape = (dy.shape[1], kernel, kernel, x.shape[1] // runs)
    return torch.empty(shape, dtype=torch.float32, device=x.device).permute(0, 3, 1, 2)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, _, *ctx.settings, _ = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    (x, weight), (stride, pad, runs), dx, dw = ctx.saved_tensors, ctx.settings, None, None
    if ctx.needs_input_grad[0]:
        dx = gather_conv(dy, weight, *x.shape[2:], stride, pad, runs, True)
    if ctx.needs_input_grad[1]:
        dw = weight_gradient(x, dy, weight.shape[2], stride, pad, runs).to(weight.dtype)
    return dx, dw, None, None, None, None, None, None


gather_conv.register_autograd(_backward, setup_context=_remember)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, *, stride: int, pad: int, runs: int) -> Tensor:
    """A convolution of `runs` groups by the kernels above. x is bfloat16 or float16; so is the result."""
    kernel, channels = weight.shape[2], weight.shape[1]
    if channels < 4:  # four channels are eight bytes, which are loaded at once
        missing = 4 - channels
        x = F.pad(x.unflatten(1, (runs, channels)), (0, 0, 0, 0, 0, missing)).flatten(1, 2)
        weight = F.pad(weight, (0, 0, 0, 0, 0, missing))
    height, width = ((side + 2 * pad - kernel) // stride + 1 for side in x.shape[2:])
    y = gather_conv(
        x.contiguous(memory_format=torch.channels_last), weight, height, width, stride, pad, runs, False
    )
    return y if bias is None else y + bias.to(y.dtype).view(1, -1, 1, 1)


def serves(x: Tensor, weight: Tensor, *, stride: tuple[int, ...], runs: int) -> bool:
    """Whether the kernels are faster here than cuDNN: few channels, and strided, narrow or few runs."""
    if triton is None or not x.is_cuda or half_type(x) is None:
        return False
    out, channels, kernel = weight.shape[0] // runs, weight.shape[1], weight.shape[2]
    if max(out, channels) > MOST_CHANNELS or kernel not in (1, 3) or 4 < channels < LEAST_BLOCK:
        return False
    return runs <= FEW_RUNS or stride[0] > 1 or channels <= 4


def half_type(x: Tensor) -> torch.dtype | None:
    """The 16-bit type in which a convolution of x is computed; None if it is not."""
    kind = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    return kind if kind in (torch.bfloat16, torch.float16) else None
