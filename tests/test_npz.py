"""An NPZ file has every check that other data has: classes, groups, splits, shapes; and their flags."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evenprune import data_source
from evenprune.data import arrays, folder
from evenprune.experiment import Experiment
from evenprune.tally import InputProblems

COUNT = 80


def samples(**changes: Any) -> dict[str, Any]:
    """Arrays that are all right, but for the changes; None leaves one out."""
    rng = np.random.default_rng(0)
    own = {
        "x": rng.integers(0, 256, (COUNT, 3, 8, 8), dtype=np.uint8),
        "y": np.arange(COUNT) % 2,
        "race": np.array(["A", "B"])[np.arange(COUNT) // 2 % 2],
        "split": np.array(["train", "train", "train", "test"])[np.arange(COUNT) // 4 % 4],
    }
    return {name: value for name, value in (own | changes).items() if value is not None}


def loaded(folder: Path, *, notes: bool = False, **changes: Any) -> Any:
    """flags that begin with an underscore are those of the experiment."""
    flags = {name[1:]: changes.pop(name) for name in list(changes) if name.startswith("_")}
    np.savez(folder / "d.npz", **samples(**changes))
    wanted = Experiment(**{"data": str(folder / "d.npz"), "model": "m", "groups": ("race",)} | flags)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        splits = data_source.load(wanted)
    return (splits, [str(one.message) for one in caught]) if notes else splits


def refused(folder: Path, **changes: Any) -> str:
    with pytest.raises(InputProblems) as caught:
        loaded(folder, **changes)
    return str(caught.value)


def test_arrays_come_out_as_they_are(tmp_path: Path) -> None:
    splits, notes = loaded(tmp_path, notes=True)
    own = samples()
    for name in ("train", "test"):
        mine = own["split"] == name
        inputs, labels, columns = splits[name]
        assert inputs.dtype == np.uint8
        assert np.array_equal(inputs, own["x"][mine])
        assert np.array_equal(labels, own["y"][mine])
        assert np.array_equal(columns["race"], own["race"][mine])
    assert notes == []


def test_one_class_and_ten_thousand_values_are_refused_before_any_training(tmp_path: Path) -> None:
    assert "one class only: every label is '0'" in refused(tmp_path, y=np.zeros(COUNT, int))
    count = 10_000
    ids = {"x": np.zeros((count, 1), np.float32), "y": np.arange(count) % 2, "race": np.arange(count)}
    said = refused(tmp_path, split=None, **ids)
    assert "group column 'race' holds 10,000 different values on 10,000 samples" in said


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_images_of_bytes_are_brought_to_channels_first(tmp_path: Path, channels: int) -> None:
    """As arrays are; but as many channels stay as there are."""
    own = np.random.default_rng(0).integers(0, 256, (COUNT, 8, 6, channels), dtype=np.uint8)
    data, plain = samples(x=own), loaded(tmp_path, x=own)
    for name, (inputs, _, _) in plain.items():
        assert np.array_equal(inputs, own[data["split"] == name].transpose(0, 3, 1, 2))
    if channels == 3:
        same = folder.from_arrays(own, data["y"], {"race": data["race"]}, split=data["split"])
        assert all(np.array_equal(plain[name][0], same[name][0]) for name in plain)


def test_splits_can_be_left_out(tmp_path: Path) -> None:
    """Where all are of training: without them a test split is drawn."""
    alone = np.full(COUNT, "train")
    assert "there is no sample in split 'test'" in refused(tmp_path, split=alone)
    drawn = loaded(tmp_path, split=alone, _split="")
    assert {name: len(own[1]) for name, own in drawn.items()} == {"train": 64, "test": 16}


@pytest.mark.parametrize("shape", [(8, 8), (3, 8, 8), (1, 8, 8), (3, 8, 4), (16, 4, 4), (5, 3, 4, 2), (6,)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_inputs_keep_the_shape_that_their_model_takes(tmp_path: Path, shape: Any, dtype: Any) -> None:
    own = np.random.default_rng(0).integers(0, 256, (COUNT, *shape)).astype(dtype)
    inputs = loaded(tmp_path, x=own)["test"][0]
    assert inputs.dtype == (np.uint8 if dtype is np.uint8 else np.float32)
    assert np.array_equal(inputs, own[samples()["split"] == "test"])


def test_minus_one_is_a_missing_value_where_no_number_is_smaller(tmp_path: Path) -> None:
    ids, degrees = np.arange(COUNT) % 4 - 1, np.arange(COUNT) % 21 - 10
    assert set(loaded(tmp_path, race=ids)["train"][2]["race"]) == {None, "0", "1", "2"}
    assert set(loaded(tmp_path, race=degrees)["train"][2]["race"]) == {str(n) for n in range(-10, 11)}
    cold = loaded(tmp_path, race=degrees, _bin=("race=-5,0,5",))
    train = samples()["split"] == "train"
    (below_zero,) = {name for name in cold["train"][2]["race"] if name.startswith(("-5", "−5"))}
    count = int(((degrees >= -5) & (degrees < 0) & train).sum())
    assert cold["train"][2]["race"].tolist().count(below_zero) == count


def test_labels_that_are_texts_are_numbered_or_in_the_order_of_the_classes(tmp_path: Path) -> None:
    words = np.array(["no", "yes"])[samples()["y"]]
    splits, (note,) = loaded(tmp_path, y=words, notes=True)
    assert splits.classes == ("no", "yes")
    assert "0 no, 1 yes" in note
    assert "--classes" in note
    turned, notes = loaded(tmp_path, y=words, _classes=("yes", "no"), notes=True)
    assert notes == []
    assert np.array_equal(turned["test"][1], 1 - splits["test"][1])
    assert "which classes does not name: 'yes'" in refused(tmp_path, y=words, _classes=("yes",))


def test_splits_are_called_as_people_call_them_or_drawn(tmp_path: Path) -> None:
    words = np.where(np.arange(COUNT) // 4 % 4 == 2, "val", samples()["split"])
    assert set(loaded(tmp_path, split=words)) == {"train", "test", "validation"}
    drawn = loaded(tmp_path, split=None)
    assert {name: len(labels) for name, (_, labels, _) in drawn.items()} == {"train": 64, "test": 16}
    half = loaded(tmp_path, split=None, _test_share=0.5)
    assert len(half["test"][1]) == 40
    three = loaded(tmp_path, split=None, _heldout_share=0.1)
    assert {name: len(labels) for name, (_, labels, _) in three.items()} == {
        "train": 56, "test": 16, "validation": 8,
    }  # fmt: skip
    assert np.array_equal(three["test"][0], drawn["test"][0])
    assert "has 20 held-out samples of its own" in refused(tmp_path, split=words, _heldout_share=0.1)
    said = refused(tmp_path, split=np.array(["train", "tset"])[np.arange(COUNT) % 2])
    assert "split holds 'tset'" in said
    assert "no sample in split 'test'" in said


def test_everything_bad_comes_in_one_error(tmp_path: Path) -> None:
    said = refused(
        tmp_path,
        x=samples()["x"].astype(str),
        y=np.eye(2)[samples()["y"]],
        race=np.zeros((COUNT, 2)),
        _bin=("race=1",),
        _classes=("0", "0"),
    )
    for part in (
        "d.npz': x holds <U3, such as",
        "y has shape [80, 2]: give one value per sample (of one-hot rows: y.argmax(1))",
        "race has shape [80, 2]: give one value per sample",
    ):
        assert part in said
    assert "unequal lengths: x 80, y 79, race 80, split 80" in refused(tmp_path, y=samples()["y"][1:])
    assert "race is a single value, 3" in refused(tmp_path, race=np.array(3))
    assert "has no array 'race'; it has 'x', 'y', 'split'" in refused(tmp_path, race=None)


def test_the_test_samples_in_a_file_of_their_own_must_be_like_the_others(tmp_path: Path) -> None:
    own = samples(split=None)
    np.savez(tmp_path / "t.npz", **own | {"x": own["x"] / 255})
    said = refused(tmp_path, _test=str(tmp_path / "t.npz"))
    assert "x is [80, 3, 8, 8] uint8 in" in said
    assert "[80, 3, 8, 8] float64 in" in said
    np.savez(tmp_path / "t.npz", **{name: value[:20] for name, value in own.items()})
    splits = loaded(tmp_path, _test=str(tmp_path / "t.npz"))
    assert {name: len(labels) for name, (_, labels, _) in splits.items()} == {"train": 80, "test": 20}
    splits, (note,) = loaded(tmp_path, _test=str(tmp_path / "t.npz"), _heldout_share=0.25, notes=True)
    assert {name: len(labels) for name, (_, labels, _) in splits.items()} == {
        "train": 60, "test": 20, "validation": 20,
    }  # fmt: skip
    assert note.startswith("20 of 80 training samples were drawn as the held-out split, a share of 0.25")
    assert "If the dense model was trained on these samples, gaps there are unlike those on unseen" in note


def test_inputs_that_are_no_numbers_are_refused_with_the_number_of_their_sample(tmp_path: Path) -> None:
    x = np.ones((COUNT, 5))
    x[[7, 30], [1, 2]] = np.nan, -np.inf
    assert "d.npz': 2 samples have inputs that are NaN or infinite, the first is sample 7" in refused(
        tmp_path, x=x
    )
    x[[7, 30], [1, 2]] = 1, 1e300  # no float32
    assert "1 sample has inputs that are NaN or infinite, the first is sample 30" in refused(tmp_path, x=x)


def test_classes_without_a_sample_are_noted(tmp_path: Path) -> None:
    splits, (note,) = loaded(tmp_path, y=samples()["y"] + 1, notes=True)
    assert splits.classes == ("0", "1", "2")
    assert note == (
        "of the labels 0 to 2, 2 occur, but the model is taken to have an output for each. If it has outputs "
        "for these alone, name them in its order: classes=['1', '2'] (--classes 1,2)"
    )
    splits, notes = loaded(tmp_path, y=samples()["y"] + 1, _classes=("1", "2"), notes=True)
    assert (splits.classes, notes) == (("1", "2"), [])


def test_groups_may_be_the_labels(tmp_path: Path) -> None:
    assert set(loaded(tmp_path, _groups=("y",))["train"][2]["y"]) == {0, 1}


def test_images_that_are_normalised_keep_it_while_they_are_bytes() -> None:
    images = arrays.Normalised.of(samples()["x"], mean=[0.5], std=[0.25])
    assert images[3:5].scaling == images[[1, 2]].scaling == ((0.5,), (0.25,))
    assert (images / 255).scaling is None
    assert images.astype(np.float32).scaling is None
    assert np.asarray(images).base is not None
