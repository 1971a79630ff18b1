"""Data sets of the package datasets: folders, objects, their splits and classes, and arrays in any order."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from evenprune import groups
from evenprune.data import folder, huggingface
from evenprune.data.huggingface import Part
from evenprune.tally import InputProblems
from tests.labelled_images import LABELS, RACES, picture, problems


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


# --- folders and objects ---


def png(i: int) -> bytes:
    stream = io.BytesIO()
    picture(i % 3, i).save(stream, "PNG")
    return stream.getvalue()


FEATURES = {
    "image": {"_type": "Image"},
    "label": {"_type": "ClassLabel", "names": list(LABELS)},
    "gender": {"_type": "ClassLabel", "names": ["m", "f"]},
    "race": {"_type": "Value", "dtype": "string"},
    "array": {"_type": "Array3D", "shape": [8, 8, 3], "dtype": "uint8"},
}


def columns_of(places: list[int]) -> dict[str, list[Any]]:
    return {
        "image": [{"bytes": png(i), "path": None} for i in places],
        "label": [i % 3 for i in places],
        "gender": [(-1, 0, 1, 0)[i % 4] for i in places],
        "race": [RACES[i // 3 % 2] for i in places],
        "array": [np.asarray(picture(i % 3, i)).tolist() for i in places],
    }


def save(place: Path, places: list[int], *, files: int = 2) -> None:
    """What save_to_disk writes: Arrow streams and two JSON files."""
    place.mkdir(parents=True)
    schema = {"image": pl.Struct({"bytes": pl.Binary, "path": pl.String})}
    frame = pl.DataFrame(columns_of(places), schema_overrides=schema, strict=False)
    step = -(-len(places) // files)
    names = [f"data-{n:05d}-of-{files:05d}.arrow" for n in range(files)]
    for n, name in enumerate(names):
        frame[n * step : (n + 1) * step].write_ipc_stream(place / name)
    (place / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (place / "dataset_info.json").write_text(json.dumps({"features": FEATURES}))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save(tmp_path / "saved" / "train", list(range(40)))
    save(tmp_path / "saved" / "test", list(range(40, 60)), files=1)
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    return tmp_path / "saved"


def check_all(loaded: folder.Loaded) -> None:
    assert {name: len(labels) for name, (_, labels, _) in loaded.items()} == {"train": 40, "test": 20}
    assert loaded.classes == LABELS
    assert not loaded.counted
    inputs, labels, columns = loaded["test"]
    assert labels.tolist() == [i % 3 for i in range(40, 60)]
    assert columns["race"].tolist() == [RACES[i // 3 % 2] for i in range(40, 60)]
    assert columns["gender"].tolist() == [(None, "m", "f", "m")[i % 4] for i in range(40, 60)]
    for i, pixels in enumerate(inputs, start=40):
        assert np.array_equal(pixels.transpose(1, 2, 0), np.asarray(picture(i % 3, i)))


def test_a_folder_that_save_to_disk_wrote(saved, tmp_path):
    assert huggingface.is_saved(saved)
    for cache in (None, tmp_path / "c", tmp_path / "c"):
        check_all(folder.from_huggingface(saved, groups=["race", "gender"], cache=cache))
    check_all(folder.from_huggingface(str(saved), image="array", groups=["race", "gender"]))
    single = folder.from_huggingface(saved / "train", groups="race", image_size=5)
    assert [inputs.shape for inputs, _, _ in single.values()] == [(31, 3, 5, 5), (9, 3, 5, 5)]


def test_a_share_of_a_data_set_is_held_out(saved):
    loaded = folder.from_huggingface(saved, groups="race", heldout_share=0.25)
    assert {name: len(labels) for name, (_, labels, _) in loaded.items()} == {
        "train": 30, "test": 20, "validation": 10,
    }  # fmt: skip
    assert loaded.notes[0].startswith("10 of 40 training samples were drawn as the held-out split")
    single = folder.from_huggingface(saved / "train", groups="race", heldout_share=0.25)
    assert {name: len(labels) for name, (_, labels, _) in single.items()} == {
        "train": 21, "test": 9, "validation": 10,
    }  # fmt: skip
    plain = folder.from_huggingface(saved / "train", groups="race")
    assert np.array_equal(single["test"][0], plain["test"][0])


def test_images_in_several_splits_of_a_data_set_are_noted(tmp_path):
    save(tmp_path / "saved" / "train", list(range(40)))
    save(tmp_path / "saved" / "test", list(range(38, 60)), files=1)
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    loaded = folder.from_huggingface(tmp_path / "saved", groups="race")
    (note,) = loaded.notes
    assert (
        "2 images are in several splits, the same byte by byte: 'train[38]' (train) = 'test[0]' (test)"
        in note
    )
    for _, _, columns in loaded.values():
        assert groups.notes_of(columns) == [note]


def with_splits(place: Path, places: list[int], words: list[str]) -> None:
    """A column `split` in a folder of save_to_disk."""
    save(place, places, files=1)
    file = place / "data-00000-of-00001.arrow"
    pl.read_ipc_stream(file).with_columns(split=pl.Series(words)).write_ipc_stream(place / "more.arrow")
    (place / "state.json").write_text('{"_data_files": [{"filename": "more.arrow"}]}')
    features = FEATURES | {"split": {"_type": "Value", "dtype": "string"}}
    (place / "dataset_info.json").write_text(json.dumps({"features": features}))


def test_a_column_of_splits_counts_as_in_a_table(tmp_path):
    words = ["train"] * 40 + ["Test"] * 20
    with_splits(tmp_path / "one", list(range(60)), words)
    check_all(folder.from_huggingface(tmp_path / "one", groups=["race", "gender"]))
    drawn = folder.from_huggingface(tmp_path / "one", groups="race", split=None)
    assert len(drawn["test"][1]) == 12
    said = problems(folder.from_huggingface, tmp_path / "one", groups="race", split="fold")
    assert "has no column 'fold'" in said
    with_splits(tmp_path / "dict" / "train", list(range(60)), words)
    (tmp_path / "dict" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    check_all(folder.from_huggingface(tmp_path / "dict", groups=["race", "gender"]))


def test_a_column_of_splits_that_contradicts_the_data_set_is_noted(tmp_path):
    with_splits(tmp_path / "train", list(range(40)), ["train"] * 39 + ["val"])
    with_splits(tmp_path / "test", list(range(40, 60)), ["TEST"] * 20)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    loaded = folder.from_huggingface(tmp_path, groups=["race", "gender"])
    check_all(loaded)
    assert loaded.notes == (
        "The splits are those of the data set; its column 'split' is not used, and says otherwise of 1 of 60 "
        "samples, such as train[39] ('val').",
    )


def test_training_samples_alone_are_split_as_a_bare_data_set_is(saved):
    (saved / "dataset_dict.json").write_text('{"splits": ["train"]}')
    alone, bare = (folder.from_huggingface(place, groups="race") for place in (saved, saved / "train"))
    assert {name: len(labels) for name, (_, labels, _) in alone.items()} == {"train": 31, "test": 9}
    assert np.array_equal(alone["test"][0], bare["test"][0])
    (saved / "dataset_dict.json").write_text('{"splits": ["test"]}')
    assert "no sample in split 'train'" in problems(folder.from_huggingface, saved, groups="race")


@pytest.mark.parametrize("size", ["8", (8, 8), 8.0])
@pytest.mark.parametrize("image", ["image", "array"])
def test_a_size_that_is_no_side_is_refused(saved, size, image):
    said = problems(folder.from_huggingface, saved, groups="race", image=image, image_size=size)
    assert said.startswith(f"image_size is {size!r}: give a side in pixels")


def test_one_class_is_named_and_classes_may_be_ordered_by_name(saved, tmp_path):
    save(tmp_path / "dogs", [1, 4, 7, 10], files=1)
    said = problems(folder.from_huggingface, tmp_path / "dogs", groups="race")
    assert "there is one class only: every label is 'dog'" in said
    turned = folder.from_huggingface(saved, groups="race", classes=["eel", "dog", "cat"])
    assert turned["test"][1].tolist() == [2 - i % 3 for i in range(40, 60)]
    codes = folder.from_huggingface(saved, groups="race", classes=["2", "1", "0"])
    assert codes["test"][1].tolist() == turned["test"][1].tolist()


def test_bad_folders_of_data_sets(saved, tmp_path):
    load = folder.from_huggingface
    assert "is no folder that save_to_disk" in problems(load, tmp_path, groups="race")
    said = problems(load, saved, label="lable", groups=["race", "rase"])
    assert said.count("has no columns 'lable' (did you mean 'label'?), 'rase' (did you mean 'race'?)") == 2
    assert "arrays are taken as they are" in problems(load, saved, image="array", groups="race", image_size=5)
    (saved / "test" / "dataset_info.json").write_text("[]")
    assert "does not say 'features'" in problems(load, saved, groups="race")
    (saved / "test" / "state.json").unlink()
    (saved / "train" / "data-00001-of-00002.arrow").write_bytes(b"\xff\xff\xff\xff and nothing")
    said = problems(load, saved, groups="race")
    assert "train" in said
    assert "test" in said


class Cell:
    def __init__(self, value: Any) -> None:
        self.as_py = lambda: value


class ArrowColumn(list[Any]):
    def to_pylist(self) -> list[Any]:
        return list(self)

    def __getitem__(self, place: Any) -> Any:
        return Cell(super().__getitem__(place))


class Feature:
    def __init__(self, told: dict[str, Any]) -> None:
        if told["_type"] == "ClassLabel":
            self.names = told["names"]


class StandIn:
    """What is used of a `datasets.Dataset`, over plain lists."""

    def __init__(self, columns: dict[str, list[Any]], form: str = "") -> None:
        self.columns, self.form, self.column_names = columns, form, list(columns)
        kinds = {"Image": type("Image", (Feature,), {})}
        self.features = {name: kinds.get(told["_type"], Feature)(told) for name, told in FEATURES.items()}

    def __len__(self) -> int:
        return len(self.columns["label"])

    def select_columns(self, names: list[str]) -> "StandIn":
        return StandIn({name: self.columns[name] for name in names}, self.form)

    def with_format(self, form: str) -> "StandIn":
        return StandIn(self.columns, form)

    def __getitem__(self, place: slice) -> dict[str, Any]:
        assert place == slice(None)
        if self.form == "arrow":
            return {name: ArrowColumn(values) for name, values in self.columns.items()}
        return {"array": np.array(self.columns["array"], dtype=np.uint8)}


def test_data_set_objects():
    parts = {"train": StandIn(columns_of(list(range(40)))), "test": StandIn(columns_of(list(range(40, 60))))}
    check_all(folder.from_huggingface(parts, groups=["race", "gender"]))
    check_all(folder.from_huggingface(parts, image="array", groups=["race", "gender"]))
    single = folder.from_huggingface(parts["train"], groups="race")
    assert [len(labels) for _, labels, _ in single.values()] == [31, 9]
    assert "is a list; give a Dataset" in problems(folder.from_huggingface, [1], groups="race")
    said = problems(folder.from_huggingface, parts, label="lable", groups="race")
    assert "split 'train' has no column 'lable' (did you mean 'label'?)" in said


def test_data_set_objects_of_the_package(tmp_path):
    datasets = pytest.importorskip("datasets", reason="needs the package datasets")
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=list(LABELS)),
            "gender": datasets.ClassLabel(names=["m", "f"]),
            "race": datasets.Value("string"),
            "array": datasets.Array3D((8, 8, 3), "uint8"),
        }
    )
    whole = datasets.Dataset.from_dict(columns_of(list(range(60))), features=features)
    turned = whole.select(range(59, -1, -1))
    data = datasets.DatasetDict(
        {"train": turned.select(range(59, 19, -1)), "test": turned.select(range(19, -1, -1))}
    )
    data.save_to_disk(tmp_path / "saved")
    for given_ in (data, tmp_path / "saved", datasets.load_from_disk(tmp_path / "saved")):
        for image in ("image", "array"):
            check_all(folder.from_huggingface(given_, image=image, groups=["race", "gender"]))
    told = whole.add_column("split", ["train"] * 40 + ["test"] * 20)
    told.save_to_disk(tmp_path / "told")
    for given_ in (told, tmp_path / "told", datasets.DatasetDict({"train": told})):
        check_all(folder.from_huggingface(given_, groups=["race", "gender"]))
    leaked = datasets.DatasetDict({"train": whole.select(range(40)), "test": whole.select(range(39, 60))})
    assert "'train[39]' (train) = 'test[0]' (test)" in folder.from_huggingface(leaked, groups="race").notes[0]
    streamed = whole.to_iterable_dataset()
    assert "streaming" in problems(folder.from_huggingface, streamed, groups="race")
    picture(0, 0).save(tmp_path / "a.png")
    by_path = datasets.Dataset.from_dict(
        {"image": [str(tmp_path / "a.png")] * 4, "label": [0, 1, 0, 1], "race": ["a", "b"] * 2},
    ).cast_column("image", datasets.Image())
    assert len(folder.from_huggingface(by_path, groups="race")["train"][1]) == 2
