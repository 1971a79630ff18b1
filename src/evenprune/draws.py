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

    With `balance` they are drawn with replacement, as often as it says.
    """
    generator = torch.Generator().manual_seed(seed_of("order", seed, epoch))
    if balance is not None:
        return torch.multinomial(balance, samples, replacement=True, generator=generator)
    return torch.randperm(samples, generator=generator)


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
    """1 / n_g for every sample: all groups are drawn as often, those without a label like one more group."""
    line = groups.cpu() + 1
    return 1 / torch.bincount(line).double()[line]


def augment_draws(seed: int, epoch: int, *, samples: int, draws: int) -> Tensor:
    """The random numbers of the augmentation of one run in one epoch. [samples, draws]"""
    generator = torch.Generator().manual_seed(seed_of("augment", seed, epoch))
    return torch.rand(samples, draws, generator=generator)
