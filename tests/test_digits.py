"""The built-in digits: a fixed split, with two rare digits in the training data alone."""

import sys

import pytest
import torch

from evenprune.data import digits
from evenprune.tally import InputProblems


def test_rare_digits_have_thirty_training_samples_and_a_whole_test_set() -> None:
    (_, labels, groups), (_, test_labels, _) = digits.load()
    counts, test_counts = labels.bincount(), test_labels.bincount()
    assert counts[[8, 9]].tolist() == [30, 30]
    assert int(counts[:8].min()) > 100
    assert int(test_counts.min()) >= 70
    assert torch.equal(groups["digit"], labels)


def test_no_image_is_in_both_splits_and_the_split_is_fixed() -> None:
    (images, *_), (test_images, *_) = digits.load()
    again, _ = digits.load()
    assert torch.equal(images, again[0])
    assert images.shape[1:] == (1, 8, 8)
    assert 0 <= float(images.min()) < float(images.max()) <= 1
    # Scikit-learn's digits hold no two equal images, so equal ones would be a leak.
    apart = torch.cdist(images.flatten(1), test_images.flatten(1))
    assert float(apart.min()) > 1e-3


@pytest.mark.parametrize(("rare", "samples"), [((0, 3), 12), ((), 30)])
def test_which_digits_are_rare_can_be_chosen(rare: tuple[int, ...], samples: int) -> None:
    (_, labels, _), (_, test_labels, _) = digits.load(rare=rare, rare_samples=samples)
    counts = labels.bincount()
    assert all((int(counts[d]) == samples) == (d in rare) for d in range(10))
    assert torch.equal(test_labels, digits.load()[1][1])  # only training samples are taken away


def test_a_share_of_the_training_samples_of_each_digit_can_be_held_out() -> None:
    splits, (whole, test) = digits.load_splits(heldout_share=0.2), digits.load()
    assert list(splits) == ["train", "heldout", "test"]
    assert torch.equal(splits["test"][0], test[0])
    assert splits["heldout"][1].bincount()[[8, 9]].tolist() == [6, 6]
    assert splits["train"][1].bincount()[[8, 9]].tolist() == [24, 24]
    together = torch.cat([splits["train"][0], splits["heldout"][0]])
    assert len(together) == len(whole[0]) == len({image.numpy().tobytes() for image in together})
    least = digits.load_splits(heldout_share=1e-6)["heldout"][1].bincount()
    assert least.tolist() == [1] * 10
    assert list(digits.load_splits()) == ["train", "test"]
    for rare, counts in ((500, None), (1, [1, 1]), (0, [0, 0])):
        parts = {
            name: part[1].bincount(minlength=10)
            for name, part in digits.load_splits(rare_samples=rare, heldout_share=0.2).items()
        }
        if counts is None:
            assert int(parts["heldout"].min()) > 15
        else:
            assert parts["train"][[8, 9]].tolist() == counts
            assert parts["heldout"][[8, 9]].tolist() == [0, 0]
    for share in (1.0, 2.0, -0.2):
        with pytest.raises(InputProblems, match=f"heldout_share is {share}"):
            digits.load_splits(heldout_share=share)


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sklearn", "sklearn.datasets"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install 'evenprune\[demo\]'"):
        digits.load()
