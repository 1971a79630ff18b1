"""Scikit-learn's 8×8 digits, with two of them made rare: small enough to prune in seconds."""

from collections.abc import Sequence

import torch
from torch import Tensor

Samples = tuple[Tensor, Tensor, dict[str, Tensor]]  # inputs, labels, columns of groups

RARE = (8, 9)
RARE_SAMPLES = 30  # of each rare digit in the training data
TEST_SHARE = 0.4  # of each digit
SPLIT_SEED = 0


def load(*, rare: Sequence[int] = RARE, rare_samples: int = RARE_SAMPLES) -> tuple[Samples, Samples]:
    """Training and test samples: images [N, 1, 8, 8] in 0…1, labels, and the digit itself as the group.

    The split is the same at every call. Rare digits lose training samples only.
    """
    images, labels = _read()
    train, test = [], []
    for digit in range(10):
        mine = _shuffled((labels == digit).nonzero().flatten(), seed=SPLIT_SEED + digit)
        held_out = round(TEST_SHARE * len(mine))
        kept = rare_samples if digit in rare else len(mine) - held_out
        test.append(mine[:held_out])
        train.append(mine[held_out : held_out + kept])
    return _taken(images, labels, torch.cat(train)), _taken(images, labels, torch.cat(test))


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
