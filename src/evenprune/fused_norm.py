"""Batch norm, the sum with a shortcut and the activation as one step: Triton kernels with an eager twin.

    y = act(norm(x) + residual)      act: none, ReLU or ReLU6; the residual may be missing

Separate operations read and write the images once each. Here the forward pass reads x twice and the residual
once and writes y; the backward pass computes the activation's cut again instead of reading it, adds the
gradients of the two uses that a block's result has (its layers, its shortcut) on the way, and writes the
gradients of x and of the residual. What the images move through memory is all that it costs.

The kernels serve 16-bit images, channels-last, on a GPU; elsewhere, and within torch.compile, which fuses by
itself, `plain` does. Tests hold the two against each other.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

if TYPE_CHECKING or importlib.util.find_spec("triton"):
    from evenprune import norm_kernels
else:  # no GPU, or a build of torch without Triton
    norm_kernels = None

Act = Literal["none", "relu", "relu6"]
CODES: dict[Act, int] = {"none": 0, "relu": 1, "relu6": 2}
MOST_ELEMENTS = 2**31 - 1  # places are 32-bit numbers
# Rows of the widest tile (narrower ones have more), warps, stages; and for sums, programs in all, and the
# most chunks, a power of two: the last program adds them up.
TILE = (32, 4, 1)
MOMENTS = (128, 8, 3, 264, 64)
BACK_SUMS = (64, 4, 4, 528, 128)
WIDEST, WASTE = 64, 0.15  # columns of a tile: the most, and the share of them that may lie beyond the last


class NormAct(nn.BatchNorm2d):
    """A batch norm that also adds a residual and activates: norm_fusion makes it of a model's layers."""

    tickets: Tensor  # [channels] int32: how many programs have ended; zero between calls

    @classmethod
    def become(cls, norm: nn.BatchNorm2d) -> None:
        """Make a plain norm one of these, in place."""
        norm.__class__ = cls
        norm.register_buffer("tickets", no_tickets(norm), persistent=False)

    def forward(  # type: ignore[override]  # with more arguments
        self, input: Tensor, residual: Tensor | None = None, act: Act = "none", twice: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """`twice`: the result as two tensors, one for each use, whose gradients are added on the way."""
        if serves(self, input, residual):
            return fused(self, input, residual, act, twice=twice)
        result = plain(self, input, residual, act)
        return (result, result) if twice else result


def everywhere(network: nn.Module) -> bool:
    """Whether the network has batch norms, and the kernels can serve them all on a GPU in 16 bits."""
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    return (
        norm_kernels is not None and bool(norms) and all(isinstance(n, NormAct) and whole(n) for n in norms)
    )


def whole(norm: nn.BatchNorm2d) -> bool:
    """With weights, and with statistics that move by a fixed share."""
    return norm.affine and norm.track_running_stats and norm.momentum is not None


def no_tickets(norm: nn.BatchNorm2d) -> Tensor:
    place = norm.weight.device if norm.affine else None  # without weights the kernels do not serve
    return torch.zeros(norm.num_features, dtype=torch.int32, device=place)


def plain(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, act: Act) -> Tensor:
    y = nn.BatchNorm2d.forward(norm, moving(x) if norm.training and x.element_size() < 4 else x)
    if residual is not None:
        y = y + residual
    return y if act == "none" else F.relu(y) if act == "relu" else F.relu6(y)


def moving(x: Tensor) -> Tensor:
    """x; no gradient passes to channels that stand still: one value, not zero, at every pixel of the batch.

    Pruning leaves some of them where live_channels does not see that a filter reads constants only (behind a
    sum of biases, or in a model that cannot be traced). Their norms multiply gradients by 1 / √eps = 316,
    layer upon layer. The sum over all pixels is zero, and with it the gradient of every parameter before; in
    16 bits, what is left of the sum is rounding, larger than all other gradients together. A channel of zeros
    may be that of a filter of zeros, which can still learn (not one of zeros with a bias of its own: its
    channel stands still, too).
    """
    still = ((x == x[:1, :, :1, :1]) & (x != 0)).all(dim=(0, 2, 3), keepdim=True)
    return torch.where(still, x.detach(), x)


def serves(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None) -> bool:
    """Whether the kernels can be used here."""
    if norm_kernels is None or not x.is_cuda or torch.compiler.is_compiling():
        return False
    alike = residual is None or (residual.shape == x.shape and residual.dtype == x.dtype)
    small = x.ndim == 4 and x.shape[1] < x.numel() <= MOST_ELEMENTS
    return alike and whole(norm) and small and x.dtype in (torch.bfloat16, torch.float16)


def fused(
    norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, act: Act, *, twice: bool
) -> Tensor | tuple[Tensor, Tensor]:
    """By the kernels."""
    x = x.contiguous(memory_format=torch.channels_last)
    if residual is not None:
        residual = residual.contiguous(memory_format=torch.channels_last)
    tickets = norm.tickets if isinstance(norm, NormAct) else no_tickets(norm)
    if norm.training:
        mean, scale = batch_moments(norm, x, tickets)
    else:
        assert norm.running_mean is not None
        assert norm.running_var is not None
        mean, scale = norm.running_mean, (norm.running_var + norm.eps).rsqrt()
    args = (x, residual, norm.weight, norm.bias, mean, scale, tickets, act, norm.training, twice)
    return cast("Tensor | tuple[Tensor, Tensor]", _Fused.apply(*args))  # type: ignore[no-untyped-call]


# --- launches ---


class Table(NamedTuple):
    """Images as rows (pixels) and columns (channels), and how wide a tile is."""

    rows: int
    columns: int
    wide: int

    @classmethod
    def of(cls, x: Tensor) -> Table:
        columns = x.shape[1]
        return cls(x.numel() // columns, columns, tile_width(columns))

    @property
    def across(self) -> int:
        return -(-self.columns // self.wide)


def tile_width(columns: int) -> int:
    """The widest power of two that wastes little."""
    for wide in (128, 64, 32, 16):
        if wide <= WIDEST and -(-columns // wide) * wide <= (1 + WASTE) * columns:
            return wide
    return 16


def tile_rows(rows: int, wide: int) -> int:
    """Of a tile that holds as much as the widest one does."""
    return rows * WIDEST // wide


def chunks_of(table: Table, block: int, programs: int, most: int) -> tuple[int, int]:
    """Rows of a chunk, a multiple of the tile's; and chunks."""
    wanted = min(most, max(1, programs // table.across))
    rows = -(-table.rows // (wanted * block)) * block
    return rows, -(-table.rows // rows)


class Sums(NamedTuple):
    """How the sums over all rows are taken, and what the programs leave for the last of them."""

    grid: tuple[int, int]
    chunk: int
    part: Tensor  # [chunks, 2, columns]
    settings: dict[str, int]

    @classmethod
    def of(cls, table: Table, device: torch.device, setting: tuple[int, int, int, int, int]) -> Sums:
        rows, warps, stages, programs, most = setting
        block = tile_rows(rows, table.wide)
        chunk, chunks = chunks_of(table, block, programs, most)
        part = torch.empty(chunks, 2, table.columns, dtype=torch.float32, device=device)
        told = {"CHUNKS": most, "BLOCK": block, "WIDE": table.wide, "STAGES": stages, "num_warps": warps}
        return cls((table.across, chunks), chunk, part, told)


def tiles(table: Table) -> tuple[tuple[int], dict[str, int]]:
    """The grid and the settings of a kernel that works on one tile after another."""
    rows, warps, stages = TILE
    block = tile_rows(rows, table.wide)
    grid = (table.across * -(-table.rows // block),)
    return grid, {"BLOCK": block, "WIDE": table.wide, "num_warps": warps, "num_stages": stages}


@torch.no_grad()
def batch_moments(norm: nn.BatchNorm2d, x: Tensor, tickets: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and 1 / √(variance + eps) of every channel; the running statistics move on."""
    table = Table.of(x)
    sums = Sums.of(table, x.device, MOMENTS)
    mean, scale = (torch.empty(table.columns, dtype=torch.float32, device=x.device) for _ in range(2))
    norm_kernels.moments[sums.grid](
        x, sums.part, tickets, mean, scale, norm.running_mean, norm.running_var, norm.num_batches_tracked,
        table.rows, table.columns, sums.chunk, float(cast(float, norm.momentum)), norm.eps, **sums.settings,
    )  # fmt: skip
    return mean, scale


def apply(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor, act: Act
) -> Tensor:
    table, y = Table.of(x), torch.empty_like(x)
    grid, settings = tiles(table)
    norm_kernels.apply[grid](
        x, residual if residual is not None else x, y, mean, scale, weight, bias, table.rows, table.columns,
        RESIDUAL=residual is not None, ACT=CODES[act], **settings,
    )  # fmt: skip
    return y


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, mean: Tensor,
        scale: Tensor, tickets: Tensor, act: Act, training: bool, twice: bool,
    ) -> Any:  # fmt: skip
        y = apply(x, residual, weight, bias, mean, scale, act)
        cut = act != "none" and residual is not None
        ctx.save_for_backward(x, y if cut else None, weight, bias, mean, scale)
        ctx.told = (tickets, act, training, residual is not None)
        ctx.set_materialize_grads(False)
        return (y, y.detach()) if twice else y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grown: Tensor | None) -> tuple[Tensor | None, ...]:
        x, y, weight, bias, mean, scale = ctx.saved_tensors
        given = [g.contiguous(memory_format=torch.channels_last) for g in grown if g is not None]
        if not given:
            return (None,) * 10
        dx, dr, sums = back(x, y, given, weight, bias, mean, scale, *ctx.told)
        return dx, dr, sums[1], sums[0], None, None, None, None, None, None


def back(
    x: Tensor, y: Tensor | None, given: list[Tensor], weight: Tensor, bias: Tensor, mean: Tensor,
    scale: Tensor, tickets: Tensor, act: Act, training: bool, has_residual: bool,
) -> tuple[Tensor, Tensor | None, Tensor]:  # fmt: skip
    """Gradients of x and of the residual; and [2, columns], those of bias and weight."""
    table = Table.of(x)
    how = Sums.of(table, x.device, BACK_SUMS)
    sums = torch.empty(2, table.columns, dtype=torch.float32, device=x.device)
    dy, other = given[0], given[1] if len(given) > 1 else None
    keep = other is not None or (has_residual and act != "none")
    g = torch.empty_like(x) if keep else dy
    norm_kernels.back_sums[how.grid](
        dy, other if other is not None else dy, x, y if y is not None else x, g, mean, scale, weight, bias,
        how.part, tickets, sums, table.rows, table.columns, how.chunk,
        OTHER=other is not None, FROM_Y=y is not None, KEEP=keep, ACT=CODES[act], **how.settings,
    )  # fmt: skip
    dx = torch.empty_like(x)
    grid, settings = tiles(table)
    # In evaluation mean and scale are constants: dx = weight · scale · g.
    norm_kernels.back_apply[grid](
        g, x, dx, mean, scale, weight, bias, sums if training else torch.zeros_like(sums),
        table.rows, table.columns, ACT=0 if keep else CODES[act], **settings,
    )  # fmt: skip
    return dx, g if has_residual else None, sums
