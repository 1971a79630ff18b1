"""Three splits: to train on, held out, and to audit on. The draw follows the images, not their order.

Every image has a rank within its class by the SHA-256 of its pixels and a seed. So the same images are held
out wherever and in whatever order they are stored, and few held-out samples are a part of many.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from evenprune.recipe import Split
from evenprune.tally import InputProblems, IntArray

SEED = 0


def digests(inputs: Tensor, seed: int = SEED) -> list[str]:
    """One per image."""
    start = hashlib.sha256(f"held out {seed}".encode())
    found = []
    for image in inputs.cpu().contiguous().numpy():
        own = start.copy()
        own.update(image.tobytes())
        found.append(own.hexdigest())
    return found


def ranks(keys: Sequence[str], within: Tensor) -> IntArray:
    """[N]: the place of each sample among those of its class, by key."""
    order = np.argsort(np.array(keys), kind="stable")
    rank, seen = np.empty(len(keys), dtype=np.int64), dict[int, int]()
    labels = within.tolist()
    for place in order.tolist():
        rank[place] = seen.get(labels[place], 0)
        seen[labels[place]] = rank[place] + 1
    return rank


def take(split: Split, places: IntArray) -> Split:
    """Some samples of a split, in the order given."""
    index = torch.from_numpy(places)
    return replace(split, inputs=split.inputs[index], labels=split.labels[index], groups=split.groups[index])


def three_splits(
    train: Split, test: Split, *, per_class: int, used: int | None = None, seed: int = SEED
) -> dict[str, Split]:
    """train, heldout (`per_class` of each class; of these at most `used` of each group), audit (all of test).

    heldout and audit are ordered by content.
    """
    keys = digests(train.inputs, seed)
    rank = ranks(keys, train.labels)
    out = rank < per_class
    _refuse(_sizes(train.labels, np.ones_like(out)), per_class, "class", spare=1)
    # The first of every class, then the second of every class, …: few of a group are spread over its classes.
    order = np.lexsort((np.array(keys), rank))
    order = order[out[order]]
    if used is not None:
        _refuse(_sizes(train.groups, out), used, "group", spare=0)
        place = ranks([f"{i:09d}" for i in range(len(order))], train.groups[torch.from_numpy(order)])
        order = order[place < used]
    audit = np.argsort(np.array(digests(test.inputs, seed)), kind="stable")
    return {
        "train": take(train, np.flatnonzero(~out)),
        "heldout": take(train, order),
        "audit": take(test, audit),
    }


def identity(splits: Mapping[str, Split]) -> str:
    """The same for the same training images, in any order: what a dense model was trained on."""
    return hashlib.sha256(" ".join(sorted(digests(splits["train"].inputs))).encode()).hexdigest()[:16]


def _sizes(ids: Tensor, mask: IntArray) -> dict[int, int]:
    values, counts = np.unique(ids.numpy()[mask.astype(bool)], return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def _refuse(sizes: Mapping[int, int], wanted: int, what: str, *, spare: int) -> None:
    """Refuse to take more than there are; `spare`: how many must be left."""
    least = min(sizes.values(), default=0) - spare
    if not 1 <= wanted <= least:
        raise InputProblems([f"{wanted} held-out samples a {what}: give 1 to {least}, all that there are"])
