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


def places(train: Split, test: Split, *, per_class: float, seed: int = SEED) -> dict[str, IntArray]:
    """Of train, heldout (`per_class` of each class) and audit (all of test), the places of their images.

    The first two are places in `train`, the last in `test`. `per_class` is a number of samples, or below 1 a
    share: classes of unequal size then keep theirs. heldout and audit are ordered by content.
    """
    keys = digests(train.inputs, seed)
    rank = ranks(keys, train.labels)
    out = rank < _most(train.labels, per_class, "class", spare=1)
    # The first of every class, then the second of every class, …: few of a group are spread over its classes.
    order = np.lexsort((np.array(keys), rank))
    audit = np.argsort(np.array(digests(test.inputs, seed)), kind="stable")
    return {"train": np.flatnonzero(~out), "heldout": order[out[order]], "audit": audit}


def three_splits(train: Split, test: Split, *, per_class: float, seed: int = SEED) -> dict[str, Split]:
    found = places(train, test, per_class=per_class, seed=seed)
    return {name: take(test if name == "audit" else train, own) for name, own in found.items()}


def looked_at(groups: Tensor, used: float | None) -> IntArray:
    """The places of at most `used` held-out samples of each group (below 1: a share of them; None: all).

    Few are always a part of many.
    """
    every = np.arange(len(groups))
    if used is None:
        return every
    rank = ranks([f"{place:09d}" for place in every.tolist()], groups)
    return every[rank < _most(groups, used, "group", spare=0)]


def identity(splits: Mapping[str, Split]) -> str:
    """The same for the same training images, in any order: what a dense model was trained on."""
    return hashlib.sha256(" ".join(sorted(digests(splits["train"].inputs))).encode()).hexdigest()[:16]


def _most(ids: Tensor, wanted: float, what: str, *, spare: int) -> IntArray:
    """[N]: how many are taken of each sample's class; refused where none is or fewer than `spare` stay."""
    _, place, sizes = np.unique(ids.numpy(), return_inverse=True, return_counts=True)
    if 0 < wanted < 1:
        taken = np.rint(wanted * sizes).astype(np.int64)
        wrong = sizes[(taken < 1) | (taken > sizes - spare)].tolist()
        if wrong:
            size = min(wrong)
            raise InputProblems(
                [f"a share of {wanted:g} held out is {round(wanted * size)} of the {size} samples of one "
                 f"{what}: at least 1 must be{', and 1 be left' * spare}; give another share, or a number"]
            )  # fmt: skip
        return taken[place]
    least = int(sizes.min(initial=len(ids))) - spare
    if not (1 <= wanted <= least and wanted == int(wanted)):
        raise InputProblems(
            [f"{wanted:g} held-out samples a {what}: give 1 to {least}, all that there are, "
             "or a share between 0 and 1"]
        )  # fmt: skip
    return np.full(len(ids), int(wanted))
