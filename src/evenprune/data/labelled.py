"""Samples listed with labels and attributes to the splits that prune() takes; every problem at once."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from evenprune.data.arrays import SPLITS, Samples
from evenprune.data.class_labels import (
    SHOWN,
    column,
    empty_classes,
    lookalikes,
    numbered,
    plain,
    too_many_groups,
)
from evenprune.data.twins import leaked
from evenprune.group_rules import Bins, Columns, GroupRules, merged, ranged
from evenprune.groups import Column, noted, text_of
from evenprune.reading import counted, listed, quoted
from evenprune.tally import InputProblems

WORDS = {  # how people call the splits
    "train": "train", "training": "train", "test": "test", "testing": "test", "audit": "test",
    "validation": "validation", "valid": "validation", "val": "validation", "dev": "validation",
    "heldout": "validation", "held-out": "validation", "held_out": "validation", "holdout": "validation",
}  # fmt: skip


@dataclass(frozen=True)
class Inputs:
    """What reading gives; places are those of the samples in the order in which they were to be read."""

    values: NDArray[Any]  # [N, …]
    kept: NDArray[np.int64]  # [N] places of those that were read
    skipped: list[tuple[str, str]] = field(default_factory=list)  # the names of the others, and why
    twins: list[list[int]] = field(default_factory=list)  # places that hold the same, byte by byte


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
    notes: Sequence[str] = ()  # what the user should know of it


class Wanted(TypedDict, total=False):
    """What every reader of samples can be asked for besides its groups; folder.load explains it."""

    bins: Mapping[str, Bins] | None
    merge_below: int | None
    classes: Sequence[str] | None
    test_share: float
    heldout_share: float
    seed: int


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the user asks for, whatever the samples are.

    classes: what stands for 0, 1, … test_share, heldout_share, seed: how splits are drawn where the data has
    none; the held-out one also where it has training and test samples only. groups: columns. bins: of some
    of them, where the ranges begin that its numbers are put into, or how many of about equal size.
    merge_below: groups with fewer training samples become one.
    """

    groups: Sequence[str]
    classes: Sequence[str] | None = None
    test_share: float = 0.2
    heldout_share: float = 0.0
    seed: int = 0
    bins: Mapping[str, Bins] | None = None
    merge_below: int | None = None

    @property
    def shares(self) -> dict[str, float]:
        """What is drawn of each class where the data has no splits; the test samples first."""
        return {"test": self.test_share} | self.held_out

    @property
    def held_out(self) -> dict[str, float]:
        return {"validation": self.heldout_share} if self.heldout_share else {}

    def problems(self, *, drawn: bool) -> list[str]:
        """drawn: whether the data has no splits, so that the test samples are drawn too."""
        test, heldout = self.test_share, self.heldout_share
        wrong = [] if self.groups else ["groups is missing: which column tells the groups apart?"]
        if not 0 < test < 1:
            wrong.append(f"test_share is {test}: it must lie between 0 and 1, such as 0.2")
        if not 0 <= heldout < 1:
            wrong.append(f"heldout_share is {heldout}: it must lie between 0 (none) and 1, such as 0.2")
        fits = 0 < test < 1 and 0 <= heldout < 1
        if drawn and fits and test + heldout >= 1:
            wrong.append(
                f"test_share is {test} and heldout_share is {heldout}: no sample is left to train on; "
                "together they must be less than 1"
            )
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
        notes: Sequence[str] = (),
    ) -> None:
        super().__init__(splits)
        self.classes = tuple(classes)  # names of the labels 0, 1, …
        self.counted = counted  # the labels were texts, and the order of the classes is that of the alphabet
        self.skipped = skipped  # images that could not be read and were left out, and why
        self.notes = tuple(notes)  # what else the user should know: samples in several splits, empty classes

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(labels):,} {name}" for name, (_, labels, _) in self.items())
        left = f", {len(self.skipped):,} left out" if self.skipped else ""
        return f"{sizes} samples of {len(self.classes):,} classes{left}"


def assemble(
    listing: Listing, read: Callable[[list[int]], Inputs], wishes: Wishes, problems: Sequence[str] = ()
) -> Loaded:
    """The samples, split by split; or one error with `problems` and all that is wrong besides.

    read(places) reads the inputs in that order, so that each split is one piece of them. What was left out,
    and what is in several splits, goes into the notes of every group column: so it reaches the audits.
    """
    wrongly = wishes.problems(drawn=listing.splits is None)
    if not listing.names:
        raise InputProblems([*problems, *wrongly, f"{listing.where} holds no samples"])
    labels, classes, mislabelled = _labels(listing, wishes)
    splits, held_out, wrong = _splits(listing, labels, wishes, sound=not wrongly)
    needed = SPLITS if wishes.held_out and not wrongly else ("train", "test")
    columns, unranged = _ranged(listing, splits, wishes, sound=not wrongly)
    found = [*problems, *wrongly, *mislabelled, *unranged]
    found += _too_many(listing, columns, splits, wishes, sound=not wrongly and not wrong)
    lost = [WORDS.get((text_of(value) or "").strip().lower()) for value in listing.lost]
    told = listing.splits is not None
    found += wrong + _empty(listing.where, np.array([*splits, *lost], dtype=object), needed, told=told)
    if classes and not mislabelled and not wrong and not lost:
        found += _untrained(listing.where, labels, np.array(splits, dtype=object), classes)
    order = sorted(range(len(splits)), key=lambda place: SPLITS.index(splits[place]))
    try:
        inputs = read(order)
    except InputProblems as error:
        raise InputProblems(found + error.problems) from None
    skipped = inputs.skipped
    places = np.array(order, dtype=np.int64)[inputs.kept]  # [N] in the listing
    split = np.array(splits, dtype=object)[places]
    if not found:
        found += _empty(listing.where, split, needed, told=told, skipped=len(skipped))
        found += _untrained(listing.where, labels[places], split, classes, skipped=len(skipped))
    if found:
        raise InputProblems(found)
    pieces = {name: _piece(split == name) for name in SPLITS if bool((split == name).any())}
    attributes = {n: {a: v[places[piece]] for a, v in columns.items()} for n, piece in pieces.items()}
    if wishes.merge_below is not None:
        attributes = merged(attributes, wishes.merge_below)
    notes = [*listing.notes, *held_out, *_lookalikes(listing, wishes)]
    notes += _leaked(inputs, split.tolist(), [listing.names[i] for i in places.tolist()])
    audited = notes + ([f"Of all splits, {left_out(skipped)}."] if skipped else [])
    if wishes.classes is None and listing.classes is None:
        notes = notes + empty_classes(labels, classes)
    loaded = {
        n: (
            inputs.values[piece],
            labels[places[piece]],
            {a: noted(v, audited) if audited else v for a, v in attributes[n].items()},
        )
        for n, piece in pieces.items()
    }
    texts = any(isinstance(value, str) for value in plain(listing.labels or []))
    counted = texts and wishes.classes is None
    return Loaded(loaded, classes=classes, counted=counted, skipped=skipped, notes=notes)


def _lookalikes(listing: Listing, wishes: Wishes) -> list[str]:
    named = {} if wishes.classes is not None else {"the label": listing.labels or []}
    named |= {f"group column {quoted(name)}": values for name, values in listing.columns.items()}
    return [note for what, values in named.items() for note in lookalikes(what, values)]


def left_out(skipped: Sequence[tuple[str, str]]) -> str:
    """Images that could not be read, in words."""
    told = listed([name for name, _ in skipped], SHOWN)
    many = f"{len(skipped):,} images" if len(skipped) > 1 else "one image"
    return f"{many} could not be read, and {'are' if len(skipped) > 1 else 'is'} left out: {told}"


def _leaked(inputs: Inputs, splits: list[str], names: Sequence[str]) -> list[str]:
    """splits, names: of the samples that were read."""
    row = {place: i for i, place in enumerate(inputs.kept.tolist())}
    return leaked([[row[p] for p in same if p in row] for same in inputs.twins], splits, names)


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


def _too_many(
    listing: Listing, columns: Columns, splits: Sequence[str], wishes: Wishes, *, sound: bool
) -> list[str]:
    """Columns of so many values that they are no groups, after small groups were merged if that is wished."""
    unbinned = {n: v for n, v in listing.columns.items() if n not in (wishes.bins or {})}
    many = [problem for name, values in unbinned.items() for problem in too_many_groups(name, values)]
    n, part = wishes.merge_below, np.array(splits, dtype=object)
    if n is None or not sound or not columns or not bool((part == "train").any()):
        return many
    try:
        left = merged({s: {a: v[part == s] for a, v in columns.items()} for s in set(splits)}, n)
    except InputProblems as error:
        return many + error.problems
    if not many:
        return []
    values = {a: [value for own in left.values() for value in own[a].tolist()] for a in left["train"]}
    return [problem for a, own in values.items() for problem in too_many_groups(a, own, merged_below=n)]


def _piece(mine: NDArray[np.bool_]) -> slice:
    """Neighbours as a slice: of a memory map, a view and not a copy."""
    at = np.flatnonzero(mine)
    return slice(int(at[0]), int(at[-1]) + 1)


# --- splits ---


def _splits(
    listing: Listing, labels: NDArray[np.int64], wishes: Wishes, *, sound: bool
) -> tuple[list[str], list[str], list[str]]:
    """The split of each sample, notes, and what is wrong. sound: whether nothing is with the wishes."""
    if listing.splits is None:
        shares = wishes.shares if sound else {"test": 0.5}
        return drawn(listing.names, labels, shares, wishes.seed), [], []
    splits, problems = _told(listing, listing.splits)
    there = splits.count("validation")
    if there and wishes.held_out:
        problems.append(
            f"heldout_share is {wishes.heldout_share}, but {listing.where} has {there:,} held-out samples of "
            "its own: leave the share out (--heldout-share), or mark these samples as train"
        )
    if there or not wishes.held_out or not sound:
        return splits, [], problems
    splits, note = _held_out(splits, listing.names, labels, wishes)
    return splits, [note], problems


def _held_out(
    splits: Sequence[str], names: Sequence[str], labels: NDArray[np.int64], wishes: Wishes
) -> tuple[list[str], str]:
    """The splits with some of the training samples held out, and the note that tells it."""
    training = [place for place, split in enumerate(splits) if split == "train"]
    own = drawn([names[place] for place in training], labels[training], wishes.held_out, wishes.seed)
    note = (
        f"{own.count('validation'):,} of {len(own):,} training samples were drawn as the held-out split, "
        f"a share of {wishes.heldout_share:g} of each class: the data names no held-out samples itself. "
        "If the dense model was trained on these samples, gaps there are unlike those on unseen data: hold "
        "samples out before the dense model is trained."
    )
    found = dict(zip(training, own, strict=True))
    return [found.get(place, split) for place, split in enumerate(splits)], note


def _told(listing: Listing, given: Sequence[Any]) -> tuple[list[str], list[str]]:
    """The splits that the data names, and what is wrong; where something is, "train" stands for it."""
    said = [text_of(value) for value in given]
    words = [None if text is None else WORDS.get(text.strip().lower()) for text in said]
    unknown = sorted(
        {text for text, word in zip(said, words, strict=True) if text is not None and word is None}
    )
    absent = [name for name, text in zip(listing.names, said, strict=True) if text is None]
    problems = []
    if absent:
        examples = listed(absent, SHOWN)
        many = counted(len(absent), "sample has", "samples have")
        problems.append(f"{many} no split: {examples}; fill it in, or leave them out")
    if unknown:
        count = sum(text in unknown for text in said)
        known = f"but knows {listed(SPLITS)} only ({count:,} of {len(said):,} samples)"
        problems.append(f"{listing.where}: split holds {listed(unknown)}, {known}")
    return [word or "train" for word in words], problems


def drawn(
    names: Sequence[str], labels: NDArray[np.int64], shares: Mapping[str, float], seed: int
) -> list[str]:
    """Of each class its share to each split, at least one sample if there is any left; the rest to train.

    The same at every call, whatever the order of the samples. A split is the same with and without those
    behind it in `shares`; the last sample of a class is always trained on.
    """

    def lot(place: int) -> bytes:
        return hashlib.blake2b(f"{seed} {names[place]}".encode("utf-8", "surrogateescape")).digest()

    splits = ["train"] * len(names)
    for label in np.unique(labels).tolist():
        mine = sorted(np.flatnonzero(labels == label).tolist(), key=lot)
        begin = 0
        for split, share in shares.items():
            end = min(begin + max(1, round(share * len(mine))), len(mine) - 1)
            for place in mine[begin:end]:
                splits[place] = split
            begin = end
    return splits


def _empty(
    where: str, split: NDArray[Any], needed: Sequence[str], *, told: bool, skipped: int = 0
) -> list[str]:
    """The problems of splits without samples. told: the data names its splits; else they were drawn."""
    rename = ", call the validation samples test" if bool((split == "validation").any()) else ""
    draw = f'; mark some as test{rename}, or give no splits, and they are drawn: split=None (--split "")'
    hint = {
        "validation": "; give more samples, or leave heldout_share out (--heldout-share)",
        "test": draw if told else "; give more samples of each class",
    }
    return [
        f"{where}: there is no sample in split {name!r}{_left_out(skipped)}{hint.get(name, '')}"
        for name in needed
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
