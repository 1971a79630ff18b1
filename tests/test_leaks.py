"""Samples that are in two splits: found whatever their form, and not where equal rows mean nothing."""

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


@settings(deadline=None, max_examples=40)
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
    problems, notes = found(train=whole[:30], heldout=whole[25:40], test=whole[38:])
    assert problems == []
    assert notes["heldout"] == [
        "5 of the 15 samples of the held-out data are in the training data as well; they are not held out."
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
        ({"train": 1, "test": 2}, {"train": same, "test": split(whole[:4])}),
    ):
        problems, _ = leaks.found(given_, splits)
        assert problems[0].startswith("the training data and the test data are the same samples.")


def test_equal_rows_of_few_categories_need_not_be_one_sample() -> None:
    rng = np.random.default_rng(0)
    train, test = (torch.from_numpy(rng.integers(0, 3, (n, 2))).float() for n in (200, 50))
    assert found(train=train, test=test) == ([], {"train": [], "test": []})
    assert found(train=noise(9, 2), test=noise(9, 3))[0] == []  # of another form
