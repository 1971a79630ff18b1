"""FairFace from its tables and images, made here at small size with its own names; its public ResNet-34."""

import csv
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from evenprune.data import fairface
from evenprune.data.fairface import (
    COUNTS,
    GENDERS,
    IMAGES,
    PUBLIC_RACES,
    PUBLIC_ROWS,
    RACES,
    read_checkpoint,
    weights_for,
)
from evenprune.groups import binned, merge_below
from evenprune.models import resnet34
from evenprune.tally import InputProblems

AGES = ("0-2", "3-9", "10-19", "20-29", "30-39", "40-49", "50-59", "60-69", "more than 70")
SIDE = 12  # of the images made here; the official ones have 224
Rows = list[dict[str, str]]


def rows(name: str, count: int) -> Rows:
    """All races and genders and ages in turn, in lines as the official ones."""
    return [
        {
            "file": f"{name}/{i + 1}.jpg",
            "age": AGES[i % len(AGES)],
            "gender": GENDERS[i // 7 % 2],
            "race": RACES[i * 3 % 7],
            "service_test": str(i % 3 == 0),
        }
        for i in range(count)
    ]


def colour(file: str) -> tuple[int, int, int]:
    number, train = int(file.split("/")[-1].removesuffix(".jpg")), "train/" in file
    return (37 * number % 256, 200 if train else 40, 91 * number % 256)


def written(
    folder: Path, tables: dict[str, Rows] | None = None, *, images: str = IMAGES, side: int = SIDE
) -> Path:
    tables = tables or {"train": rows("train", 42), "val": rows("val", 20)}
    for name, own in tables.items():
        (folder / images / name).mkdir(parents=True, exist_ok=True)
        with open(folder / f"fairface_label_{name}.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, list(own[0]))
            writer.writeheader()
            writer.writerows(own)
        for row in own:
            at = folder / images / "/".join(row["file"].split("/")[-2:])
            Image.new("RGB", (side, side), colour(row["file"])).save(at, quality=95, subsampling=0)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("fairface"))


def test_every_image_has_its_own_labels_and_val_is_the_test_data(folder: Path) -> None:
    data = fairface.load(folder, strict=False)
    assert list(data) == ["train", "test"]
    for split, expected in (("train", rows("train", 42)), ("test", rows("val", 20))):
        images, labels, columns = data[split]
        assert images.shape == (len(expected), 3, SIDE, SIDE)
        assert list(columns) == ["race", "gender", "race x gender", "age"]
        for i, row in enumerate(expected):
            assert np.abs(images[i, :, 5, 5].astype(int) - colour(row["file"])).max() <= 12
            assert data.classes[labels[i]] == columns["race"][i] == row["race"]
            assert columns["gender"][i] == row["gender"]
            assert columns["race x gender"][i] == f"{row['race']} × {row['gender']}"
            assert columns["age"][i] == row["age"]


@pytest.mark.parametrize(
    ("target", "group", "classes", "groups"),
    [("race", "race", 7, 7), ("gender", "race", 2, 7), ("race", "race x gender", 7, 14)],
)
def test_the_tasks(folder: Path, target: Any, group: Any, classes: int, groups: int) -> None:
    data = fairface.load(folder, target=target, group=group, strict=False)
    assert (len(data.classes), len(data.groups)) == (classes, groups)
    split = data.split("test")
    assert [data.groups[i] for i in split.groups.tolist()] == data["test"][2][group].tolist()
    assert [data.classes[i] for i in split.labels.tolist()] == data["test"][2][target].tolist()


@pytest.mark.parametrize("images", [IMAGES, ".", "fairface"])
def test_the_images_may_lie_beside_the_tables(tmp_path: Path, images: str) -> None:
    data = fairface.load(written(tmp_path, images=images), strict=False)
    assert len(data["train"][1]) == 42


def test_files_may_be_listed_with_a_folder_before_them(tmp_path: Path) -> None:
    tables = {name: rows(name, 8) for name in ("train", "val")}
    tables = {n: [row | {"file": f"fairface/{row['file']}"} for row in own] for n, own in tables.items()}
    assert len(fairface.load(written(tmp_path, tables), strict=False)["test"][1]) == 8


def test_images_are_made_smaller_and_never_larger(folder: Path) -> None:
    assert fairface.load(folder, image_size=5, strict=False)["test"][0].shape[2:] == (5, 5)
    with pytest.raises(InputProblems, match=r"image_size is 13.*62 of 62 images are smaller.*only 12 pixels"):
        fairface.load(folder, image_size=13, strict=False)


def test_decoded_images_are_kept_in_the_cache(folder: Path, tmp_path: Path) -> None:
    first = fairface.load(folder, cache=tmp_path, strict=False)
    again = fairface.load(folder, cache=tmp_path, strict=False)
    assert isinstance(again["train"][0].base, np.memmap)
    assert (again["train"][0] == first["train"][0]).all()
    assert again.split("train").inputs.dtype == torch.uint8


def test_ages_can_be_groups_and_small_ones_merged(folder: Path) -> None:
    ages = fairface.load(folder, strict=False)["test"][2]["age"]
    assert set(merge_below(ages, 3)) == {"0-2", "3-9", "other"}
    with pytest.raises(InputProblems, match="no numbers; the first is '0-2'"):
        binned(ages, edges=[10])


# --- problems ---


def problems(folder: Path, **told: Any) -> list[str]:
    with pytest.raises(InputProblems) as error:
        fairface.load(folder, **({"strict": False} | told))
    return error.value.problems


def test_a_set_that_is_not_whole_is_refused_unless_asked_for(folder: Path) -> None:
    found = problems(folder, strict=True)
    assert any("the table of train lists 42 images, FairFace has 86,744" in text for text in found)
    assert any("the table of val lists 20 images, FairFace has 10,954" in text for text in found)
    assert any("has 12×12 pixels; the images with a margin of 0.25 have 224×224" in text for text in found)
    assert sum(COUNTS.values()) == 97_698


def test_the_right_margin_is_told_by_its_size(tmp_path: Path) -> None:
    written(tmp_path, {name: rows(name, 2) for name in COUNTS}, side=224)
    assert not any("pixels" in text for text in problems(tmp_path, strict=True))


def test_every_image_is_looked_at_for_its_margin(tmp_path: Path) -> None:
    written(tmp_path, {name: rows(name, 3) for name in COUNTS}, side=224)
    for file in ("train/2.jpg", "val/3.jpg"):
        Image.new("RGB", (448, 448)).save(tmp_path / IMAGES / file)
    (found,) = (text for text in problems(tmp_path, strict=True) if "pixels" in text)
    assert "2.jpg' has 448×448 pixels; the images with a margin of 0.25 have 224×224, and 2 of 6" in found


def test_splits_of_unequal_sizes_are_refused_unless_brought_to_one(tmp_path: Path) -> None:
    written(tmp_path, {"train": rows("train", 3)}, side=12)
    written(tmp_path, {"val": rows("val", 3)}, side=10)
    (found,) = problems(tmp_path)
    assert "those of train have 12×12 pixels, those of val have 10×10 pixels" in found
    assert fairface.load(tmp_path, strict=False, image_size=8)["test"][0].shape == (3, 3, 8, 8)


def test_the_other_margin_is_not_taken_for_this_one(tmp_path: Path) -> None:
    written(tmp_path, images=IMAGES.replace("025", "125"))
    (found,) = problems(tmp_path)
    assert "although images with a margin of 1.25 are there" in found


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    tables = {"train": rows("train", 9), "val": rows("val", 9)}
    tables["train"][2] |= {"race": "Martian", "gender": "male"}
    tables["val"][4] |= {"race": ""}
    written(tmp_path, tables)
    for file in ("1.jpg", "2.jpg"):
        os.unlink(tmp_path / IMAGES / "val" / file)
    bad: Any = {"target": "age", "group": "age", "image_size": 0}
    found = "\n".join(problems(tmp_path, **bad))
    for part in (
        "target is 'age'",
        "group is 'age'",
        "image_size is 0",
        "1 value of gender is none of Male, Female (the first is 'male' of 'train/3.jpg')",
        "1 value of race is none of East Asian, Indian",
        "'Martian' of 'train/3.jpg'",
        "(the first is '' of 'val/5.jpg')",
    ):
        assert part in found, part


def test_missing_images_are_counted_and_named(tmp_path: Path) -> None:
    written(tmp_path)
    for number in (1, 5, 9, 11):
        os.unlink(tmp_path / IMAGES / "train" / f"{number}.jpg")
    (found,) = problems(tmp_path)
    assert "lacks 4 of 42 images: 'train/1.jpg', 'train/5.jpg', 'train/9.jpg' … and 1 more" in found


def test_missing_and_damaged_images_come_in_one_error(tmp_path: Path) -> None:
    written(tmp_path)
    os.unlink(tmp_path / IMAGES / "train" / "1.jpg")
    (tmp_path / IMAGES / "train" / "7.jpg").write_bytes(b"no picture")
    (tmp_path / IMAGES / "val" / "3.jpg").write_bytes(b"no picture")
    missing, train, val = problems(tmp_path)
    assert "lacks 1 of 42 images: 'train/1.jpg'" in missing
    assert "1 of 41 images cannot be read" in train
    assert "3.jpg" in val


def test_damaged_images_are_refused(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / IMAGES / "train" / "7.jpg").write_bytes(b"no picture")
    assert any("1 of 42 images cannot be read" in text and "7.jpg" in text for text in problems(tmp_path))
    assert any("cannot be read" in text for text in problems(tmp_path, image_size=6))
    (tmp_path / IMAGES / "val" / "3.jpg").write_bytes(b"no picture")
    train, val = problems(tmp_path)
    assert "7.jpg" in train
    assert "3.jpg" in val
    assert "skip" not in train + val  # this loader cannot


def test_tables_that_are_not_there_or_are_no_tables_are_refused(tmp_path: Path) -> None:
    assert len(problems(tmp_path)) == 3  # two tables and the images
    written(tmp_path)
    (tmp_path / "fairface_label_val.csv").write_text("file,age\nval/1.jpg,3-9\n")
    assert "needs the columns file, age, gender, race; it has 'file', 'age'" in problems(tmp_path)[0]
    wrong = [*rows("val", 4), *rows("val", 1)]
    with open(tmp_path / "fairface_label_train.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(wrong[0]))
        writer.writeheader()
        writer.writerows(wrong)
    found = "\n".join(problems(tmp_path))
    assert "5 files are not named train/1.jpg" in found
    assert "1 file is listed more than once" in found


# --- the public model ---


def torchvision_shapes(outputs: int) -> dict[str, list[int]]:
    """Names and shapes of torchvision's ResNet-34, written out."""
    shapes: dict[str, list[int]] = {"conv1.weight": [64, 3, 7, 7]}

    def norm(name: str, width: int) -> None:
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.{part}"] = [width]
        shapes[f"{name}.num_batches_tracked"] = []

    norm("bn1", 64)
    before = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), start=1):
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            shapes[f"{name}.conv1.weight"] = [width, before if block == 0 else width, 3, 3]
            norm(f"{name}.bn1", width)
            shapes[f"{name}.conv2.weight"] = [width, width, 3, 3]
            norm(f"{name}.bn2", width)
            if block == 0 and stage > 1:
                shapes[f"{name}.downsample.0.weight"] = [width, before, 1, 1]
                norm(f"{name}.downsample.1", width)
        before = width
    return shapes | {"fc.weight": [outputs, 512], "fc.bias": [outputs]}


@pytest.fixture(scope="module")
def public() -> dict[str, Tensor]:
    """A checkpoint of the form of res34_fair_align_multi_7_20190809.pt."""
    generator = torch.Generator().manual_seed(0)
    state = {
        name: torch.tensor(7) if name.endswith("tracked") else torch.randn(shape, generator=generator) * 0.05
        for name, shape in torchvision_shapes(18).items()
    }
    for name in state:
        if name.endswith("running_var"):
            state[name] = state[name].abs() + 0.5
    return state


def test_our_resnet34_has_the_names_and_shapes_of_torchvisions() -> None:
    ours = {name: list(tensor.shape) for name, tensor in resnet34(18).state_dict().items()}
    assert ours == torchvision_shapes(18)


def test_the_rows_are_those_of_our_order() -> None:
    assert [PUBLIC_RACES[row] for row in PUBLIC_ROWS["race"]] == list(RACES)
    assert PUBLIC_ROWS["race"] == (3, 5, 1, 0, 6, 2, 4)
    assert PUBLIC_ROWS["gender"] == (7, 8)


@pytest.mark.parametrize(("target", "names"), [("race", RACES), ("gender", GENDERS)])
def test_output_i_is_class_i(public: dict[str, Tensor], target: Any, names: tuple[str, ...]) -> None:
    outputs = [*PUBLIC_RACES, *GENDERS, *AGES]  # what the public model's outputs are
    whole, ours = resnet34(18).eval(), resnet34(len(names)).eval()
    whole.load_state_dict(public)
    ours.load_state_dict(weights_for(public, target=target))
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected, got = whole(images), ours(images)
    for i, name in enumerate(names):
        torch.testing.assert_close(got[:, i], expected[:, outputs.index(name)])


def test_the_checkpoint_is_copied_not_shared(public: dict[str, Tensor]) -> None:
    taken = weights_for(public, target="race")
    taken["conv1.weight"].zero_()
    assert public["conv1.weight"].any()
    assert "fc.weight" in taken
    assert public["fc.weight"].shape == (18, 512)


@pytest.mark.parametrize("form", ["zip", "legacy", "safetensors"])
def test_files_of_every_form_are_read(public: dict[str, Tensor], tmp_path: Path, form: str) -> None:
    path = tmp_path / ("model.safetensors" if form == "safetensors" else "model.pt")
    if form == "safetensors":
        save_file(public, path)
    else:
        torch.save(resnet_state(public), path, _use_new_zipfile_serialization=form == "zip")
    read = read_checkpoint(path)
    assert read.keys() == public.keys()
    assert all(torch.equal(read[name], public[name]) for name in public)


def resnet_state(public: dict[str, Tensor]) -> Any:
    """As a model's state_dict() is: an ordered mapping with metadata."""
    model = resnet34(18)
    model.load_state_dict(public)
    return model.state_dict()


class Harm:
    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["HARM"],)


@pytest.mark.parametrize("form", ["zip", "legacy", "pickle"])
def test_nothing_in_a_file_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setenv("HARM", str(tmp_path / "harmed"))
    path = tmp_path / "model.pt"
    if form == "pickle":
        path.write_bytes(pickle.dumps({"conv1.weight": Harm()}))
    else:
        torch.save({"conv1.weight": Harm()}, path, _use_new_zipfile_serialization=form == "zip")
    with pytest.raises(InputProblems, match=r"model\.pt"):
        read_checkpoint(path)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"PK\x03\x04", b"\x80\x02}q\x00."], ids=str)
@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputProblems, match="model"):
        read_checkpoint(path)


def test_files_that_are_not_there_or_hold_something_else_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputProblems, match=r"nothing\.pt"):
        read_checkpoint(tmp_path / "nothing.pt")
    torch.save([torch.zeros(1)], tmp_path / "list.pt")
    with pytest.raises(InputProblems, match="holds list, not tensors by name; save the state dict"):
        read_checkpoint(tmp_path / "list.pt")
    torch.save({"epoch": 3}, tmp_path / "more.pt")
    with pytest.raises(InputProblems, match="holds dict with 'epoch', not tensors"):
        read_checkpoint(tmp_path / "more.pt")


def test_another_model_is_refused_with_all_that_differs(public: dict[str, Tensor]) -> None:
    other = {name: tensor for name, tensor in public.items() if not name.startswith("layer4")}
    other |= {"fc.weight": torch.zeros(1000, 512), "extra": torch.zeros(1)}
    with pytest.raises(InputProblems) as error:
        weights_for(other, target="race")
    text = "\n".join(error.value.problems)
    assert "it lacks" in text
    assert "it has also 1 tensors, 'extra'" in text
    assert "fc.weight is [1000, 512], not [18, 512]" in text
    with pytest.raises(InputProblems, match="target is 'age'"):
        weights_for(public, target="age")  # type: ignore[arg-type]


@settings(max_examples=10)
@given(order=st.permutations(range(18)))
def test_rows_follow_the_outputs_wherever_these_are(public: dict[str, Tensor], order: list[int]) -> None:
    state = public | {"fc.bias": torch.tensor(order, dtype=torch.float32)}
    taken = weights_for(state, target="race")["fc.bias"].tolist()
    assert taken == [order[row] for row in (3, 5, 1, 0, 6, 2, 4)]
