"""UTKFace from its jpgs and from mosaics: the same people, the paper's split, nothing enlarged."""

import csv
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from evenprune import methods
from evenprune.data import utkface
from evenprune.data.faces import MEAN, STD, Names, People
from evenprune.data.utkface import COUNTS, GENDERS, RACES, Labelled, split_of
from evenprune.groups import encode
from evenprune.models import small_cnn
from evenprune.pruning import prune
from evenprune.recipe import Recipe
from evenprune.tally import InputProblems

REAL = Path(__file__).parents[2] / "shared" / "data" / "utkface"
SIDE = 16  # of the images that are made here; the originals have 200
Rows = list[tuple[str, str, str, str]]

# Names as they are in the original, with all of its slips: no race, no dot, a space.
ODD = (
    "39_1_20170116174525125.jpg.chip.jpg",
    "61_1_20170109142408075.jpg.chip.jpg",
    "61_1_20170109150557335.jpg.chip.jpg",
    "55_0_0_20170116232725357jpg.chip.jpg",
    "24_0_1_20170116220224657 .jpg.chip.jpg",
    "44_1_4_20170116235150272.pg.chip.jpg",
)


def names(count: int = 60, *, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    made = [
        f"{rng.integers(1, 117)}_{rng.integers(2)}_{rng.integers(5)}_201701{i:011d}.jpg.chip.jpg"
        for i in range(count)
    ]
    return [*made, *ODD]


def fields(name: str) -> tuple[str, str, str, str]:
    age, gender, *rest = name.split("_")
    return name, age, gender, rest[0] if len(rest) == 2 else ""


def colour(name: str) -> tuple[int, int, int]:
    """A colour that tells a file: jpg keeps it, nearly."""
    rng = np.random.default_rng(sum(ord(c) * (i + 1) for i, c in enumerate(name)))
    red, green, blue = rng.integers(0, 256, 3).tolist()
    return red, green, blue


def jpg_folder(folder: Path, files: list[str], *, side: int = SIDE) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in files:
        Image.new("RGB", (side, side), colour(name)).save(folder / name, "JPEG", quality=95, subsampling=0)
    return folder


def mosaic_folder(
    folder: Path, files: list[str], *, side: int = SIDE, across: int = 4, rows: Rows | None = None
) -> Path:
    """labels.csv as the csv module writes it, and mosaics of across × across tiles, the last one cut."""
    (folder / str(side)).mkdir(parents=True, exist_ok=True)
    files = sorted(files)
    with open(folder / "labels.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "age", "gender", "race"])
        writer.writerows(rows if rows is not None else [fields(name) for name in files])
    for number, first in enumerate(range(0, len(files), across**2)):
        own = files[first : first + across**2]
        mosaic = Image.new("RGB", (across * side, -(-len(own) // across) * side), (128, 128, 128))
        for i, name in enumerate(own):
            mosaic.paste(
                colour(name),
                (
                    (i % across) * side,
                    (i // across) * side,
                    (i % across + 1) * side,
                    (i // across + 1) * side,
                ),
            )
        mosaic.save(folder / str(side) / f"utk_{number:02d}.jpg", quality=95, subsampling=0)
    return folder


@pytest.fixture(scope="module")
def jpgs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return jpg_folder(tmp_path_factory.mktemp("jpgs"), names())


@pytest.fixture(scope="module")
def mosaics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mosaic_folder(tmp_path_factory.mktemp("mosaics"), names())


def expected_split() -> dict[str, list[str]]:
    """As the paper's code has it, written out."""
    files = sorted(names())
    for without_race in ODD[:3]:
        files.remove(without_race)
    order = np.random.RandomState(seed=1357).permutation(len(files))
    tests = int(0.2 * len(files))
    return {"train": [files[i] for i in order[tests:]], "test": [files[i] for i in order[:tests]]}


def folder_of(form: str, jpgs: Path, mosaics: Path) -> Path:
    return {"jpgs": jpgs, "mosaics": mosaics}[form]


@pytest.mark.parametrize("form", ["jpgs", "mosaics"])
def test_every_image_has_its_own_labels_in_the_split_of_the_paper(
    form: str, jpgs: Path, mosaics: Path
) -> None:
    data = utkface.load(folder_of(form, jpgs, mosaics), strict=False)
    assert list(data) == ["train", "test"]
    for split, files in expected_split().items():
        images, labels, columns = data[split]
        assert images.shape == (len(files), 3, SIDE, SIDE)
        assert (images.dtype, labels.dtype) == (np.uint8, np.int64)
        assert list(columns) == ["race", "gender", "race x gender", "age"]
        for i, name in enumerate(files):
            _, age, gender, race = fields(name)
            middle = images[i, :, SIDE // 2, SIDE // 2].astype(int)
            assert np.abs(middle - colour(name)).max() <= 12, name
            assert labels[i] == int(race)
            assert columns["race"][i] == RACES[int(race)]
            assert columns["gender"][i] == GENDERS[int(gender)]
            assert columns["race x gender"][i] == f"{RACES[int(race)]} × {GENDERS[int(gender)]}"
            assert columns["age"][i] == int(age)


@pytest.mark.parametrize("form", ["jpgs", "mosaics"])
@pytest.mark.parametrize(
    ("target", "group", "classes", "groups"),
    [
        ("race", "race", 5, 5),
        ("gender", "race", 2, 5),
        ("race", "race x gender", 5, 10),
        ("race", "gender", 5, 2),
    ],
)
def test_the_tasks(
    form: str, target: Any, group: Any, classes: int, groups: int, jpgs: Path, mosaics: Path
) -> None:
    data = utkface.load(folder_of(form, jpgs, mosaics), target=target, group=group, strict=False)
    assert (len(data.classes), len(data.groups), data.group) == (classes, groups, group)
    _, labels, columns = data["train"]
    assert [data.classes[label] for label in labels] == columns[target].tolist()
    split = data.split("train")
    assert [data.groups[i] for i in split.groups.tolist()] == columns[group].tolist()
    assert torch.equal(split.labels, torch.from_numpy(labels))
    assert split.mean is not None
    assert split.mean.tolist() == pytest.approx(MEAN)
    assert split.std is not None
    assert split.std.tolist() == pytest.approx(STD)
    assert set(encode({group: columns[group]})[1]) <= set(data.groups)


@pytest.mark.parametrize("form", ["as they are", "splits"])
def test_pruning_sees_normalised_bytes_and_knows_the_names(form: str, mosaics: Path) -> None:
    faces = utkface.load(mosaics, target="gender", strict=False)
    whole = dict(faces) if form == "as they are" else {name: faces.split(name) for name in faces}
    torch.manual_seed(0)
    model = small_cnn(num_classes=2, in_channels=3).eval()
    images, labels, _ = faces["test"]
    scaled = (np.asarray(images) / 255 - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))
    with torch.no_grad():
        logits = model(torch.tensor(scaled, dtype=torch.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the model is not trained
        result = prune(
            model,
            **whole,
            groups=faces.group,
            sparsity=0.5,
            method=methods.nft(),
            recipe=Recipe(epochs=1, pruning_epochs=0, batch_size=16),
            tolerance=0.5,
            hooks=[],
        )
    expected = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels), reduction="none")
    torch.testing.assert_close(result.dense["test"].losses, expected, rtol=1e-4, atol=1e-5)
    assert set(result.samples.names) == set(RACES)
    assert result.audit.attributes == ("race",)
    assert result.samples.splits["train"].inputs.dtype == torch.uint8


def test_groups_are_named_in_the_order_of_the_papers_tables(mosaics: Path) -> None:
    data = utkface.load(mosaics, group="race x gender", strict=False)
    initials = [f"{race[0]}-{gender[0].upper()}" for race, gender in (g.split(" × ") for g in data.groups)]
    assert initials == ["W-M", "W-F", "B-M", "B-F", "A-M", "A-F", "I-M", "I-F", "O-M", "O-F"]


@pytest.mark.parametrize("form", ["jpgs", "mosaics"])
@pytest.mark.parametrize("target", ["race", "gender"])
def test_without_others_their_images_go_and_the_rest_stays_as_it_was(
    form: str, target: Any, jpgs: Path, mosaics: Path
) -> None:
    folder = folder_of(form, jpgs, mosaics)
    whole = utkface.load(folder, target=target, strict=False)
    less = utkface.load(folder, target=target, others=False, strict=False)
    assert less.groups == RACES[:-1]
    assert less.classes == (RACES[:-1] if target == "race" else GENDERS)
    for split in whole:
        kept = whole[split][2]["race"] != "Others"
        assert 0 < kept.sum() < len(kept)
        assert (less[split][0] == whole[split][0][kept]).all()
        assert (less[split][1] == whole[split][1][kept]).all()
        assert (less[split][2]["age"] == whole[split][2]["age"][kept]).all()
        assert "Others" not in less[split][2]["race"]


@pytest.mark.parametrize("form", ["jpgs", "mosaics"])
def test_images_are_made_smaller_bicubically_and_never_larger(form: str, jpgs: Path, mosaics: Path) -> None:
    folder = folder_of(form, jpgs, mosaics)
    full, small = (utkface.load(folder, image_size=size, strict=False)["test"][0] for size in (None, 6))
    assert small.shape[2:] == (6, 6)
    for large, got in zip(full, small, strict=True):
        picture = Image.fromarray(large.transpose(1, 2, 0)).resize((6, 6), Image.Resampling.BICUBIC)
        assert np.abs(np.asarray(picture).transpose(2, 0, 1).astype(int) - got).max() <= 2
    same = utkface.load(folder, image_size=SIDE, strict=False)["test"][0]
    assert (same == full).all()
    with pytest.raises(InputProblems, match=f"image_size is 17.*only {SIDE} pixels.*Give {SIDE} or less"):
        utkface.load(folder, image_size=17, strict=False)


def test_the_smallest_tiles_that_suffice_are_taken(tmp_path: Path) -> None:
    mosaic_folder(tmp_path, names(), side=8)
    mosaic_folder(tmp_path, names(), side=24)
    sizes = {None: 24, 8: 8, 9: 9, 24: 24}
    for asked, given_size in sizes.items():
        assert utkface.load(tmp_path, image_size=asked, strict=False)["test"][0].shape[2] == given_size
    with pytest.raises(InputProblems, match="only 24 pixels"):
        utkface.load(tmp_path, image_size=25, strict=False)


def test_the_folder_may_lie_inside_the_one_that_is_named(tmp_path: Path) -> None:
    jpg_folder(tmp_path / "UTKFace", names(12))
    assert len(utkface.load(tmp_path, strict=False)["train"][1]) == 12


def test_decoded_jpgs_are_kept_in_the_cache(jpgs: Path, tmp_path: Path) -> None:
    first = utkface.load(jpgs, cache=tmp_path / "cache", strict=False)
    again = utkface.load(jpgs, cache=tmp_path / "cache", strict=False)
    assert isinstance(again["train"][0].base, np.memmap)
    for split in first:
        assert (again[split][0] == first[split][0]).all()
        assert again.split(split).inputs.shape == first[split][0].shape
    assert len(list((tmp_path / "cache").glob("*.npy"))) == 2


def test_progress_is_told(jpgs: Path, mosaics: Path) -> None:
    for folder, count in ((jpgs, 63), (mosaics, 66)):
        heard: list[tuple[int, int]] = []
        utkface.load(folder, strict=False, progress=lambda done, of, heard=heard: heard.append((done, of)))
        assert sum(of for done, of in heard if done == of) == count


# --- problems ---


def problems(folder: Path, **told: Any) -> list[str]:
    with pytest.raises(InputProblems) as error:
        utkface.load(folder, **({"strict": False} | told))
    return error.value.problems


def test_a_set_that_is_not_whole_is_refused_unless_asked_for(jpgs: Path, mosaics: Path) -> None:
    for folder in (jpgs, mosaics):
        (found,) = problems(folder, strict=True)
        assert "holds 63 images with a race, UTKFace has 23,705 (White " in found
        assert "strict=False" in found


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    jpg_folder(tmp_path, names(3))
    told: Any = {"target": "age", "group": "height", "image_size": -3}
    found = problems(tmp_path, **told, strict=True)
    assert [text.split(" is ")[0] for text in found[:3]] == ["target", "group", "image_size"]
    assert len(found) == 4


@pytest.mark.parametrize("size", [0, -1, 2.5, "64", True])
def test_the_size_is_a_number_of_pixels(jpgs: Path, size: Any) -> None:
    assert problems(jpgs, image_size=size)[0].startswith("image_size is")


def test_folders_without_images_are_refused(tmp_path: Path) -> None:
    assert "is no folder" in problems(tmp_path / "nowhere")[0]
    (tmp_path / "notes.txt").write_text("x")
    (found,) = problems(tmp_path)
    assert "holds no UTKFace. It holds 'notes.txt'." in found
    assert "[age]_[gender]_[race]_[date]" in found


def test_images_of_other_names_are_listed(tmp_path: Path) -> None:
    jpg_folder(
        tmp_path,
        [*names(5), "cat.jpg", "53__0_20170116184028385.jpg.chip.jpg", "20_2_0_20170116184028385.jpg"],
    )
    (found,) = problems(tmp_path)
    assert "3 of 14 images are not named" in found
    assert "'cat.jpg'" in found


def test_damaged_images_are_listed_together(tmp_path: Path) -> None:
    jpg_folder(tmp_path, names(10))
    for name in sorted(names(10))[:2]:
        (tmp_path / name).write_bytes(b"no picture")
    assert any("2 of " in text or "1 of " in text for text in problems(tmp_path))
    assert problems(tmp_path, image_size=8)


def test_damaged_images_of_both_splits_are_told_at_once(tmp_path: Path) -> None:
    jpg_folder(tmp_path, names(10))
    for name in names(10):
        (tmp_path / name).write_bytes(b"no picture")
    train, test = problems(tmp_path)
    for text in (train, test):
        assert "images cannot be read" in text
        assert "skip" not in text  # this loader cannot


def test_unequal_images_need_a_size(tmp_path: Path) -> None:
    jpg_folder(tmp_path, names(10))
    jpg_folder(tmp_path, expected_in(names(10))[:1], side=20)
    assert any("different sizes" in text for text in problems(tmp_path))
    assert utkface.load(tmp_path, image_size=8, strict=False)["train"][0].shape[2:] == (8, 8)
    (found,) = problems(tmp_path, image_size=18)
    assert "images are smaller" in found


def expected_in(files: list[str]) -> list[str]:
    return sorted(name for name in files if fields(name)[3])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda rows: [("x", "old", "0", "1"), *rows],
            "1 value of age is not known (the first is 'old' of 'x')",
        ),
        (lambda rows: [("0", "1", "2", "1"), *rows], "1 value of gender is not known"),
        (lambda rows: [("0", "1", "1", "7"), *rows], "1 value of race is not known"),
        (lambda rows: rows[::-1], "the files are not in sorted order"),
        (lambda rows: [rows[0], *rows], "not in sorted order, each once"),
        (lambda rows: rows[:3], "tiles for 3 labels"),
        (lambda rows: [*rows, *[(f"z{i}", "1", "1", "1") for i in range(9)]], "tiles for 75 labels"),
        (lambda rows: [], "needs the columns file, age, gender, race; it has no lines"),
    ],
)
def test_tables_that_do_not_fit_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    rows = change([fields(name) for name in sorted(names())])
    mosaic_folder(tmp_path, names(), rows=rows)
    found = problems(tmp_path)
    assert any(message in text for text in found), found


def test_tables_without_the_columns_are_refused(tmp_path: Path) -> None:
    mosaic_folder(tmp_path, names())
    (tmp_path / "labels.csv").write_text("name,age\nx,1\n")
    assert "it has 'name', 'age'" in problems(tmp_path)[0]
    (tmp_path / "labels.csv").write_bytes(b"file,age,gender,race\n\xff\xfe,1,1,1\n")
    assert "UTF-8" in problems(tmp_path)[0]


def test_mosaics_that_are_missing_or_damaged_are_refused(tmp_path: Path) -> None:
    mosaic_folder(tmp_path, names())
    (tmp_path / "16" / "utk_02.jpg").write_bytes(b"no picture")
    assert any("utk_02.jpg" in text for text in problems(tmp_path))
    whole = (tmp_path / "16" / "utk_01.jpg").read_bytes()
    (tmp_path / "16" / "utk_01.jpg").write_bytes(whole[:200])
    assert any("utk_01.jpg" in text for text in problems(tmp_path))
    (tmp_path / "16" / "utk_02.jpg").unlink()
    assert any("lacks '16/utk_02.jpg'" in text for text in problems(tmp_path))
    Image.new("RGB", (50, 32)).save(tmp_path / "16" / "utk_02.jpg")
    assert any("50×32 pixels, which are no tiles of 16×16" in text for text in problems(tmp_path))


def test_labels_without_mosaics_are_refused(tmp_path: Path) -> None:
    mosaic_folder(tmp_path, names())
    for path in (tmp_path / "16").iterdir():
        path.unlink()
    assert any("lacks" in text for text in problems(tmp_path))
    (tmp_path / "16").rmdir()
    assert any("no folder of mosaics" in text for text in problems(tmp_path))


# --- invariants ---


@settings(max_examples=60)
@given(st.lists(st.integers(-1, 4), max_size=200))
def test_the_split_takes_every_image_with_a_race_once(races: list[int]) -> None:
    race = np.array(races, dtype=np.int64)
    people = People(race, np.zeros_like(race), np.zeros_like(race))
    split = split_of(Labelled(tuple(map(str, range(len(race)))), people))
    everyone = np.concatenate([split["train"], split["test"]])
    assert sorted(everyone.tolist()) == np.flatnonzero(race >= 0).tolist()
    assert len(split["test"]) == int(0.2 * (race >= 0).sum())


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1)), min_size=1, max_size=30))
def test_an_intersection_is_named_for_both_of_its_parts(ids: list[tuple[int, int]]) -> None:
    from evenprune.data import faces

    race, gender = (np.array(own, dtype=np.int64) for own in zip(*ids, strict=True))
    _, labels, columns = faces.samples(
        np.zeros((len(ids), 3, 1, 1), np.uint8), People(race, gender, race), Names(RACES, GENDERS), "gender"
    )
    assert labels.tolist() == gender.tolist()
    for both, r, g in zip(columns["race x gender"], columns["race"], columns["gender"], strict=True):
        assert both == f"{r} × {g}"


# --- the real one ---


@pytest.fixture(scope="module")
def real() -> Labelled:
    if not REAL.is_dir():
        pytest.skip("the mosaics of UTKFace are not here")
    return utkface._labelled(utkface.utkface_mosaics.rows(REAL))


def test_the_real_counts_and_split(real: Labelled) -> None:
    people, split = real.people, split_of(real)
    assert len(real.files) == 23_708
    assert (
        np.bincount(people.race[people.race >= 0]).tolist() == list(COUNTS) == [10078, 4526, 3434, 3975, 1692]
    )
    assert np.bincount(people.gender[people.race >= 0]).tolist() == [12391, 11314]
    assert [name for name, race in zip(real.files, people.race, strict=True) if race < 0] == list(ODD[:3])
    assert {name: len(order) for name, order in split.items()} == {"train": 18_964, "test": 4_741}
    assert np.bincount(people.race[split["train"]]).tolist() == [8087, 3612, 2748, 3150, 1367]
    assert np.bincount(people.race[split["test"]]).tolist() == [1991, 914, 686, 825, 325]


def test_the_real_labels_are_those_of_the_names(real: Labelled) -> None:
    for name, age, gender, race in zip(
        real.files,
        real.people.age.tolist(),
        real.people.gender.tolist(),
        real.people.race.tolist(),
        strict=True,
    ):
        match = utkface.NAME.fullmatch(name)
        assert match is not None, name
        assert (int(match[1]), int(match[2]), int(match[3] or -1)) == (age, gender, race)


def test_real_tiles_are_faces_where_they_should_be(real: Labelled) -> None:
    order = {"some": np.array([0, 700, 23_707])}
    images = utkface.utkface_mosaics.images(REAL, order, count=23_708, image_size=None, progress=None)["some"]
    assert images.shape == (3, 3, 128, 128)
    with Image.open(REAL / "128" / "utk_01.jpg") as mosaic:
        row, column = divmod(700 - 625, 25)
        tile = np.asarray(mosaic.crop((column * 128, row * 128, (column + 1) * 128, (row + 1) * 128)))
    assert (images[1] == tile.transpose(2, 0, 1)).all()
    assert images[2].std() > 10  # the last one is a face, no padding
