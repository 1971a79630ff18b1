"""Splits of the package datasets that name their classes otherwise, and arrays in any order of axes."""

from typing import Any

import numpy as np
import pytest

from evenprune.data import folder, huggingface
from evenprune.data.huggingface import Part
from evenprune.tally import InputProblems


def part(name: str, labels: list[Any], classes: list[str] | None) -> Part:
    columns = {"label": labels, "race": ["a"] * len(labels)}
    return Part(name, columns, {} if classes is None else {"label": classes})


def listed(*parts: Part) -> Any:
    return huggingface.listing(parts, label="label", groups=["race"])


def test_class_names_in_another_order_are_the_same_classes() -> None:
    train = part("train", [0, 1, 1], ["cat", "dog"])
    found = listed(train, part("test", [0, 0, 1, -1, None, 7], ["dog", "cat"]))
    assert found.classes == ["cat", "dog"]
    assert found.labels == [0, 1, 1, 1, 1, 0, -1, None, 7]  # what is no code is told later
    assert listed(part("train", [0, 1], None), part("test", [1], None)).labels == [0, 1, 1]


@pytest.mark.parametrize("names", [["x", "y"], ["cat"], ["cat", "dog", "more"], None])
@pytest.mark.parametrize("turned", [False, True])
def test_other_class_names_in_a_split_are_refused(names: list[str] | None, turned: bool) -> None:
    parts = [part("train", [0, 1], ["cat", "dog"]), part("test", [0, 0], names)]
    with pytest.raises(InputProblems) as error:
        listed(*(reversed(parts) if turned else parts))
    (said,) = error.value.problems
    assert "the names of the classes in column 'label' differ: " in said
    assert "split 'train' has 'cat', 'dog'" in said
    assert "split 'test' has" in said


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8])
def test_channels_come_first_whatever_the_numbers(dtype: Any) -> None:
    last = np.arange(2 * 5 * 6 * 3).reshape(2, 5, 6, 3).astype(dtype)
    first = huggingface.channels_first(last)
    assert first.dtype == dtype
    assert np.array_equal(first, last.transpose(0, 3, 1, 2))
    assert np.array_equal(huggingface.channels_first(first), first)
    for shape in ((2, 16, 4, 4), (2, 3, 5, 4), (2, 4, 5, 6)):  # not images with the channels last
        assert huggingface.channels_first(np.zeros(shape, dtype)).shape == shape
    with pytest.raises(InputProblems, match=r"shape \[9, 5, 6, 4\], with four channels \(alpha\?\)"):
        folder.from_arrays(np.zeros((9, 5, 6, 4), dtype), [0] * 9, {"race": [0] * 9})
