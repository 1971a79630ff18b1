"""Triton kernels of fused_norm.py. Images are [rows, columns] in memory: a row is a pixel, a column a channel.

With z = (x - mean) · scale and p = weight · z + bias (+ residual), y = act(p); all sums are float32, in a
fixed order. A program takes a block of rows and of columns, one tile (apply, back_apply) or many (moments,
back_sums); of the latter, the one that ends last adds up what all of them have found.
"""

# mypy: ignore-errors
# ruff: noqa: E501

import triton
import triton.language as tl


@triton.jit
def _own_tile(columns, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """Rows and columns of a program's tile: neighbours in memory side by side, on an axis of any length."""
    across = tl.cdiv(columns, WIDE)
    row = tl.program_id(0) // across * BLOCK + tl.arange(0, BLOCK)
    return row, tl.program_id(0) % across * WIDE + tl.arange(0, WIDE)


@triton.jit
def _tile(row, column, rows, columns):
    """Places of a tile in memory, and which of them exist."""
    at = row[:, None] * columns + column[None, :]
    return at, (row < rows)[:, None] & (column < columns)[None, :]


@triton.jit
def _alive(value, ACT: tl.constexpr):
    """Where the activation lets gradients through: 1 is ReLU, 2 is ReLU6."""
    alive = value > 0
    if ACT == 2:
        alive = alive & (value < 6)
    return alive


@triton.jit
def _is_last(tickets):
    """Whether all other programs of these columns have stored their sums; then the count begins anew."""
    tl.debug_barrier()  # all threads have stored theirs before the ticket is drawn
    last = tl.atomic_add(tickets + tl.program_id(0), 1, sem="acq_rel") == tl.num_programs(1) - 1
    if last:
        tl.store(tickets + tl.program_id(0), 0)
    return last


@triton.jit
def _sums_of(part, column, columns, chunks, CHUNKS: tl.constexpr):
    """Both values of every chunk, [CHUNKS, columns] each, and which of them there are."""
    number = tl.arange(0, CHUNKS)
    known = (number < chunks)[:, None] & (column < columns)[None, :]
    at = part + number[:, None] * 2 * columns + column[None, :]
    return tl.load(at, mask=known, other=0.0), tl.load(at + columns, mask=known, other=0.0), known


@triton.jit
def moments(
    x, part, tickets, mean, scale, running_mean, running_var, batches, rows, columns, chunk, momentum, eps,
    CHUNKS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """part[chunk] = (mean, Σ (x - mean)²) of every column over one chunk of rows; of all rows at the end.

    Sums are taken of x - x[first row of the chunk], so that a large mean costs no digits.
    """
    column = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    begin = tl.program_id(1) * chunk
    known = column < columns
    first = tl.load(x + begin * columns + column, mask=known, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK, WIDE), dtype=tl.float32)
    square = total
    for start in tl.range(0, chunk, BLOCK, num_stages=STAGES):
        row = begin + start + tl.arange(0, BLOCK)
        at, inside = _tile(row, column, rows, columns)
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        value = tl.where(inside, value - first[None, :], 0.0)
        total += value
        square += value * value
    count = tl.minimum(chunk, rows - begin).to(tl.float32)
    shift = tl.sum(total, 0) / count
    spread = tl.sum(square, 0) - count * shift * shift
    place = part + tl.program_id(1) * 2 * columns + column
    tl.store(place, first + shift, mask=known)
    tl.store(place + columns, tl.maximum(spread, 0.0), mask=known)
    if _is_last(tickets):
        _finish_moments(
            part, mean, scale, running_mean, running_var, batches, rows, column, columns, chunk, momentum, eps, CHUNKS
        )  # fmt: skip


@triton.jit
def _finish_moments(
    part, mean, scale, running_mean, running_var, batches, rows, column, columns, chunk, momentum, eps,
    CHUNKS: tl.constexpr,
):  # fmt: skip
    """mean and 1 / √(variance + eps) of all rows; the running statistics move by `momentum`, `batches` by 1.

    With d_c = m_c - m_0:  m = m_0 + Σ n_c d_c / n,  Σ (x - m)² = Σ_c [Σ (x - m_c)² + n_c d_c²] - n (m - m_0)²
    The scale of a column that stands still is 0: z is 0 either way, and no gradient passes (fused_norm.moving).
    """
    chunks = tl.num_programs(1)
    own, spread, known = _sums_of(part, column, columns, chunks, CHUNKS)
    number = tl.arange(0, CHUNKS)
    count = tl.where(number < chunks, tl.minimum(chunk, rows - number * chunk), 0).to(tl.float32)[:, None]
    inside = column < columns
    first = tl.load(part + column, mask=inside, other=0.0)
    apart = tl.where(known, own - first[None, :], 0.0)
    shift = tl.sum(count * apart, 0) / rows
    square = tl.sum(spread + count * apart * apart, 0) - rows * shift * shift
    square = tl.maximum(square, 0.0)
    whole = first + shift
    tl.store(mean + column, whole, mask=inside)
    steep = tl.where((square == 0.0) & (whole != 0.0), 0.0, 1.0 / tl.sqrt(square / rows + eps))
    tl.store(scale + column, steep, mask=inside)
    if tl.program_id(0) == 0:
        tl.store(batches, tl.load(batches) + 1)
    before = tl.load(running_mean + column, mask=inside, other=0.0)
    tl.store(running_mean + column, before + momentum * (whole - before), mask=inside)
    before = tl.load(running_var + column, mask=inside, other=0.0)
    tl.store(running_var + column, before + momentum * (square / (rows - 1) - before), mask=inside)


@triton.jit
def apply(
    x, residual, y, mean, scale, weight, bias, rows, columns,
    RESIDUAL: tl.constexpr, ACT: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """y = act(weight · (x - mean) · scale + bias + residual)"""
    row, column = _own_tile(columns, BLOCK, WIDE)
    at, inside = _tile(row, column, rows, columns)
    known = column < columns
    slope = tl.load(weight + column, mask=known, other=0.0) * tl.load(scale + column, mask=known, other=0.0)
    middle = tl.load(mean + column, mask=known, other=0.0)
    shift = tl.load(bias + column, mask=known, other=0.0)
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    value = (value - middle[None, :]) * slope[None, :] + shift[None, :]
    if RESIDUAL:
        value += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    if ACT > 0:
        value = tl.maximum(value, 0.0, propagate_nan=tl.PropagateNan.ALL)
    if ACT == 2:
        value = tl.minimum(value, 6.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(y + at, value.to(y.dtype.element_ty), mask=inside)


@triton.jit
def back_sums(
    dy, other, x, y, grown, mean, scale, weight, bias, part, tickets, sums, rows, columns, chunk,
    OTHER: tl.constexpr, FROM_Y: tl.constexpr, KEEP: tl.constexpr, ACT: tl.constexpr,
    CHUNKS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """part[chunk] = (Σ g, Σ g · z) of every column over one chunk of rows, g = (dy + other) · act'(p).

    sums: of all rows. act' is told by y (FROM_Y), or by p, computed again from x. KEEP: g is also stored, in `grown`.
    """
    column = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    begin = tl.program_id(1) * chunk
    known = column < columns
    middle = tl.load(mean + column, mask=known, other=0.0)
    steep = tl.load(scale + column, mask=known, other=0.0)
    slope = tl.load(weight + column, mask=known, other=0.0)
    shift = tl.load(bias + column, mask=known, other=0.0)
    total = tl.zeros((BLOCK, WIDE), dtype=tl.float32)
    along = total
    for start in tl.range(0, chunk, BLOCK, num_stages=STAGES):
        row = begin + start + tl.arange(0, BLOCK)
        at, inside = _tile(row, column, rows, columns)
        g = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        if OTHER:
            g += tl.load(other + at, mask=inside, other=0.0).to(tl.float32)
        z = (tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - middle[None, :]) * steep[None, :]
        if ACT > 0:
            if FROM_Y:
                value = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
            else:
                value = z * slope[None, :] + shift[None, :]
            g = tl.where(_alive(value, ACT), g, 0.0)
        if KEEP:
            g = g.to(grown.dtype.element_ty)
            tl.store(grown + at, g, mask=inside)
            g = g.to(tl.float32)
        total += g
        along += g * z
    place = part + tl.program_id(1) * 2 * columns + column
    tl.store(place, tl.sum(total, 0), mask=known)
    tl.store(place + columns, tl.sum(along, 0), mask=known)
    if _is_last(tickets):
        of_g, of_gz, _ = _sums_of(part, column, columns, tl.num_programs(1), CHUNKS)
        tl.store(sums + column, tl.sum(of_g, 0), mask=known)
        tl.store(sums + columns + column, tl.sum(of_gz, 0), mask=known)


@triton.jit
def back_apply(
    g, x, dx, mean, scale, weight, bias, sums, rows, columns,
    ACT: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dx = weight · scale · (g - Σ g / rows - z · Σ (g · z) / rows); ACT: g is dy, to be cut by act' first."""
    row, column = _own_tile(columns, BLOCK, WIDE)
    at, inside = _tile(row, column, rows, columns)
    known = column < columns
    middle = tl.load(mean + column, mask=known, other=0.0)
    steep = tl.load(scale + column, mask=known, other=0.0)
    slope = tl.load(weight + column, mask=known, other=0.0)
    level = tl.load(sums + column, mask=known, other=0.0) / rows
    tilt = tl.load(sums + columns + column, mask=known, other=0.0) / rows
    z = (tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - middle[None, :]) * steep[None, :]
    value = tl.load(g + at, mask=inside, other=0.0).to(tl.float32)
    if ACT > 0:
        shift = tl.load(bias + column, mask=known, other=0.0)
        value = tl.where(_alive(z * slope[None, :] + shift[None, :], ACT), value, 0.0)
    value = (slope * steep)[None, :] * (value - level[None, :] - z * tilt[None, :])
    tl.store(dx + at, value.to(dx.dtype.element_ty), mask=inside)
