"""The commands prune and run: results, exit codes, and every kind of bad input."""

import json
import re
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file, save_file

from evenprune import architectures, built_in, data_source, fairgrape, methods
from evenprune.data import labelled
from evenprune.experiment import BUILT_IN, Experiment
from evenprune.models import mlp
from evenprune.prune_command import PruneFlags, RunFlags, conducted, experiment_of, in_flags, report
from evenprune.replay import Unsupported
from evenprune.tally import InputProblems
from evenprune.training_notes import chosen_on_its_own, diverged, idle_multipliers
from evenprune.verdict import STRICTNESS
from tests.commands import Done, called, largest_file, started
from tests.photo_cases import photos
from tests.training_cases import NAMES, images, network, trained

MODULE = """
import torch
from torch import nn

def build_model():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3, bias=False),
        nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Dropout(0.0), nn.Linear(96, 8), nn.ReLU(),
        nn.Linear(8, 4),
    )

def breaks():
    raise ValueError("no such checkpoint")

def text():
    return "a model"
"""
FAST = ["--epochs", "3", "--pruning-epochs", "1", "--batch-size", "24", "--lr", "0.05", "--k", "5"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a user has it: model.py, the weights of the trained model, samples."""
    folder = tmp_path_factory.mktemp("project")
    train, test = images(150), images(100, seed=1)
    (folder / "model.py").write_text(MODULE)
    save_file(trained(network(), train).state_dict(), folder / "dense.safetensors")
    columns = {
        "x": torch.cat([train.inputs, test.inputs]).numpy(),
        "y": torch.cat([train.labels, test.labels]).numpy(),
        "age": np.array([*NAMES, ""])[torch.cat([train.groups, test.groups])],
    }
    np.savez(folder / "samples.npz", **columns, split=np.array(["train"] * 150 + ["test"] * 100))
    np.savez(folder / "all.npz", **columns)
    more = images(300, seed=2)
    np.savez(folder / "apart.npz", x=more.inputs, y=more.labels, age=np.array([*NAMES, ""])[more.groups])
    np.savez(
        folder / "three.npz",
        x=np.concatenate([columns["x"], more.inputs]),
        y=np.concatenate([columns["y"], more.labels]),
        age=np.concatenate([columns["age"], np.array([*NAMES, ""])[more.groups]]),
        digit=np.concatenate([columns["y"], more.labels]),
        split=np.array(["train"] * 150 + ["test"] * 100 + ["validation"] * 300),
    )
    np.savez(
        folder / "labels.npz", **columns | {"y": columns["y"] + 9}, split=["train"] * 150 + ["test"] * 100
    )
    np.savez(
        folder / "alone.npz",
        **columns | {"age": np.array(["young"] * 250)},
        split=["train"] * 150 + ["test"] * 100,
    )
    np.savez(
        folder / "objects.npz",
        x=np.array([{}, []], dtype=object),
        y=[0, 1],
        age=[0, 1],
        split=["train", "test"],
    )
    np.savez(folder / "words.npz", x=np.zeros((2, 1)), y=[0, 1], age=[0, 1], split=["train", "dev"])
    np.savez(folder / "shapes.npz", x=np.zeros(3), y=["a", "b"], age=np.zeros((3, 2)), split=["train"] * 3)
    np.save(folder / "one.npy", np.zeros(3))
    save_file({"w": torch.zeros(3)}, folder / "other.safetensors")
    (folder / "broken.npz").write_bytes(b"PK\x03\x04 and then nothing")
    return folder


def prune(place: Path, *more: Any, data: str = "samples.npz", start: bool = False) -> Done:
    needed = ["--data", data, "--groups", "age", "--weights", "dense.safetensors", "--tolerance", "0.5"]
    run = started if start else called
    return run("prune", "model.py:build_model", *needed, *FAST, *more, cwd=place)


def test_a_model_of_ones_own_is_pruned_and_everything_is_written(place: Path) -> None:
    flags = [
        "--sparsity",
        "0.6",
        "--method",
        "nft",
        "--method",
        "ceag:dual_lr=0.1",
        "--seeds",
        "2",
        "--out",
        "runs/x",
    ]
    done = prune(place, *flags, start=True)
    assert done.returncode in (0, 3), done.stderr
    out = place / "runs/x"
    document = json.loads((out / "comparison.json").read_text())
    assert [m["name"] for m in document["methods"]] == ["NFT", "CEAG"]
    assert "CEAG" in done.stdout
    assert (out / "comparison.html").as_uri() in done.stdout
    page = (out / "comparison.html").read_text()
    verdicts = {run["test"]["verdict"] for m in document["methods"] for run in m["runs"]}
    assert done.returncode == (3 if "inconclusive" in verdicts else 0)
    assert done.stderr == "" or done.stderr.startswith("evenprune: note: ")
    names = ["000-nft-s0.6-seed0", "001-nft-s0.6-seed1", "002-ceag-s0.6-seed0", "003-ceag-s0.6-seed1"]
    for name in names:
        lines = (out / name / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["epoch"] for line in lines] == [0, 1, 2]
        for split in ("train", "test"):
            assert json.loads((out / "audits" / f"{name}-{split}.json").read_text())["tolerance"] == 0.5
            audit = (out / "audits" / f"{name}-{split}.html").read_text()
            method, seed = name.split("-")[1].upper(), name[-1]
            words = "test data" if split == "test" else "training data: not evidence"
            assert f" · {method}, seed {seed}, 60 % sparse · {words} · evenprune audit</title>" in audit
            assert f'"audits/{name}-{split}.html"' in page
        weights = load_file(out / "models" / f"{name}.safetensors")
        assert float((weights["3.weight"] == 0).float().mean()) == pytest.approx(0.6, abs=0.01)
    for method in document["methods"]:  # of each, the page of its strictest test audit
        worst = max(
            method["runs"],
            key=lambda run: (
                STRICTNESS[run["test"]["verdict"]],
                run["audits"]["test"]["max_excess_gap"]["estimate"],
            ),
        )
        assert (
            f"{method['name']}, seed {worst['seed']}: {(out / worst['pages']['test']).as_uri()}"
            in done.stdout
        )
    written = (out / "checkpoint.safetensors").stat().st_mtime_ns
    again = prune(place, *flags)
    assert again.stdout == done.stdout
    assert (out / "checkpoint.safetensors").stat().st_mtime_ns == written
    other = prune(place, *[flag.replace("0.6", "0.7") for flag in flags])
    refused(other, "holds a different experiment", "sparsity: 0.6 against 0.7")


def refused(done: Done, *said: str) -> None:
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert re.search(r"^(evenprune: |Usage: )", done.stderr)
    for part in said:
        assert part in done.stderr, done.stderr


BAD: list[tuple[dict[str, Any], list[str]]] = [
    ({"model": "nowhere.py:build_model"}, ["there is no file nowhere.py"]),
    ({"model": "model.py:build"}, ["has no function 'build'; it has", "build_model"]),
    ({"model": "model.py"}, ["write FILE.py:function"]),
    ({"model": "model.py:breaks"}, ["raised ValueError: no such checkpoint", "model.py, line"]),
    ({"model": "model.py:text"}, ["returns str; give a torch.nn.Module"]),
    ({"model": "no_such_package:build"}, ["No module named 'no_such_package'"]),
    ({"data": "nowhere.npz"}, ["nowhere.npz", "No such file"]),
    ({"data": "broken.npz"}, ["broken.npz", "cannot be read as NPZ"]),
    ({"data": "objects.npz"}, ["Python objects are never loaded"]),
    ({"data": "one.npy"}, ["holds a single array"]),
    ({"data": "words.npz"}, ["there is no sample in split 'test'", "one class only in split 'train'"]),
    ({"data": "shapes.npz"}, ["unequal lengths: x 3, y 2", "x has shape [3]", "age has shape [3, 2]"]),
    ({"data": "labels.npz"}, ["labels outside 0 … 3 (the model has 4 classes)"]),
    ({"groups": ["race"]}, ["has no array 'race'; it has 'x', 'y', 'age', 'split'"]),
    ({"sparsity": 1.5}, ["sparsity is 1.5"]),
    ({"sparsity": 0.9999}, ["Sparsity 0.9999 is not reachable"]),
    ({"method": ["cea"]}, ["method 'cea': there is no such method; choose of nft"]),
    ({"seeds": "x", "lr": -1.0}, ["2 problems", "seeds is 'x'", "lr is -1.0"]),
    ({"weights": "samples.npz"}, ["'samples.npz' cannot be read as safetensors"]),
    ({"weights": "other.safetensors"}, ["do not fit the model", "Missing key"]),
    ({"device": "gpu"}, ["device 'gpu' cannot be used"]),
    ({"out": "model.py"}, ["out is 'model.py', a file: give a folder"]),
    ({"out": "model.py", "data": "nowhere.npz"}, ["out is 'model.py'"]),  # before data is read
    (
        {"model": "mobilenet"},
        ["model is 'mobilenet' (did you mean mobilenet_v2?)", "or a built-in architecture: cifar_resnet56, "],
    ),
    ({"k": 9999}, ["a ring of 9999 cannot fill", "lower --k, or use --method ceag:estimator=table"]),
    ({"batch_size": 9999}, ["fewer than one batch of 9999. Lower --batch-size to 150 or less"]),
    (
        {"select": "heldout"},
        ["select='heldout' needs a held-out split (--heldout-share 0.2, or mark samples as validation in"],
    ),
    ({"select": "test"}, ["select is 'test': choose on heldout"]),
    ({"method": ["ceag:multipliers_on=folds"]}, ["which only Python can: prune(folds=Folds(of, models))"]),
    (
        {"class_bias": True},
        ["2 problems", "there is none: --heldout-share 0.2, or mark samples", "groups that are labels"],
    ),
    (
        {"class_bias": True, "select": "heldout", "method": ["ceag:multipliers_on=heldout"]},
        [
            "4 problems",
            "select='heldout' needs",
            "multipliers_on='heldout' of method 'ceag' needs",
            "there is none: --heldout-share",
            "groups that are labels",
        ],
    ),
    (
        {"class_bias": True, "sparsity": 0.9999, "data": "alone.npz"},
        ["3 problems", "one group", "not reachable"],
    ),
    (
        {"method": ["ceag:multipliers_on=hold-out"]},
        ["name 'heldout' (--heldout-share 0.2, or mark samples as validation in the column of the splits)."],
    ),
    (
        {"method": ["ceag:multipliers_on=held", "ceag:keep=best,keep_on=test"], "select": "test"},
        [
            "3 problems",
            "multipliers_on='held' is no split; name 'heldout' (--heldout-share",
            "keep_on='test', but the test data is for the audit; hold out another split, --heldout-share",
            "select is 'test'",
        ],
    ),
    ({"pruning_epochs": 4}, ["more than the 3 epochs in all", "Raise --epochs or lower --pruning-epochs."]),
    (
        {"pruning_epochs": 3},
        ["--pruning-epochs is 3 of 3 epochs: ", "Lower --pruning-epochs or raise --epochs."],
    ),
    ({"data": "digits"}, ["data 'digits': No such file or folder", "evenprune run digits"]),
    ({"model": "nowhere.py:f", "data": "words.npz"}, ["4 problems", "nowhere.py", "split 'test'"]),
]


@pytest.fixture
def at_home(place: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Flags that are all right, in the folder of the user."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    return {
        "model": "model.py:build_model", "data": "samples.npz", "groups": ["age"], "tolerance": 0.5,
        "weights": "dense.safetensors", "epochs": 3, "pruning_epochs": 1, "batch_size": 24, "k": 5,
    }  # fmt: skip


@pytest.mark.parametrize(("changes", "said"), BAD, ids=[said[0] for _, said in BAD])
def test_bad_input_is_one_message(at_home: dict[str, Any], changes: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(InputProblems) as caught:
        conducted(PruneFlags(**(at_home | changes)))
    for part in said:
        assert part in str(caught.value)


def test_a_memory_that_is_too_small_is_one_message(
    at_home: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("evenprune.epochs.train", full)
    with pytest.raises(
        InputProblems, match=r"train fewer at once \(--fleet 2\), or take a smaller --batch-size"
    ):
        conducted(PruneFlags(**at_home | {"seeds": "4", "out": "runs/no-room"}))


def test_a_diverged_training_names_the_flag(at_home: dict[str, Any]) -> None:
    with pytest.raises(InputProblems, match=r"Lower the learning rate or the dual step, set --clip-norm"):
        conducted(PruneFlags(**at_home | {"lr": 1e30, "out": "runs/wild"}))


def test_what_cannot_be_fast_names_the_flag_that_turns_it_off(
    at_home: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unfit(*_: Any, **__: Any) -> None:
        raise Unsupported("A step cannot be captured as a CUDA graph. Train with Recipe(graph=False).")

    with monkeypatch.context() as once:
        once.setattr("evenprune.epochs.train", unfit)
        with pytest.raises(InputProblems, match=r"Train with --without graph\."):
            conducted(PruneFlags(**at_home | {"out": "runs/unfit"}))
    slow = ["graph,compile,channels-last"]
    result, _, _ = conducted(PruneFlags(**at_home | {"without": slow, "out": "runs/slow"}))
    assert (result.recipe.graph, result.recipe.compile, result.recipe.channels_last) == (False,) * 3


def test_notes_of_a_result_name_flags(at_home: dict[str, Any]) -> None:
    late = {"method": ["ceag:estimator=table"], "pruning_epochs": 3, "tolerance": 0.0, "out": "runs/late"}
    result, folder, _ = conducted(PruneFlags(**at_home | late))
    said = "Raise --epochs, or lower --pruning-epochs."
    assert [note for note in result.notes if note.startswith("CEAG never acted: ") and note.endswith(said)]
    for text in (report(result, folder), (folder / "comparison.txt").read_text()):
        assert said in " ".join(text.split())


@pytest.mark.parametrize(
    ("notes", "said"),
    [
        (diverged("CEAG", {0: 1}), "or set --clip-norm."),
        (chosen_on_its_own("CEAG", others=False), "give these with --test, or as test in the column of the"),
        (idle_multipliers("CEAG", methods.el(), gaps=[], sums=[0.0], steps=0), "lower --pruning-epochs."),
    ],
)
def test_advice_in_notes_is_in_flags(notes: list[str], said: str) -> None:
    (note,) = notes
    assert said in in_flags(note)
    assert not re.search(r"recipe\.|=…", in_flags(note))


def test_advice_on_a_built_in_experiment_leaves_its_data_alone() -> None:
    ring = in_flags("Merge groups, lower k, or use the table estimator.", built_in=True)
    assert ring == "Lower --k, or use --method ceag:estimator=table."
    (note,) = chosen_on_its_own("CEAG", others=False)
    assert "in Python, give these as audit=…, and audit" in in_flags(note, built_in=True)


def test_bad_input_ends_the_command_with_code_2_and_no_traceback(place: Path) -> None:
    refused(
        prune(place, "--sparsity", "0.9999", data="labels.npz"), "labels outside 0 … 3", "is not reachable"
    )
    refused(prune(place, "--epochs", "many"), "--epochs")


def test_the_test_samples_may_be_a_file_of_their_own(place: Path, at_home: dict[str, Any]) -> None:
    result, folder, _ = conducted(
        PruneFlags(**at_home | {"data": "all.npz", "test": "apart.npz", "out": "runs/2"})
    )
    assert [len(result.samples.splits[split]) for split in ("train", "test")] == [250, 300]
    assert f"Page: {place}" in report(result, folder)


def test_test_samples_that_are_training_samples_are_refused(place: Path) -> None:
    done = prune(place, "--audit", "samples.npz", "--out", "runs/leak", data="all.npz")
    refused(
        done, "all 250 samples of the test data are in the training data as well", "give others with --test"
    )


def test_one_run_is_chosen_and_diagnosed(at_home: dict[str, Any]) -> None:
    flags = {"data": "three.npz", "method": ["nft", "ceag"], "seeds": "3", "out": "runs/chosen"}
    plain, folder, _ = conducted(PruneFlags(**at_home | flags))
    assert "Chosen on" not in report(plain, folder)
    assert [name for name in (folder / "audits").iterdir() if name.match("*-heldout.html")]
    result, folder, _ = conducted(PruneFlags(**at_home | flags | {"select": "heldout", "diagnostics": True}))
    said = report(result, folder)
    assert "Chosen on the held-out data: " in said
    assert f"The test audit of the run that was chosen, {result.selected}:" in said
    assert f"  {result.selected}: file://" in said
    assert "on held-out data" in said
    assert "largest Hessian eigenvalue" in said
    assert result.selected in (folder / "comparison.html").read_text()


def test_a_run_is_chosen_on_a_share_that_is_held_out(place: Path) -> None:
    flags = ["--method", "nft", "--method", "ceag", "--select", "heldout", "--test-share", "0.3"]
    done = prune(place, *flags, "--heldout-share", "0.2", "--out", "runs/share", data="all.npz")
    assert done.returncode in (0, 1, 3), done.stderr
    assert "Chosen on the held-out data: " in done.stdout
    samples = json.loads((place / "runs/share/comparison.json").read_text())["samples"]
    assert sum(map(sum, samples.values())) == 235  # all 250 but those whose group is not known
    assert sum(samples["heldout"]) == pytest.approx(50, abs=7)
    assert sum(samples["test"]) == pytest.approx(75, abs=7)
    done = prune(place, *flags, "--heldout-share", "0.2", "--out", "runs/twice", data="three.npz")
    refused(done, "heldout_share is 0.2, but 'three.npz' has 300 held-out samples of its own")
    refused(prune(place, "--heldout-share", "0.8", data="all.npz"), "no sample is left to train on")


def test_a_class_bias_beside_the_runs(at_home: dict[str, Any]) -> None:
    wanted = {"data": "three.npz", "method": ["nft"], "class_bias": True, "out": "runs/biased"}
    result, folder, _ = conducted(PruneFlags(**at_home | wanted | {"groups": ["digit"]}))
    assert result.names == ("NFT, seed 0", "NFT + class bias, seed 0")
    (weights,) = (folder / "models").glob("001-*.safetensors")
    assert load_file(weights).keys() == load_file("dense.safetensors").keys()
    with pytest.raises(InputProblems, match="a class bias needs groups that are labels"):
        conducted(PruneFlags(**at_home | wanted | {"out": "runs/age"}))
    assert not Path("runs/age").exists()  # found before the training


def test_a_path_by_the_name_of_a_built_in_experiment_is_the_users_own(
    place: Path, at_home: dict[str, Any]
) -> None:
    (place / "digits").mkdir()
    try:
        with pytest.raises(InputProblems, match="'digits' has no images"):
            conducted(PruneFlags(**at_home | {"data": "digits"}))
    finally:
        (place / "digits").rmdir()


def test_the_strictest_audit_of_all_runs_is_the_verdict(at_home: dict[str, Any]) -> None:
    harmed = {"method": ["nft", "ceag"], "sparsity": 0.98, "lr": 0.0, "tolerance": 0.0, "out": "runs/harmed"}
    result, folder, _ = conducted(PruneFlags(**at_home | harmed))
    words = [audits["test"].verdict for audits in result.audits.values()]
    assert result.verdict == max(words, key=["pass", "inconclusive", "fail"].index)
    assert f"strictest of the 2 test audits is that of {result.worst.model}" in report(result, folder)


def test_a_full_disk_is_one_message(place: Path) -> None:
    with largest_file(6000):
        done = prune(place, "--out", "runs/full")
    refused(done, "runs/full")
    assert "No room for the checkpoint" in done.stderr or "Cannot write" in done.stderr


@pytest.mark.parametrize("command", ["prune", "run"])
def test_help_explains_each_flag_in_one_line(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = called(command, "--help").stdout.splitlines()
    options = lines[lines.index("Options:") + 1 :]
    assert len(options) > 15
    assert all(re.match(r"  --[a-z-]+(, --[a-z-]+)? +\S", line) for line in options if line)


def test_a_built_in_experiment_says_before_it_trains_that_nothing_is_held_out(tmp_path: Path) -> None:
    flags = ["--method", "ceag:multipliers_on=heldout", "--select", "heldout", "--class-bias"]
    done = called("run", "digits", *flags, "--out", tmp_path / "d")
    assert done.returncode == 2
    assert "3 problems" in done.stderr
    assert done.stderr.count("--heldout-share 0.2") == 3
    assert "column of the splits" not in done.stderr  # the data is built in
    assert not (tmp_path / "d").exists()


def test_what_pruning_cannot_do_is_told_once_and_before_the_dense_model_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setattr(fairgrape, "_compiled_greedy", fairgrape._compiled_greedy.__wrapped__)
    monkeypatch.setattr(built_in, "fit", None)
    exact = ["--method", "fairgrape", "--seeds", "3"]
    done = called("run", "digits", *exact, "--pattern", "2:4", "--out", tmp_path / "d")
    assert done.returncode == 2
    assert "3 problems" in done.stderr
    assert "2:4 reaches 0.5 at most" in done.stderr
    assert (
        done.stderr.count("the exact FairGRAPE knows no pattern; take fairgrape_fast, which is --meth") == 1
    )
    assert done.stderr.count("needs numba: pip install 'evenprune[fairgrape]'") == 1
    done = called("run", "digits", "--class-bias", "--pattern", "2:4", "--out", tmp_path / "d")
    assert done.stderr.startswith("evenprune: 2 problems")
    assert "2:4 reaches 0.5 at most" in done.stderr
    assert "a class bias is fitted on the held-out split, and there is none" in done.stderr
    done = called("run", "digits", *exact, "--out", tmp_path / "d")
    assert done.returncode == 2
    assert done.stderr.startswith("evenprune: The exact FairGRAPE selection needs numba")
    held = ["--heldout-share", "0.2", "--method", "ceag:multipliers_on=heldout,estimator=pass,refresh=9999"]
    done = called("run", "digits", *held, "--out", tmp_path / "d")
    assert done.stderr.count("a full pass every 9999 steps, but there are") == 1
    assert not (tmp_path / "d").exists()


def test_the_flags_of_run_change_the_built_in_experiment() -> None:
    wanted = experiment_of(RunFlags(experiment="digits", sparsity=0.5, seeds="3", method=["nft"]))
    assert (wanted.sparsity, wanted.seeds, wanted.method) == (0.5, (0, 1, 2), ("nft",))
    assert wanted.tolerance == BUILT_IN["digits"].tolerance
    assert wanted.out == str(Path("runs") / wanted.id)
    with pytest.raises(InputProblems, match="nonsense is no built-in experiment; there are: digits"):
        experiment_of(RunFlags(experiment="nonsense"))
    with pytest.raises(InputProblems, match="4 problems"):
        experiment_of(PruneFlags())


# --- images and tables of one's own ---


@pytest.fixture(scope="module")
def photo_place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    photos(folder)
    return folder


@pytest.fixture
def at_photos(photo_place: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(photo_place)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    return {
        "model": "small_cnn", "weights": "dense.safetensors", "data": "photos", "table": "photos.csv",
        "label": "smiling", "groups": ["race,gender"], "image_size": 24, "sparsity": 0.6, "tolerance": 0.5,
        "epochs": 2, "pruning_epochs": 1, "batch_size": 32, "k": 5,
    }  # fmt: skip


def test_a_folder_of_images_goes_to_an_audit_page(at_photos: dict[str, Any], photo_place: Path) -> None:
    result, out, notes = conducted(PruneFlags(**at_photos))
    assert out.name.startswith("photos-ceag-s0.6-")
    assert "dense" in str(result)
    assert [note for note in notes if "0 no, 1 yes" in note and "--classes" in note]
    (page,) = (out / "audits").glob("*-test.html")
    assert "Asian × female" in page.read_text()
    document = result.document()
    assert sum(document["samples"]["test"]) == 72
    assert len(list((photo_place / "runs" / "image-cache").glob("*.npy"))) == 1
    repeated, *_ = conducted(PruneFlags(**at_photos | {"groups": ["race", "gender"]}))  # the same experiment
    assert str(repeated) == str(result)


def test_classes_in_the_order_of_the_model(at_photos: dict[str, Any]) -> None:
    right, _, _ = conducted(PruneFlags(**at_photos | {"classes": ["no,yes"], "out": "runs/right"}))
    wrong, _, notes = conducted(PruneFlags(**at_photos | {"classes": ["yes", "no"], "out": "runs/wrong"}))
    accuracy = [float(one.dense["test"].correct.float().mean()) for one in (right, wrong)]
    assert accuracy[0] > 0.8
    assert sum(accuracy) == pytest.approx(1)
    assert not [note for note in notes if "sorted order" in note]


def test_unreadable_images_are_refused_or_skipped(at_photos: dict[str, Any], photo_place: Path) -> None:
    lines = (photo_place / "photos.csv").read_text().splitlines()
    (photo_place / "photos" / "broken.jpg").write_bytes(b"no image")
    more = [f"{'broken' if i == 8 else 'gone'}.jpg,yes,White,male,30" for i in (8, 9)]
    (photo_place / "broken.csv").write_text("\n".join([*lines, more[0]]))
    (photo_place / "gone.csv").write_text("\n".join([*lines, *more]))
    with pytest.raises(InputProblems) as caught:
        conducted(PruneFlags(**at_photos | {"table": "gone.csv", "model": "nowhere.py:f"}))
    for part in ("1 of 362 files is missing", "1 of 361 images cannot be read", "no file nowhere.py"):
        assert part in str(caught.value)
    result, _, notes = conducted(PruneFlags(**at_photos | {"table": "broken.csv", "corrupt": "skip"}))
    said = "one image could not be read, and is left out: "
    assert [note for note in notes if said in note and "broken.jpg" in note]
    assert [note for note in result.worst.notes if said in note and "broken.jpg" in note]


def test_notes_on_the_data_come_before_the_training(at_photos: dict[str, Any], photo_place: Path) -> None:
    told: list[str] = []
    with pytest.raises(InputProblems, match="device 'gpu' cannot be used"):
        conducted(PruneFlags(**at_photos | {"device": "gpu"}), told.append)
    assert [note for note in told if "0 no, 1 yes" in note]
    given = {"--weights": "weights", "--data": "data", "--table": "table", "--label": "label"}
    flags = [part for flag, name in given.items() for part in (flag, at_photos[name])]
    more = ["--groups", "race", "--image-size", 24, "--tolerance", 0.5, "--device", "gpu"]
    done = called("prune", "small_cnn", *flags, *more, cwd=photo_place)
    refused(done, "evenprune: note: the labels were numbered in sorted order: 0 no, 1 yes", "device 'gpu'")


def test_a_folder_per_class_and_a_saved_data_set(at_photos: dict[str, Any], photo_place: Path) -> None:
    for line in (photo_place / "photos.csv").read_text().splitlines()[1:]:
        name, smiling, *_ = line.split(",")
        link = photo_place / "by_class" / smiling / Path(name).name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(photo_place / "photos" / name)
    by_class = {"data": "by_class", "table": None, "groups": ["smiling"]}
    result, _, _ = conducted(PruneFlags(**at_photos | by_class))
    assert sum(result.document()["samples"]["test"]) == 72
    frame = pl.read_csv(photo_place / "photos.csv")
    pictures = [{"bytes": (photo_place / "photos" / p).read_bytes(), "path": None} for p in frame["path"]]
    saved = photo_place / "saved"
    saved.mkdir()
    frame.with_columns(image=pl.Series(pictures)).write_ipc_stream(saved / "data.arrow")
    (saved / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    features = {name: {"_type": "Value"} for name in frame.columns} | {"image": {"_type": "Image"}}
    (saved / "dataset_info.json").write_text(json.dumps({"features": features}))
    result, _, _ = conducted(PruneFlags(**at_photos | {"data": "saved", "table": None}))
    assert sum(result.document()["samples"]["test"]) == 72


def test_a_table_goes_the_same_way(at_photos: dict[str, Any], photo_place: Path) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 300)
    table = {"size": rng.normal(y), "weight": rng.normal(-y), "label": y, "race": rng.choice(["A", "B"], 300)}
    pl.DataFrame(table).write_csv(photo_place / "people.csv")
    torch.manual_seed(0)
    save_file(mlp(2, num_classes=2).state_dict(), photo_place / "mlp.safetensors")
    flags = {name: at_photos[name] for name in ("sparsity", "tolerance", "epochs", "pruning_epochs", "k")}
    flags |= {"data": "people.csv", "model": "mlp", "weights": "mlp.safetensors", "groups": ["race"]}
    result, _, _ = conducted(PruneFlags(**flags))
    assert sum(result.document()["samples"]["test"]) == 60
    result, _, notes = conducted(PruneFlags(**flags | {"classes": ["1,0"], "out": "runs/turned"}))
    assert not [note for note in notes if "sorted order" in note]


def test_notes_of_the_reader_are_told(at_home: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    read = labelled.Loaded({}, classes=(), counted=False, skipped=[])
    read.notes = ("two files are the same",)
    monkeypatch.setitem(data_source.READERS, "npz", lambda _: read)
    with pytest.warns(UserWarning, match="two files are the same"):
        data_source.load(experiment_of(PruneFlags(**at_home)))


def test_the_inputs_of_a_table_are_chosen_by_flags(at_photos: dict[str, Any], photo_place: Path) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 600)
    table = {"size": rng.normal(y), "kind": y, "label": np.where(y == 1, "yes", "no").tolist()}
    table |= {"name": [f"p{i}" for i in range(600)], "race": rng.choice(["A", "B"], 600)}
    pl.DataFrame(table).write_csv(photo_place / "named.csv")
    base = {"data": "named.csv", "model": "mlp", "groups": ("race",), "label": "label", "tolerance": 0.1}
    wanted = experiment_of(PruneFlags(**base))
    with pytest.raises(InputProblems, match=r"Leave it out: ignore=\['name'\] \(--ignore 'name'\)"):
        data_source.load(wanted)

    def features(**flags: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            loaded: Any = data_source.load(experiment_of(PruneFlags(**base | flags)))
        return loaded.description.features, loaded.classes

    assert features(ignore=["name"]) == (("size", "kind"), ("no", "yes"))
    assert features(ignore=["name,kind"]) == (("size",), ("no", "yes"))
    chosen = {"numeric": ["size"], "categorical": ["kind"], "classes": ["yes,no"]}
    assert features(**chosen) == (("size", "kind=0", "kind=1"), ("yes", "no"))
    with pytest.raises(InputProblems, match="--ignore is for a table"):
        data_source.load(experiment_of(PruneFlags(**at_photos | {"ignore": ["name"]})))


def test_numbers_in_ranges_and_small_groups_merged(at_photos: dict[str, Any]) -> None:
    flags = {"groups": ["race,age"], "bin": ["age=18,40,60"], "merge_below": 18, "method": ["nft"]}
    result, out, _ = conducted(PruneFlags(**at_photos | flags))
    assert "other" in result.samples.names
    assert "Asian × 18–39" in result.samples.names
    assert not [name for name in result.samples.names if "under 18" in name]
    document = json.loads(next((out / "audits").glob("*-test.json")).read_text())
    assert document["attributes"] == ["race × age"]
    ranges, merged = document["notes"][:2]
    assert ranges == "age is in ranges that begin at 18, 40, 60."
    assert "3 groups have fewer than 18 training samples, and are merged into “other”" in merged
    whole, _, _ = conducted(PruneFlags(**at_photos | flags | {"merge_below": None, "out": "runs/whole"}))
    assert len(whole.samples.names) == 12
    assert whole.audit.attributes == ("race", "age")
    halves, _, _ = conducted(
        PruneFlags(**at_photos | flags | {"groups": ["age"], "bin": ["age=quantiles:2"], "merge_below": None})
    )
    sizes = halves.document()["samples"]["train"]
    assert len(sizes) == 2
    assert abs(sizes[0] - sizes[1]) < 0.1 * sum(sizes)


def test_an_npz_has_ranges_and_merges_too(at_home: dict[str, Any]) -> None:
    arrays = dict(np.load("samples.npz"))
    arrays["years"] = np.where(np.arange(250) % 50 == 0, -1, np.arange(250) % 70)
    np.savez("years.npz", **arrays)
    flags = {"data": "years.npz", "groups": ["years"], "bin": ["years=10,40"], "merge_below": 30}
    result, _, _ = conducted(PruneFlags(**at_home | flags))
    assert result.samples.names == ("10–39", "40 and over", "other")
    assert int((result.samples.splits["train"].groups == -1).sum()) == 3  # −1 is a missing value
    assert "years is in ranges that begin at 10, 40." in result.audit.notes
    with pytest.raises(InputProblems, match="'age' is to be put into ranges, but 235 of 250 values"):
        conducted(PruneFlags(**at_home | {"bin": ["age=3"]}))


def weights_of(out: Path) -> dict[str, dict[str, torch.Tensor]]:
    return {path.name: load_file(path) for path in sorted((out / "models").glob("*.safetensors"))}


def test_images_are_changed_at_random_by_the_seed_of_each_run(at_photos: dict[str, Any]) -> None:
    flags = at_photos | {"groups": ["race"], "method": ["nft"], "seeds": "2"}
    changed = flags | {"augment": ["flip,crop:2", "colour:0.2"]}
    _, first, _ = conducted(PruneFlags(**changed))
    _, again, _ = conducted(PruneFlags(**changed | {"out": "runs/again"}))
    _, alone, _ = conducted(PruneFlags(**changed | {"seeds": "1,", "out": "runs/alone"}))
    _, plain, _ = conducted(PruneFlags(**flags | {"out": "runs/plain"}))
    models = weights_of(first)
    assert list(models) == ["000-nft-s0.6-seed0.safetensors", "001-nft-s0.6-seed1.safetensors"]
    for name, model in models.items():
        assert all(torch.equal(weights_of(again)[name][key], tensor) for key, tensor in model.items())
        assert not all(torch.equal(weights_of(plain)[name][key], tensor) for key, tensor in model.items())
    (own,) = weights_of(alone).values()
    for key, tensor in own.items():  # a run sees in a fleet what it sees alone
        torch.testing.assert_close(
            models["001-nft-s0.6-seed1.safetensors"][key], tensor, rtol=1e-4, atol=1e-4
        )
    with pytest.raises(InputProblems, match="holds a different experiment"):
        conducted(PruneFlags(**changed | {"augment": ["flip"], "out": "runs/again"}))


def test_notes_speak_of_flags(at_photos: dict[str, Any]) -> None:
    told: list[str] = []
    with pytest.raises(InputProblems, match="device 'gpu'"):
        conducted(PruneFlags(**at_photos | {"groups": ["race,age"], "device": "gpu"}), told.append)
    assert [note for note in told if re.search("'age' holds 8. different numbers .*: --bin age=quant", note)]
    flags = {"groups": ["race,age"], "bin": ["age=quantiles:4"], "k": 40, "epochs": 3}
    _, _, notes = conducted(PruneFlags(**at_photos | flags))
    assert [note for note in notes if "Merge groups (--merge-below), lower --k, or use --method" in note]


@pytest.mark.parametrize("kind", ["images", "table"])
def test_an_empty_name_of_the_column_of_splits_means_none(
    at_photos: dict[str, Any], tmp_path: Path, kind: str
) -> None:
    table = pl.read_csv("photos.csv").with_columns(split=pl.lit("test"))
    table.write_csv(tmp_path / "split.csv")
    own = {"data": "photos", "table": str(tmp_path / "split.csv"), "image_size": 8}
    flags = own if kind == "images" else {"data": own["table"], "ignore": ("path",)}
    wanted = Experiment(label="smiling", groups=("gender",), split="", **flags)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert set(data_source.load(wanted)) == {"train", "test"}
    with pytest.raises(InputProblems, match="no sample in split 'train'"):
        data_source.load(replace(wanted, split="split"))


BAD_PHOTOS: list[tuple[dict[str, Any], list[str]]] = [
    ({"image_size": None}, ["3 different sizes", "--image-size 64"]),
    ({"label": "smile"}, ["has no column 'smile' (did you mean 'smiling'?)"]),
    ({"table": None}, ["without a table the class is the only attribute", "'race', 'gender'"]),
    ({"weights": None}, ["small_cnn is an architecture: give its trained weights with --weights"]),
    ({"model": "mlp"}, ["mlp takes one row of features; the inputs have shape [3, 24, 24]"]),
    ({"model": "resnet34"}, ["do not fit the model"]),
    ({"test": "t.npz"}, ["--test is for an NPZ file; 'photos' is a folder of images"]),
    ({"data": "nowhere"}, ["data 'nowhere': No such file or folder"]),
    ({"data": "photos.csv"}, ["--table is for a folder of images; 'photos.csv' is a table"]),
    ({"groups": ["path"]}, ["group column 'path' holds 360 different values", "is it an identifier?"]),
    ({"bin": ["age=18"]}, ["bin names column 'age', which is no group (the groups are 'race', 'gender')"]),
    (
        {"bin": ["race=1,2", "gender=2,1"], "augment": ["flop"], "merge_below": -3},
        ["3 problems", "bin is 'gender=2,1': the edges must rise", "augment is 'flop'", "merge_below is -3"],
    ),
    (
        {"bin": ["race=1,2"], "label": "smile"},
        ["2 problems", "did you mean 'smiling'?", "'race' is to be put into ranges, but 360 of 360 values"],
    ),
    ({"groups": ["age"], "bin": ["age=200,300"]}, ["all 356 values lie in one range, 'under 200'"]),
    ({"merge_below": 999}, ["merge_below is 999: every group has fewer samples, the largest"]),
    (
        {"augment": ["flip,crop:24"]},
        ["augment: crop:24 shifts images of 24×24 out of sight; give 23 at most"],
    ),
    (
        {"data": "photos.csv", "table": None, "augment": ["flip"], "ignore": ["path"]},
        ["--augment is for an NPZ file or a folder of images", "'photos.csv' is a table"],
    ),
]


@pytest.mark.parametrize(("changes", "said"), BAD_PHOTOS, ids=[said[0] for _, said in BAD_PHOTOS])
def test_bad_images_are_one_message(
    at_photos: dict[str, Any], changes: dict[str, Any], said: list[str]
) -> None:
    with pytest.raises(InputProblems) as caught:
        conducted(PruneFlags(**(at_photos | changes)))
    for part in said:
        assert part in str(caught.value)


@pytest.mark.parametrize("name", sorted(architectures.BUILDERS))
def test_architectures_are_built_for_the_data(name: str) -> None:
    shape = (5,) if name == "mlp" else (3, 32, 32)
    model = architectures.build(name, shape, 7).eval()
    assert model(torch.zeros(2, *shape)).shape == (2, 7)
    with pytest.raises(InputProblems, match="the inputs have shape"):
        architectures.build(name, (2, 3), 7)


@pytest.mark.slow
def test_a_built_in_experiment_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(built_in, "DENSE", replace(built_in.DENSE, epochs=4))  # for a test's time
    flags = [
        "--epochs",
        "4",
        "--pruning-epochs",
        "2",
        "--method",
        "ceag",
        "--seeds",
        "2",
        "--out",
        tmp_path / "d",
    ]
    done = called("run", "digits", *flags)
    assert done.returncode in (0, 1, 3), done.stderr
    assert "digits-ceag-s0.97-" in done.stdout
    assert "evenprune: note:" not in done.stderr  # a ring of 20 fits the 30 samples of the rare digits
    assert (tmp_path / "d" / "dense" / "checkpoint.safetensors").exists()
    held = ["--heldout-share", "0.2", "--select", "heldout", "--class-bias", "--epochs", "3"]
    held += ["--pruning-epochs", "1", "--method", "ceag:multipliers_on=heldout", "--out", tmp_path / "h"]
    done = called("run", "digits", *held)
    assert done.returncode in (0, 1, 3), done.stderr
    assert "Chosen on the held-out data: " in done.stdout
    assert "CEAG + class bias" in done.stdout
