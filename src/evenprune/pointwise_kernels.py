"""Triton kernels of pointwise_conv.py: 1×1, stride 1. Images are [pixels, runs, channels] in memory.

A layer is a product of matrices per run, whose rows are pixels. A program takes a block of one run's result:
  spread   few channels in: their weights stay with the program while it walks over blocks of pixels.
  collect  many channels in: one block of pixels, added up over blocks of channels.
  pair_up  the gradient of the weight: each channel of one tensor with each of the other, added up over a
           chunk of the pixels.
Programs that read the same pixels are neighbours: all but the first find them in the cache. Sums are float32,
in a fixed order. TURNED: the weight is [channels in, channels out], as for the gradient of the input.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

# Compiled once for all numbers of pixels and runs, but for each number of channels: if 8 divides it, 16 bytes
# are loaded at a time.
SIZES = ["pixels", "runs"]


@triton.jit
def _block(number, MOST: tl.constexpr, BLOCK: tl.constexpr):
    """Of a number, the block of channels (the part that changes fastest), and what remains."""
    BLOCKS: tl.constexpr = (MOST + BLOCK - 1) // BLOCK
    return number % BLOCKS * BLOCK + tl.arange(0, BLOCK), number // BLOCKS


@triton.jit
def _within(index, MOST: tl.constexpr, BLOCK: tl.constexpr):
    """index < MOST; nothing to compare where blocks fill it."""
    if MOST % BLOCK == 0:
        return tl.full(index.shape, True, tl.int1)
    return index < MOST


@triton.jit
def _place(pixel, run, runs, CHANNELS: tl.constexpr):
    """Where the channels of a run begin."""
    return pixel * (runs * CHANNELS) + run * CHANNELS


@triton.jit
def _load(x, pixel, pixels, run, runs, channel, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """[pixels, channels] of one run; zero outside."""
    at = x + _place(pixel, run, runs, CHANNELS)[:, None] + channel[None, :]
    mask = (pixel < pixels)[:, None] & _within(channel, CHANNELS, BLOCK)[None, :]
    return tl.load(at, mask=mask, other=0.0)


@triton.jit
def _load_turned(x, pixel, pixels, run, runs, channel, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """[channels, pixels]. To turn what _load gives would keep it from being loaded in advance."""
    at = x + _place(pixel, run, runs, CHANNELS)[None, :] + channel[:, None]
    mask = (pixel < pixels)[None, :] & _within(channel, CHANNELS, BLOCK)[:, None]
    return tl.load(at, mask=mask, other=0.0)


@triton.jit
def _weight(
    w, run, channel, out, KIND: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, TURNED: tl.constexpr,
    IN_BLOCK: tl.constexpr, OUT_BLOCK: tl.constexpr,
):  # fmt: skip
    """[channels in, channels out], rounded to the type of the images."""
    at = w + run * (IN * OUT)
    if TURNED:
        at += channel[:, None] * OUT + out[None, :]
    else:
        at += channel[:, None] + out[None, :] * IN
    mask = _within(channel, IN, IN_BLOCK)[:, None] & _within(out, OUT, OUT_BLOCK)[None, :]
    return tl.load(at, mask=mask, other=0.0).to(KIND)


@triton.jit
def _store(y, total, pixel, pixels, run, runs, out, OUT: tl.constexpr, BLOCK: tl.constexpr):
    at = y + _place(pixel, run, runs, OUT)[:, None] + out[None, :]
    mask = (pixel < pixels)[:, None] & _within(out, OUT, BLOCK)[None, :]
    tl.store(at, total.to(y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=[*SIZES, "steps"])
def spread(
    x, w, y, pixels, runs, steps, IN: tl.constexpr, OUT: tl.constexpr, TURNED: tl.constexpr,
    PIXELS: tl.constexpr, IN_BLOCK: tl.constexpr, OUT_BLOCK: tl.constexpr,
):  # fmt: skip
    """y[p, o] = Σ_i x[p, i] · w[o, i] for `steps` blocks of pixels; all channels i in one product."""
    out, share = _block(tl.program_id(0), OUT, OUT_BLOCK)
    run = share % runs
    first = share // runs * steps
    channel = tl.arange(0, IN_BLOCK)
    weight = _weight(w, run, channel, out, x.dtype.element_ty, IN, OUT, TURNED, IN_BLOCK, OUT_BLOCK)
    for step in tl.range(first, first + steps):  # pixels beyond the last are neither read nor written
        pixel = step * PIXELS + tl.arange(0, PIXELS)
        seen = _load(x, pixel, pixels, run, runs, channel, IN, IN_BLOCK)
        _store(y, tl.dot(seen, weight), pixel, pixels, run, runs, out, OUT, OUT_BLOCK)


@triton.jit(do_not_specialize=SIZES)
def collect(
    x, w, y, pixels, runs, IN: tl.constexpr, OUT: tl.constexpr, TURNED: tl.constexpr,
    PIXELS: tl.constexpr, IN_BLOCK: tl.constexpr, OUT_BLOCK: tl.constexpr,
):  # fmt: skip
    """y[p, o] = Σ_i x[p, i] · w[o, i] for one block of pixels; IN_BLOCK channels i at a time."""
    out, share = _block(tl.program_id(0), OUT, OUT_BLOCK)
    run = share % runs
    pixel = share // runs * PIXELS + tl.arange(0, PIXELS)
    total = tl.zeros((PIXELS, OUT_BLOCK), dtype=tl.float32)
    for start in tl.range(0, IN, IN_BLOCK):
        channel = start + tl.arange(0, IN_BLOCK)
        seen = _load(x, pixel, pixels, run, runs, channel, IN, IN_BLOCK)
        weight = _weight(w, run, channel, out, x.dtype.element_ty, IN, OUT, TURNED, IN_BLOCK, OUT_BLOCK)
        total = tl.dot(seen, weight, total)
    _store(y, total, pixel, pixels, run, runs, out, OUT, OUT_BLOCK)


@triton.jit(do_not_specialize=[*SIZES, "chunk"])
def pair_up(
    a, b, part, pixels, runs, chunk, A: tl.constexpr, B: tl.constexpr, TURNED: tl.constexpr,
    PIXELS: tl.constexpr, A_BLOCK: tl.constexpr, B_BLOCK: tl.constexpr,
):  # fmt: skip
    """part[i, j] = Σ_p a[p, i] · b[p, j] over a chunk of the pixels of one run; TURNED: part[j, i]."""
    j, share = _block(tl.program_id(0), B, B_BLOCK)
    i, share = _block(share, A, A_BLOCK)
    run = share % runs
    own = share // runs
    total = tl.zeros((A_BLOCK, B_BLOCK), dtype=tl.float32)
    for start in tl.range(0, chunk, PIXELS):
        pixel = own * chunk + start + tl.arange(0, PIXELS)
        left = _load_turned(a, pixel, pixels, run, runs, i, A, A_BLOCK)
        right = _load(b, pixel, pixels, run, runs, j, B, B_BLOCK)
        total = tl.dot(left, right, total)
    at = part + (own * runs + run) * (A * B)
    if TURNED:
        at += i[:, None] + j[None, :] * A
    else:
        at += i[:, None] * B + j[None, :]
    tl.store(at, total, mask=_within(i, A, A_BLOCK)[:, None] & _within(j, B, B_BLOCK)[None, :])
