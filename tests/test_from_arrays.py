"""Arrays of one's own: any order of axes, one value a sample, and everything wrong with them at once."""

import tracemalloc

import numpy as np
import pytest

from evenprune import groups
from evenprune.data import class_labels, folder
from tests.labelled_images import problems


def test_arrays_in_any_order_of_axes():
    bytes_ = np.random.default_rng(0).integers(0, 256, (40, 5, 6, 3), dtype=np.uint8)
    labels, race = np.arange(40) % 2, np.array(["a", "b"])[np.arange(40) // 2 % 2]
    last = folder.from_arrays(bytes_, labels, {"race": race})
    first = folder.from_arrays(bytes_.transpose(0, 3, 1, 2), labels, {"race": race})
    assert last["train"][0].shape == (32, 3, 5, 6)
    assert np.array_equal(last["test"][0], first["test"][0])
    grey = folder.from_arrays(bytes_[..., 0], labels, {"race": race})
    assert grey["train"][0].shape == (32, 3, 5, 6)
    numbers = folder.from_arrays(
        np.ones((40, 7), np.float32), labels, {"race": race}, split=["train", "train", "test", "test"] * 10
    )
    assert numbers["test"][0].shape == (20, 7)
    assert "labels 3" in problems(folder.from_arrays, bytes_, labels[:3], {"race": race})
    halves = folder.from_arrays(np.ones((40, 7)), labels, {"race": race})
    assert halves["train"][0].dtype == np.float32  # as models have it


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_what_is_in_order_is_not_copied_and_what_is_not_once(dtype):
    x, y, race = np.ones((40, 3, 300, 300), dtype), np.arange(40) % 2, np.arange(40) // 2 % 2
    for split, copies in ((["train"] * 30 + ["test"] * 10, 0), (["train", "train", "test", "test"] * 10, 1)):
        tracemalloc.start()
        loaded = folder.from_arrays(x, y, {"race": race}, split=split)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert copies * x.nbytes <= peak < (copies + 0.1) * x.nbytes
        for name, (inputs, _, _) in loaded.items():
            assert np.array_equal(inputs, x[np.array(split) == name])
            assert np.shares_memory(inputs, x) == (not copies)


def test_minus_one_is_one_number_of_many_where_there_are_smaller_ones():
    x, y = np.zeros((40, 2)), np.arange(40) % 2
    for least, told in ((-1, {None, "0", "1"}), (-2, {"-2", "-1", "0"}), (0, {0, 1, 2})):
        loaded = folder.from_arrays(x, y, {"degrees": np.arange(40) % 3 + least})
        assert set(loaded["train"][2]["degrees"]) == told
    empty = folder.from_arrays, x[:0], y[:0], {"degrees": np.arange(0)}
    assert "holds no samples" in problems(*empty)


LABELLED = {"labels": np.arange(12) % 2, "groups": {"race": np.array(["a", "b", "c"])[np.arange(12) % 3]}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"labels": np.eye(2)[np.arange(12) % 2]},
            "labels has shape [12, 2]: give one value per sample (of one-hot rows: labels.argmax(1))",
        ),
        ({"labels": [[0], [1, 2]] * 6}, "labels holds [0]: give one plain value per sample"),
        (
            {
                "images": [np.zeros((8, 8, 3))] * 9
                + [np.zeros((8, 9, 3)), np.zeros((8, 8, 3)), np.zeros((4, 4, 3))]
            },
            "the images have 3 different forms: [8, 8, 3] (10, such as sample 0), [8, 9, 3] (1, such as",
        ),
        (
            {"images": [f"{i}.jpg" for i in range(12)]},
            "12 of 12 images are no arrays of numbers: sample 0, sample 1",
        ),
        ({"images": np.array([f"{i}.jpg" for i in range(12)])}, "give a table of them to folder.load"),
        (
            {"images": np.arange(12)},
            "images has shape [12]: give an image, or a row of numbers, for each sample",
        ),
        ({"images": np.zeros((12, 2), complex)}, "images holds complex128"),
        ({"groups": np.zeros((12, 2))}, "groups['group'] has shape [12, 2]: give one value per sample"),
        ({"groups": "race"}, "groups['group'] is 'race': give one value per sample"),
        ({"groups": {}}, "groups is missing: which column tells the groups apart?"),
        ({"images": np.full((12, 2), np.nan)}, "12 samples have inputs that are NaN or infinite"),
        ({"split": [["train"]] * 12}, "split has shape [12, 1]"),
    ],
)
def test_arrays_of_the_wrong_form(changes, said):
    given_ = {"images": np.zeros((12, 2))} | LABELLED | changes
    assert said in problems(folder.from_arrays, **given_)


def unlike_images() -> np.ndarray:
    """An array of objects, as np.array makes it of images of several sizes."""
    found = np.empty(12, dtype=object)
    for i in range(12):
        found[i] = np.zeros((3, 8, 8 + i % 2), np.uint8)
    return found


def test_arrays_of_objects_and_one_column_of_groups():
    said = problems(folder.from_arrays, unlike_images(), **LABELLED)
    assert (
        "2 different forms: [3, 8, 8] of bytes (6, such as sample 0), [3, 8, 9] of bytes (6, such as" in said
    )
    mixed = [np.zeros((3, 8, 8), np.uint8), np.zeros((3, 8, 8))] * 6
    assert "[3, 8, 8] of bytes (6" in problems(folder.from_arrays, mixed, **LABELLED)
    same = folder.from_arrays(
        list(np.ones((12, 3, 8, 8), np.uint8)), LABELLED["labels"], LABELLED["groups"]["race"]
    )
    assert same["train"][0].shape[1:] == (3, 8, 8)
    assert list(same["train"][2]) == ["group"]


def test_everything_wrong_with_arrays_comes_at_once():
    said = problems(
        folder.from_arrays,
        ["a"] * 1200,
        [0] * 1200,
        {"id": np.arange(1200), "two": np.zeros((1200, 2))},
        split=["trian"] * 1200,
        test_share=2,
        heldout_share=-1,
    )
    for part in (
        "no arrays of numbers",
        "one class only",
        "'id' holds 1,200",
        "'two'] has",
        "'trian'",
        "test_share",
        "heldout_share is -1",
    ):
        assert part in said


def test_notes_on_a_column_stay_with_arrays():
    ages = groups.binned(np.arange(40) % 30, edges=[10, 20])
    merged = groups.merge_below(["a"] * 20 + ["b"] * 18 + ["c"] * 2, 5)
    loaded = folder.from_arrays(np.zeros((40, 2)), np.arange(40) % 2, {"age": ages, "kind": merged})
    assert groups.notes_of(loaded["test"][2]) == list(merged.notes)
    assert groups.merged_of(loaded["test"][2]) == {"other": {"c": 2}}
    assert loaded["train"][2]["age"].tolist()[0] in ("under 10", "10–19", "20 and over")


def test_arrays_have_a_held_out_share_too():
    x = np.arange(80, dtype=np.float32).reshape(40, 2)
    y, race = np.arange(40) % 2, ["a", "b", "b", "a"] * 10
    three = folder.from_arrays(x, y, {"race": race}, heldout_share=0.3)
    assert {name: np.bincount(labels).tolist() for name, (_, labels, _) in three.items()} == {
        "train": [10, 10], "test": [4, 4], "validation": [6, 6],
    }  # fmt: skip
    assert np.array_equal(three["test"][0], folder.from_arrays(x, y, {"race": race})["test"][0])
    told = ["train", "train", "test", "test"] * 10
    out_of_train = folder.from_arrays(x, y, {"race": race}, split=told, heldout_share=0.3)
    assert np.bincount(out_of_train["validation"][1]).tolist() == [3, 3]
    assert out_of_train.notes[0].startswith("6 of 20 training samples were drawn as the held-out split")


# --- groups ---


def test_merging_rescues_an_attribute_of_many_values():
    """1,500 places, most of them small."""
    sizes = np.r_[np.full(20, 300), np.full(1480, 3)]
    place = np.repeat([f"p{i:04d}" for i in range(1500)], sizes)
    x, y = np.zeros((len(place), 2), np.float32), np.arange(len(place)) % 2
    said = problems(folder.from_arrays, x, y, {"place": place})
    assert "group column 'place' holds 1,500 different values on 10,440 samples" in said
    assert said.endswith("or make one group of the small ones: merge_below=30 (--merge-below 30)")
    loaded = folder.from_arrays(x, y, {"place": place}, merge_below=100)
    assert len(set(loaded["train"][2]["place"])) == 21
    said = problems(folder.from_arrays, x, y, {"place": place}, merge_below=2)
    assert said.endswith(
        "after groups of fewer than 2 training samples were merged: raise merge_below, or name another column"
    )
    said = problems(folder.from_arrays, x, y, {"place": place}, merge_below=1000)
    assert "merge_below is 1,000: every group has fewer samples, the largest" in said
    assert "'place' holds 1,500 different values" in said


def test_arrays_have_ranges_too():
    images, labels = np.zeros((40, 2, 2, 3), np.uint8), np.arange(40) % 2
    loaded = folder.from_arrays(images, labels, {"age": np.arange(40)}, bins={"age": [20]})
    ages = [value for _, _, columns in loaded.values() for value in columns["age"]]
    assert (ages.count("under 20"), ages.count("20 and over")) == (20, 20)


def test_an_attribute_with_ten_thousand_values_says_what_to_do():
    (words,) = class_labels.too_many_groups("city", [f"c{i % 10_000}" for i in range(30_000)])
    assert (
        "'city' holds 10,000 different values on 30,000 samples, such as 'c0', 'c1', 'c2': is it an" in words
    )
    (numbers,) = class_labels.too_many_groups("income", [str(i % 10_000 / 8) for i in range(30_000)])
    assert "put its numbers into ranges, bins={'income': 4} (--bin income=quantiles:4)" in numbers
    assert class_labels.too_many_groups("age", list(range(90)) * 9) == []


def test_ten_thousand_values_of_an_attribute(tmp_path):
    count = 10_000
    images = np.zeros((count, 1, 1, 3), np.uint8)
    said = problems(folder.from_arrays, images, np.arange(count) % 2, {"id": [f"p{i}" for i in range(count)]})
    assert said.startswith("group column 'id' holds 10,000 different values on 10,000 samples, such as 'p0'")
