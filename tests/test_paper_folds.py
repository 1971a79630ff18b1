"""Cross-fitting in the study on unseen data: its folds, its dense models, its runs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from evenprune.predict import predict
from evenprune.tally import InputProblems
from paper import (
    beyond,
    beyond_answers,
    beyond_cells,
    beyond_folds,
    beyond_results,
    beyond_splits,
    beyond_table,
    beyond_train,
    dense_model,
)
from paper.beyond_cells import Grid, cells_of
from paper.beyond_results import Origin
from tests.test_paper_beyond import places_in, shrink, three, tiny

METHOD = "CEAG cross-fitted (passes)"


# --- folds ---


def test_folds_share_out_every_class_and_follow_the_images() -> None:
    train = three()["train"]
    of = beyond_folds.fold_of(train, 4)
    for label in range(4):
        assert sorted(torch.bincount(of[train.labels == label]).tolist()) == [6, 6, 6, 7]
    order = np.random.default_rng(3).permutation(len(train))
    again = beyond_folds.fold_of(beyond_splits.take(train, order), 4)
    assert torch.equal(again, of[torch.from_numpy(order)])
    assert len(set(beyond_folds.images_of(train, of))) == 4


def test_cells_know_their_folds_and_share_a_fleet_with_nobody_else() -> None:
    grid = Grid(groups="superclass", steps=(0.1,), folds=3)
    cells = cells_of(grid, names=["NFT", METHOD, "CEAG held-out (passes)"], seeds=range(5), augment=False)
    assert [cell.folds for cell in cells[::5]] == [None, 3, None]
    crossed = [cell for cell in cells if cell.folds]
    assert beyond_cells.method_of(crossed[0]).cross_fitted
    parts = beyond_train.fleets(cells, 9)
    assert [len(part) for part in parts] == [5, 2, 2, 1, 5]  # nine at once: two families of four
    assert [cell for part in parts[1:4] for cell in part] == crossed
    assert [len(part) for part in beyond_train.fleets(crossed, 2)] == [1] * 5  # a family is never cut
    with pytest.raises(InputProblems, match="give at least 1"):
        beyond_train.fleets(crossed, 0)


# --- from dense models to rows ---


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dense model, dense models of two folds, two methods."""
    folder = tmp_path_factory.mktemp("folds")
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        assert beyond.main(["dense", *places(folder), *DENSE]) == 0
        assert beyond.main(["dense", *places(folder), *DENSE, "--folds", "2"]) == 0
        assert beyond.main(["study", *places(folder), *SMALL, "--methods", "NFT", METHOD]) == 0
    return folder


DENSE = ["--epochs", "4", "--batch", "32", "--lr", "0.05"]
SMALL = ["--seeds", "0-1", "--epochs", "3", "--refresh", "2", "--dual-lr", "2", "--folds", "2"]


def places(folder: Path) -> list[str]:
    return [*places_in(folder), "--heldout", "10", "--device", "cpu"]


def entry_of(folder: Path) -> dict[str, Any]:
    held = beyond_results.folds_of(beyond_results.read(folder / "beyond.json"), Origin("cifar100", 10), 2)
    assert held is not None
    return dict(held)


def test_dense_models_are_written_and_told(study: Path) -> None:
    entry, train = entry_of(study), three()["train"]
    of = beyond_folds.fold_of(train, 2)
    assert entry["weights"] == ["dense_fold0of2.safetensors", "dense_fold1of2.safetensors"]
    assert entry["fold_images"] == beyond_folds.images_of(train, of)
    assert entry["recipe"]["stored"] == ["float32"] * 2
    found: dict[str, list[float]] = {"rest": [], "fold": []}
    for fold, name in enumerate(entry["weights"]):
        right = predict(dense_model.load_weights(study / name, tiny()), train).correct.double()
        for key, where in (("rest", of != fold), ("fold", of == fold)):
            found[key].append(float(right[where].mean()))
    for key, values in found.items():
        assert entry["accuracy"][key] == pytest.approx(sum(values) / 2)


def test_every_cross_fitted_cell_has_a_row(study: Path) -> None:
    rows = beyond_results.read(study / "beyond.json")["runs"]
    rows = [row for row in rows if row["method"] in ("NFT", METHOD) and row["groups"] == "superclass"]
    assert [(row["method"], row["seed"], row["folds"]) for row in rows] == [
        ("NFT", 0, None),
        ("NFT", 1, None),
        (METHOD, 0, 2),
        (METHOD, 1, 2),
    ]
    crossed = rows[2:]
    assert {row["fleet"] for row in crossed} == {2}  # the runs that were asked for
    assert any(row["multipliers"]["size"] > 0 for row in crossed)
    assert {row["followed"]["split"] for row in crossed} == {"folds"}
    assert crossed[0]["followed"]["samples"] == [50, 50]  # all training images, two classes a group
    answers = beyond_answers.read(study / "beyond_answers.json")
    assert len(answers["runs"]) == len(beyond_results.read(study / "beyond.json")["runs"])
    told = beyond_table.lines(beyond_results.read(study / "beyond.json"), answers)
    assert any(METHOD in line for line in told)


def test_nothing_is_trained_twice(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shrink(monkeypatch)
    before = (study / "beyond.json").read_text(encoding="utf-8")
    assert beyond.main(["dense", *places(study), "--folds", "2"]) == 0
    assert beyond.main(["study", *places(study), *SMALL, "--methods", METHOD]) == 0
    said = capsys.readouterr().out
    assert "The dense models are trained" in said
    assert "2 of 2 runs are finished." in said
    assert (study / "beyond.json").read_text(encoding="utf-8") == before


def copied(study: Path, folder: Path) -> Path:
    for path in study.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    return folder


def test_models_that_are_not_those_of_the_folds_are_refused(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shrink(monkeypatch)
    again = ["study", *places(copied(study, tmp_path)), *SMALL, "--methods", METHOD]
    assert beyond.main([*again, "--folds", "3"]) == 2
    assert (
        "knows no dense models of 3 folds; train them first, with `dense --folds 3`"
        in capsys.readouterr().err
    )
    last = tmp_path / "dense_fold1of2.safetensors"
    last.unlink()
    assert beyond.main(again) == 2
    assert f"there are no dense weights in {last}" in capsys.readouterr().err
    assert beyond.main(["dense", *places(tmp_path), *DENSE, "--folds", "2"]) == 2
    assert f"2 cross-fitted runs of dense models that are not {last}" in capsys.readouterr().err
    dense_model.write_weights(last, tiny())
    assert beyond.main(again) == 2
    assert f"is of other dense models than {last}" in capsys.readouterr().err


def test_models_that_have_seen_their_fold_are_refused(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shrink(monkeypatch)
    path = copied(study, tmp_path) / "beyond.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    document["folds"][0]["fold_images"].reverse()
    path.write_text(json.dumps(document), encoding="utf-8")
    assert beyond.main(["study", *places(tmp_path), *SMALL, "--methods", METHOD]) == 2
    assert "would have seen images of its fold" in capsys.readouterr().err


def test_a_broken_entry_is_told(study: Path) -> None:
    document = beyond_results.read(study / "beyond.json")
    document["folds"][0] |= {"sha256": "one text", "accuracy": {"fold": 0.5}}
    told = beyond_results.problems(document)
    assert any("folds[0]: sha256 is one text; it must be a list of texts" in line for line in told)
    assert any("it must be numbers of rest, fold, heldout, audit" in line for line in told)
