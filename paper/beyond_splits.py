"""Splits to train on, held out, and to audit on. The draw follows the images, not their order.

Every image has a rank within its class by the SHA-256 of its pixels and a seed. So the same images are held
out wherever and in whatever order they are stored, and few held-out samples are a part of many.

Of the held-out images two thirds may be followed ("heldout": multipliers, class biases), and one third is
there to choose dual steps and iterates on ("choice"): what is followed looks better than it is.
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
    """Places of train, heldout (`per_class` of each class), choice (half as many) and audit (all of test).

    They are places in `train`, those of audit in `test`. `per_class` is a number of samples, or below 1 a
    share: classes of unequal size then keep theirs. All but train are ordered by content. An image that audit
    has is in no other split, one that comes twice is there once, one with several labels not at all.
    """
    every, seen = digests(train.inputs, seed), digests(test.inputs, seed)
    own = once(every, train.labels, taken=seen)
    keys, labels = np.array(every)[own], train.labels[torch.from_numpy(own)]
    rank = ranks(keys.tolist(), labels)
    most = _most(labels, per_class, "class", chosen_on=True)
    out, choice = rank < most, (rank >= most) & (rank < most + half_of(most))
    # The first of every class, then the second of every class, …: few of a group are spread over its classes.
    order = np.lexsort((keys, rank))
    return {
        "train": own[~(out | choice)],
        "heldout": own[order[out[order]]],
        "choice": own[order[choice[order]]],
        "audit": np.argsort(np.array(seen), kind="stable"),
    }


def once(keys: Sequence[str], labels: Tensor, *, taken: Sequence[str]) -> IntArray:
    """The places of keys that are not taken and have one label; of equal ones the first."""
    first, told = dict[str, int](), dict[str, set[int]]()
    for place, (key, label) in enumerate(zip(keys, labels.tolist(), strict=True)):
        first.setdefault(key, place)
        told.setdefault(key, set()).add(label)
    left_out = set(taken)
    kept = [place for key, place in first.items() if key not in left_out and len(told[key]) == 1]
    return np.array(kept, dtype=np.int64)


def half_of(most: IntArray) -> IntArray:
    """Images to choose on: half as many as those that may be followed, rounded up."""
    return -(-most // 2)


def all_splits(train: Split, test: Split, *, per_class: float, seed: int = SEED) -> dict[str, Split]:
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
    return every[rank < _most(groups, used, "group", chosen_on=False)]


def identity(splits: Mapping[str, Split]) -> str:
    """The same for the same training images, in any order: what a dense model was trained on."""
    return hashlib.sha256(" ".join(sorted(digests(splits["train"].inputs))).encode()).hexdigest()[:16]


def _most(ids: Tensor, wanted: float, what: str, *, chosen_on: bool) -> IntArray:
    """[N]: how many are taken of each sample's class; refused where none is.

    chosen_on: half as many again are taken to choose on, and one at least must stay.
    """
    _, place, sizes = np.unique(ids.numpy(), return_inverse=True, return_counts=True)
    if 0 < wanted < 1:
        taken = np.rint(wanted * sizes).astype(np.int64)
        over = taken + half_of(taken) > sizes - 1 if chosen_on else taken > sizes
        wrong = sizes[(taken < 1) | over].tolist()
        if wrong:
            size, left = min(wrong), ", half as many again are to choose on, and 1 be left"
            raise InputProblems(
                [f"a share of {wanted:g} held out is {round(wanted * size)} of the {size} samples of one "
                 f"{what}: at least 1 must be{left * chosen_on}; give another share, or a number"]
            )  # fmt: skip
        return np.asarray(taken[place])
    least = int(sizes.min(initial=len(ids)))
    least = 2 * (least - 1) // 3 if chosen_on else least
    if not (1 <= wanted <= least and wanted == int(wanted)):
        raise InputProblems(
            [f"{wanted:g} held-out samples a {what}: give 1 to {least}, all that there are, "
             "or a share between 0 and 1"]
        )  # fmt: skip
    return np.full(len(ids), int(wanted))
