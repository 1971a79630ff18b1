"""How the sparse model does on each group, from the outcomes of training batches: ring, batch or table.

Pure tensor functions with a leading run axis: no loop over groups or samples, no data-dependent shape and no
wait for the device. `push_ring` and `push_table` write into the tensors they are given, at the places of the
batch only, so that pushing costs the same for few groups as for many; clone first what must not change.

Column g < groups belongs to group g; column `groups` collects the samples whose group label is missing, which
belong to the overall accuracy and loss but to no constraint.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

MOST_COMPARED = 512  # entries of a line; more are sorted


@dataclass(frozen=True)
class Grouped:
    """Where each sample of a batch stands within its group."""

    row: Tensor  # [runs, batch] its group, or `groups` where the label is missing
    rank: Tensor  # [runs, batch] how many earlier samples of the batch are of the same row
    size: Tensor  # [runs, batch] how many samples of the batch are of the same row


@dataclass(frozen=True)
class Estimate:
    """Mean outcome per group, and which groups are known well enough to count."""

    value: Tensor  # [runs, groups + 1]
    counted: Tensor  # [runs, groups + 1] bool
    share: Tensor  # [runs, groups + 1] how much each group weighs in the overall mean


def rank_and_size(keys: Tensor) -> tuple[Tensor, Tensor]:
    """For each entry of each line: the number of equal entries before it, and in all."""
    compare = keys.is_cuda and keys.shape[1] <= MOST_COMPARED  # on a CPU sorting is faster
    return _by_comparing(keys) if compare else _by_sorting(keys)


def _by_comparing(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Every entry with every other: few operations, which a compiler makes one."""
    same = keys.unsqueeze(2) == keys.unsqueeze(1)  # [runs, batch, batch]
    return same.tril(-1).sum(2), same.sum(2)


def _by_sorting(keys: Tensor) -> tuple[Tensor, Tensor]:
    ordered, order = torch.sort(keys, dim=1, stable=True)
    first = torch.searchsorted(ordered, keys)  # [runs, batch] where the run of equal keys begins
    last = torch.searchsorted(ordered, keys, right=True)
    place = torch.arange(keys.shape[1], device=keys.device).expand_as(keys)
    position = torch.zeros_like(keys).scatter(1, order, place)
    return position - first, last - first


def group_batch(group_ids: Tensor, groups: int) -> Grouped:
    """Sort one batch of group ids [runs, batch] by group."""
    row = torch.where(group_ids < 0, groups, group_ids).contiguous()
    return Grouped(row, *rank_and_size(row))


def present(batch: Grouped, groups: int) -> Tensor:
    """[runs, groups + 1] bool: which rows the batch has."""
    nothing = torch.zeros(batch.row.shape[0], groups + 1, dtype=torch.bool, device=batch.row.device)
    return nothing.scatter(1, batch.row, True)


def push_ring(
    rings: tuple[Tensor, Tensor, Tensor], batch: Grouped, outcome: Tensor, *, k: Tensor, write: Tensor
) -> None:
    """Remember the latest k outcomes of each group, in place.

    `rings` is (ring [runs, groups + 2, k_max], count [runs, groups + 2], total [runs, groups + 2]). The last
    row is a dummy for whatever must not be kept: more than k outcomes of a group in one batch, or a run with
    `write` [runs, 1] off. Only zeros are ever written there, and slots from k to k_max stay zero, so a plain
    sum over the slots is the sum of the outcomes: without drift, and read for the groups of this batch only.
    """
    ring, count, total = rings
    slots, dummy = ring.shape[2], ring.shape[1] - 1
    row = torch.where(write, batch.row, dummy)  # [runs, batch]
    before = count.gather(1, row)
    kept = write & (batch.rank >= batch.size - k)
    cell = torch.where(kept, row * slots + (before + batch.rank) % k, dummy * slots)
    ring.view(ring.shape[0], -1).scatter_(1, cell, torch.where(kept, outcome, 0).to(ring.dtype))
    remembered = ring.gather(1, row.unsqueeze(2).expand(-1, -1, slots)).to(total.dtype).sum(2)
    count.scatter_(1, row, torch.where(write, before + batch.size, 0))
    total.scatter_(1, row, remembered)


def read_ring(count: Tensor, total: Tensor, *, k: Tensor, share: Tensor) -> Estimate:
    """A group counts once its ring is full."""
    return Estimate(total[:, :-1] / k, count[:, :-1] >= k, share)


def read_batch(batch: Grouped, outcome: Tensor, groups: int) -> Estimate:
    """The batch alone, without memory: groups weigh in the overall mean as they do in this batch."""
    empty = outcome.new_zeros(outcome.shape[0], groups + 1)
    total = empty.scatter_add(1, batch.row, outcome)
    number = empty.scatter_add(1, batch.row, torch.ones_like(outcome))
    return Estimate(total / number.clamp_min(1), number > 0, number / outcome.shape[1])


def unseen(dtype: torch.dtype) -> float:
    """What a table holds for a sample that has not been seen yet: -1 among bits, NaN among losses."""
    return math.nan if dtype.is_floating_point else -1


def push_table(
    tables: tuple[Tensor, Tensor, Tensor], batch: Grouped, outcome: Tensor, *, index: Tensor, write: Tensor
) -> None:
    """Remember the latest outcome of every training sample, in place.

    `tables` is (table [runs, samples + 1], total [runs, groups + 1] float64, seen [runs, groups + 1]). The
    last cell is a dummy. Of a sample that is twice in the batch the later outcome stays.
    """
    table, total, seen = tables
    nothing = unseen(table.dtype)
    rank, size = rank_and_size(index.contiguous())
    kept = write & (rank == size - 1)
    cell = torch.where(kept, index, table.shape[1] - 1)
    old = table.gather(1, cell)
    new = kept & (torch.isnan(old) if table.dtype.is_floating_point else old < 0)
    value = outcome.to(table.dtype)  # the sums must take back later exactly what the table holds
    change = value.to(total.dtype) - torch.where(new, 0, old).to(total.dtype)
    table.scatter_(1, cell, torch.where(kept, value, nothing))
    total.scatter_add_(1, batch.row, torch.where(kept, change, 0))
    seen.scatter_add_(1, batch.row, new.to(seen.dtype))


def read_table(total: Tensor, seen: Tensor, *, samples: Tensor, share: Tensor) -> Estimate:
    """A group counts once half of its training samples have been seen: within the first epoch."""
    value = (total / seen.clamp_min(1)).to(share.dtype)
    return Estimate(value, (seen > 0) & (2 * seen >= samples), share)
