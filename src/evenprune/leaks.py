"""Samples that two splits share: an audit speaks only of samples that nothing was trained or chosen on.

Samples are told apart by their inputs. Where most rows of a split occur in it several times, as in a table of
a few categories, equal rows need not be the same sample, and nothing is said.
"""

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evenprune.recipe import Split

WORDS = {"train": "the training data", "heldout": "the held-out data", "test": "the test data"}
CHUNK = 1024  # rows at a time
QUICK = 512  # values of a row that are looked at first
TELLING = 0.5  # a split with fewer different rows, as a share of all, tells nothing about samples


def found(given: Mapping[str, Any], splits: Mapping[str, Split]) -> tuple[list[str], dict[str, list[str]]]:
    """What must not be, and notes on the later split of a pair for what it shares with the earlier one.

    given: the splits as they came: one object twice is one split twice.
    """
    problems, notes = list[str](), {name: list[str]() for name in splits}
    rows = {name: Rows(split.inputs) for name, split in splits.items()}
    for first, second in itertools.combinations(splits, 2):
        if given[first] is given[second] or rows[first].is_same_memory(rows[second]):
            problems.append(f"{WORDS[first]} and {WORDS[second]} are the same samples. {_advice(second)}")
            continue
        here, there = rows[second].also_in(rows[first]), rows[first].also_in(rows[second])
        if here == len(splits[second]) or there == len(splits[first]):
            inner, outer = (second, first) if here == len(splits[second]) else (first, second)
            problems.append(
                f"all {len(splits[inner]):,} samples of {WORDS[inner]} are in {WORDS[outer]} as well. "
                f"{_advice(second)}"
            )
        elif here:
            counted = "the audit counts them as unseen" if second == "test" else "they are not held out"
            notes[second].append(
                f"{here:,} of the {len(splits[second]):,} samples of {WORDS[second]} are in {WORDS[first]} "
                f"as well; {counted}."
            )
    return problems, notes


def _advice(second: str) -> str:
    if second == "test":
        return "Audit on samples that nothing was trained or chosen on: give others as audit=… (or test=…)."
    return "Hold out samples that the models are not trained on: give others as heldout=…"


class Rows:
    """The inputs of a split as rows that can be looked up."""

    def __init__(self, inputs: Tensor) -> None:
        self.inputs, self.count = inputs, len(inputs)
        self.form = (inputs.dtype, inputs.shape[1:])

    def is_same_memory(self, other: "Rows") -> bool:
        """Whether both begin at one place and go on alike: then one is a part of the other."""
        mine, theirs = ((r.inputs.device, r.inputs.data_ptr(), r.inputs.stride()) for r in (self, other))
        return self.count > 0 and mine == theirs

    def also_in(self, other: "Rows") -> int:
        """How many rows are rows of the other one too; 0 where rows do not tell samples apart."""
        if self.form != other.form or min(self.different, other.different) < TELLING:
            return 0
        alike = [row for row, digest in enumerate(self.quick) if digest in other.lookup]
        if self.inputs[:1].numel() <= QUICK or not alike:
            return len(alike)
        mine = {self.quick[row] for row in alike}
        theirs = [row for row, digest in enumerate(other.quick) if digest in mine]
        whole = set(digests(other.inputs, theirs))
        return sum(digest in whole for digest in digests(self.inputs, alike))

    @cached_property
    def quick(self) -> list[bytes]:
        """A digest of each row, or of so many values spread over it."""
        flat = _flat(self.inputs)
        if flat.shape[1] > QUICK:
            places = torch.linspace(0, flat.shape[1] - 1, QUICK, dtype=torch.float64).round().long()
            flat = flat.index_select(1, places.to(flat.device))
        return digests(flat, range(self.count))

    @cached_property
    def lookup(self) -> frozenset[bytes]:
        return frozenset(self.quick)

    @property
    def different(self) -> float:
        return len(self.lookup) / max(self.count, 1)


def digests(inputs: Tensor, rows: Sequence[int]) -> list[bytes]:
    """One per row; equal for rows that are equal in every value, and for no others."""
    flat, found = _flat(inputs), list[bytes]()
    for start in range(0, len(rows), CHUNK):
        places = torch.tensor(rows[start : start + CHUNK], device=flat.device)
        chunk = _bytes(flat.index_select(0, places))
        found += [hashlib.blake2b(row, digest_size=16).digest() for row in chunk]
    return found


def _flat(inputs: Tensor) -> Tensor:
    return inputs.flatten(1) if inputs.ndim > 1 else inputs.unsqueeze(1)


def _bytes(values: Tensor) -> NDArray[np.uint8]:
    """[rows, bytes]"""
    return cast(NDArray[np.uint8], values.cpu().contiguous().view(torch.uint8).numpy())
