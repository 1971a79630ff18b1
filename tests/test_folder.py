"""Images of one's own: tables and class folders; and everything bad at once."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from evenprune import groups, methods
from evenprune.data import class_labels, folder, labelled, twins
from evenprune.pruning import prune
from evenprune.recipe import Recipe
from evenprune.verdict import Audit

pytest.importorskip("PIL", reason="needs Pillow: pip install 'evenprune[images]'")

from tests.labelled_images import LABELS, class_tree, picture, problems, rows, written


@pytest.fixture
def images(tmp_path: Path) -> Path:
    place = tmp_path / "images"
    for i, name in enumerate(rows()["path"]):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        picture(i % 3, i).save(place / name)
    return place


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


@settings(max_examples=60)
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=200),
    test=st.floats(0.01, 0.99),
    heldout=st.floats(0.01, 0.99),
    seed=st.integers(0, 9),
    order=st.randoms(use_true_random=False),
)
def test_drawing_is_stratified_and_blind_to_order(labels, test, heldout, seed, order):
    names, shares = [f"{i}.jpg" for i in range(len(labels))], {"test": test, "validation": heldout}
    splits = labelled.drawn(names, np.array(labels), shares, seed)
    for label in set(labels):
        mine = [split for split, own in zip(splits, labels, strict=True) if own == label]
        tested = min(max(1, round(test * len(mine))), len(mine) - 1)
        assert mine.count("test") == tested
        assert mine.count("validation") == min(max(1, round(heldout * len(mine))), len(mine) - tested - 1)
        assert mine.count("train") >= 1
    without = labelled.drawn(names, np.array(labels), {"test": test}, seed)
    assert [split == "test" for split in splits] == [split == "test" for split in without]
    places = list(range(len(labels)))
    order.shuffle(places)
    again = labelled.drawn([names[i] for i in places], np.array(labels)[places], shares, seed)
    assert again == [splits[i] for i in places]


def test_a_held_out_share_is_drawn_beside_the_same_test_samples(images, tmp_path):
    table = rows(split=False)
    written(table, tmp_path / "t.csv")
    three = folder.load(images, tmp_path / "t.csv", groups="race", heldout_share=0.25)
    sizes = {name: np.bincount(labels).tolist() for name, (_, labels, _) in three.items()}
    assert sizes == {"train": [11] * 3, "test": [4] * 3, "validation": [5] * 3}
    assert three.notes == ()
    two = folder.load(images, tmp_path / "t.csv", groups="race")
    assert np.array_equal(three["test"][0], two["test"][0])
    turned = {name: values[::-1] for name, values in table.items()}
    again = folder.load(images, written(turned, tmp_path / "u.csv"), groups="race", heldout_share=0.25)
    assert drawn_by(again) == drawn_by(three)
    other = folder.load(images, tmp_path / "t.csv", groups="race", heldout_share=0.25, seed=1)
    assert drawn_by(other) != drawn_by(three)


def test_a_held_out_share_of_the_training_samples_where_only_test_is_told(images, tmp_path):
    table = rows()
    table["split"] = ["train" if word == "val" else word for word in table["split"]]  # 15 of each class
    path = written(table, tmp_path / "t.csv")
    loaded = folder.load(images, path, groups="race", heldout_share=0.2)
    assert np.bincount(loaded["validation"][1]).tolist() == [3] * 3
    plain = folder.load(images, path, groups="race")
    assert np.array_equal(loaded["test"][0], plain["test"][0])
    merged = {image: "train" if name == "validation" else name for image, name in drawn_by(loaded).items()}
    assert merged == drawn_by(plain)
    assert loaded.notes == (
        "9 of 45 training samples were drawn as the held-out split, a share of 0.2 of each class: the data "
        "names no held-out samples itself. If the dense model was trained on these samples, gaps there are "
        "unlike those on unseen data: hold samples out before the dense model is trained.",
    )
    assert groups.notes_of(loaded["test"][2]) == list(loaded.notes)
    turned = {name: values[::-1] for name, values in table.items()}
    again = folder.load(images, written(turned, tmp_path / "u.csv"), groups="race", heldout_share=0.2)
    assert drawn_by(again) == drawn_by(loaded)
    most = folder.load(images, path, groups="race", heldout_share=0.8)  # test_share draws nothing here
    assert np.bincount(most["train"][1]).tolist() == [3] * 3


def test_shares_that_cannot_be_drawn_are_one_problem_each(images, tmp_path):
    without, told = written(rows(split=False), tmp_path / "t.csv"), written(rows(), tmp_path / "u.csv")

    def said(table, **shares):
        (problem,) = problems(folder.load, images, table, groups="race", **shares).splitlines()
        return problem

    for share in (-0.1, 1.0, float("nan")):
        assert said(without, heldout_share=share).startswith(f"heldout_share is {share}: it must lie between")
    found = said(without, test_share=0.6, heldout_share=0.5)
    assert found.startswith("test_share is 0.6 and heldout_share is 0.5: no sample is left to train on")
    found = said(told, heldout_share=0.2)
    assert found.startswith("heldout_share is 0.2, but ")
    assert "u.csv' has 15 held-out samples of its own" in found
    assert "leave the share out (--heldout-share)" in found
    small = written({name: values[:6] for name, values in rows(split=False).items()}, tmp_path / "s.csv")
    found = said(small, heldout_share=0.3)  # of each class one to test, one to train
    assert "there is no sample in split 'validation'; give more samples, or leave heldout_share" in found


@pytest.mark.parametrize("word", ["heldout", "Held-Out", "held_out", "holdout", "dev"])
def test_a_held_out_split_and_one_to_audit_have_many_names(images, tmp_path, word):
    table = rows()
    names = {"val": word, "Test": "audit"}
    table["split"] = [names.get(split, split) for split in table["split"]]
    loaded = folder.load(images, written(table, tmp_path / "t.csv"), groups="race")
    plain = folder.load(images, written(rows(), tmp_path / "u.csv"), groups="race")
    assert drawn_by(loaded) == drawn_by(plain)


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
            (place / ".ipynb_checkpoints").mkdir()
            picture(label, 9).save(place / ".ipynb_checkpoints" / "9-checkpoint.jpg")
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


def test_sets_of_faces_name_their_own_reader(tmp_path):
    (tmp_path / "utk" / "128").mkdir(parents=True)
    (tmp_path / "utk" / "labels.csv").write_text("file,age,gender,race\n")
    picture(0, 0).save(tmp_path / "utk" / "128" / "utk_00.jpg")
    said = problems(folder.load, tmp_path / "utk", groups="label")
    assert "holds UTKFace as mosaics, many faces to an image, and no folder per class" in said
    assert "read it from Python: evenprune.data.utkface.load('" in said
    (tmp_path / "jpgs").mkdir()
    picture(0, 0).save(tmp_path / "jpgs" / "26_0_1_20170116220224657.jpg.chip.jpg")
    assert "Is it UTKFace? Then read it" in problems(folder.load, tmp_path / "jpgs", groups="label")
    for name in ("train", "val"):
        (tmp_path / "fair" / name).mkdir(parents=True)
        picture(0, 0).save(tmp_path / "fair" / name / "1.jpg")
        (tmp_path / "fair" / f"fairface_label_{name}.csv").write_text("file,age,gender,race,service_test\n")
    said = problems(folder.load, tmp_path / "fair", groups="label")
    assert "evenprune.data.fairface.load('" in said
    class_tree(tmp_path / "own")
    (tmp_path / "own" / "labels.csv").write_text("x")
    folder.load(tmp_path / "own", groups="label")  # a table of that name alone means nothing


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
        assert note == (
            "One image is in several splits, the same byte by byte: 'train/cat/2.png' (train) = "
            "'test/dog/same.png' (test)."
        )


def test_an_image_of_many_names_is_told_by_one_of_each_split_first():
    splits = ["train"] * 8 + ["test"]
    (note,) = twins.leaked([list(range(9))], splits, [f"{i}.png" for i in range(9)])
    assert note.endswith(
        "'0.png' (train) = '8.png' (test) = '1.png' (train) = '2.png' (train) = '3.png' (train) … and 4 more."
    )


class ByColour(nn.Sequential):
    """Right at once: the class of a picture is its strongest colour."""

    def __init__(self) -> None:
        alike = [nn.Linear(3, 3, bias=False) for _ in range(3)]  # the first and the last are not pruned
        super().__init__(nn.AdaptiveAvgPool2d(1), nn.Flatten(), *alike)
        for layer in alike:
            nn.init.eye_(layer.weight)


def audited(loaded: folder.Loaded) -> Audit:
    recipe = Recipe(epochs=1, pruning_epochs=0, batch_size=8)
    nothing = {"sparsity": 0.0, "method": methods.nft(), "tolerance": 0.1, "recipe": recipe, "hooks": []}
    return prune(ByColour(), **loaded, **nothing).audit


def test_what_leaked_and_what_was_left_out_reach_the_audit(tmp_path):
    class_tree(tmp_path / "a", "train", count=6)
    class_tree(tmp_path / "a", "test", count=20)  # so that few are shared: many are refused
    assert not audited(folder.load(tmp_path / "a", groups="label")).notes[:-1]  # groups are tiny
    for name in ("train/cat/bad.png", "test/dog/bad.png"):
        (tmp_path / "a" / name).write_bytes(b"junk")
    for i in range(5):
        (tmp_path / f"a/test/eel/{i}.png").write_bytes((tmp_path / f"a/train/eel/{i}.png").read_bytes())
    found = audited(folder.load(tmp_path / "a", groups="label", corrupt="skip"))
    (leak,) = (note for note in found.to_dict()["notes"] if "byte by byte" in note)
    (left_out,) = (note for note in found.to_dict()["notes"] if "left out" in note)
    assert leak.startswith("5 images are in several splits, the same byte by byte: 'train/eel/0.png' (train)")
    assert left_out.startswith("Of all splits, 2 images could not be read, and are left out: ")
    assert left_out.endswith(": 'train/cat/bad.png', 'test/dog/bad.png'.")


def test_merged_groups_and_ranges_keep_their_notes_beside_those(images, tmp_path):
    (images / rows()["path"][0]).write_bytes(b"junk")
    loaded = folder.load(
        images,
        written(rows(), tmp_path / "t.csv"),
        groups=["race", "age"],
        bins={"age": [22, 26]},
        merge_below=8,
        corrupt="skip",
    )
    for _, _, columns in loaded.values():
        ranges, merged, left_out = groups.notes_of(columns)
        assert ranges.startswith("age is in ranges")
        assert "merged into “other”" in merged
        assert left_out.startswith("Of all splits, one image could not be read, and is left out: ")
        assert groups.merged_of(columns)["other"]


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
    for odd in (["1", "inf"], [1.0, "x", 0.5], [10**400, 0.5, "y"], [[0, 1], [1, 0]]):
        assert numbered(odd)[2] == []
    assert numbered([1, 2], classes=["2", "1"]) == ([1, 0], ("2", "1"), [])
    assert numbered([1, 0], known=["m", "f", "x"]) == ([1, 0], ("m", "f", "x"), [])


@pytest.mark.parametrize(
    ("labels", "options", "said"),
    [
        (["a", "a"], {}, "one class only: every label is 'a'"),
        (["a", "b", None, ""], {}, "2 of 4 samples have no label: '2', '3'"),
        ([0.5, 0.25], {}, "fractions such as 0.5"),
        (["1", "0.5", "0.5", "0.25"], {}, "fractions such as '0.5', '0.25': a class is a name"),
        ([-1, 0], {}, "from -1 to 0"),
        ([0, 1999, 2024], {}, "from 0 to 2,024, 3 different ones: class ids are 0, 1, 2"),
        (["a", "b"], {"classes": ["a", "c"]}, "there are labels 'b', which classes does not name: 'a', 'c'"),
        (["a", "b"], {"classes": ["a", "b", "a"]}, "one twice"),
        ([0, -1, 1], {"known": ["m", "f"]}, "1 of 3 samples has no label"),
        ([0, 5, 1], {"known": ["m", "f"]}, "from 0 to 5"),
        ([f"x{i}" for i in range(50)], {}, "the label holds 50 different values on 50 samples"),
    ],
)
def test_labels_that_are_wrong(labels, options, said):
    assert said in "\n".join(numbered(labels, **options)[2])


def test_texts_that_look_alike_are_noted(images, tmp_path):
    table = rows()
    table["race"] = [(value, f" {value.lower()}")[i % 2] for i, value in enumerate(table["race"])]
    loaded = folder.load(
        images,
        written(table | {"smiling": ["NA", "yes"] * 30}, tmp_path / "t.csv"),
        groups=["race", "smiling"],
    )
    first = table["race"][0]
    assert any(f"group column 'race': {first!r} and ' {first.lower()}'" in note for note in loaded.notes)
    assert any(note.startswith("group column 'smiling': 'NA' counts as a value") for note in loaded.notes)
    assert class_labels.lookalikes("x", ["a", "b", None, 1, "1"]) == []


@settings(max_examples=60)
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
    table["split"][3] = "other"
    said = problems(folder.load, images, written(table, tmp_path / "t.parquet"), groups=["race", "rase"])
    assert "3 of 60 files are missing: 'xxx" in said
    assert "(File name too long)" in said
    assert "has no column 'rase'" in said
    assert "split holds 'other'" in said


def test_missing_files_are_samples_nevertheless(images, tmp_path):
    table = rows() | {"path": [f"nowhere/{i}.png" for i in range(60)]}
    said = problems(folder.load, images, written(table, tmp_path / "t.csv"), groups="race")
    assert "60 of 60 files are missing: 'nowhere/0.png', " in said
    assert "… and 55 more" in said
    assert "holds no samples" not in said


def test_another_word_for_corrupt(images, tmp_path):
    table = written(rows(), tmp_path / "t.csv")
    said = problems(folder.load, images, table, groups="race", corrupt="skp", image_size=0, cache=table)
    assert "corrupt is 'skp'; it must be 'refuse' or 'skip'" in said
    assert "image_size is 0: give a side in pixels" in said
    assert "t.csv', a file: give a folder" in said


def test_groups_are_asked_for(images, tmp_path):
    table = written(rows(), tmp_path / "t.csv")
    said = problems(folder.load, images, table, groups=[])
    assert said == "groups is missing: which column tells the groups apart?"


def test_without_test_samples_it_says_what_to_do(images, tmp_path):
    table = rows() | {"split": ["train", "train", "train", "val", "val", "val"] * 10}
    said = problems(folder.load, images, written(table, tmp_path / "t.csv"), groups="race")
    assert said.endswith(
        "there is no sample in split 'test'; mark some as test, call the validation samples test, or give no "
        'splits, and they are drawn: split=None (--split "")'
    )
    said = problems(
        folder.load, images, written(rows() | {"split": ["train"] * 60}, tmp_path / "t.csv"), groups="race"
    )
    assert "in split 'test'; mark some as test, or give no splits" in said
    few = {name: values[:3] for name, values in rows(split=False).items()}
    said = problems(folder.load, images, written(few, tmp_path / "t.csv"), groups="race")
    assert said.endswith("there is no sample in split 'test'; give more samples of each class")


def test_one_sample_and_several_are_told_apart(images, tmp_path):
    table = rows()
    table["split"][0] = table["label"][0] = None
    table["path"][1] = "nowhere.png"
    said = problems(folder.load, images, written(table, tmp_path / "t.csv"), groups="race")
    for part in ("1 sample has no split", "1 of 59 samples has no label", "1 of 60 files is missing"):
        assert part in said


def test_everything_bad_comes_in_one_error(images, tmp_path):
    table = rows() | {"id": [f"person {i}" for i in range(60)]}
    table["label"] = ["cat"] * 60
    table["path"][3] = "nowhere.png"
    table["path"][4] = "part0/000"
    table["path"][10] = table["path"][9]
    table["split"] = ["train"] * 59 + ["other"]
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
        "split holds 'other', but knows 'train', 'test', 'validation' only (1 of 57 samples)",
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


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
