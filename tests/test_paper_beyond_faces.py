"""The study on unseen data with faces: what is usual for them, both data sets in one file, kills, tables."""

import multiprocessing
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD

from evenprune.augment import Flip
from evenprune.data import utkface as utkface_data
from evenprune.models import small_cnn
from evenprune.recipe import Recipe, Split
from evenprune.tally import InputProblems
from paper import (
    beyond,
    beyond_answers,
    beyond_cells,
    beyond_data,
    beyond_dense,
    beyond_flags,
    beyond_results,
    beyond_splits,
    beyond_summary,
    beyond_table,
    dense_model,
    runner,
    utkface,
)
from paper.beyond_data import LATE, SOURCES
from paper.beyond_methods import BIAS, FORMULATIONS, PASSES, STUDY
from paper.beyond_results import Origin
from tests.test_paper_beyond import Dies, numbers
from tests.test_paper_beyond import shrink as shrink_cifar100
from tests.test_paper_utkface import SIDE, face

ORIGIN = Origin("utkface", 0.2)
EACH = (48, 30, 24, 24, 16)  # of each race and gender
FEW = Recipe(
    epochs=3,
    pruning_epochs=1,
    batch_size=32,
    optimizer=partial(SGD, lr=0.02, momentum=0.9),
    only_at_end=LATE,
)
CROSSED = "CEAG cross-fitted (passes)"
SMALL = ["--epochs", "3", "--buffer", "4", "--refresh", "2", "--dual-lr", "0.1", "--folds", "2"]
SMALL += ["--el-dual-lr", "0.01"]
DENSE = ["--epochs", "8", "--batch", "16", "--lr", "0.05"]


def make_faces(folder: Path) -> Path:
    """Named as the originals; races of unequal size."""
    rng, number = np.random.default_rng(0), 0
    for race, each in enumerate(EACH):
        for gender in (0, 1):
            for _ in range(each):
                name = f"{rng.integers(1, 100)}_{gender}_{race}_201701{number:011d}.jpg.chip.jpg"
                face(rng, race, gender).save(folder / name, "JPEG", quality=90)
                number += 1
    return folder


def tiny() -> nn.Module:
    return small_cnn((4, 6, 6), num_classes=5, in_channels=3)


def shrink(patch: pytest.MonkeyPatch) -> None:
    """Both data sets; the faces are read as those of UTKFace are."""
    shrink_cifar100(patch)
    patch.setattr(utkface_data, "load", partial(utkface_data.load, strict=False))
    small = {"network": tiny, "recipe": FEW, "sizes": {"race": (0.5,)}, "importance_batches": {"race": 2}}
    patch.setitem(SOURCES, "utkface", replace(SOURCES["utkface"], **small))


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_faces(tmp_path_factory.mktemp("faces"))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)


def call(folder: Path, faces: Path | None, command: str, *more: str) -> int:
    """One command; without a folder of faces it is that of the other data set."""
    places = [f"--results={folder / 'beyond.json'}", f"--work={folder / 'work'}", "--device=cpu"]
    places += ["--commit=abc1234"]
    if faces is None:
        own = ["--heldout=10", f"--weights={folder / 'cifar100.safetensors'}"]
    else:
        own = ["--dataset=utkface", f"--data={faces}", f"--image-size={SIDE}"]
        own += [f"--weights={folder / 'utkface.safetensors'}"]
    return beyond.main([command, *places, *own, *more])


def train_both(folder: Path, faces: Path) -> None:
    """Two dense models; NFT of both data sets, and all other methods of the faces."""
    assert call(folder, None, "dense", *DENSE) == 0
    assert call(folder, faces, "dense", *DENSE) == 0
    assert call(folder, faces, "dense", *DENSE, "--folds", "2") == 0
    some = ["--seeds=0-1", "--augment", "no"]
    assert call(folder, None, "study", *SMALL, *some, "--methods", "NFT", "CEAG") == 0
    assert call(folder, faces, "study", *SMALL, *some, "--methods", *STUDY, CROSSED) == 0
    few = ["--augment", "yes", "--seeds=0", "--methods", "NFT", "CEAG held-out (passes)"]
    assert call(folder, faces, "study", *SMALL, *few) == 0
    few = ["--augment", "no", "--seeds=0", "--methods", "CEAG held-out (passes)", "--heldout-used=0.5"]
    assert call(folder, faces, "study", *SMALL, *few) == 0


@pytest.fixture(scope="module")
def both(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("both")
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        train_both(folder, faces)
    return folder


def results_in(folder: Path) -> dict[str, Any]:
    return beyond_results.read(folder / "beyond.json")


def answers_of(folder: Path) -> dict[str, Any]:
    return beyond_answers.read(folder / "beyond_answers.json")


def rows_of(folder: Path, dataset: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = beyond_results.of_dataset(results_in(folder), dataset)["runs"]
    return rows


# --- what is usual ---


def flags_of(*words: str) -> Any:
    told = ["study", "--dataset", "utkface", *words]
    return beyond.parser(beyond_flags.dataset_in(told)).parse_args(told)


def test_what_is_usual_for_faces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVENPRUNE_UTKFACE", raising=False)
    flags = flags_of()
    grid = beyond_flags.grid_of(flags)
    assert (grid.dataset, grid.groups, grid.sparsity) == ("utkface", "race", 0.925)
    assert grid.heldout_per_class == 0.2
    assert (grid.tolerance, flags.image_size, flags.fleet) == (0.01, 128, 10)
    assert list(grid.steps) == [0.0005, 0.002, 0.01]  # the paper's is 0.002
    assert list(grid.el_steps) == [1e-5, 3e-5, 1e-4]
    assert beyond_flags.weights_of(flags).name == "utkface_race_heldout0.2.safetensors"
    assert flags.data.name == "utkface"
    assert beyond_flags.study_methods(flags, None) == list(STUDY)
    plain = beyond_flags.recipe_of(flags)
    assert SOURCES["utkface"].augment == Flip()
    assert (grid.importance_batches, grid.sizes) == (50, {"race": [0.1, 0.3]})
    own = {"augment": None, "only_at_end": LATE, "checkpoint_epochs": 10}
    assert plain == replace(utkface.RECIPE, **own)
    steps = -(-(18964 - 3792) // plain.batch_size)  # of UTKFace's training images, less a fifth
    assert (grid.refresh, steps // grid.refresh) == (30, 3)  # the fourth pass of an epoch is near its end
    dense = beyond.parser("utkface").parse_args(["dense"])
    assert (dense.epochs, dense.lr, dense.batch) == (50, 0.01, 128)
    network = SOURCES["utkface"].network().eval()
    assert (type(network).__name__, network(torch.zeros(1, 3, 32, 32)).shape[1]) == ("MobileNetV2", 5)


def test_tolerance_and_dual_steps_are_the_papers_at_each_sparsity() -> None:
    grid = beyond_flags.grid_of(flags_of("--sparsity", "0.85"))
    assert (grid.tolerance, list(grid.steps)) == (0.0025, [2.5e-5, 1e-4, 5e-4])
    with pytest.raises(InputProblems, match=r"for sparsity 0.8 .* give --tolerance and --dual-lr"):
        beyond_flags.grid_of(flags_of("--sparsity", "0.8"))
    told = beyond_flags.grid_of(flags_of("--sparsity", "0.8", "--tolerance", "0.02", "--dual-lr", "0.1"))
    assert (told.tolerance, told.steps) == (0.02, [0.1])
    cells = beyond_cells.cells_of(grid, names=["CEAG", "EL + RB", "all pairs"], seeds=[0], augment=False)
    assert {cell.dataset for cell in cells} == {"utkface"}
    assert beyond_data.around(0.003, (0.25, 1, 5)) == [0.00075, 0.003, 0.015]  # no 0.015000000000000001


def test_the_data_set_of_a_command_line() -> None:
    assert beyond_flags.dataset_in(["study", "--data", "folder"]) == "cifar100"
    assert beyond_flags.dataset_in(["study", "--data", "x", "--dataset=utkface", "--seeds", "0"]) == "utkface"
    for command in beyond.COMMANDS:
        usual = None if command in ("show", "page", "plan") else "cifar100"
        assert beyond.parser().parse_args([command]).dataset == usual
        words = [command, "--dataset", "utkface"]
        assert beyond.parser(beyond_flags.dataset_in(words)).parse_args(words).dataset == "utkface"
    assert beyond.parser().parse_args(["study"]).sparsity == 0.95


@pytest.mark.parametrize("words", [["--heldout", "few"], ["--heldout-used", "some"], ["--dataset", "mnist"]])
def test_flags_that_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        beyond.main(["study", *words])
    said = capsys.readouterr().err
    assert "is no number of samples, such as 50, nor a share, as 0.2" in said or "choose from" in said


# --- one file for both ---


def test_every_method_of_the_faces_has_a_row(both: Path) -> None:
    rows = rows_of(both, "utkface")
    whole = [row for row in rows if not row["augment"] and row["heldout_used"] is None]
    assert {(row["method"], row["seed"]) for row in whole} == {
        (name, seed) for name in (*STUDY, CROSSED) for seed in (0, 1)
    }
    for row in rows:
        assert len(row["changes"]["audit"]["samples"]) == 5
        assert (row["dataset"], row["groups"], row["image_size"]) == ("utkface", "race", SIDE)
        assert (row["sparsity"], row["heldout_per_class"]) == (0.925, 0.2)
        assert row["tolerance"] in (None, 0.01)
    crossed = [row for row in whole if row["method"] == CROSSED]
    assert {row["folds"] for row in crossed} == {2}
    assert {row["dataset"] for row in rows_of(both, "cifar100")} == {"cifar100"}
    assert len(results_in(both)["runs"]) == len(rows) + len(rows_of(both, "cifar100"))
    riding = [row for row in rows if row["heldout_used"] == 0.5 and row["method"] == BIAS]
    assert [row["seed"] for row in riding if not row["augment"]] == [0, 1]  # of the trainings of NFT


def test_unequal_groups_keep_their_shares(both: Path, faces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)
    flags = flags_of(f"--data={faces}", f"--image-size={SIDE}", f"--work={both / 'work'}")
    images = SOURCES["utkface"].read(flags)
    there = torch.bincount(images.train.groups, minlength=5)
    rows = rows_of(both, "utkface")
    whole = next(row for row in rows if row["heldout_used"] is None)["changes"]["heldout"]["samples"]
    half = next(row for row in rows if row["heldout_used"])["changes"]["heldout"]["samples"]
    assert whole == [round(0.2 * n) for n in there.tolist()]
    assert half == [round(0.5 * n) for n in whole]
    assert sum(EACH) * 2 == len(images.train) + len(images.test)
    held = beyond_results.dense_of(results_in(both), ORIGIN)
    assert held is not None
    splits, _ = images.cut(heldout=0.2)
    assert held["training_images"] == beyond_splits.identity(splits)


def test_the_dense_models_are_stored_in_half_precision_and_told_by_data_set(both: Path) -> None:
    document = results_in(both)
    dense = [(e["dataset"], e["heldout_per_class"], e["recipe"]["stored"]) for e in document["dense"]]
    assert dense == [("cifar100", 10, "float32"), ("utkface", 0.2, "float16")]
    (folds,) = document["folds"]
    assert (Origin.of(folds), folds["recipe"]["stored"]) == (ORIGIN, ["float16"] * 2)
    faces = document["dense"][1]
    assert (faces["image_size"], faces["recipe"]["as"]) == (SIDE, "paper/utkface.py dense")
    assert faces["accuracy"]["audit"] > 0.4  # chance is 0.2
    state = dense_model.load_weights(both / "utkface.safetensors", tiny()).state_dict()
    assert all(torch.equal(t, t.half().float()) for t in state.values() if t.ndim > 1)


@pytest.mark.parametrize(("spoilt", "kept"), [("audit", "float16"), ("choice", "float32")])
def test_how_weights_are_stored_is_not_chosen_on_the_audit_split(
    tmp_path: Path, spoilt: str, kept: str
) -> None:
    """Half precision makes zeros of the weights: class 0 for everything, which is wrong on one split only."""
    model, path = nn.Linear(2, 2, bias=False), tmp_path / "w.safetensors"
    with torch.no_grad():
        model.weight.copy_(1e-9 * torch.eye(2))
    labels = {split: torch.full((20,), int(split == spoilt)) for split in ("train", "choice", "audit")}
    splits = {
        name: Split(torch.eye(2)[own], own, torch.zeros(20, dtype=torch.int64))
        for name, own in labels.items()
    }
    where = runner.Where(tmp_path / "r.json", tmp_path, torch.device("cpu"), say=lambda text: None)
    start = runner.measure(model, splits, ["all"], recipe=FEW, where=where)
    trained = runner.Trained([SimpleNamespace(model=model, predictions=start.answers)], 1.0, resumed=False)
    found = beyond_dense.store(path, trained, start, FEW, where, half=True)
    assert dense_model.precision_of(path) == kept
    right = {name: float(own.correct.double().mean()) for name, own in found.answers.items()}
    assert right == {name: float(kept == "float32" or name != spoilt) for name in splits}


def test_answers_of_both_stand_in_one_file(both: Path) -> None:
    correct = answers_of(both)
    assert set(correct) == {"runs", "datasets"}
    own = correct["datasets"]
    sizes = {name: len(beyond_answers.unpacked(one["labels"])) for name, one in own.items()}
    assert sizes == {"cifar100": 80, "utkface": 2 * sum(EACH) // 5}
    assert {name: set(one["groups"]) for name, one in own.items()} == {
        "cifar100": {"superclass", "class"},
        "utkface": {"race"},
    }
    answers = beyond_answers.answers_in(correct)
    assert len(answers) == len(results_in(both)["runs"])
    for row in results_in(both)["runs"]:
        dense, sparse = (
            getattr(answers[beyond_cells.key_of(row)], name) for name in ("dense_right", "right")
        )
        groups = beyond_answers.groups_in(correct, row["groups"], row["dataset"])
        counts, size = row["changes"]["audit"], len(row["changes"]["audit"]["samples"])
        assert len(dense) == len(sparse) == len(groups) == sum(counts["samples"])
        assert np.bincount(groups[dense & ~sparse], minlength=size).tolist() == counts["broke"]
        assert np.bincount(groups[~dense & sparse], minlength=size).tolist() == counts["fixed"]


def test_each_run_is_compared_with_nft_of_its_own_data_set(both: Path) -> None:
    found = beyond_summary.blocks(results_in(both), answers_of(both), tolerance=0.01)
    settings = [(b.setting.dataset, b.setting.augment, b.setting.heldout_used) for b in found]
    assert set(settings) == {
        ("cifar100", False, None),
        ("cifar100", False, 6),  # of superclasses
        ("cifar100", False, 4),  # of classes
        *(("utkface", augment, used) for augment in (False, True) for used in (None, 0.5)),
    }
    for block in found:
        for entry in block.entries:
            assert entry.compared == (0 if entry.method == "NFT" else len(entry.rows))
            for place, row in enumerate(entry.versus.rows):
                wanted = ("NFT", row["seed"], row["augment"])
                own = [r for r in rows_of(both, block.setting.dataset) if r["groups"] == block.setting.groups]
                base = next(r for r in own if (r["method"], r["seed"], r["augment"]) == wanted)
                apart = row["audit"]["accuracy"] - base["audit"]["accuracy"]
                assert entry.versus.by["accuracy"].values[place] == pytest.approx(apart, abs=1e-9)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_what_people_read(
    both: Path, faces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    title = "UTKFace, race groups, 92.5% sparse, without augmentation, 20 % of each class held out, "
    told = {"utkface": f"{title}all of them looked at", "cifar100": "CIFAR-100, superclass groups"}
    results = f"--results={both / 'beyond.json'}"
    for words, seen in (([], set(told)), *(([f"--dataset={name}"], {name}) for name in told)):
        assert beyond.main(["show", results, *words]) == 0
        said = capsys.readouterr().out
        assert {name for name, text in told.items() if text in said} == seen
        to = tmp_path / f"{len(words)}.html"
        assert beyond.main(["page", results, *words, f"--to={to}"]) == 0
        capsys.readouterr()
        page = to.read_text(encoding="utf-8")
        assert ("UTKFace, race groups, 92.5% sparse" in page) == ("utkface" in seen)
    assert f"{title}50 % of each group looked at" in beyond_table_of(both)
    assert call(both, faces, "list", *SMALL, "--seeds=0-2") == 0
    said = capsys.readouterr().out
    assert all(name in said for name in STUDY)
    assert not any(name in said for name in FORMULATIONS if name not in STUDY)
    assert said.count("0 1 ·") == len(STUDY)  # not augmented
    assert "dense model, 20 % of each class held out: " in said
    assert "10 a class" not in said


def beyond_table_of(folder: Path) -> str:
    return "\n".join(beyond_table.lines(results_in(folder), answers_of(folder)))


@pytest.mark.usefixtures("small")
def test_finished_runs_and_models_are_left_alone(
    both: Path, faces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = [(both / name).read_bytes() for name in ("beyond.json", "beyond_answers.json")]
    assert call(both, faces, "dense") == 0
    assert call(both, faces, "dense", "--folds=2") == 0
    again = ["--seeds=0-1", "--augment", "no", "--methods", *STUDY, CROSSED]
    assert call(both, faces, "study", *SMALL, *again) == 0
    said = capsys.readouterr().out
    assert "The dense model is trained" in said
    assert "The dense models are trained" in said
    assert "22 of 22 runs are finished." in said
    assert [(both / name).read_bytes() for name in ("beyond.json", "beyond_answers.json")] == before


# --- what is refused ---


def copied(both: Path, folder: Path) -> Path:
    for path in both.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.mark.usefixtures("small")
def test_other_sizes_models_and_shares_are_refused(
    both: Path, faces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied(both, tmp_path)
    study = ["study", *SMALL, "--methods", "NFT"]
    for command in (study, ["dense"]):
        assert call(tmp_path, faces, *command, "--image-size=8") == 2
        assert f"saw images of {SIDE} pixels, and --image-size is 8" in capsys.readouterr().err
    assert call(tmp_path, faces, *study, "--heldout=0.3") == 2
    assert "does not say which images" in capsys.readouterr().err
    assert call(tmp_path, faces, "formulations", "--sparsity=0.5") == 2
    assert "give --tolerance and --dual-lr" in capsys.readouterr().err
    dense_model.write_weights(tmp_path / "utkface.safetensors", tiny())
    assert call(tmp_path, faces, *study) == 2
    assert "is of another dense model than" in capsys.readouterr().err
    (tmp_path / "utkface.safetensors").unlink()
    assert call(tmp_path, faces, "dense", *DENSE) == 2
    rows = len(rows_of(tmp_path, "utkface"))
    assert f"has {rows} runs of a dense model whose weights are not" in capsys.readouterr().err
    assert call(tmp_path, None, "dense") == 0  # the other data set's is as it was


# --- kills ---


def study_both(folder: Path, faces: Path, epochs: int | None) -> None:
    """A study of both data sets, one after the other; killed after so many epochs of the faces."""
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        some = [
            *SMALL,
            "--seeds=0-1",
            "--augment",
            "no",
            "--no-mixed",
            "--methods",
            "NFT",
            "CEAG held-out (passes)",
        ]
        assert call(folder, None, "study", *some) == 0
        if epochs is not None:
            patch.setattr(runner, "progress", lambda: (Dies(epochs),))
        assert call(folder, faces, "study", *some, "--save-every=1") == 0


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL on Windows")
def test_a_killed_study_of_both_goes_on_and_ends_as_if_it_had_not_been(
    faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    shrink(monkeypatch)
    for folder in (whole, killed):
        folder.mkdir()
        assert call(folder, None, "dense", *DENSE) == 0
        assert call(folder, faces, "dense", *DENSE) == 0
    process = multiprocessing.get_context("spawn").Process(target=study_both, args=(killed, faces, 5))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert {row["method"] for row in rows_of(killed, "cifar100")} > {"NFT", PASSES}
    assert {row["method"] for row in rows_of(killed, "utkface")} == {"NFT", BIAS}  # of the first fleet
    for folder in (whole, killed):
        study_both(folder, faces, None)
    resumed = {row["method"]: row["resumed"] for row in rows_of(killed, "utkface")}
    assert (resumed["NFT"], resumed[PASSES]) == (False, True)
    ends = [numbers(results_in(folder)["runs"]) for folder in (whole, killed)]
    assert ends[0] == ends[1]
    assert answers_of(killed) == answers_of(whole)
