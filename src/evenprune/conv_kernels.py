"""Triton kernels of grouped_conv.py. Images are [batch, height, width, runs · channels] in memory.

Three kinds of programs, each for one run:
  walk      3×3, stride 1: down the rows of a few images, two pixels wide. Four pixels of a row are loaded for
            every two of the result, and multiplied with nine taps into the three rows they belong to.
  walk_back the gradient of the same layer's weight: three sums of three taps, walking in the same way.
  gather    any stride, 1×1 or 3×3: a block of output pixels fetches its neighbours tap by tap.
  gather_back  the gradient of its weight.
Sums are float32, in a fixed order.
"""

# mypy: ignore-errors
# ruff: noqa: E501

import triton
import triton.language as tl


@triton.jit
def _row(x, image, row, column, live, run, runs, channel, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr):  # fmt: skip
    """Pixels of one row of several images, at `column` of each: [pixels, channels]; zero outside."""
    rows = row + tl.zeros_like(column)
    inside = live & (rows >= 0) & (rows < HEIGHT) & (column >= 0) & (column < WIDTH)
    at = (((image * HEIGHT + row) * WIDTH + column) * runs + run) * CHANNELS
    return tl.load(
        x + at[:, None] + channel[None, :], mask=inside[:, None] & (channel < CHANNELS)[None, :], other=0.0
    )


@triton.jit
def _three_taps(total, left, middle, right, w0, w1, w2):
    """total + left · w0 + middle · w1 + right · w2"""
    return tl.dot(right, w2, tl.dot(middle, w1, tl.dot(left, w0, total)))


@triton.jit
def walk(
    x, w, y, batch, runs, w_run, w_in, w_out, w_row, w_column,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, FLIP: tl.constexpr,
    IN_BLOCK: tl.constexpr, OUT_BLOCK: tl.constexpr, PAIRS: tl.constexpr, IMAGES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """y[r, c] = Σ x[r + down - 1, c + right - 1] · w[down, right]; FLIP: with the taps in reverse order."""
    run = tl.program_id(0)
    top = tl.program_id(2) * ROWS
    pair = tl.arange(0, IMAGES * PAIRS)
    image = tl.program_id(1) * IMAGES + pair // PAIRS
    column = 2 * (pair % PAIRS)
    live = (image < batch) & (column < WIDTH)
    channel = tl.arange(0, IN_BLOCK)
    out = tl.arange(0, OUT_BLOCK)
    kept = (channel < IN)[:, None] & (out < OUT)[None, :]
    at = w + run * w_run + channel[:, None] * w_in + out[None, :] * w_out
    if FLIP:
        at += 2 * w_row + 2 * w_column
        w_row = -w_row
        w_column = -w_column
    kind = x.dtype.element_ty
    w00 = tl.load(at, mask=kept, other=0.0).to(kind)
    w01 = tl.load(at + w_column, mask=kept, other=0.0).to(kind)
    w02 = tl.load(at + 2 * w_column, mask=kept, other=0.0).to(kind)
    w10 = tl.load(at + w_row, mask=kept, other=0.0).to(kind)
    w11 = tl.load(at + w_row + w_column, mask=kept, other=0.0).to(kind)
    w12 = tl.load(at + w_row + 2 * w_column, mask=kept, other=0.0).to(kind)
    w20 = tl.load(at + 2 * w_row, mask=kept, other=0.0).to(kind)
    w21 = tl.load(at + 2 * w_row + w_column, mask=kept, other=0.0).to(kind)
    w22 = tl.load(at + 2 * w_row + 2 * w_column, mask=kept, other=0.0).to(kind)
    nothing = tl.zeros((IMAGES * PAIRS, OUT_BLOCK), dtype=tl.float32)
    above1 = nothing  # of the output row above the one read, first and second pixel of each pair
    above2 = nothing
    here1 = nothing
    here2 = nothing
    for step in tl.range(0, ROWS + 2):
        row = top - 1 + step
        a = _row(x, image, row, column - 1, live, run, runs, channel, HEIGHT, WIDTH, IN)
        b = _row(x, image, row, column, live, run, runs, channel, HEIGHT, WIDTH, IN)
        c = _row(x, image, row, column + 1, live, run, runs, channel, HEIGHT, WIDTH, IN)
        d = _row(x, image, row, column + 2, live, run, runs, channel, HEIGHT, WIDTH, IN)
        above1 = _three_taps(above1, a, b, c, w20, w21, w22)
        above2 = _three_taps(above2, b, c, d, w20, w21, w22)
        rows = row + 0 * column
        done = live & (rows > top) & (rows <= HEIGHT)
        place = (((image * HEIGHT + row - 1) * WIDTH + column) * runs + run) * OUT
        to = y + place[:, None] + out[None, :]
        both = done & (column + 1 < WIDTH)
        tl.store(to, above1.to(y.dtype.element_ty), mask=done[:, None] & (out < OUT)[None, :])
        tl.store(to + runs * OUT, above2.to(y.dtype.element_ty), mask=both[:, None] & (out < OUT)[None, :])
        above1 = _three_taps(here1, a, b, c, w10, w11, w12)
        above2 = _three_taps(here2, b, c, d, w10, w11, w12)
        here1 = _three_taps(nothing, a, b, c, w00, w01, w02)
        here2 = _three_taps(nothing, b, c, d, w00, w01, w02)


@triton.jit
def _three(dy, image, row, beside, within, live, run, runs, out, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr):  # fmt: skip
    """A row of dy as three, each a column further, side by side: [pixels, 4 · out]."""
    at = (((image * HEIGHT + row) * WIDTH)[:, None] + beside) * runs + run
    inside = within & (live & (row + 0 * image < HEIGHT))[:, None]
    return tl.load(dy + at * OUT + out[None, :], mask=inside, other=0.0)


@triton.jit
def walk_back(
    x, dy, part, batch, runs, blocks,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
    IN_BLOCK: tl.constexpr, OUT_BLOCK: tl.constexpr, WIDTH_BLOCK: tl.constexpr, IMAGES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """part[o, down, right, i] = Σ dy[r, c - right + 1, o] · x[r + down - 1, c, i] over `blocks` blocks of images.

    One product for three taps, with a row of dy as three.
    """
    run = tl.program_id(0)
    top = tl.program_id(2) * ROWS
    pixel = tl.arange(0, IMAGES * WIDTH_BLOCK)
    column = pixel % WIDTH_BLOCK
    channel = tl.arange(0, IN_BLOCK)
    right = tl.arange(0, 4 * OUT_BLOCK) // OUT_BLOCK  # the fourth is empty: sizes are powers of two
    out = tl.arange(0, 4 * OUT_BLOCK) % OUT_BLOCK
    known = (right < 3) & (out < OUT)
    beside = column[:, None] - right[None, :] + 1
    within = known[None, :] & (beside >= 0) & (beside < WIDTH)
    g0 = tl.zeros((IN_BLOCK, 4 * OUT_BLOCK), dtype=tl.float32)
    g1 = g0
    g2 = g0
    for block in tl.range(0, blocks):
        image = (tl.program_id(1) * blocks + block) * IMAGES + pixel // WIDTH_BLOCK
        live = (image < batch) & (column < WIDTH)
        above = _row(x, image, top - 1, column, live, run, runs, channel, HEIGHT, WIDTH, IN)
        here = _row(x, image, top, column, live, run, runs, channel, HEIGHT, WIDTH, IN)
        below = _row(x, image, top + 1, column, live, run, runs, channel, HEIGHT, WIDTH, IN)
        grown = _three(dy, image, top, beside, within, live, run, runs, out, HEIGHT, WIDTH, OUT)
        for step in tl.range(0, ROWS):  # the next rows are on their way while these are multiplied
            row = top + step
            next_below = _row(x, image, row + 2, column, live, run, runs, channel, HEIGHT, WIDTH, IN)
            next_grown = _three(dy, image, row + 1, beside, within, live, run, runs, out, HEIGHT, WIDTH, OUT)
            g0 = tl.dot(tl.trans(above), grown, g0)
            g1 = tl.dot(tl.trans(here), grown, g1)
            g2 = tl.dot(tl.trans(below), grown, g2)
            above = here
            here = below
            below = next_below
            grown = next_grown
    kept = (channel < IN)[:, None] & known[None, :]
    own = tl.program_id(1) * tl.num_programs(2) + tl.program_id(2)
    at = (
        part
        + own * (runs * OUT * 9 * IN)
        + ((run * OUT + out) * 9 * IN + right * IN)[None, :]
        + channel[:, None]
    )
    tl.store(at, g0, mask=kept)
    tl.store(at + 3 * IN, g1, mask=kept)
    tl.store(at + 6 * IN, g2, mask=kept)


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
def gather(
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
    run = tl.program_id(0) % runs  # neighbours in memory run side by side
    pixel = tl.program_id(0) // runs * BLOCK + tl.arange(0, BLOCK)
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
            weight = tl.load(w_at + (tap // KERNEL) * w_row + (tap % KERNEL) * w_column, mask=kept, other=0.0)
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
def gather_back(
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
