"""Samples listed with labels and attributes to the splits that prune() takes; every problem at once."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenprune.data.arrays import SPLITS, Samples
from evenprune.data.class_labels import SHOWN, column, numbered, plain, too_many_groups
from evenprune.group_rules import Bins, GroupRules, merged, ranged
from evenprune.groups import Column, text_of
from evenprune.reading import listed, quoted
from evenprune.tally import InputProblems

# What reading gives: inputs [N, …], the places of those that were read, the names of the others and why.
Inputs = tuple[NDArray[Any], NDArray[np.int64], list[tuple[str, str]]]

WORDS = {  # how people call the splits
    "train": "train", "training": "train", "test": "test", "testing": "test",
    "validation": "validation", "valid": "validation", "val": "validation", "dev": "validation",
}  # fmt: skip


@dataclass(frozen=True)
class Listing:
    """What is known of the samples before they are read; lists have one entry per sample."""

    where: str  # for messages
    names: Sequence[str]  # all different; a split that is drawn goes by them
    labels: Sequence[Any] | None  # None: there is no such column, which is a problem already
    columns: dict[str, Sequence[Any]] = field(default_factory=dict)  # attributes
    splits: Sequence[Any] | None = None  # None: they are drawn
    lost: Sequence[Any] = ()  # the splits of samples that should be here, but are a problem already
    classes: Sequence[str] | None = None  # names of the labels 0, 1, …, where the data itself has them


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the user asks for, whatever the samples are.

    classes: what stands for 0, 1, … test_share, seed: how a split is drawn where the data has none.
    groups: columns. bins: of some of them, where the ranges begin that its numbers are put into, or how many
    of about equal size. merge_below: groups with fewer training samples become one.
    """

    groups: Sequence[str]
    classes: Sequence[str] | None = None
    test_share: float = 0.2
    seed: int = 0
    bins: Mapping[str, Bins] | None = None
    merge_below: int | None = None

    def problems(self) -> list[str]:
        fine = 0 < self.test_share < 1
        wrong = [] if fine else [f"test_share is {self.test_share}: it must lie between 0 and 1, such as 0.2"]
        return wrong + GroupRules(self.bins or {}, self.merge_below).problems(self.groups)


class Loaded(dict[str, Samples]):
    """Splits by name, as prune(model, **loaded) takes them, and what else is known of the data."""

    def __init__(
        self,
        splits: dict[str, Samples],
        *,
        classes: Sequence[str],
        counted: bool,
        skipped: list[tuple[str, str]],
    ) -> None:
        super().__init__(splits)
        self.classes = tuple(classes)  # names of the labels 0, 1, …
        self.counted = counted  # the labels were texts, and the order of the classes is that of the alphabet
        self.skipped = skipped  # images that could not be read and were left out, and why
        self.notes: tuple[str, ...] = ()  # what else the user should know

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(labels):,} {name}" for name, (_, labels, _) in self.items())
        left = f", {len(self.skipped):,} left out" if self.skipped else ""
        return f"{sizes} samples of {len(self.classes):,} classes{left}"


def assemble(
    listing: Listing, read: Callable[[list[int]], Inputs], wishes: Wishes, problems: Sequence[str] = ()
) -> Loaded:
    """The samples, split by split; or one error with `problems` and all that is wrong besides.

    read(places) reads the inputs in that order, so that each split is one piece of them.
    """
    wrongly = wishes.problems()
    if not listing.names:
        raise InputProblems([*problems, *wrongly, f"{listing.where} holds no samples"])
    labels, classes, mislabelled = _labels(listing, wishes)
    splits, wrong = _splits(listing, labels, wishes)
    columns, unranged = _ranged(listing, splits, wishes, sound=not wrongly)
    found = [*problems, *wrongly, *mislabelled, *unranged]
    for name, values in listing.columns.items():
        found += [] if name in (wishes.bins or {}) else too_many_groups(name, values)
    lost = [WORDS.get((text_of(value) or "").strip().lower()) for value in listing.lost]
    found += wrong + _empty(listing.where, np.array([*splits, *lost], dtype=object))
    if classes and not mislabelled and not wrong and not lost:
        found += _untrained(listing.where, labels, np.array(splits, dtype=object), classes)
    order = sorted(range(len(splits)), key=lambda place: SPLITS.index(splits[place]))
    try:
        inputs, kept, skipped = read(order)
    except InputProblems as error:
        raise InputProblems(found + error.problems) from None
    places = np.array(order, dtype=np.int64)[kept]  # [N] in the listing
    split = np.array(splits, dtype=object)[places]
    if not found:
        found += _empty(listing.where, split, skipped=len(skipped))
        found += _untrained(listing.where, labels[places], split, classes, skipped=len(skipped))
    if found:
        raise InputProblems(found)
    pieces = {name: _piece(split == name) for name in SPLITS if bool((split == name).any())}
    attributes = {n: {a: v[places[piece]] for a, v in columns.items()} for n, piece in pieces.items()}
    if wishes.merge_below is not None:
        attributes = merged(attributes, wishes.merge_below)
    loaded = {n: (inputs[piece], labels[places[piece]], attributes[n]) for n, piece in pieces.items()}
    texts = any(isinstance(value, str) for value in plain(listing.labels or []))
    return Loaded(loaded, classes=classes, counted=texts and wishes.classes is None, skipped=skipped)


def _labels(listing: Listing, wishes: Wishes) -> tuple[NDArray[np.int64], tuple[str, ...], list[str]]:
    if listing.labels is None:
        return np.zeros(len(listing.names), dtype=np.int64), (), []
    return numbered(listing.labels, listing.names, classes=wishes.classes, known=listing.classes)


def _ranged(
    listing: Listing, splits: Sequence[str], wishes: Wishes, *, sound: bool
) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """The columns of the groups, numbers in ranges where that is wished for; and what is wrong with these."""
    training = np.array([split == "train" for split in splits], dtype=bool)
    bins = wishes.bins if sound else {}
    found, problems = ranged(listing.columns, bins or {}, training=training)
    return {n: v if isinstance(v, Column) else column(v) for n, v in found.items()}, problems


def _piece(mine: NDArray[np.bool_]) -> slice:
    """Neighbours as a slice: of a memory map, a view and not a copy."""
    at = np.flatnonzero(mine)
    return slice(int(at[0]), int(at[-1]) + 1)


# --- splits ---


def _splits(listing: Listing, labels: NDArray[np.int64], wishes: Wishes) -> tuple[list[str], list[str]]:
    """The split of each sample, and what is wrong; where something is, "train" stands for the unknown."""
    if listing.splits is None:
        share = wishes.test_share if 0 < wishes.test_share < 1 else 0.5
        return drawn(listing.names, labels, share, wishes.seed), []
    said = [text_of(value) for value in listing.splits]
    words = [None if text is None else WORDS.get(text.strip().lower()) for text in said]
    unknown = sorted(
        {text for text, word in zip(said, words, strict=True) if text is not None and word is None}
    )
    absent = [name for name, text in zip(listing.names, said, strict=True) if text is None]
    problems = []
    if absent:
        examples = listed(absent, SHOWN)
        problems.append(f"{len(absent):,} samples have no split: {examples}; fill it in, or leave them out")
    if unknown:
        count = sum(text in unknown for text in said)
        known = f"but knows {listed(SPLITS)} only ({count:,} of {len(said):,} samples)"
        problems.append(f"{listing.where}: split holds {listed(unknown)}, {known}")
    return [word or "train" for word in words], problems


def drawn(names: Sequence[str], labels: NDArray[np.int64], share: float, seed: int) -> list[str]:
    """`share` of each class to test, the rest to train: the same at every call, whatever the order."""

    def lot(place: int) -> bytes:
        return hashlib.blake2b(f"{seed} {names[place]}".encode("utf-8", "surrogateescape")).digest()

    splits = ["train"] * len(names)
    for label in np.unique(labels).tolist():
        mine = sorted(np.flatnonzero(labels == label).tolist(), key=lot)
        held_out = min(max(1, round(share * len(mine))), len(mine) - 1)  # a single sample is trained on
        for place in mine[:held_out]:
            splits[place] = "test"
    return splits


def _empty(where: str, split: NDArray[Any], *, skipped: int = 0) -> list[str]:
    return [
        f"{where}: there is no sample in split {name!r}{_left_out(skipped)}"
        for name in ("train", "test")
        if not bool((split == name).any())
    ]


def _untrained(
    where: str,
    labels: NDArray[np.int64],
    split: NDArray[Any],
    classes: Sequence[str],
    *,
    skipped: int = 0,
) -> list[str]:
    """What the training samples lack: a second class, or classes that other splits have."""
    trained = np.unique(labels[split == "train"])
    if not len(trained):
        return []  # told by _empty
    problems = []
    if len(trained) == 1:
        problems.append(
            f"{where}: there is one class only in split 'train': every label is "
            f"{quoted(classes[trained[0]])}{_left_out(skipped)}"
        )
    for name in SPLITS:
        strange = np.setdiff1d(labels[split == name], trained)
        if len(strange):
            many = "classes" if len(strange) > 1 else "class"
            problems.append(
                f"{where}: split {name!r} has {many} {listed([classes[i] for i in strange])}, of which there "
                f"is no sample in split 'train'{_left_out(skipped)}; move some there, or leave them out"
            )
    return problems


def _left_out(skipped: int) -> str:
    return f", after {skipped:,} that cannot be read were left out" if skipped else ""
