"""Samples that are in two splits: found whatever their form, and not where equal rows mean nothing."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evenprune import leaks
from evenprune.recipe import Split


def split(inputs: Tensor) -> Split:
    nothing = torch.zeros(len(inputs), dtype=torch.int64)
    return Split(inputs, nothing, nothing)


def found(**inputs: Tensor) -> tuple[list[str], dict[str, list[str]]]:
    splits = {name: split(values) for name, values in inputs.items()}
    return leaks.found(splits, splits)


def noise(samples: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(samples, *shape, generator=torch.Generator().manual_seed(seed))


def shared_slowly(one: Tensor, other: Tensor) -> int:
    """How many rows of the first are rows of the second: the obvious way."""
    return sum(any(torch.equal(row, its) for its in other) for row in one)


@settings(max_examples=40)
@given(
    st.integers(2, 30),
    st.integers(2, 30),
    st.integers(0, 10),
    st.sampled_from([(3,), (1, 4, 4), (3, 20, 20)]),
)
def test_rows_are_counted_as_by_comparing_all_pairs(
    a: int, b: int, both: int, shape: tuple[int, ...]
) -> None:
    first, second = noise(a, *shape), noise(b, *shape, seed=1)
    both = min(both, a, b)
    second[:both] = first[torch.randperm(a)[:both]]
    assert leaks.Rows(second).also_in(leaks.Rows(first)) == shared_slowly(second, first) == both


def test_rows_that_differ_between_the_values_looked_at_first_are_different() -> None:
    first = noise(20, 3, 40, 40)
    second = first.clone()
    second.view(20, -1)[:, 1] += 1  # 4,800 values, of which 512 are looked at: not the second
    looked_at = torch.linspace(0, 4799, leaks.QUICK, dtype=torch.float64).round().long()
    assert 1 not in looked_at.tolist()
    assert leaks.Rows(second).also_in(leaks.Rows(first)) == 0
    second[:7] = first[:7]
    assert leaks.Rows(second).also_in(leaks.Rows(first)) == 7


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16, torch.int64])
def test_all_types_of_numbers(dtype: torch.dtype) -> None:
    whole = (noise(30, 2, 5) * 50).abs().to(dtype)
    problems, _ = found(train=whole, test=whole[10:20].clone())
    assert problems == [
        "all 10 samples of the test data are in the training data as well. Audit on samples that nothing was "
        "trained or chosen on: give others as audit=… (or test=…)."
    ]


def test_parts_of_one_tensor_are_fine_as_long_as_they_do_not_meet() -> None:
    whole = noise(60, 2, 5)
    apart = {"train": whole[:30], "heldout": whole[30:40], "test": whole[40:]}
    assert found(**apart) == ([], {"train": [], "heldout": [], "test": []})
    assert found(train=whole[::2], test=whole[1::2])[0] == []
    problems, notes = found(train=whole[:30], heldout=whole[29:40], test=whole[38:])
    assert problems == []
    assert notes["heldout"] == [
        "1 of the 11 samples of the held-out data are in the training data as well; they are not held out."
    ]
    assert notes["test"] == [
        "2 of the 22 samples of the test data are in the held-out data as well; the audit counts them as "
        "unseen."
    ]


def test_one_object_or_one_memory_is_one_split() -> None:
    whole = torch.zeros(9, 2)  # rows that tell nothing apart
    same = split(whole)
    for given_, splits in (
        ({"train": same, "test": same}, {"train": same, "test": split(whole.clone())}),
        ({"train": 1, "test": 2}, {"train": same, "test": split(whole[:])}),
    ):
        problems, _ = leaks.found(given_, splits)
        assert problems[0].startswith("the training data and the test data are the same samples.")


@pytest.mark.parametrize("part", [slice(4), slice(6, None), slice(1, None, 3)])
def test_any_part_of_one_memory_is_found_whatever_its_rows_are(part: slice) -> None:
    whole = categories(600, columns=2, values=3)
    for values, test in ((whole, whole[part]), (whole, torch.from_numpy(whole.numpy()[part]))):
        (problem,), _ = found(train=values, test=test)
        assert problem.startswith(
            f"all {len(test):,} samples of the test data are in the training data as well."
        )
    (problem,), _ = found(train=whole[:300], test=whole[200:])
    assert problem.startswith("100 of the 400 samples of the test data are in the training data as well.")
    assert found(train=whole[:300], test=whole[300:]) == ([], {"train": [], "test": []})


def test_images_that_are_repeated_still_tell_samples_apart() -> None:
    images = noise(60, 3, 4, 4)
    often = images[:40].repeat(3, 1, 1, 1)
    (problem,), _ = found(train=often, test=images[20:40].clone())
    assert problem.startswith("all 20 samples of the test data are in the training data as well.")
    assert found(train=often, test=images[39:].clone())[1]["test"] == [
        "1 of the 21 samples of the test data are in the training data as well; the audit counts them as "
        "unseen."
    ]


@pytest.mark.parametrize(("shared", "refused"), [(0, False), (10, False), (11, True), (99, True)])
def test_more_than_a_tenth_is_refused_and_less_is_noted(shared: int, refused: bool) -> None:
    train, test = noise(300, 5), noise(100, 5, seed=1)
    test[:shared] = train[:shared]
    problems, notes = found(train=train, test=test)
    said = f"{shared} of the 100 samples of the test data are in the training data as well"
    assert [p.startswith(f"{said}. Audit on samples") for p in problems] == [True] * refused
    noted = shared > 0 and not refused
    assert [n.startswith(f"{said}; the audit") for n in notes["test"]] == [True] * noted


def test_training_data_within_other_data_is_refused() -> None:
    test = noise(900, 5)
    (problem,), _ = found(train=test[:20].clone(), test=test)
    assert problem.startswith("all 20 samples of the training data are in the test data as well.")


# --- tables of few categories ---


def categories(rows: int, *, columns: int, values: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, values, (rows, columns))).float()


@pytest.mark.parametrize(("train", "test"), [(5000, 1000), (1000, 3000), (400, 100)])
@pytest.mark.parametrize(("columns", "values"), [(13, 2), (8, 3), (3, 30), (2, 3)])
def test_tables_that_were_drawn_apart_are_not_suspected(
    train: int, test: int, columns: int, values: int
) -> None:
    for seed in range(0, 10, 2):
        one, other = (
            categories(n, columns=columns, values=values, seed=s)
            for n, s in ((train, seed), (test, seed + 1))
        )
        assert found(train=one, test=other) == ([], {"train": [], "test": []})


def test_chance_is_what_independent_tables_share() -> None:
    """By simulation: so many rows of one table are in another one of the same kind."""
    for train, test in ((2000, 500), (500, 2000)):
        pairs = [
            (
                leaks.Rows(categories(test, columns=11, values=2, seed=2 * i)),
                leaks.Rows(categories(train, columns=11, values=2, seed=2 * i + 1)),
            )
            for i in range(20)
        ]
        counted = np.mean([one.also_in(other) for one, other in pairs])
        assert np.mean([leaks.by_chance(one, other) for one, other in pairs]) == pytest.approx(
            counted, rel=0.1
        )


def test_what_chance_does_not_explain_is_told() -> None:
    train = categories(5000, columns=13, values=2)
    test = categories(1000, columns=13, values=2, seed=1)
    test[:150] = train[:150]  # of which some would have been there anyway
    (note,) = found(train=train, test=test)[1]["test"]
    assert re.match(
        r"5\d\d of the 1,000 samples of the test data are in the training data as well, up to 4", note
    )
    test[:600] = train[:600]
    (problem,), _ = found(train=train, test=test)
    assert " of them by chance. Audit on samples" in problem


def test_oversampled_tables_are_known_by_the_rows_of_the_other_split() -> None:
    train = noise(2000, 6)
    (problem,), _ = found(train=train.repeat(3, 1), test=train[:500].clone())
    assert problem.startswith("500 of the 500 samples of the test data are in the training data as well")
    assert found(train=train.repeat(3, 1), test=noise(500, 6, seed=1))[0] == []


@settings(max_examples=30)
@given(st.integers(1, 40), st.sampled_from([(1,), (2,), (1, 600)]), st.integers(0, 9))
def test_twins_are_counted_as_by_comparing_all_pairs(rows: int, shape: tuple[int, ...], seed: int) -> None:
    values = (
        categories(rows, columns=1, values=12, seed=seed).reshape(-1, *[1] * len(shape)).repeat(1, *shape)
    )
    slowly = sum(any(torch.equal(a, b) for j, b in enumerate(values) if i != j) for i, a in enumerate(values))
    assert leaks.Rows(values).twins == slowly


def test_wide_rows_that_differ_between_the_values_looked_at_first_are_no_twins() -> None:
    values = torch.zeros(5, 4800)
    values[:4, 1] = torch.arange(4.0)  # not looked at first
    assert leaks.Rows(values).twins == 2


def test_equal_rows_of_few_categories_need_not_be_one_sample() -> None:
    rng = np.random.default_rng(0)
    train, test = (torch.from_numpy(rng.integers(0, 3, (n, 2))).float() for n in (200, 50))
    assert found(train=train, test=test) == ([], {"train": [], "test": []})
    assert found(train=noise(9, 2), test=noise(9, 3))[0] == []  # of another form
