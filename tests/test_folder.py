"""Images of one's own: tables, class folders, Hugging Face data sets, arrays; and everything bad at once."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evenprune import groups
from evenprune.data import class_labels, folder, huggingface, labelled
from evenprune.tally import InputProblems

pytest.importorskip("PIL", reason="needs Pillow: pip install 'evenprune[images]'")
from PIL import Image

LABELS = ("cat", "dog", "eel")
RACES = ("A", "B")


def picture(label: int, seed: int, side: int = 8) -> Image.Image:
    """A colour for the class, and some noise."""
    rng = np.random.default_rng(seed)
    pixels = np.full((side, side, 3), 40 + 80 * np.eye(3)[label % 3]) + rng.integers(0, 30, (side, side, 3))
    return Image.fromarray(pixels.astype(np.uint8))


def rows(count: int = 60, *, split: bool = True) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {
        "path": [f"part{i % 2}/{i:03d}.png" for i in range(count)],
        "label": [LABELS[i % 3] for i in range(count)],
        "race": [RACES[i // 3 % 2] for i in range(count)],
        "age": [20 + i % 7 for i in range(count)],
    }
    if split:
        columns["split"] = [("train", "train", "Test", "val")[i // 3 % 4] for i in range(count)]
    return columns


@pytest.fixture
def images(tmp_path: Path) -> Path:
    place = tmp_path / "images"
    for i, name in enumerate(rows()["path"]):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        picture(i % 3, i).save(place / name)
    return place


def written(table: dict[str, list[Any]], path: Path) -> Path:
    frame = pl.DataFrame(table, strict=False)
    {
        ".csv": frame.write_csv,
        ".tsv": lambda file: frame.write_csv(file, separator="\t"),
        ".parquet": frame.write_parquet,
        ".jsonl": frame.write_ndjson,
    }[path.suffix](path)
    return path


def problems(call: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(InputProblems) as caught:
        call(*arguments, **options)
    return "\n".join(caught.value.problems)


# --- tables ---


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet", "jsonl"])
def test_a_table_of_any_form_gives_the_same_splits(images, tmp_path, ending):
    table = rows()
    loaded = folder.load(images, written(table, tmp_path / f"t.{ending}"), groups=["race", "age"])
    assert list(loaded) == ["train", "test", "validation"]
    assert loaded.classes == LABELS
    assert repr(loaded) == "30 train, 15 test, 15 validation samples of 3 classes"
    for name, words in (("train", ("train",)), ("test", ("Test",)), ("validation", ("val",))):
        inputs, labels, columns = loaded[name]
        mine = [i for i in range(60) if table["split"][i] in words]
        assert inputs.shape == (len(mine), 3, 8, 8)
        assert inputs.dtype == np.uint8
        assert labels.dtype == np.int64
        assert labels.tolist() == [i % 3 for i in mine]
        assert columns["race"].tolist() == [table["race"][i] for i in mine]
        assert columns["age"].tolist() == [table["age"][i] for i in mine]
        for i, pixels in zip(mine, inputs, strict=True):
            assert np.array_equal(pixels.transpose(1, 2, 0), np.asarray(picture(i % 3, i)))


def test_splits_are_views_of_one_memory_map(images, tmp_path):
    table = written(rows(), tmp_path / "t.csv")
    loaded = folder.load(images, table, groups="race", cache=tmp_path / "c")
    assert all(isinstance(inputs, np.memmap) for inputs, _, _ in loaded.values())
    assert len(list((tmp_path / "c").glob("*.npy"))) == 1


def test_the_table_may_lie_in_the_folder_and_be_named_by_other_columns(images):
    table = rows()
    columns = {"file": [p.replace("/", "\\") for p in table["path"]], "y": [i % 3 for i in range(60)]}
    written(columns | {"fold": table["split"], "race": table["race"]}, images / "labels.csv")
    loaded = folder.load(images, "labels.csv", label="y", path="file", split="fold", groups=["race", "y"])
    assert loaded.classes == ("0", "1", "2")
    assert not loaded.counted
    assert loaded["train"][2]["y"].tolist() == loaded["train"][1].tolist()


def test_missing_attributes_stay_missing(images, tmp_path):
    table = rows()
    table["race"][0] = None
    _, _, columns = folder.load(images, written(table, tmp_path / "t.csv"), groups="race")["train"]
    assert columns["race"].tolist()[:2] == [None, "A"]


# --- groups ---


def test_numbers_go_into_ranges_and_small_groups_are_merged(images, tmp_path):
    table = rows()
    table["age"] = [str(5 + i) for i in range(60)]  # too many for groups of their own
    path = written(table, tmp_path / "t.csv")
    loaded = folder.load(images, path, groups=["race", "age"], bins={"age": [18, 40]})
    for name, (_, _, columns) in loaded.items():
        mine = [i for i in range(60) if labelled.WORDS[table["split"][i].lower()] == name]
        plain = groups.binned([5 + i for i in mine], edges=[18, 40])
        assert columns["age"].tolist() == plain.tolist()
        assert groups.notes_of(columns) == ["age is in ranges that begin at 18, 40."]
    merged = folder.load(images, path, groups=["race", "age"], bins={"age": [18, 40]}, merge_below=5)
    train = merged["train"][2]["race × age"]
    assert set(train) == {"A × 40 and over", "A × 18–39", "B × 18–39", "B × 40 and over", "other"}
    assert "fewer than 5 training samples, and are merged into “other”: A × under 18" in train.notes[1]
    assert train.tolist() == groups.merge_below(loaded["train"][2], 5).tolist()


def test_ranges_and_merges_that_are_wrong_are_told_with_the_rest(images, tmp_path):
    table = rows() | {"income": [f"{1000 + i}.5" for i in range(60)], "label": ["cat"] * 60}
    path = written(table, tmp_path / "t.csv")
    said = problems(
        folder.load, images, path, groups=["race", "income"], bins={"race": [3], "age": 4}, merge_below=0
    )
    for part in (
        "bin names column 'age', which is no group (the groups are 'race', 'income')", "merge_below is 0",
        "one class only", "group column 'income' holds 60 different values on 60 samples",
        "bins={'income': 4} (--bin income=quantiles:4)",
    ):  # fmt: skip
        assert part in said
    said = problems(folder.load, images, path, groups=["race"], bins={"race": [3]})
    assert "group column 'race' is to be put into ranges, but 60 of 60 values are no numbers" in said


def test_an_attribute_with_ten_thousand_values_says_what_to_do():
    (words,) = class_labels.too_many_groups("city", [f"c{i % 10_000}" for i in range(30_000)])
    assert (
        "'city' holds 10,000 different values on 30,000 samples, such as 'c0', 'c1', 'c2': is it an" in words
    )
    (numbers,) = class_labels.too_many_groups("income", [str(i % 10_000 / 8) for i in range(30_000)])
    assert "put its numbers into ranges, bins={'income': 4} (--bin income=quantiles:4)" in numbers
    assert class_labels.too_many_groups("age", list(range(90)) * 9) == []


def test_arrays_have_ranges_too():
    images, labels = np.zeros((40, 2, 2, 3), np.uint8), np.arange(40) % 2
    loaded = folder.from_arrays(images, labels, {"age": np.arange(40)}, bins={"age": [20]})
    ages = [value for _, _, columns in loaded.values() for value in columns["age"]]
    assert (ages.count("under 20"), ages.count("20 and over")) == (20, 20)


def test_paths_that_begin_with_the_folder_itself(images, tmp_path):
    table = rows() | {"path": [f"images/{path}" for path in rows()["path"]]}
    said = problems(folder.load, images, written(table, tmp_path / "t.csv"), groups="race")
    assert "60 of 60 files are missing" in said
    assert "there is 'part0/000.png': paths are relative to " in said
    table["path"] = [f"else/{i}.png" for i in range(60)]
    said = problems(folder.load, images, written(table, tmp_path / "t.csv"), groups="race")
    assert said.endswith("put the files there, or take their rows out of the table")


# --- splits that are drawn ---


def drawn_by(loaded: folder.Loaded) -> dict[bytes, str]:
    return {image.tobytes(): name for name, (inputs, _, _) in loaded.items() for image in inputs}


def test_a_drawn_split_has_its_share_of_each_class_and_is_always_the_same(images, tmp_path):
    table = rows(split=False)
    first = folder.load(images, written(table, tmp_path / "t.csv"), groups="race")
    assert [np.bincount(first[name][1]).tolist() for name in ("train", "test")] == [[16] * 3, [4] * 3]
    turned = {name: values[::-1] for name, values in table.items()}
    again = folder.load(images, written(turned, tmp_path / "t.parquet"), groups="race")
    assert drawn_by(again) == drawn_by(first)
    other = folder.load(images, tmp_path / "t.csv", groups="race", seed=1, test_share=0.5)
    assert [len(labels) for _, labels, _ in other.values()] == [30, 30]
    assert drawn_by(folder.load(images, tmp_path / "t.csv", groups="race", seed=1)) != drawn_by(first)
    none = folder.load(images, written(rows(), tmp_path / "u.csv"), groups="race", split=None)
    assert drawn_by(none) == drawn_by(first)


@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=200),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 9),
    order=st.randoms(use_true_random=False),
)
def test_drawing_is_stratified_and_blind_to_order(labels, share, seed, order):
    names = [f"{i}.jpg" for i in range(len(labels))]
    splits = labelled.drawn(names, np.array(labels), share, seed)
    for label in set(labels):
        mine = [split for split, own in zip(splits, labels, strict=True) if own == label]
        held_out = mine.count("test")
        assert held_out <= max(1, round(share * len(mine)))
        assert held_out >= min(1, len(mine) - 1)
        assert mine.count("train") >= 1
    places = list(range(len(labels)))
    order.shuffle(places)
    again = labelled.drawn([names[i] for i in places], np.array(labels)[places], share, seed)
    assert again == [splits[i] for i in places]


# --- classes by folders ---


@pytest.mark.parametrize("parts", [("",), ("train", "test"), ("Train", "val", "test")])
def test_a_folder_for_each_class(tmp_path, parts):
    for part in parts:
        for label, name in enumerate(LABELS):
            place = tmp_path / part / name
            (place / "more").mkdir(parents=True)
            for i in range(5):
                picture(label, i).save((place / "more" if i == 4 else place) / f"{i}.JPG", "JPEG")
            (place / "notes.txt").write_text("no image")
            (place / ".hidden.jpg").write_text("no image")
    (tmp_path / ".git").mkdir()
    loaded = folder.load(tmp_path, groups="label")
    assert set(loaded) == ({"train", "test"} if len(parts) < 3 else {"train", "test", "validation"})
    assert loaded.classes == LABELS
    assert sum(len(labels) for _, labels, _ in loaded.values()) == 15 * len(parts)
    for _, labels, columns in loaded.values():
        assert columns["label"].tolist() == [LABELS[label] for label in labels]


def test_class_folders_that_are_none(tmp_path):
    assert "there is no folder" in problems(folder.load, tmp_path / "x", groups="label")
    assert "has no images" in problems(folder.load, tmp_path, groups="label")
    picture(0, 0).save(tmp_path / "a.png")
    (tmp_path / "labels.csv").write_text("path,label\na.png,cat\n")
    said = problems(folder.load, tmp_path, groups="label")
    assert "holds images, but no folders of classes; give a table" in said
    assert "labels.csv" in said
    (tmp_path / "cat").mkdir()
    picture(0, 0).save(tmp_path / "cat" / "a.png")
    said = problems(folder.load, tmp_path, groups=["label", "race"])
    assert "without a table the class is the only attribute, 'label'" in said
    assert "one class only" in said


def class_tree(place: Path, part: str = "", classes: tuple[str, ...] = LABELS, count: int = 3) -> None:
    for label, name in enumerate(classes):
        (place / part / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            picture(label, len(part) * 100 + i).save(place / part / name / f"{i}.png")


def test_neighbours_of_train_and_test_do_not_make_classes_of_them(tmp_path):
    class_tree(tmp_path, "train")
    class_tree(tmp_path, "test")
    (tmp_path / "__MACOSX" / "train" / "cat").mkdir(parents=True)
    (tmp_path / "__MACOSX" / "train" / "cat" / "._0.png").write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    for _ in range(2):  # the second time, the cache is a neighbour too
        loaded = folder.load(tmp_path, groups="label", cache=tmp_path / "runs" / "image-cache")
        assert loaded.classes == LABELS
        assert {name: len(labels) for name, (_, labels, _) in loaded.items()} == {"train": 9, "test": 9}
    class_tree(tmp_path, "extra", classes=("cat",))
    said = problems(folder.load, tmp_path, groups="label")
    assert "3 images lie beside them, in 'extra': move them into a split" in said
    assert len(said.splitlines()) == 1


def test_classes_may_be_called_like_splits(tmp_path):
    class_tree(tmp_path, classes=("test", "train", "other"))
    assert folder.load(tmp_path, groups="label").classes == ("other", "test", "train")


def test_one_file_in_two_splits_by_a_link(tmp_path):
    class_tree(tmp_path, "train")
    class_tree(tmp_path, "test")
    (tmp_path / "test" / "cat" / "link.png").symlink_to(tmp_path / "train" / "cat" / "1.png")
    said = problems(folder.load, tmp_path, groups="label")
    assert said.endswith(
        "one file is there more than once, by links: 'test/cat/link.png' = 'train/cat/1.png'"
    )


def test_class_folders_that_are_links(tmp_path):
    class_tree(tmp_path / "store", "train")
    class_tree(tmp_path / "store", "test")
    for part in ("train", "test"):
        (tmp_path / "tree" / part).mkdir(parents=True)
        for name in LABELS:
            (tmp_path / "tree" / part / name).symlink_to(tmp_path / "store" / part / name)
    assert len(folder.load(tmp_path / "tree", groups="label")["train"][1]) == 9
    (tmp_path / "tree" / "test" / "cat").unlink()
    (tmp_path / "tree" / "test" / "cat").symlink_to(tmp_path / "store" / "train" / "cat")
    assert "3 files are there more than once" in problems(folder.load, tmp_path / "tree", groups="label")


@pytest.mark.parametrize("cached", [False, True])
def test_equal_files_in_two_splits_are_noted(tmp_path, cached):
    class_tree(tmp_path / "a", "train")
    class_tree(tmp_path / "a", "test")
    cache = tmp_path / "c" if cached else None
    assert folder.load(tmp_path / "a", groups="label", cache=cache).notes == ()
    (tmp_path / "a/train/cat/copy.png").write_bytes((tmp_path / "a/train/cat/0.png").read_bytes())
    (tmp_path / "a/train/cat/bad.png").write_bytes(b"junk")
    (tmp_path / "a/test/dog/bad.png").write_bytes(b"junk")
    (tmp_path / "a/test/dog/same.png").write_bytes((tmp_path / "a/train/cat/2.png").read_bytes())
    for _ in range(2):
        (note,) = folder.load(tmp_path / "a", groups="label", cache=cache, corrupt="skip").notes
        assert note.startswith("one image is in several splits")
        assert note.endswith(": 'train/cat/2.png' = 'test/dog/same.png'.")


# --- labels ---


def numbered(labels, **options):
    names = [str(i) for i in range(len(labels))]
    ids, classes, wrong = class_labels.numbered(labels, names, **{"classes": None, "known": None} | options)
    return ids.tolist(), classes, wrong


def test_labels_become_class_ids():
    assert numbered(["b", "a", "b"]) == ([1, 0, 1], ("a", "b"), [])
    assert numbered(["10", "9", "10"])[1] == tuple(str(i) for i in range(11))
    assert numbered(["0", "2", "0"]) == ([0, 2, 0], ("0", "1", "2"), [])  # nobody moves ids that exist
    assert numbered([0.0, 1.0, 1.0])[0] == [0, 1, 1]
    assert numbered([True, False]) == ([1, 0], ("false", "true"), [])
    assert numbered(["01", "1"])[1] == ("01", "1")
    assert numbered(["0.0", "10.0", "2.0"]) == numbered([0.0, 10.0, 2.0])  # as a CSV and a Parquet have them
    assert numbered(["0.0", "10.0", "2.0"])[0] == [0, 10, 2]
    assert numbered(["0.5", "1.0"])[1] == ("0.5", "1.0")
    assert numbered(["m", "f"], classes=["m", "f"]) == ([0, 1], ("m", "f"), [])
    assert numbered([1, 2], classes=["2", "1"]) == ([1, 0], ("2", "1"), [])
    assert numbered([1, 0], known=["m", "f", "x"]) == ([1, 0], ("m", "f", "x"), [])


@pytest.mark.parametrize(
    ("labels", "options", "said"),
    [
        (["a", "a"], {}, "one class only: every label is 'a'"),
        (["a", "b", None, ""], {}, "2 of 4 samples have no label: '2', '3'"),
        ([0.5, 0.25], {}, "fractions such as 0.5"),
        ([-1, 0], {}, "from -1 to 0"),
        ([0, 1999, 2024], {}, "from 0 to 2,024, 3 different ones: class ids are 0, 1, 2"),
        (["a", "b"], {"classes": ["a", "c"]}, "there are labels 'b', which classes does not name: 'a', 'c'"),
        (["a", "b"], {"classes": ["a", "b", "a"]}, "one twice"),
        ([0, -1, 1], {"known": ["m", "f"]}, "1 of 3 samples have no label"),
        ([0, 5, 1], {"known": ["m", "f"]}, "from 0 to 5"),
        ([f"x{i}" for i in range(50)], {}, "the label holds 50 different values on 50 samples"),
    ],
)
def test_labels_that_are_wrong(labels, options, said):
    assert said in "\n".join(numbered(labels, **options)[2])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=30))
def test_texts_are_numbered_in_sorted_order_and_can_be_read_back(texts):
    texts = [f"x{text}" for text in texts]  # no numbers among them
    ids, classes, _ = numbered(texts)
    assert list(classes) == sorted(set(texts))
    assert [classes[i] for i in ids] == texts


def test_attributes_below_zero_are_not_missing(images, tmp_path):
    table = rows() | {"smiling": [(-1, 1)[i // 3 % 2] for i in range(60)]}
    for ending in ("csv", "parquet"):
        loaded = folder.load(images, written(table, tmp_path / f"t.{ending}"), groups="smiling")
        assert set(loaded["train"][2]["smiling"].tolist()) == {"-1", "1"}
    assert class_labels.column(["1.0", "0.0", None]).tolist() == ["1", "0", None]
    assert class_labels.column(["1.0", "0.0"]).tolist() == [1, 0]
    arrays = folder.from_arrays(
        np.zeros((8, 2, 2, 3), np.uint8), np.arange(8) % 2, {"g": [-1, -1, 0, 0, 1, 1, 0, 0]}
    )
    values = {value for _, _, columns in arrays.values() for value in columns["g"].tolist()}
    assert values == {None, "0", "1"}  # there, as in prune(), −1 is a missing value


def test_training_samples_of_one_class_and_classes_never_trained(images, tmp_path):
    table = rows()
    table["label"] = ["cat" if split == "train" else label for split, label in zip(
        table["split"], table["label"], strict=True)]  # fmt: skip
    said = problems(folder.load, images, written(table, tmp_path / "t.csv"), groups="race")
    assert "there is one class only in split 'train': every label is 'cat'" in said
    assert "split 'test' has classes 'dog', 'eel', of which there is no sample in split 'train'" in said
    assert "split 'validation' has classes 'dog', 'eel'" in said
    assert len(said.splitlines()) == 3


def test_a_class_whose_images_all_are_skipped(images, tmp_path):
    table = rows()
    for i, split in enumerate(table["split"]):
        if split == "train" and i % 3 == 2:
            (images / table["path"][i]).write_bytes(b"junk")
    written(table, tmp_path / "t.csv")
    said = problems(folder.load, images, tmp_path / "t.csv", groups="race", corrupt="skip")
    assert "split 'test' has class 'eel', of which there is no sample in split 'train', after 10 that" in said
    assert "one class only" not in said
    for i, split in enumerate(table["split"]):
        if split == "train" and i % 3 == 1:
            (images / table["path"][i]).write_bytes(b"junk")
    said = problems(folder.load, images, tmp_path / "t.csv", groups="race", corrupt="skip")
    assert "one class only in split 'train': every label is 'cat', after 20 that cannot be read" in said


# --- bad input ---


def test_the_same_file_by_another_name(images, tmp_path):
    table = rows()
    (images / "link.png").symlink_to(images / table["path"][0])
    (images / "folder").symlink_to(images / "part1")
    table["path"][6] = "link.png"
    table["path"][7] = str(images / table["path"][1])
    table["path"][8] = "folder/../part0/002.png"
    table["path"][9] = "folder/003.png"
    said = problems(folder.load, images, written(table, tmp_path / "t.csv"), groups="race")
    assert "the table names 4 images more than once: 'part0/000.png' = 'link.png', 'part1/001.png', " in said
    assert "'part1/003.png' = 'folder/003.png'" in said


def test_files_that_are_lost_leave_no_split_or_class_empty(images, tmp_path):
    table = rows()
    for i, split in enumerate(table["split"]):
        if split == "Test":
            table["path"][i] = table["path"][i % 3]
        elif split == "train" and i % 3 == 1 and i > 2:
            table["path"][i] = f"nowhere/{i}.png"
    said = problems(folder.load, images, written(table, tmp_path / "t.csv"), groups="race")
    assert "9 of 60 files are missing" in said
    assert "the table names 3 images more than once" in said
    assert len(said.splitlines()) == 2


def test_impossible_names_are_missing_files(images, tmp_path):
    table = rows()
    table["path"][0], table["path"][1], table["path"][2] = "x" * 300 + ".png", "a\0.png", "."
    table["split"][3] = "holdout"
    said = problems(folder.load, images, written(table, tmp_path / "t.parquet"), groups=["race", "rase"])
    assert "3 of 60 files are missing: 'xxx" in said
    assert "(File name too long)" in said
    assert "has no column 'rase'" in said
    assert "split holds 'holdout'" in said


def test_missing_files_are_samples_nevertheless(images, tmp_path):
    table = rows() | {"path": [f"nowhere/{i}.png" for i in range(60)]}
    said = problems(folder.load, images, written(table, tmp_path / "t.csv"), groups="race")
    assert "60 of 60 files are missing: 'nowhere/0.png', " in said
    assert "… and 55 more" in said
    assert "holds no samples" not in said


def test_another_word_for_corrupt(images, tmp_path):
    table = written(rows(), tmp_path / "t.csv")
    said = problems(folder.load, images, table, groups="race", corrupt="skp", image_size=0)
    assert "corrupt is 'skp'; it must be 'refuse' or 'skip'" in said
    assert "0 pixels" in said


def test_everything_bad_comes_in_one_error(images, tmp_path):
    table = rows() | {"id": [f"person {i}" for i in range(60)]}
    table["label"] = ["cat"] * 60
    table["path"][3] = "nowhere.png"
    table["path"][4] = "part0/000"
    table["path"][10] = table["path"][9]
    table["split"] = ["train"] * 59 + ["holdout"]
    (images / table["path"][20]).write_bytes(b"junk")
    picture(0, 0, side=9).save(images / table["path"][30])
    said = problems(folder.load, images, written(table, tmp_path / "t.csv"), groups=["race", "id", "rase"])
    for part in (
        "has no column 'rase' (did you mean 'race'?)",
        "one class only: every label is 'cat'",
        "group column 'id' holds 57 different values on 57 samples",
        "is it an identifier? Name another column",
        "2 of 60 files are missing: 'nowhere.png', 'part0/000'; there is '000.png': write the names with",
        "the table names one image more than once: 'part1/009.png'",
        "1 of 57 images cannot be read",
        "020.png' (no image of a known format)",
        "2 different sizes: 8×8 (55, such as",
        "9×9 (1, such as",
        "split holds 'holdout', but knows 'train', 'test', 'validation' only (1 of 57 samples)",
        "there is no sample in split 'test'",
    ):
        assert part in said, said
    assert len(said.splitlines()) == 9


def test_a_label_column_that_is_not_there_hides_nothing_else(images, tmp_path):
    (images / rows()["path"][20]).write_bytes(b"junk")
    said = problems(
        folder.load, images, written(rows(), tmp_path / "t.csv"), label="lable", groups="race", split="fold"
    )
    assert "has no columns 'lable' (did you mean 'label'?), 'fold'" in said
    assert "1 of 60 images cannot be read" in said
    said = problems(folder.load, images, tmp_path / "t.csv", path="file", groups="race")
    assert "has no column 'file'" in said


def test_ten_thousand_values_of_an_attribute(tmp_path):
    count = 10_000
    images = np.zeros((count, 1, 1, 3), np.uint8)
    said = problems(folder.from_arrays, images, np.arange(count) % 2, {"id": [f"p{i}" for i in range(count)]})
    assert said.startswith("group column 'id' holds 10,000 different values on 10,000 samples, such as 'p0'")


def test_unreadable_images_are_skipped_on_request(images, tmp_path):
    table = rows()
    for i in (0, 5, 7):
        (images / table["path"][i]).write_bytes(b"junk")
    written(table, tmp_path / "t.csv")
    assert "3 of 60 images cannot be read" in problems(folder.load, images, tmp_path / "t.csv", groups="race")
    for cache in (None, tmp_path / "c", tmp_path / "c"):
        loaded = folder.load(images, tmp_path / "t.csv", groups="race", corrupt="skip", cache=cache)
        assert len(loaded.skipped) == 3
        assert "57" not in repr(loaded)
        assert "3 left out" in repr(loaded)
        assert sum(len(labels) for _, labels, _ in loaded.values()) == 57
        for inputs, labels, columns in loaded.values():
            assert len(inputs) == len(labels) == len(columns["race"])
            assert inputs.mean((2, 3)).argmax(1).tolist() == labels.tolist()  # each image has its own label
    for i, split in enumerate(table["split"]):
        if split == "Test":
            (images / table["path"][i]).write_bytes(b"junk")
    said = problems(folder.load, images, tmp_path / "t.csv", groups="race", corrupt="skip")
    assert "no sample in split 'test', after 17 that cannot be read were left out" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("path,label,race\n", "holds no samples"),
        ("", "is empty"),
        ("path,label,race\n,a,b\n", "the path is missing in 1 of 1 rows: row 1"),
    ],
)
def test_tables_without_anything(images, tmp_path, content, said):
    (tmp_path / "t.csv").write_text(content)
    assert said in problems(folder.load, images, tmp_path / "t.csv", groups="race")


def test_other_slips(images, tmp_path):
    table = written(rows(split=False), tmp_path / "t.csv")
    assert "No such file" in problems(folder.load, images, "nowhere.csv", groups="race")
    assert "there is no folder" in problems(folder.load, tmp_path / "x", table, groups="race")
    assert "test_share is 1.5" in problems(folder.load, images, table, groups="race", test_share=1.5)
    nested = pl.DataFrame(rows()).with_columns(race=pl.concat_list("race"))
    nested.write_parquet(tmp_path / "n.parquet")
    assert "'race' holds List" in problems(folder.load, images, tmp_path / "n.parquet", groups="race")


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damaged=st.sets(st.integers(0, 59), max_size=20))
def test_kept_and_skipped_are_all(images, tmp_path, damaged):
    table = rows()
    for i, name in enumerate(table["path"]):
        if i in damaged:
            (images / name).write_bytes(b"junk")
        else:
            picture(i % 3, i).save(images / name)
    loaded = folder.load(
        images, written(table, tmp_path / "t.csv"), groups="race", corrupt="skip", cache=tmp_path / "c"
    )
    assert len(loaded.skipped) == len(damaged)
    assert sum(len(labels) for _, labels, _ in loaded.values()) == 60 - len(damaged)


# --- arrays ---


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


# --- Hugging Face ---


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
    streamed = whole.to_iterable_dataset()
    assert "streaming" in problems(folder.from_huggingface, streamed, groups="race")
    picture(0, 0).save(tmp_path / "a.png")
    by_path = datasets.Dataset.from_dict(
        {"image": [str(tmp_path / "a.png")] * 4, "label": [0, 1, 0, 1], "race": ["a", "b"] * 2},
    ).cast_column("image", datasets.Image())
    assert len(folder.from_huggingface(by_path, groups="race")["train"][1]) == 2
