"""Triton kernels of depthwise_conv.py: 3×3, padding 1. Images are [batch, height, width, channels] in memory.

All of them are bound by memory, so each reads what it needs about once: a program takes a block of channels
and some lanes (a lane is a strip of one image, one or two pixels wide) and walks down a band of rows, keeping
in registers what the next row needs again.
  walk         stride 1, two pixels wide: a row is loaded once (four pixels) and multiplied with nine taps into
               the three rows of the result that it belongs to; with the taps reversed, the gradient of the input.
  shrink       stride 2, one pixel of the result wide: two rows are loaded per row of the result.
  grow         the gradient of its input: one pixel of the gradient becomes two by two.
  walk_back    the gradient of the weight: nine sums per lane and channel, over many bands; then over lanes.
  shrink_back  the same for stride 2.
Sums are float32, in a fixed order. `down` rows are walked in bands of `rows`; `across` lanes lie side by side.
"""

# mypy: ignore-errors
# ruff: noqa: E501

import triton
import triton.language as tl

# Compiled once for all sizes: only whether `channels` is a multiple of 16 matters, for vector loads.
SIZES = ["batch", "height", "width", "down", "across", "rows"]
STRIDES = ["w_start", "w_channel", "w_row", "w_column"]


@triton.jit
def _channels(program, channels, BLOCK: tl.constexpr):
    """The channels of a program, and the number of its unit: lanes and a band. Neighbours in memory run together."""
    blocks = tl.cdiv(channels, BLOCK)
    return program % blocks * BLOCK + tl.arange(0, BLOCK), program // blocks


@triton.jit
def _lanes(unit, batch, down, across, rows, LANES: tl.constexpr):
    """Image and place across of every lane of a unit; the first row of its band and the first one below."""
    bands = tl.cdiv(down, rows)
    lane = unit // bands * LANES + tl.arange(0, LANES)
    top = unit % bands * rows
    return lane // across, lane % across, top, tl.minimum(top + rows, down)


@triton.jit
def _taps(w, channel, channels, w_channel, w_column, KIND: tl.constexpr):
    """One row of the kernel, rounded to the type of the images: three times [1, channels] float32."""
    at = w + channel * w_channel
    kept = channel < channels
    left = tl.load(at, mask=kept, other=0.0).to(KIND).to(tl.float32)
    middle = tl.load(at + w_column, mask=kept, other=0.0).to(KIND).to(tl.float32)
    right = tl.load(at + 2 * w_column, mask=kept, other=0.0).to(KIND).to(tl.float32)
    return left[None, :], middle[None, :], right[None, :]


@triton.jit
def _when(condition, mask):
    """The mask if a condition holds for the whole program, else nothing."""
    return tl.where(condition, mask, False)


@triton.jit
def _load(at, mask):
    return tl.load(at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _three(at, channels, has_left, kept, has_right, condition=True):
    """The pixels left of `at`, there and right of it; zero outside of the image."""
    left = _load(at - channels, _when(condition, has_left))
    middle = _load(at, _when(condition, kept))
    return left, middle, _load(at + channels, _when(condition, has_right))


@triton.jit
def _plus_row(total, a, b, c, w0, w1, w2):
    """total + a · w0 + b · w1 + c · w2, each product and its sum in one operation."""
    return tl.fma(c, w2, tl.fma(b, w1, tl.fma(a, w0, total)))


@triton.jit
def _plus_two(total, a, b, c, d):
    """total + a · b + c · d"""
    return tl.fma(c, d, tl.fma(a, b, total))


@triton.jit
def _store(at, value, mask):
    tl.store(at, value.to(at.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=SIZES + STRIDES)
def walk(
    x, w, y, batch, channels, height, width, down, across, rows, w_start, w_channel, w_row, w_column,
    LANES: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """y[r, c] = Σ x[r + i - 1, c + j - 1] · w[i, j]"""
    channel, unit = _channels(tl.program_id(0), channels, BLOCK)
    image, place, top, stop = _lanes(unit, batch, down, across, rows, LANES)
    column = 2 * place
    kept = (image < batch)[:, None] & (channel < channels)[None, :]
    has_left = kept & (column > 0)[:, None]
    has_second = kept & (column + 1 < width)[:, None]
    has_right = kept & (column + 2 < width)[:, None]
    KIND: tl.constexpr = x.dtype.element_ty
    w00, w01, w02 = _taps(w + w_start, channel, channels, w_channel, w_column, KIND)
    w10, w11, w12 = _taps(w + w_start + w_row, channel, channels, w_channel, w_column, KIND)
    w20, w21, w22 = _taps(w + w_start + 2 * w_row, channel, channels, w_channel, w_column, KIND)
    at = (image * height * width + column)[:, None] * channels + channel[None, :]
    line = width * channels
    nothing = tl.zeros((LANES, BLOCK), dtype=tl.float32)
    above1 = nothing  # of the row above the one that is read
    above2 = nothing
    here1 = nothing
    here2 = nothing
    for row in tl.range(tl.maximum(top - 1, 0), tl.minimum(stop + 1, height), num_stages=STAGES):
        a, b, c = _three(x + at + row * line, channels, has_left, kept, has_second)
        d = _load(x + at + row * line + 2 * channels, has_right)
        above1 = _plus_row(above1, a, b, c, w20, w21, w22)
        above2 = _plus_row(above2, b, c, d, w20, w21, w22)
        _store(y + at + (row - 1) * line, above1, _when(row > top, kept))
        _store(y + at + (row - 1) * line + channels, above2, _when(row > top, has_second))
        above1 = _plus_row(here1, a, b, c, w10, w11, w12)
        above2 = _plus_row(here2, b, c, d, w10, w11, w12)
        here1 = _plus_row(nothing, a, b, c, w00, w01, w02)
        here2 = _plus_row(nothing, b, c, d, w00, w01, w02)
    last = stop == height  # no row below completes it
    _store(y + at + (height - 1) * line, above1, _when(last, kept))
    _store(y + at + (height - 1) * line + channels, above2, _when(last, has_second))


@triton.jit(do_not_specialize=SIZES + STRIDES)
def shrink(
    x, w, y, batch, channels, height, width, down, across, rows, w_start, w_channel, w_row, w_column,
    LANES: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """y[r, c] = Σ x[2r + i - 1, 2c + j - 1] · w[i, j]"""
    channel, unit = _channels(tl.program_id(0), channels, BLOCK)
    image, place, top, stop = _lanes(unit, batch, down, across, rows, LANES)
    kept = (image < batch)[:, None] & (channel < channels)[None, :]
    has_left = kept & (place > 0)[:, None]
    has_right = kept & (2 * place + 1 < width)[:, None]
    KIND: tl.constexpr = x.dtype.element_ty
    w00, w01, w02 = _taps(w + w_start, channel, channels, w_channel, w_column, KIND)
    w10, w11, w12 = _taps(w + w_start + w_row, channel, channels, w_channel, w_column, KIND)
    w20, w21, w22 = _taps(w + w_start + 2 * w_row, channel, channels, w_channel, w_column, KIND)
    at = (image * height * width + 2 * place)[:, None] * channels + channel[None, :]
    to = (image * down * across + place)[:, None] * channels + channel[None, :]
    line = width * channels
    begun = top > 0
    a, b, c = _three(x + at + (2 * top - 1) * line, channels, has_left, kept, has_right, begun)
    nothing = tl.zeros((LANES, BLOCK), dtype=tl.float32)
    total = _plus_row(nothing, a, b, c, w00, w01, w02)
    for row in tl.range(top, stop, num_stages=STAGES):
        odd = 2 * row + 1 < height
        d, e, f = _three(x + at + 2 * row * line, channels, has_left, kept, has_right)
        a, b, c = _three(x + at + (2 * row + 1) * line, channels, has_left, kept, has_right, odd)
        total = _plus_row(total, d, e, f, w10, w11, w12)
        total = _plus_row(total, a, b, c, w20, w21, w22)
        _store(y + to + row * across * channels, total, kept)
        total = _plus_row(nothing, a, b, c, w00, w01, w02)


@triton.jit(do_not_specialize=SIZES + STRIDES)
def grow(
    dy, w, dx, batch, channels, height, width, down, across, rows, w_start, w_channel, w_row, w_column,
    LANES: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dx[2r + i - 1, 2c + j - 1] = Σ dy[r, c] · w[i, j]: even rows take tap 1, odd ones taps 2 and 0; so do columns."""
    channel, unit = _channels(tl.program_id(0), channels, BLOCK)
    image, place, top, stop = _lanes(unit, batch, down, across, rows, LANES)
    kept = (image < batch)[:, None] & (channel < channels)[None, :]
    has_next = kept & (place + 1 < across)[:, None]
    has_odd = kept & (2 * place + 1 < width)[:, None]
    KIND: tl.constexpr = dy.dtype.element_ty
    w00, w01, w02 = _taps(w + w_start, channel, channels, w_channel, w_column, KIND)
    w10, w11, w12 = _taps(w + w_start + w_row, channel, channels, w_channel, w_column, KIND)
    w20, w21, w22 = _taps(w + w_start + 2 * w_row, channel, channels, w_channel, w_column, KIND)
    at = (image * down * across + place)[:, None] * channels + channel[None, :]
    to = (image * height * width + 2 * place)[:, None] * channels + channel[None, :]
    line = width * channels
    here = _load(dy + at + top * across * channels, kept)
    beside = _load(dy + at + top * across * channels + channels, has_next)
    for row in tl.range(top, stop, num_stages=STAGES):
        more = row + 1 < down
        below = _load(dy + at + (row + 1) * across * channels, _when(more, kept))
        across_below = _load(dy + at + (row + 1) * across * channels + channels, _when(more, has_next))
        even = dx + to + 2 * row * line
        odd = 2 * row + 1 < height
        _store(even, here * w11, kept)
        _store(even + channels, here * w12 + beside * w10, has_odd)
        _store(even + line, here * w21 + below * w01, _when(odd, kept))
        corner = _plus_two(here * w22 + beside * w20, below, w02, across_below, w00)
        _store(even + line + channels, corner, _when(odd, has_odd))
        here = below
        beside = across_below


@triton.jit
def _add_up(part, channel, channels, sums, row: tl.constexpr):
    """Write one row of nine sums, added up over lanes, into part [channels, 3, 3]."""
    left, middle, right = sums
    at = part + channel * 9 + 3 * row
    kept = channel < channels
    tl.store(at, tl.sum(left, axis=0), mask=kept)
    tl.store(at + 1, tl.sum(middle, axis=0), mask=kept)
    tl.store(at + 2, tl.sum(right, axis=0), mask=kept)


@triton.jit(do_not_specialize=[*SIZES, "each"])
def walk_back(
    x, dy, part, batch, channels, height, width, down, across, rows, each,
    LANES: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """part[i, j] = Σ dy[r, c] · x[r + i - 1, c + j - 1] over `each` units."""
    channel, own = _channels(tl.program_id(0), channels, BLOCK)
    line = width * channels
    g00 = tl.zeros((LANES, BLOCK), dtype=tl.float32)
    g01 = g00
    g02 = g00
    g10 = g00
    g11 = g00
    g12 = g00
    g20 = g00
    g21 = g00
    g22 = g00
    nothing = g00
    for unit in range(own * each, own * each + each):  # lanes beyond the last image add nothing
        image, place, top, stop = _lanes(unit, batch, down, across, rows, LANES)
        column = 2 * place
        kept = (image < batch)[:, None] & (channel < channels)[None, :]
        has_left = kept & (column > 0)[:, None]
        has_second = kept & (column + 1 < width)[:, None]
        has_right = kept & (column + 2 < width)[:, None]
        at = (image * height * width + column)[:, None] * channels + channel[None, :]
        above = x + at + (top - 1) * line
        p, q, r = _three(above, channels, has_left, kept, has_second, top > 0)  # of the row of x above
        s = _load(above + 2 * channels, _when(top > 0, has_right))
        above1 = nothing  # of the row of dy above, which another band has counted
        above2 = nothing
        for row in tl.range(top, tl.minimum(stop + 1, height), num_stages=STAGES):
            ours = row < stop
            a, b, c = _three(x + at + row * line, channels, has_left, kept, has_second)
            d = _load(x + at + row * line + 2 * channels, has_right)
            here1 = _load(dy + at + row * line, _when(ours, kept))
            here2 = _load(dy + at + row * line + channels, _when(ours, has_second))
            g00 = _plus_two(g00, p, here1, q, here2)
            g01 = _plus_two(g01, q, here1, r, here2)
            g02 = _plus_two(g02, r, here1, s, here2)
            g10 = _plus_two(g10, a, here1, b, here2)
            g11 = _plus_two(g11, b, here1, c, here2)
            g12 = _plus_two(g12, c, here1, d, here2)
            g20 = _plus_two(g20, a, above1, b, above2)
            g21 = _plus_two(g21, b, above1, c, above2)
            g22 = _plus_two(g22, c, above1, d, above2)
            p = a
            q = b
            r = c
            s = d
            above1 = here1
            above2 = here2
    part += own * channels * 9
    _add_up(part, channel, channels, (g00, g01, g02), 0)
    _add_up(part, channel, channels, (g10, g11, g12), 1)
    _add_up(part, channel, channels, (g20, g21, g22), 2)


@triton.jit(do_not_specialize=[*SIZES, "each"])
def shrink_back(
    x, dy, part, batch, channels, height, width, down, across, rows, each,
    LANES: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """part[i, j] = Σ dy[r, c] · x[2r + i - 1, 2c + j - 1] over `each` units."""
    channel, own = _channels(tl.program_id(0), channels, BLOCK)
    line = width * channels
    g00 = tl.zeros((LANES, BLOCK), dtype=tl.float32)
    g01 = g00
    g02 = g00
    g10 = g00
    g11 = g00
    g12 = g00
    g20 = g00
    g21 = g00
    g22 = g00
    for unit in range(own * each, own * each + each):  # lanes beyond the last image add nothing
        image, place, top, stop = _lanes(unit, batch, down, across, rows, LANES)
        kept = (image < batch)[:, None] & (channel < channels)[None, :]
        has_left = kept & (place > 0)[:, None]
        has_right = kept & (2 * place + 1 < width)[:, None]
        at = (image * height * width + 2 * place)[:, None] * channels + channel[None, :]
        to = (image * down * across + place)[:, None] * channels + channel[None, :]
        begun = top > 0
        a, b, c = _three(x + at + (2 * top - 1) * line, channels, has_left, kept, has_right, begun)
        for row in tl.range(top, stop, num_stages=STAGES):
            odd = 2 * row + 1 < height
            grown = _load(dy + to + row * across * channels, kept)
            d, e, f = _three(x + at + 2 * row * line, channels, has_left, kept, has_right)
            g00 = tl.fma(a, grown, g00)
            g01 = tl.fma(b, grown, g01)
            g02 = tl.fma(c, grown, g02)
            g10 = tl.fma(d, grown, g10)
            g11 = tl.fma(e, grown, g11)
            g12 = tl.fma(f, grown, g12)
            a, b, c = _three(x + at + (2 * row + 1) * line, channels, has_left, kept, has_right, odd)
            g20 = tl.fma(a, grown, g20)
            g21 = tl.fma(b, grown, g21)
            g22 = tl.fma(c, grown, g22)
    part += own * channels * 9
    _add_up(part, channel, channels, (g00, g01, g02), 0)
    _add_up(part, channel, channels, (g10, g11, g12), 1)
    _add_up(part, channel, channels, (g20, g21, g22), 2)
