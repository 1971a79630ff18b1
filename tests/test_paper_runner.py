"""The runner of the paper's tables: its settings, kills, skipping, and a results file that stays whole."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD

from evenprune import atomic
from evenprune.models import cifar_resnet56, mobilenet_v2, small_cnn
from evenprune.predict import Predictions
from evenprune.recipe import Recipe, Split
from evenprune.tally import InputProblems
from evenprune.training import NoRoom
from paper import (
    cells,
    cifar100,
    command_line,
    dense_model,
    multipliers,
    plain_el,
    results_file,
    runner,
    variants,
)
from paper.cells import Cell, Task, cell_of, method_of, seeds_in
from paper.runner import Start, Where

ROOT = Path(__file__).parent.parent
NAMES = ("apple", "bear", "cup", "dog")
TASK = cifar100.TASK
CPU = torch.device("cpu")
FEW = Recipe(
    epochs=4,
    pruning_epochs=2,
    batch_size=32,
    optimizer=partial(SGD, lr=0.02, momentum=0.9),
    only_at_end=("train",),
    checkpoint_epochs=1,
)


def images(each: int, seed: int) -> Split:
    """Noise around one pattern per class; the later a class, the noisier."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(4).repeat_interleave(each)
    patterns = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(99))
    noise = torch.randn(4 * each, 3, 8, 8, generator=generator) * (0.3 + 0.2 * labels).view(-1, 1, 1, 1)
    inputs = ((patterns[labels] + noise).clamp(0, 1) * 255).to(torch.uint8)
    return Split(inputs, labels, labels.clone(), torch.full((3,), 0.5), torch.full((3,), 0.3))


def splits() -> dict[str, Split]:
    return {"train": images(40, 0), "test": images(20, 1)}


def tiny() -> nn.Module:
    torch.manual_seed(3)
    return small_cnn((4, 6, 6), num_classes=4, in_channels=3)


def place(folder: Path, **changes: Any) -> Where:
    told = Where(results=folder / "results.json", work=folder / "work", device=CPU, say=lambda text: None)
    return replace(told, **changes)


def begin(folder: Path) -> Start:
    torch.set_num_threads(1)
    return runner.measure(tiny(), splits(), NAMES, recipe=FEW, where=place(folder))


def some_cells(*seeds: int) -> list[Cell]:
    """NFT and CEAG, with a ring that forty samples can fill."""
    plain = [cell_of(TASK, "NFT", sparsity=0.9, seed=seed) for seed in seeds]
    return plain + [replace(cell_of(TASK, "CEAG", sparsity=0.9, seed=s), buffer=8) for s in seeds]


class Heard:
    """Counts the fleets that began; kills its own process after some epochs."""

    def __init__(self, die_after: int | None = None) -> None:
        self.fleets, self.begun_at, self.left = 0, list[int](), die_after

    def start(self, runs: Sequence[Any], epochs: int, past: Sequence[Any]) -> None:
        self.fleets += 1
        self.begun_at.append(len(past))

    def epoch(self, rows: Sequence[Any]) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def finish(self) -> None:
        pass


def fill_and_die(folder: Path, epochs: int) -> None:
    where = place(folder, hooks=(Heard(die_after=epochs),), fleet=2)
    runner.fill(begin(folder), some_cells(0, 1), FEW, where)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Start]:
    """Two fleets of two, never killed."""
    folder = tmp_path_factory.mktemp("finished")
    start = begin(folder)
    runner.fill(start, some_cells(0, 1), FEW, place(folder, fleet=2))
    return folder, start


def document_in(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


# --- the paper's settings, typed here once more ---

PAPER = {0.9: (0.01, 0.002), 0.925: (0.02, 0.002), 0.95: (0.05, 0.001)}


@pytest.mark.parametrize("sparsity", PAPER)
def test_every_method_has_the_papers_hyperparameters(sparsity: float) -> None:
    made = {name: method_of(cell_of(TASK, name, sparsity=sparsity, seed=0)) for name in cells.KINDS}
    for name in ("CEAG", "CEAG (no RB)", "CEAG (table)"):
        assert (made[name].tolerance, made[name].dual_lr) == PAPER[sparsity]
        assert (made[name].measure, made[name].against_dense, made[name].kind) == (
            "accuracy",
            True,
            "at_most",
        )
    for name in ("EL", "EL + RB"):
        assert (made[name].dual_lr, made[name].tolerance) == (1e-5, 0)
        assert (made[name].measure, made[name].against_dense, made[name].kind) == ("loss", False, "absolute")
    for name in ("CEAG", "EL + RB", "PW"):
        assert (made[name].estimator, made[name].k) == ("ring", 40)
    assert [made[n].estimator for n in ("EL", "CEAG (no RB)", "CEAG (table)")] == ["batch", "batch", "table"]
    assert made["PW"].rows == "extremes"
    assert all(method.negative == "keep" for method in made.values() if method.rows != "none")
    assert (made["NFT"].rows, made["NFT"].keep) == ("none", "last")
    assert (made["NFT + ES"].keep, made["NFT + ES"].keep_on) == ("best", "test")


def test_the_pairwise_run_is_the_papers_figure() -> None:
    method = method_of(cifar100.pairwise_cell(0))
    assert (method.tolerance, method.dual_lr, cifar100.pairwise_cell(0).sparsity) == (0.10, 0.001, 0.95)


def test_hyperparameters_of_other_tasks() -> None:
    face = Task("utkface", "gender", "race")
    assert cells.el_dual_lr(face, 0.85) == 1e-4
    assert cells.el_dual_lr(face, 0.9) == 1e-5
    assert cells.ceag_settings(Task("utkface", "race", "race x gender"), 0.925) == (0.03, 0.001)
    with pytest.raises(
        InputProblems, match=r"no tolerance for sparsity 0\.8 of cifar100; it has 0\.9, 0\.925"
    ):
        cells.ceag_settings(TASK, 0.8)


def test_the_recipes_are_the_papers() -> None:
    told = cifar100.RECIPE
    assert (told.epochs, told.pruning_epochs, told.batch_size) == (60, 15, 128)
    assert (told.weight_decay, told.decay_everything, told.augment) == (1e-4, True, None)
    weight = nn.Parameter(torch.zeros(1))
    optimizer = told.optimizer([{"params": [weight]}])
    group = optimizer.param_groups[0]
    assert (group["lr"], group["momentum"], group["nesterov"]) == (0.01, 0.9, False)
    assert sorted(told.scheduler(optimizer, 60).milestones) == [36, 48, 54]
    dense = cifar100.dense_recipe(epochs=200, lr=0.1, batch=256)
    optimizer = dense.optimizer([{"params": [weight]}])
    assert optimizer.param_groups[0]["nesterov"]
    scheduler = dense.scheduler(optimizer, 200)
    for _ in range(200):
        optimizer.step()
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0, abs=1e-12)
    assert (dense.pruning_epochs, dense.weight_decay, dense.augment.draws) == (0, 5e-4, 3)


def test_shared_cells_are_counted_once() -> None:
    every = cifar100.every_cell(range(5))
    assert len(every) == len(set(every)) == 90 + 3 * 5 + 5 + 1  # table, rings of 20, 60, 80, `table`, PW
    table = set(cells.table_cells(TASK, sparsities=[0.95], methods=cells.TABLE_METHODS, seeds=range(5)))
    assert len(table & set(cifar100.buffer_cells(range(5)))) == 10
    assert {cell.buffer for cell in cifar100.buffer_cells([0])} == {0, 20, 40, 60, 80, None}
    assert len(table & set(cifar100.dynamics_cells(0))) == 0  # those are at 90 %


def test_seeds_as_people_write_them() -> None:
    assert seeds_in("0-4") == [0, 1, 2, 3, 4]
    assert seeds_in("3, 0,1-2,2") == [3, 0, 1, 2]
    for wrong in ("", "a", "4-0", "1,,2", "-1"):
        with pytest.raises(InputProblems, match="write 0-4 or 0,1,2"):
            seeds_in(wrong)


@given(count=st.integers(0, 200), most=st.integers(1, 60))
def test_fleets_keep_the_order_and_what_is_left_makes_the_same_fleets(count: int, most: int) -> None:
    made = runner.fleets(list(range(count)), most)  # type: ignore[arg-type]  # any values will do
    assert [cell for part in made for cell in part] == list(range(count))
    sizes = [len(part) for part in made]
    assert not sizes or (max(sizes) <= most and max(sizes) - min(sizes) <= 1)
    assert len(made) == -(-count // most)
    for done in range(len(made)):
        assert runner.fleets([cell for part in made[done:] for cell in part], most) == made[done:]


# --- training ---


def test_rows_say_what_the_contract_asks(finished: tuple[Path, Start]) -> None:
    document = document_in(finished[0])
    assert runner.problems(document) == []
    assert [(run["method"], run["seed"]) for run in document["runs"]] == [
        ("NFT", 0),
        ("NFT", 1),
        ("CEAG", 0),
        ("CEAG", 1),
    ]
    plain, *_, tuned = document["runs"]
    assert plain["tolerance"] is plain["dual_lr"] is plain["buffer"] is plain["multiplier_sum"] is None
    assert (tuned["tolerance"], tuned["dual_lr"], tuned["buffer"], tuned["fleet"]) == (0.01, 0.002, 8, 2)
    assert tuned["multiplier_sum"] > 0
    assert tuned["changes"]["test"]["samples"] == [20] * 4
    assert (tuned["kept_epoch"], tuned["resumed"]) == (3, False)
    assert set(tuned["versions"]) == {"python", "torch", "evenprune", "device"}


def test_changes_are_counted_per_group_by_hand() -> None:
    labels, groups = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([0, 0, 1, 1, -1])
    dense, sparse = torch.tensor([0, 1, 1, 1, 1]), torch.tensor([1, 0, 0, 0, 0])
    before, after = (Predictions(labels, told, groups, torch.zeros(5)) for told in (dense, sparse))

    class Two:
        answers, names = {"test": before}, ("a", "b")

    found = runner.changes(Two(), after, "test")  # type: ignore[arg-type]  # all that it looks at
    assert found == {"samples": [2, 2], "broke": [1, 2], "fixed": [1, 0]}


@pytest.mark.slow
def test_killed_in_the_middle_it_goes_on_and_every_cell_is_there_once(
    tmp_path: Path, finished: tuple[Path, Start]
) -> None:
    process = multiprocessing.get_context("spawn").Process(target=fill_and_die, args=(tmp_path, 7))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert len(document_in(tmp_path)["runs"]) == 2  # the first fleet; the second died in its third epoch
    heard = Heard()
    runner.fill(begin(tmp_path), some_cells(0, 1), FEW, place(tmp_path, hooks=(heard,), fleet=2))
    assert heard.begun_at == [3]
    rows, never_killed = document_in(tmp_path)["runs"], document_in(finished[0])["runs"]
    assert [row["resumed"] for row in rows] == [False, False, True, True]
    of_the_moment = ("seconds", "resumed")
    for row, other in zip(rows, never_killed, strict=True):
        assert {k: v for k, v in row.items() if k not in of_the_moment} == {
            k: v for k, v in other.items() if k not in of_the_moment
        }
        assert row["seconds"] > 0


def test_finished_cells_are_skipped_and_only_missing_ones_trained(finished: tuple[Path, Start]) -> None:
    folder, start = finished
    heard, said = Heard(), list[str]()
    where = place(folder, hooks=(heard,), say=said.append)
    before = (folder / "results.json").read_bytes()
    runner.fill(start, some_cells(0, 1), FEW, where)
    assert heard.fleets == 0
    assert (folder / "results.json").read_bytes() == before
    assert said == ["4 of 4 runs are finished, 0 to do."]


def test_one_run_serves_nft_and_nft_with_early_stopping(tmp_path: Path, finished: tuple[Path, Start]) -> None:
    pair = [cell_of(TASK, name, sparsity=0.9, seed=seed) for name in ("NFT", "NFT + ES") for seed in (0, 1)]
    runner.fill(finished[1], pair, FEW, place(tmp_path))
    rows = document_in(tmp_path)["runs"]
    assert [(row["method"], row["seed"], row["fleet"]) for row in rows] == [
        ("NFT", 0, 2), ("NFT", 1, 2), ("NFT + ES", 0, 2), ("NFT + ES", 1, 2),
    ]  # fmt: skip
    alone = document_in(finished[0])["runs"][:2]
    for row, early, own in zip(rows[:2], rows[2:], alone, strict=True):
        assert row["group_accuracy"] == own["group_accuracy"]
        assert row["kept_epoch"] == own["kept_epoch"] == 3
        assert early["test"]["accuracy"] >= row["test"]["accuracy"]
        assert FEW.pruning_epochs <= early["kept_epoch"] <= 3


def test_a_fleet_whose_rows_were_not_written_is_not_trained_again(
    tmp_path: Path, finished: tuple[Path, Start]
) -> None:
    folder, start = finished
    heard = Heard()
    where = replace(place(tmp_path), work=folder / "work", hooks=(heard,), fleet=2)
    runner.fill(start, some_cells(0, 1), FEW, where)
    assert heard.fleets == 0
    assert len(document_in(tmp_path)["runs"]) == 4


# --- the results file ---


@pytest.fixture
def document(finished: tuple[Path, Start]) -> dict[str, Any]:
    return document_in(finished[0])


def wrong(change: str) -> Any:
    """A change of the second run or of the document, as a function of both."""
    return lambda held: exec(change, {"run": held["runs"][1], "held": held})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("del run['seed']", "seed is missing"),
        ("run['method'] = 'ceag'", "method is ceag; it must be one of NFT, NFT + ES"),
        ("run['sparsity'] = 92.5", "sparsity is 92.5; it must be a number from 0 to 1"),
        ("run['seconds'] = float('nan')", "seconds is nan"),
        ("run['test']['accuracy'] = 64.9", "test is"),
        ("run['train']['max_excess_gap'] += 0.01", "train: max_excess_gap is"),
        ("run['test']['pairwise_disparity'] += 0.01", "test: pairwise_disparity is"),
        ("run['group_accuracy']['test'].pop()", "test: group_accuracy and changes differ in length"),
        ("run['changes']['test']['broke'][0] = 999", "more changes than samples"),
        ("run['changes']['test']['samples'] = [0] * 4", "no group has samples"),
        ("run['versions'].pop('device')", "versions is"),
        ("run['kept_epoch'] = True", "kept_epoch is True"),
        ("held['runs'].append(dict(run))", "there are 2 runs of"),
        ("held['runs'].append(7)", "runs[4]: it must be an object"),
        ("held['dense'] = {}", "dense: weights is missing"),
        ("held['timings'] = [{}]", "timings[0]: method is missing"),
        ("held['timings'] = [{'compiled': 'cold'}]", 'compiled is cold; it must be "warm"'),
        ("held.pop('runs')", "it must be {"),
    ],
)
def test_every_kind_of_problem_is_named(document: dict[str, Any], change: str, said: str) -> None:
    wrong(change)(document)
    assert any(said in problem for problem in runner.problems(document)), runner.problems(document)


def test_all_problems_are_told_at_once(document: dict[str, Any]) -> None:
    for run in document["runs"]:
        run["sparsity"] = 95
    assert len(runner.problems(document)) == 4


def test_a_row_that_is_wrong_never_reaches_the_file(tmp_path: Path, document: dict[str, Any]) -> None:
    path = tmp_path / "results.json"
    results_file.add_runs(path, document["runs"][:2])
    before = path.read_bytes()
    with pytest.raises(InputProblems, match="sparsity is 9"):
        results_file.add_runs(path, [document["runs"][2] | {"sparsity": 9}])
    assert path.read_bytes() == before


def die_while_writing(path: Path, rows: list[dict[str, Any]]) -> None:
    atomic.os.replace = lambda source, target: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    results_file.add_runs(path, rows)


@pytest.mark.slow
def test_killed_while_writing_the_file_stays_as_it_was(tmp_path: Path, document: dict[str, Any]) -> None:
    path = tmp_path / "results.json"
    results_file.add_runs(path, document["runs"][:2])
    before = path.read_bytes()
    process = multiprocessing.get_context("spawn").Process(
        target=die_while_writing, args=(path, document["runs"])
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert path.read_bytes() == before
    results_file.add_runs(path, document["runs"])  # the lock went with the process
    assert len(results_file.read(path)["runs"]) == 4


def test_many_writers_lose_nothing(tmp_path: Path, document: dict[str, Any]) -> None:
    path, row = tmp_path / "results.json", document["runs"][0]
    rows = [row | {"seed": seed} for seed in range(12)]
    writers = [threading.Thread(target=results_file.add_runs, args=(path, [one])) for one in rows]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [run["seed"] for run in results_file.read(path)["runs"]] == list(range(12))
    assert [entry.name for entry in tmp_path.iterdir()] == ["results.json"]  # nor lock nor leftover


def test_a_cell_that_is_there_stays_as_it_was(tmp_path: Path, document: dict[str, Any]) -> None:
    path = tmp_path / "results.json"
    results_file.add_runs(path, document["runs"])
    results_file.add_runs(path, [run | {"seconds": 1e6} for run in document["runs"]])
    assert results_file.read(path) == document


def test_the_file_has_one_run_a_line_and_a_broken_one_is_refused(
    tmp_path: Path, document: dict[str, Any]
) -> None:
    path = tmp_path / "results.json"
    results_file.add_runs(path, document["runs"])
    lines = path.read_text().splitlines()
    assert len(lines) == 6
    path.write_text("\n".join(lines[:3]))
    with pytest.raises(InputProblems, match=r"is not JSON .* put back a good copy"):
        results_file.read(path)
    with pytest.raises(InputProblems, match="is not JSON"):
        results_file.add_runs(path, document["runs"])


# --- the commands, on the tiny data ---


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(cifar100, "splits_in", lambda folder: (splits(), NAMES))
    monkeypatch.setattr(cifar100, "cifar_resnet56", tiny)
    monkeypatch.setattr(cifar100, "RECIPE", FEW)
    monkeypatch.setattr(cifar100, "BUFFERS", (20, 40))


def call(folder: Path, command: str, *more: str) -> int:
    places = [f"--results={folder / 'results.json'}", f"--work={folder / 'work'}", "--device=cpu"]
    places += [f"--weights={folder / 'w.safetensors'}", "--commit=abc1234"]
    return cifar100.main([command, *places, *more])


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_all_commands_one_after_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(tmp_path, "table", "--seeds=0") == 2
    assert "there are no dense weights" in capsys.readouterr().err
    assert call(tmp_path, "dense", "--epochs=25", "--batch=32", "--lr=0.1") == 0
    dense = document_in(tmp_path)["dense"]
    assert dense["groups"] == list(NAMES)
    assert dense["test"]["accuracy"] > 0.5  # chance is 0.25
    assert dense["recipe"]["epochs"] == 25
    assert call(tmp_path, "dense") == 0
    assert "The dense model is trained" in capsys.readouterr().out

    assert call(tmp_path, "table", "--sparsity", "0.95", "--seeds=0-1", "--methods", "NFT + ES", "CEAG") == 0
    assert call(tmp_path, "buffers", "--seeds=0") == 0
    assert call(tmp_path, "timing", "--methods", "NFT", "--epochs=2", "--fleet=2") == 0
    assert call(tmp_path, "dynamics") == 0
    for name in ("plain", "fast"):
        words = ("--epochs=2", "--methods", "CEAG", "--seeds=0-1")
        assert call(tmp_path, "variant", *words, name) == 0
    apart = [
        results_file.read(tmp_path / "variants" / f"results_{name}_2_epochs.json")["runs"]
        for name in ("plain", "fast")
    ]
    assert [(run["recipe"], run["epochs"]) for run in apart[0]] == [("plain", 2)] * 2
    for one, other in zip(*apart, strict=True):
        assert one["train"]["accuracy"] == pytest.approx(other["train"]["accuracy"], abs=0.05)
    document = document_in(tmp_path)
    assert runner.problems(document) == []
    found = [(run["method"], run["sparsity"], run["buffer"], run["seed"]) for run in document["runs"]]
    assert found == [
        ("CEAG (no RB)", 0.9, 0, 0),
        ("CEAG", 0.9, 40, 0),
        ("NFT + ES", 0.95, None, 0),
        ("NFT + ES", 0.95, None, 1),
        ("CEAG (no RB)", 0.95, 0, 0),
        ("CEAG", 0.95, 20, 0),
        ("CEAG", 0.95, 40, 0),
        ("CEAG", 0.95, 40, 1),
        ("CEAG (table)", 0.95, None, 0),
        ("PW", 0.95, 40, 0),
    ]
    assert {run["commit"] for run in document["runs"]} == {"abc1234"}
    (timing,) = document["timings"]
    assert (timing["fleet"], timing["epochs"], timing["compiled"]) == (2, 2, "warm")
    assert timing["seconds"] < timing["seconds_per_60_epochs"] <= 30 * timing["seconds"] + 0.1

    capsys.readouterr()
    assert call(tmp_path, "list", "--seeds=0-1") == 0
    said = capsys.readouterr().out
    assert "CEAG                95.0%  0 1" in said
    assert "CEAG                90.0%  0 ·" in said
    assert "multipliers: finished" in said


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_traces_hold_every_step_after_pruning(tmp_path: Path) -> None:
    dense_model.write_weights(tmp_path / "w.safetensors", tiny())
    assert call(tmp_path, "dynamics") == 0
    path = tmp_path / "results_multipliers.json"  # named after the results, and beside them
    traces = json.loads(path.read_text())["traces"]
    assert [(t["method"], t["group"] is None) for t in traces] == [
        ("CEAG", False),
        ("CEAG", False),
        ("CEAG (no RB)", False),
        ("CEAG (no RB)", False),
        ("PW", True),
    ]
    for entry in traces:
        assert (entry["steps_per_epoch"], entry["first_epoch"], entry["stride"]) == (5, 2, 5)
        assert len(entry["multiplier"]) == 2  # every fifth of ten steps
        assert len(entry["pairwise_disparity"]) == len(entry["max_excess_gap"]) == 4
        assert all(value is not None for value in entry["pairwise_disparity"])
    assert {NAMES[t["place"]] for t in traces[:2]} == {t["group"] for t in traces[:2]}
    before = path.read_bytes()
    assert call(tmp_path, "dynamics") == 0
    assert path.read_bytes() == before
    path.unlink()  # as if killed before it was written: the checkpoint has it all
    assert call(tmp_path, "dynamics", f"--multipliers={tmp_path / 'm.json'}") == 0
    assert (tmp_path / "m.json").read_bytes() == before
    assert not path.exists()


def test_the_two_classes_of_the_figure() -> None:
    at_rest = torch.tensor([1, 0.9, 0.7, 0.2, 0.2, 0.0])  # share of steps at zero
    steps = torch.arange(100).unsqueeze(1)
    trace = (steps >= 100 * at_rest) * torch.tensor([1.0, 1, 1, 1, 9, 0.1])
    assert multipliers.steady_and_resting(trace) == [5, 2]
    assert multipliers.steady_and_resting(trace[:, :5]) == [4, 2]  # of equals, the larger mean
    assert multipliers.steady_and_resting(trace[:0]) == [0, 1]


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_methods_are_timed_after_a_fit_that_is_not_and_not_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dense_model.write_weights(tmp_path / "w.safetensors", tiny())
    made, written = list[tuple[str, int, int]](), list[int]()
    fit = runner.fit

    def heard(*told: Any, runs: Any, recipe: Recipe, **more: Any) -> Any:
        """The real one; tells of the method, the epochs and the size of the fleet."""
        made.append((runs[0].method.name, recipe.epochs, len(runs)))
        path = tmp_path / "results.json"
        written.append(len(document_in(tmp_path)["timings"]) if path.exists() else 0)
        return fit(*told, runs=runs, recipe=recipe, **more)

    monkeypatch.setattr(runner, "fit", heard)
    words = ("timing", "--epochs=2", "--fleet=2", "--methods")
    assert call(tmp_path, *words, "NFT", "CEAG") == 0
    assert made == [("ceag", 1, 2), ("nft", 2, 2), ("ceag", 2, 2)]
    assert written == [0, 0, 1]  # an entry is in the file before the next method begins
    made.clear()
    assert call(tmp_path, *words, "NFT", "CEAG") == 0
    assert made == []
    assert "2 of 2 methods are timed" in capsys.readouterr().out
    assert call(tmp_path, *words, "NFT", "EL", "CEAG") == 0  # the rest of them
    assert made == [("el", 1, 2), ("el", 2, 2)]
    made.clear()
    for other in ("--again", "--commit=def5678", "--sparsity=0.9", "--no-compile"):
        assert call(tmp_path, *words, "NFT", other) == 0
    assert [name for name, epochs, _ in made if epochs == 2] == ["nft"] * 4
    timings = document_in(tmp_path)["timings"]
    assert [(t["method"], t["commit"], t["sparsity"], t["versions"].get("compile")) for t in timings] == [
        ("NFT", "abc1234", 0.95, None),
        ("CEAG", "abc1234", 0.95, None),
        ("EL", "abc1234", 0.95, None),
        ("NFT", "abc1234", 0.95, None),
        ("NFT", "def5678", 0.95, None),
        ("NFT", "abc1234", 0.9, None),
        ("NFT", "abc1234", 0.95, False),
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_a_switched_compilation_reaches_the_training_and_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense_model.write_weights(tmp_path / "w.safetensors", tiny())
    fit, heard = runner.fit, list[bool | None]()

    def told(*words: Any, recipe: Recipe, **more: Any) -> Any:
        heard.append(recipe.compile)
        return fit(*words, recipe=replace(recipe, compile=False), **more)  # a compiler need not be here

    monkeypatch.setattr(runner, "fit", told)
    for seed, switch in enumerate(([], ["--compile"], ["--no-compile"])):
        assert call(tmp_path, "table", "--sparsity=0.9", "--methods=NFT", f"--seeds={seed}", *switch) == 0
    assert heard == [None, True, False]
    rows = document_in(tmp_path)["runs"]
    assert [row["versions"].get("compile") for row in rows] == [None, True, False]
    assert "compile" not in rows[0]["versions"]
    assert call(tmp_path, "variant", "--compile", "--epochs=2", "--methods=NFT", "--seeds=0", "plain") == 0
    assert heard[-1] is True  # a switch is asked for, and wins


@pytest.mark.usefixtures("small")
def test_runs_of_another_dense_model_are_not_mixed_in(
    tmp_path: Path, finished: tuple[Path, Start], capsys: pytest.CaptureFixture[str]
) -> None:
    weights = tmp_path / "w.safetensors"
    dense_model.write_weights(weights, tiny())
    start, where = finished[1], place(tmp_path)
    trained = runner.Trained([], 1.0, resumed=False)
    results_file.set_dense(where.results, dense_model.dense_document(start, trained, weights, {}, where))
    results_file.add_runs(where.results, document_in(finished[0])["runs"])
    other = small_cnn((4, 6, 6), num_classes=4, in_channels=3)
    dense_model.write_weights(weights, other)
    for command in ("table", "dense"):
        assert call(tmp_path, command) == 2
        assert "is of another dense model than" in capsys.readouterr().err
    weights.unlink()
    assert call(tmp_path, "dense") == 2
    assert "has 4 runs of a dense model whose weights are not" in capsys.readouterr().err


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    dense_model.write_weights(path, nn.Linear(2, 2))
    with pytest.raises(InputProblems, match="do not fit SmallCNN"):
        dense_model.load_weights(path, tiny())
    path.write_bytes(b"no such format")
    with pytest.raises(InputProblems, match="do not fit SmallCNN"):
        dense_model.load_weights(path, tiny())


def test_weights_come_back_as_they_were_and_stay_below_five_megabytes(tmp_path: Path) -> None:
    model = cifar_resnet56()
    dense_model.write_weights(tmp_path / "w.safetensors", model)
    assert (tmp_path / "w.safetensors").stat().st_size < 5_000_000
    back = dense_model.load_weights(tmp_path / "w.safetensors", cifar_resnet56())
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.state_dict().values(), back.state_dict().values(), strict=True)
    )
    assert all(t.dtype == torch.float32 for t in back.parameters())


def test_shorter_timings_keep_the_share_of_pruning() -> None:
    assert runner.shortened(cifar100.RECIPE, 20).pruning_epochs == 5
    assert runner.shortened(cifar100.RECIPE, 1).pruning_epochs == 0
    assert runner.shortened(cifar100.RECIPE, 60) == cifar100.RECIPE


def test_the_commit_tells_of_changes_in_code_not_of_results(tmp_path: Path) -> None:
    assert runner.commit_here(tmp_path / "gone") is None
    assert runner.commit_here(tmp_path) is None

    def git(*words: str) -> None:
        who = ["-c", "user.name=n", "-c", "user.email=e"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    code, results = tmp_path / "code.py", tmp_path / "paper" / "results" / "runs.json"
    results.parent.mkdir(parents=True)
    git("init")
    for file in (code, results):
        file.write_text("")
    git("add", ".")
    git("commit", "--message", "first")
    commit = runner.commit_here(tmp_path)
    results.write_text("{}")
    assert runner.commit_here(tmp_path) == commit
    code.write_text("1")
    assert runner.commit_here(tmp_path) == f"{commit}-dirty"


def test_lines_for_logs() -> None:
    said: list[str] = []
    lines = runner.EpochLines(said.append)
    row = {"epoch": 0, "accuracy": 0.5, "max_excess_gap": None, "multiplier_sum": None}
    lines.start(runner.runs_of(some_cells(0)), 20, [])
    for epoch in range(20):
        lines.epoch([row | {"epoch": epoch}])
    lines.finish()
    assert said[0] == "2 runs, 20 epochs"
    assert [text.split(" · ")[0] for text in said[1:]] == ["epoch 10", "epoch 20"]


def run_apart(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, cwd=ROOT)


def test_variants_of_the_method_change_one_thing_where_there_are_constraints() -> None:
    made = cells.table_cells(cifar100.TASK, sparsities=[0.95], methods=["NFT", "EL", "CEAG"], seeds=[0])
    assert [variants.varied(cell, "dual_5").dual_lr for cell in made] == [None, 5e-5, 0.005]
    assert [replace(variants.varied(c, "dual_2"), dual_lr=c.dual_lr) for c in made] == made
    macro = [variants.varied(c, "macro") for c in made]
    assert [cell.overall for cell in macro] == [None, "macro", "macro"]
    assert [replace(cell, overall=None) for cell in macro] == made
    assert [variants.varied(c, "float32") for c in made] == made
    assert set(variants.DUAL_STEPS) <= set(variants.VARIANTS)
    detached = [variants.varied(c, "detached") for c in made]
    assert [method_of(cell).mean for cell in detached] == ["lagrangian", "detached", "detached"]
    assert [replace(method_of(c), mean="lagrangian") for c in detached] == [method_of(c) for c in made]
    assert [cell.row().get("mean") for cell in detached] == [None, "detached", "detached"]
    early = [variants.varied(c, "while_pruning") for c in made]
    assert [method_of(cell).while_pruning for cell in early] == [False, True, True]
    assert [replace(method_of(c), while_pruning=False) for c in early] == [method_of(c) for c in made]
    assert [cells.label(cell) for cell in early] == ["NFT", "EL, while pruning", "CEAG, while pruning"]


def test_a_ring_of_one_stands_for_no_buffer_where_there_was_none() -> None:
    names = ["NFT", "EL", "EL + RB", "CEAG (no RB)", "CEAG"]
    made = cells.table_cells(cifar100.TASK, sparsities=[0.95], methods=names, seeds=[0])
    ringed = [variants.varied(cell, "ring_1") for cell in made]
    assert [cell.buffer for cell in ringed] == [None, 1, 40, 1, 40]
    assert [replace(a, buffer=b.buffer) for a, b in zip(ringed, made, strict=True)] == made
    assert [(m.estimator, m.k) for m in map(method_of, ringed)][1::2] == [("ring", 1), ("ring", 1)]
    assert (ringed[0], ringed[2], ringed[4]) == (made[0], made[2], made[4])
    el, rings = method_of(ringed[1]), method_of(made[2])
    assert replace(el, name=rings.name, k=rings.k) == rings  # nothing but the length is another


@pytest.mark.usefixtures("small")
def test_variants_of_the_method_run_at_several_sparsities_and_leave_out_what_they_do_not_change(
    tmp_path: Path, capsys: Any
) -> None:
    words = ["--methods", "NFT", "EL", "CEAG", "--sparsity", "0.95", "0.9", "--seeds=0", "--epochs=3"]
    assert call(tmp_path, "dense", "--epochs=1", "--batch=32") == 0
    found = {}
    for name in ("ring_1", "detached", "while_pruning", *variants.DECAY_LAST[1:]):
        assert call(tmp_path, "variant", name, *words) == 0
        path = variants.path_of(tmp_path / "results.json", name, 3)
        found[name] = {(row["method"], row["sparsity"]): row for row in results_file.read(path)["runs"]}
    assert set(found["ring_1"]) == {("EL", 0.95), ("EL", 0.9)}
    assert {row["buffer"] for row in found["ring_1"].values()} == {1}
    assert set(found["detached"]) == {(m, s) for m in ("EL", "CEAG") for s in (0.95, 0.9)}
    assert {row["mean"] for row in found["detached"].values()} == {"detached"}
    assert set(found["while_pruning"]) == set(found["detached"])
    for name in ("while_pruning", "while_pruning_decay_last"):
        assert {row["while_pruning"] for row in found[name].values()} == {True}
    assert {cell: row["buffer"] for cell, row in found["ring_1_decay_last"].items()} == {
        ("EL", 0.95): 1,
        ("EL", 0.9): 1,
    }
    assert call(tmp_path, "variant", "ring_1", "--methods", "NFT", "CEAG", "--epochs=3") == 2
    assert "ring_1 changes nothing in NFT, CEAG: name other --methods" in capsys.readouterr().err


def test_a_file_of_another_kind_is_told_in_few_words(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"runs": [{"method": "x"}] * 50}))
    with pytest.raises(InputProblems, match=r"results\.json: [\d,]+ more; is it of another kind\?") as caught:
        results_file.read(tmp_path / "results.json")
    assert len(caught.value.problems) == results_file.MOST_TOLD + 1


@pytest.mark.usefixtures("small")
def test_variants_by_the_decay_of_the_last_layer_decay_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, Any] = {}

    def keep(_: Any, made: Any, recipe: Any, where: Any) -> None:
        told[where.results.stem] = recipe.decay_only, {(cell.while_pruning, cell.buffer) for cell in made}

    monkeypatch.setattr(variants.runner, "fill", keep)
    assert call(tmp_path, "dense", "--epochs=1", "--batch=32") == 0
    for name in ("decay_last", "while_pruning", *variants.DECAY_LAST[1:]):
        assert call(tmp_path, "variant", name, "--methods", "EL", "--seeds=0", "--epochs=3") == 0
    decays, changes = zip(*told.values(), strict=True)
    assert [bool(names) for names in decays] == [True, False, True, True]
    assert changes == ({(None, 0)}, {(True, 0)}, {(True, 0)}, {(None, 1)})


@pytest.mark.usefixtures("small")
def test_forms_of_el_in_a_plain_loop_are_cells_like_others(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(FEW, batch_size=8, weight_decay=0.01, decay_everything=True)  # not all groups in a batch
    monkeypatch.setattr(cifar100, "RECIPE", small)
    words = ["--methods", "NFT", "EL", "--sparsity", "0.9", "--seeds=0-1", "--epochs=10"]
    assert call(tmp_path, "dense", "--epochs=1", "--batch=32") == 0
    assert call(tmp_path, "variant", "fast", *words) == 0
    usual = results_file.read(variants.path_of(tmp_path / "results.json", "fast", 10))["runs"]
    for name in plain_el.FORMS:
        capsys.readouterr()
        assert call(tmp_path, "variant", name, *words) == 0
        assert capsys.readouterr().out.count("epoch 10 · Σλ ") == 2
        path = variants.path_of(tmp_path / "results.json", name, 10)
        rows = results_file.read(path)["runs"]
        assert [(row["method"], row["seed"], row["recipe"]) for row in rows] == [
            ("EL", s, name) for s in (0, 1)
        ]
        sums = [[row["multiplier_sum"] for row in own] for own in (rows, usual[-2:])]
        same = [a == pytest.approx(b, rel=1e-4) for a, b in zip(*sums, strict=True)]
        assert same == [name == "plain_el"] * 2
        assert call(tmp_path, "variant", name, *words) == 0
        assert "All 2 runs are finished" in capsys.readouterr().out
    assert call(tmp_path, "variant", "leaking", "--methods", "CEAG", "--epochs=3") == 2
    assert "leaking is of EL alone: --methods EL" in capsys.readouterr().err


def test_the_last_layers_of_the_networks() -> None:
    assert variants.last_layer(cifar_resnet56()) == "fc"
    assert variants.last_layer(mobilenet_v2(5)) == "classifier.1"


def test_variants_lie_where_those_of_the_paper_are() -> None:
    results = ROOT / "paper" / "results" / "cifar100.json"
    found = [variants.path_of(results, name, n) for name, n in (("decay_last", 60), ("plain", 8))]
    assert [path.name for path in found] == ["cifar100_decay_last.json", "cifar100_plain_8_epochs.json"]
    for path in found:
        assert len(results_file.read(path)["runs"]) > 0  # they are kept in the repository


def test_rings_are_chosen_by_their_length() -> None:
    flags = cifar100.parser().parse_args(["buffers", "--k", "20", "0", "table"])
    chosen = cifar100.buffer_cells([0], flags.k)
    assert [(cell.method, cell.buffer) for cell in chosen] == [
        ("CEAG", 20), ("CEAG (no RB)", 0), ("CEAG (table)", None),
    ]  # fmt: skip
    usual = cifar100.parser().parse_args(["buffers"])
    assert cifar100.buffer_cells([0], usual.k) == cifar100.buffer_cells([0])
    assert set(chosen) < set(cifar100.buffer_cells([0]))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["table", "--seeds", "a"], "argument --seeds: seeds are 'a': write 0-4 or 0,1,2"),
        (["buffers", "--k", "twenty"], "argument --k: 'twenty' is no length of rings: write 0, 20, 40, or"),
        (["table", "--methods", "NFT+EX"], "invalid choice: 'NFT+EX'"),
    ],
)
def test_wrong_words_are_told_what_to_write(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cifar100.parser().parse_args(words)
    assert said in capsys.readouterr().err


def test_methods_may_be_written_without_blanks() -> None:
    words = ["--methods", "NFT+ES", "EL + RB", "ceag(norb)", "CEAG (no RB)"]
    for command in (["table"], ["timing"], ["variant", "fast"]):
        flags = cifar100.parser().parse_args([*command, *words])
        assert flags.methods == ["NFT + ES", "EL + RB", "CEAG (no RB)", "CEAG (no RB)"]


def test_images_are_looked_for_where_data_get_puts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "checkout"
    monkeypatch.delenv("EVENPRUNE_CIFAR100", raising=False)
    assert command_line.images_of("cifar100", root) == tmp_path / "shared" / "data" / "cifar100"
    (root / "data" / "cifar100").mkdir(parents=True)
    assert command_line.images_of("cifar100", root) == root / "data" / "cifar100"
    monkeypatch.setenv("EVENPRUNE_CIFAR100", str(tmp_path / "elsewhere"))
    assert command_line.images_of("cifar100", root) == tmp_path / "elsewhere"
    assert cifar100.parser().parse_args(["table"]).data == tmp_path / "elsewhere"


def test_what_a_user_can_mend_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    def full() -> None:
        raise NoRoom("too small for 25 runs: train fewer at once (recipe.fleet_size = 12).")

    assert command_line.ended(full) == 2
    assert capsys.readouterr().err == "too small for 25 runs: train fewer at once (--fleet 12).\n"


def test_neither_polars_nor_typer_nor_rich_is_needed() -> None:
    absent = ["polars", "typer", "rich", "altair", "sklearn"]
    modules = "evenprune.data.cifar100, evenprune.training, paper.runner, paper.cifar100"
    done = run_apart("-c", f"import sys; sys.modules.update(dict.fromkeys({absent})); import {modules}")
    assert done.returncode == 0, done.stderr


def test_it_runs_as_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = run_apart("paper/cifar100.py", "list", f"--results={tmp_path / 'none.json'}", "--seeds=0,1")
    assert done.returncode == 0, done.stderr
    assert "NFT + ES            92.5%  · ·" in done.stdout
    for words, code in ((["--help"], 0), (["table", "--methods", "GRAPE"], 2)):
        with pytest.raises(SystemExit) as end:
            cifar100.main(words)
        assert end.value.code == code
    assert "invalid choice: 'GRAPE'" in capsys.readouterr().err
