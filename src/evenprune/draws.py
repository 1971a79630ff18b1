"""What is drawn at random for an epoch.

It depends on (seed of the run, epoch) alone: a run in a fleet sees what it would see by itself, and a resumed
epoch is the same epoch.
"""

import hashlib

import torch
from torch import Tensor


def seed_of(*parts: int | str) -> int:
    """One seed of many numbers and words; unlike sums and products of seeds, it does not collide."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # manual_seed takes 63 bits everywhere


def sample_order(seed: int, epoch: int, samples: int, balance: Tensor | None = None) -> Tensor:
    """The order in which one run sees the training samples in one epoch. [samples]

    `balance` says how often a sample is seen on average; no epoch is more than one time off.
    """
    generator = torch.Generator().manual_seed(seed_of("order", seed, epoch))
    order = torch.randperm(samples, generator=generator)
    if balance is None:
        return order
    seen = _times(balance[order], torch.rand((), dtype=torch.float64, generator=generator))
    drawn = order.repeat_interleave(seen)
    return drawn[torch.randperm(samples, generator=generator)]


def _times(balance: Tensor, start: Tensor) -> Tensor:
    """Whole numbers ⌊Σ_{j≤i} b_j + u⌋ − ⌊Σ_{j<i} b_j + u⌋, u in [0, 1): each ⌊b_i⌋ or ⌈b_i⌉, on average b_i.

    Their sum is that of `balance`, which is the number of samples.
    """
    ends = balance.cumsum(0)
    ends[-1] = len(balance)  # whatever was rounded on the way
    return (ends + start).floor().long().diff(prepend=torch.zeros(1, dtype=torch.long))


def leaving_out(order: Tensor, out: Tensor, count: int) -> Tensor:
    """`count` samples of an order, those that are `out` [samples] skipped; it goes round where it ends early.

    So a run without a fold sees what the run with all samples sees, in the same order, but for the fold.
    """
    own = order[~out[order]]
    return own[torch.arange(count) % len(own)]


def heldout_order(seed: int, epoch: int, samples: int) -> Tensor:
    """The order in which the multipliers of one run follow the held-out samples in one epoch. [samples]"""
    return torch.randperm(samples, generator=torch.Generator().manual_seed(seed_of("heldout", seed, epoch)))


def balance_of(groups: Tensor) -> Tensor:
    """How often every sample is seen in an epoch, n / (G n_g), so that all groups are seen as often.

    n counts the samples of the G groups that have any; a sample of no group is seen once.
    """
    groups = groups.cpu()
    known = groups >= 0
    sizes = torch.bincount(groups[known], minlength=1).double()
    often = known.sum() / (torch.count_nonzero(sizes) * sizes)
    return often[groups.clamp(min=0)].where(known, 1.0)


def augment_draws(seed: int, epoch: int, *, samples: int, draws: int) -> Tensor:
    """The random numbers of the augmentation of one run in one epoch. [samples, draws]"""
    generator = torch.Generator().manual_seed(seed_of("augment", seed, epoch))
    return torch.rand(samples, draws, generator=generator)
