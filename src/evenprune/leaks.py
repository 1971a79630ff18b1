"""Samples that two splits share: an audit speaks only of samples that nothing was trained or chosen on.

Samples are told apart by their place in memory and by their inputs. Equal images are one sample; equal rows
of a table need not be, where it has few columns or categories: of these counts what chance does not explain.
"""

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evenprune.recipe import Split, shared_samples

WORDS = {"train": "the training data", "heldout": "the held-out data", "test": "the test data"}
FEW = 0.1  # of a split may be shared and is noted; more is refused
CHUNK = 1024  # rows at a time
QUICK = 512  # values of a row that are looked at first


def found(given: Mapping[str, Any], splits: Mapping[str, Split]) -> tuple[list[str], dict[str, list[str]]]:
    """What must not be, and notes on the later split of a pair for what it shares with the earlier one.

    given: the splits as they came: one object twice is one split twice.
    """
    problems, notes = list[str](), {name: list[str]() for name in splits}
    rows = {name: Rows(split.inputs) for name, split in splits.items()}
    for first, second in itertools.combinations(splits, 2):
        here, there = shared(rows[second], rows[first]), shared(rows[first], rows[second])
        both = here.certain == rows[second].count and there.certain == rows[first].count
        if given[first] is given[second] or both:
            problems.append(f"{WORDS[first]} and {WORDS[second]} are the same samples. {_advice(second)}")
        elif here.beyond > FEW * rows[second].count:
            problems.append(f"{_sentence(here, first, second)}. {_advice(second)}")
        elif there.count == rows[first].count and there.beyond > FEW * rows[first].count:
            problems.append(f"{_sentence(there, second, first)}. {_advice(second)}")
        elif here.beyond > 0:
            counted = "the audit counts them as unseen" if second == "test" else "they are not held out"
            notes[second].append(f"{_sentence(here, first, second)}; {counted}.")
    return problems, notes


def _advice(second: str) -> str:
    if second == "test":
        return "Audit on samples that nothing was trained or chosen on: give others as audit=… (or test=…)."
    return "Hold out samples that the models are not trained on: give others as heldout=…"


@dataclass(frozen=True)
class Shared:
    """Rows of one split that are rows of another one too."""

    count: int
    certain: int  # of them lie at the same place in memory
    chance: float  # would be expected had both been drawn apart
    of: int  # rows there are
    others: int  # rows of the other split

    @property
    def beyond(self) -> float:
        """How many are one sample in both for sure: above what chance explains, by three standard deviations.

        σ² = m t (1 − t) (1 + 2m/n): binomial, and the share t is itself counted, in pairs among n rows.
        """
        variance = self.chance * (1 - self.chance / max(self.of, 1)) * (1 + 2 * self.of / max(self.others, 1))
        return max(self.certain, self.count - self.chance - 3 * math.sqrt(variance))


def shared(inner: "Rows", outer: "Rows") -> Shared:
    """The rows of `inner` that are in `outer`."""
    certain, count = shared_samples(inner.inputs, outer.inputs), inner.also_in(outer)
    chance = by_chance(inner, outer) if count and inner.inputs.ndim <= 2 else 0.0
    if certain > count - chance:  # then memory says more than the rows
        count, chance = certain, 0.0
    return Shared(count, certain, chance, inner.count, outer.count)


def by_chance(inner: "Rows", outer: "Rows") -> float:
    """How many of m rows would be in n others had all been drawn alike: as many as have a twin among the n.

    m · t    t = twins_n / n    t' = n/m · twins_m / m

    t' is an estimate from the m rows: 1 − (1 − p)ⁿ ≤ n/m · (1 − (1 − p)ᵐ) for n ≥ m, and ≥ for n < m. As an
    upper one it stands in where the n were oversampled, so that all have twins; as a lower one where n is
    too small to have any. As upper one with three standard deviations, as twins may be few.
    """
    m, n = inner.count, outer.count
    limit = inner.twins + 6 + 3 * math.sqrt(2 * inner.twins)
    own, scale = outer.twins / n, n / m / m
    return m * (min(own, scale * limit) if n >= m else max(own, scale * inner.twins))


def _sentence(some: Shared, first: str, second: str) -> str:
    where = f"samples of {WORDS[second]} are in {WORDS[first]} as well"
    if some.count == some.of and some.chance < 1:
        return f"all {some.of:,} {where}"
    chance = f", up to {some.chance:,.0f} of them by chance" if some.chance >= 1 else ""
    return f"{some.count:,} of the {some.of:,} {where}{chance}"


class Rows:
    """The inputs of a split as rows that can be looked up."""

    def __init__(self, inputs: Tensor) -> None:
        self.inputs, self.count = inputs, len(inputs)
        self.form = (inputs.dtype, inputs.shape[1:])

    def also_in(self, other: "Rows") -> int:
        """How many rows are rows of the other one too."""
        if self.form != other.form:
            return 0
        alike = [row for row, digest in enumerate(self.quick) if digest in other.lookup]
        if not self.is_wide or not alike:
            return len(alike)
        mine = {self.quick[row] for row in alike}
        theirs = [row for row, digest in enumerate(other.quick) if digest in mine]
        whole = set(digests(other.inputs, theirs))
        return sum(digest in whole for digest in digests(self.inputs, alike))

    @cached_property
    def twins(self) -> int:
        """How many rows are equal to another one of the same split."""
        counts = Counter(self.quick)
        alike = [row for row, digest in enumerate(self.quick) if counts[digest] > 1]
        if self.is_wide:
            counts = Counter(digests(self.inputs, alike))
        return sum(count for count in counts.values() if count > 1)

    @property
    def is_wide(self) -> bool:
        """Whether a quick look at a row does not see all of it."""
        return self.inputs[:1].numel() > QUICK

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
