"""The splits of the study on unseen data; one dense model and one training, seen by several groupings."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenprune.predict import Predictions
from evenprune.recipe import Split
from evenprune.tally import InputProblems
from paper import beyond_splits, runner
from tests.test_paper_beyond import (
    CLASSES,
    FEW,
    NAMES,
    all_images,
    begin,
    images,
    place,
    some_cells,
    three,
)
from tests.test_paper_runner import images as images_of_four_classes

# --- splits ---


def looked_at(heldout: Split, used: float | None) -> Split:
    return beyond_splits.take(heldout, beyond_splits.looked_at(heldout.groups, used))


def held_out(train: Split, per_class: float, used: float | None) -> Split:
    return looked_at(beyond_splits.all_splits(train, images(5, 1), per_class=per_class)["heldout"], used)


def pictures(split: Split) -> list[bytes]:
    return [image.numpy().tobytes() for image in split.inputs]


def test_the_held_out_images_are_of_every_class_and_in_no_other_split() -> None:
    splits = three()
    each = {name: torch.bincount(split.labels).tolist() for name, split in splits.items()}
    assert each == {"train": [25] * 4, "heldout": [10] * 4, "choice": [5] * 4, "audit": [20] * 4}
    own = [image for name, split in splits.items() if name != "audit" for image in pictures(split)]
    assert len(set(own)) == len(own)
    assert sorted(own) == sorted(pictures(images(40, 0)))
    assert sorted(pictures(splits["audit"])) == sorted(pictures(images(20, 1)))


def joined(*splits: Split) -> Split:
    parts = {name: torch.cat([getattr(s, name) for s in splits]) for name in ("inputs", "labels", "groups")}
    return replace(splits[0], **parts)


def test_an_image_is_in_one_split_only() -> None:
    """One that audit has is in no other; one that comes twice is there once, with two labels not at all."""
    train, test, odd = images(40, 0), images(20, 1), images(3, 2)
    some, seen = beyond_splits.take(train, np.arange(3, 160, 9)), beyond_splits.take(test, np.arange(5))
    doubtful = joined(odd, replace(odd, labels=(odd.labels + 1) % 4))
    twice = joined(train, some, seen, doubtful)
    mixed = beyond_splits.take(twice, np.random.default_rng(3).permutation(len(twice)))
    plain, *others = (beyond_splits.all_splits(own, test, per_class=10) for own in (train, twice, mixed))
    for again in others:
        for name, split in plain.items():
            assert sorted(pictures(again[name])) == sorted(pictures(split))
            if name != "train":
                assert pictures(again[name]) == pictures(split)
                assert torch.equal(again[name].labels, split.labels)


def test_the_draw_does_not_depend_on_the_order_of_the_images() -> None:
    train, test = images(40, 0), images(20, 1)
    mixed = [
        beyond_splits.take(split, np.random.default_rng(7).permutation(len(split))) for split in (train, test)
    ]
    first, again = (beyond_splits.all_splits(*pair, per_class=10) for pair in ((train, test), mixed))
    for name in ("heldout", "choice", "audit"):
        assert pictures(first[name]) == pictures(again[name])
        assert torch.equal(first[name].labels, again[name].labels)
    assert beyond_splits.identity(first) == beyond_splits.identity(again)
    other = beyond_splits.all_splits(train, test, per_class=9)
    assert beyond_splits.identity(other) != beyond_splits.identity(first)


@given(used=st.integers(1, 20))
def test_few_held_out_samples_are_part_of_many_and_spread_over_the_classes(used: int) -> None:
    whole = three()["heldout"]
    few = looked_at(whole, used)
    assert torch.bincount(few.groups).tolist() == [used, used]
    assert set(pictures(few)) <= set(pictures(whole))
    each = torch.bincount(few.labels, minlength=4).tolist()
    assert abs(each[0] - each[1]) <= 1
    assert abs(each[2] - each[3]) <= 1


@pytest.mark.parametrize(("per_class", "used"), [(0, None), (40, None), (10, 21), (10, 0)])
def test_more_samples_than_there_are_are_refused(per_class: int, used: int | None) -> None:
    with pytest.raises(InputProblems, match=r"held-out samples a (class|group): give 1 to"):
        held_out(images(40, 0), per_class, used)


def unequal(each: Sequence[int], seed: int) -> Split:
    """Four classes of so many images, each a group."""
    made = images_of_four_classes(max(each), seed)
    places = [np.flatnonzero((made.labels == label).numpy())[:n] for label, n in enumerate(each)]
    kept = beyond_splits.take(made, np.concatenate(places))
    return replace(kept, groups=kept.labels)


@given(share=st.floats(0.05, 0.6), used=st.floats(0.3, 0.95))
def test_shares_are_kept_by_groups_of_unequal_size(share: float, used: float) -> None:
    sizes, test = [60, 40, 30, 20], images(5, 1)
    splits = beyond_splits.all_splits(unequal(sizes, 0), test, per_class=share)
    held = torch.bincount(splits["heldout"].labels, minlength=4).tolist()
    assert held == [round(share * size) for size in sizes]
    choice = [-(-n // 2) for n in held]
    assert torch.bincount(splits["choice"].labels, minlength=4).tolist() == choice
    assert (
        torch.bincount(splits["train"].labels) + torch.tensor(held) + torch.tensor(choice)
    ).tolist() == sizes
    assert not set(pictures(splits["train"])) & set(pictures(splits["heldout"]))
    wanted = [round(used * size) for size in held]
    if min(wanted) > 0:
        few = looked_at(splits["heldout"], used)
        assert torch.bincount(few.groups, minlength=4).tolist() == wanted
        assert set(pictures(few)) <= set(pictures(splits["heldout"]))


def test_small_shares_are_a_part_of_large_ones_and_of_numbers() -> None:
    train = unequal([60, 40, 30, 20], 0)
    shares = {amount: pictures(held_out(train, amount, None)) for amount in (0.05, 0.1, 0.3, 3)}
    assert set(shares[0.1]) < set(shares[0.3])
    assert set(shares[0.05]) <= set(shares[3])  # at most three of each class
    mixed = beyond_splits.take(train, np.random.default_rng(5).permutation(len(train)))
    assert pictures(held_out(mixed, 0.3, None)) == shares[0.3]


@pytest.mark.parametrize(
    ("amount", "used", "said"),
    [
        (0.02, None, "is 0 of the 20 samples of one class: at least 1 must be, half as many again are"),
        (0.99, None, "is 20 of the 20 samples of one class"),
        (0.2, 0.1, "is 0 of the 4 samples of one group: at least 1 must be; give another share"),
        (2.5, None, "2.5 held-out samples a class: give 1 to 12"),
    ],
)
def test_shares_that_leave_a_class_with_nothing_are_refused(
    amount: float, used: float | None, said: str
) -> None:
    with pytest.raises(InputProblems, match=said):
        held_out(unequal([60, 40, 30, 20], 0), amount, used)


# --- views ---


def test_the_images_are_cut_once_for_all_groupings() -> None:
    splits, groupings = all_images().cut(heldout=10)
    for name, split in splits.items():
        assert torch.equal(split.inputs, three()[name].inputs)
        assert torch.equal(groupings["class"].of[name], split.labels)
        assert torch.equal(groupings["superclass"].of[name], split.labels // 2)
    assert (groupings["superclass"].names, groupings["class"].names) == (NAMES, CLASSES)


@pytest.mark.parametrize("used", [None, 4])
@pytest.mark.parametrize("groups", ["superclass", "class"])
def test_a_view_is_what_measuring_the_dense_model_on_these_samples_gives(
    tmp_path: Path, groups: str, used: int | None
) -> None:
    """The slow way: cut the splits, put them into groups, and evaluate the model on each."""
    views = begin(tmp_path).views
    own = replace(some_cells(0)[0], groups=groups, heldout_used=used)
    seen, grouping = views.of(own), views.groupings[groups]
    assert views.of(own) is seen
    splits = {name: replace(split, groups=grouping.of[name]) for name, split in three().items()}
    splits["heldout"] = looked_at(splits["heldout"], used)
    slow = runner.measure(views.whole.model, splits, grouping.names, recipe=FEW, where=place(tmp_path))
    assert seen.start.names == slow.names
    for name, split in splits.items():
        there = seen.start.data.evaluate[name]
        assert torch.equal(there.inputs, split.inputs)
        assert torch.equal(there.labels, split.labels)
        assert torch.equal(there.groups, split.groups)
        same(seen.start.answers[name], slow.answers[name])
        same(seen.answers({name: views.whole.answers[name]})[name], slow.answers[name])
    assert seen.start.data.train is seen.start.data.evaluate["train"]  # one copy on a device
    assert torch.equal(seen.start.data.reference.correct, slow.data.reference.correct)
    assert seen.start.data.folds is views.whole.data.folds


def same(first: Predictions, second: Predictions) -> None:
    for name in ("labels", "predictions", "groups"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name
    torch.testing.assert_close(first.losses, second.losses)
