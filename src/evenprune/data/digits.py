"""Scikit-learn's 8×8 digits, with two of them made rare: small enough to prune in seconds."""

from collections.abc import Sequence

import torch
from torch import Tensor

from evenprune.tally import InputProblems

Samples = tuple[Tensor, Tensor, dict[str, Tensor]]  # inputs, labels, columns of groups

RARE = (8, 9)
RARE_SAMPLES = 30  # of each rare digit in the training data
TEST_SHARE = 0.4  # of each digit
SPLIT_SEED = 0


def load(*, rare: Sequence[int] = RARE, rare_samples: int = RARE_SAMPLES) -> tuple[Samples, Samples]:
    """Training and test samples: images [N, 1, 8, 8] in 0…1, labels, and the digit itself as the group.

    The split is the same at every call. Rare digits lose training samples only.
    """
    splits = load_splits(rare=rare, rare_samples=rare_samples)
    return splits["train"], splits["test"]


def load_splits(
    *, rare: Sequence[int] = RARE, rare_samples: int = RARE_SAMPLES, heldout_share: float = 0.0
) -> dict[str, Samples]:
    """The same, by name; and "heldout": of each digit this share of its training samples, one at least
    of two or more."""
    if not 0 <= heldout_share < 1:
        raise InputProblems([f"heldout_share is {heldout_share}: give a share of at least 0 and below 1"])
    images, labels = _read()
    parts: dict[str, list[Tensor]] = {"train": [], "heldout": [], "test": []}
    for digit in range(10):
        mine = _shuffled((labels == digit).nonzero().flatten(), seed=SPLIT_SEED + digit)
        begin = round(TEST_SHARE * len(mine))
        end = min(begin + rare_samples, len(mine)) if digit in rare else len(mine)
        apart = max(1, round(heldout_share * (end - begin))) if heldout_share else 0
        apart = max(0, min(apart, end - begin - 1))  # the last one is always trained on
        parts["test"].append(mine[:begin])
        parts["train"].append(mine[begin : end - apart])
        parts["heldout"].append(mine[end - apart : end])
    if not heldout_share:
        del parts["heldout"]
    return {name: _taken(images, labels, torch.cat(index)) for name, index in parts.items()}


def _read() -> tuple[Tensor, Tensor]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            f"The digits come with scikit-learn, which cannot be imported ({error}): "
            "pip install 'evenprune[demo]'"
        ) from error
    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16  # [1797, 1, 8, 8]
    return images, torch.tensor(bunch.target, dtype=torch.int64)


def _shuffled(index: Tensor, *, seed: int) -> Tensor:
    return index[torch.randperm(len(index), generator=torch.Generator().manual_seed(seed))]


def _taken(images: Tensor, labels: Tensor, index: Tensor) -> Samples:
    return images[index], labels[index], {"digit": labels[index]}
