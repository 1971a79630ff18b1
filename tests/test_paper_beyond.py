"""The study on unseen data: its splits, cells, choice on held-out data, rows, files, kills and tables."""

import copy
import json
import multiprocessing
import os
import re
import signal
import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD

from evenprune import methods
from evenprune.augment import Both, Crop, Flip
from evenprune.folds import Folds
from evenprune.gap_limits import psi_standard_errors
from evenprune.heldout import paired_counts
from evenprune.models import small_cnn
from evenprune.predict import Predictions
from evenprune.recipe import Recipe, Split
from evenprune.tally import InputProblems
from paper import (
    beyond,
    beyond_answers,
    beyond_cells,
    beyond_dense,
    beyond_flags,
    beyond_folds,
    beyond_paired,
    beyond_pooled,
    beyond_results,
    beyond_rows,
    beyond_splits,
    beyond_table,
    beyond_train,
    dense_model,
    runner,
)
from paper.beyond_cells import Cell, Grid, cells_of, chosen, method_of
from paper.beyond_data import LATE, SOURCES, Groups, Images
from paper.beyond_methods import BIAS, BOTH, FEASIBLE, FORMULATIONS, KINDS, PASSES, STUDY, is_formulation
from paper.beyond_results import Origin
from paper.beyond_train import Bench
from paper.beyond_views import Views
from paper.runner import Where
from tests.test_paper_runner import images as images_of_four_classes

NAMES = ("animals", "things")  # two classes each
CLASSES = ("cat", "dog", "cup", "bed")
CPU = torch.device("cpu")
SIZES = {"superclass": (6,), "class": (4,)}
GRID = Grid(
    groups="superclass",
    sparsity=0.8,
    steps=(0.1, 1.0),
    el_steps=(0.01,),
    dro_steps=(0.01,),
    buffer=8,
    refresh=3,
    heldout_per_class=10,
    epochs=3,
    folds=2,
    importance_batches=2,
    sizes=SIZES,
)
FEW = Recipe(
    epochs=3,
    pruning_epochs=1,
    batch_size=32,
    optimizer=partial(SGD, lr=0.02, momentum=0.9),
    only_at_end=LATE,
)
ORIGIN = Origin("cifar100", 10)


def images(each: int, seed: int) -> Split:
    """Two classes make a group."""
    made = images_of_four_classes(each, seed)
    return replace(made, groups=made.labels // 2)


def all_images() -> Images:
    train, test = images(40, 0), images(20, 1)
    groups = {
        "superclass": Groups(NAMES, train.groups, test.groups),
        "class": Groups(CLASSES, train.labels, test.labels),
    }
    return Images(train, test, groups)


def three() -> dict[str, Split]:
    return beyond_splits.all_splits(images(40, 0), images(20, 1), per_class=10)


def place(folder: Path, **changes: Any) -> Where:
    told = Where(
        results=folder / "beyond.json", work=folder / "work", device=CPU, fleet=4, say=lambda text: None
    )
    return replace(told, **changes)


def tiny() -> nn.Module:
    torch.manual_seed(3)
    return small_cnn((4, 6, 6), num_classes=4, in_channels=3)


def begin(folder: Path) -> Bench:
    """A dense model that has learnt something: an untrained one has nothing to lose."""
    torch.set_num_threads(1)
    model, (splits, groupings) = tiny(), all_images().cut(heldout=10)
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    train = splits["train"]
    inputs = train.at(torch.arange(len(train)))
    for _ in range(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), train.labels).backward()
        optimizer.step()
    start = runner.measure(model.eval(), splits, NAMES, recipe=FEW, where=place(folder))
    of = beyond_folds.fold_of(train, GRID.folds)
    start = beyond_folds.with_folds(start, Folds(of, tuple(copy.deepcopy(model) for _ in range(GRID.folds))))
    return Bench(Views(start, groupings), GRID, FEW, Flip())


def places_in(folder: Path) -> list[str]:
    """Where a command of the study keeps what it makes."""
    paths = {"results": "beyond.json", "weights": "dense.safetensors", "work": "work"}
    return [word for name, path in paths.items() for word in (f"--{name}", str(folder / path))]


def shrink(patch: pytest.MonkeyPatch) -> None:
    """The commands on a few made-up images and a network for them."""
    torch.set_num_threads(1)
    small = {
        "read": lambda flags: all_images(),
        "network": tiny,
        "recipe": FEW,
        "augment": Flip(),
        "classes_of": {"superclass": 2, "class": 1},
        "sizes": SIZES,
        "importance_batches": {"superclass": 2, "class": 1},
    }
    patch.setitem(SOURCES, "cifar100", replace(SOURCES["cifar100"], **small))


def some_cells(*seeds: int) -> list[Cell]:
    names = ["NFT", BIAS, PASSES]
    return cells_of(replace(GRID, steps=(0.1,)), names=names, seeds=seeds, augment=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Bench]:
    """Every method of the study and every formulation, two seeds."""
    folder = tmp_path_factory.mktemp("beyond")
    bench = begin(folder)
    cells = cells_of(GRID, names=list(KINDS), seeds=[0, 1], augment=False)
    beyond_train.fill(bench, cells, place(folder, fleet=45))
    return folder, bench


def rows_in(folder: Path) -> list[dict[str, Any]]:
    return beyond_results.read(folder / "beyond.json")["runs"]


def answers_of(folder: Path) -> dict[str, Any]:
    return beyond_answers.read(folder / "beyond_answers.json")


# --- cells ---


def test_every_method_is_what_its_name_says() -> None:
    grid = Grid(groups="superclass", steps=(0.002,), dro_steps=(0.001,))
    cells = cells_of(grid, names=list(KINDS), seeds=[0], augment=False)
    made = {cell.method: method_of(cell) for cell in cells}
    assert {m.negative for m in made.values()} == {"clip"}
    held = {name for name, m in made.items() if m.multipliers_on not in (None, "folds")}
    assert held == {name for name in made if "held-out" in name}
    assert all(made[name].multipliers_on == "heldout" for name in held)
    assert all(made[name].tolerance == 0.01 for name in made if name.startswith("CEAG"))
    assert (made["CEAG held-out (ring)"].estimator, made["CEAG held-out (ring)"].k) == ("ring", 40)
    passes = made[PASSES]
    assert (passes.estimator, passes.refresh, passes.caution, passes.distill) == ("pass", 88, 0, 0)
    assert made["CEAG held-out (caution 1)"] == replace(passes, caution=1.0)
    assert made["CEAG held-out (lower limit)"] == replace(passes, caution=1.645, moves_on="lower")
    assert made["CEAG held-out (dead zone 2 %)"] == replace(passes, dead_zone=0.02)
    assert made["CEAG held-out + KD"] == replace(passes, distill=0.9)
    assert made[FEASIBLE] == replace(passes, keep="feasible", keep_on="choice")
    assert made["CEAG cross-fitted (passes)"] == replace(passes, multipliers_on="folds")
    assert (made["FairGRAPE"].importance, made["FairGRAPE (fast)"].importance) == (
        "fairgrape",
        "fairgrape_fast",
    )
    assert made["Performance-weighted loss"] == methods.performance_weighted()
    assert made["GroupDRO"] == methods.group_dro(dual_lr=0.001)
    assert made["Group-balanced sampling"] == methods.balanced()
    assert (made["Ψ_PW"].rows, made["all pairs"].rows, made["Ψ_PW"].tolerance) == ("extremes", "pairs", 0.02)
    assert (made["CELG"].measure, made["equalized"].kind, made["two-sided"].kind) == (
        "loss",
        "equal",
        "two_sided",
    )
    assert made["NFT"] == made[BIAS]
    assert made["NFT + KD"].distill == 0.9


def test_a_grid_has_a_cell_for_each_dual_step_and_none_for_methods_without() -> None:
    cells = cells_of(GRID, names=["NFT", "CEAG", "EL + RB"], seeds=[0, 1], augment=True)
    assert [(c.method, c.dual_lr) for c in cells[::2]] == [
        ("NFT", None),
        ("CEAG", 0.1),
        ("CEAG", 1.0),
        ("EL + RB", 0.01),
    ]
    assert all(c.augment for c in cells)
    with pytest.raises(InputProblems, match="no method 'MAGIC'"):
        cells_of(GRID, names=["MAGIC"], seeds=[0], augment=False)
    with pytest.raises(InputProblems, match="all pairs are for superclasses"):
        cells_of(replace(GRID, groups="class"), names=["all pairs"], seeds=[0], augment=False)


def test_the_methods_of_the_issue_are_in_every_setting_and_all_rivals_can_be_run() -> None:
    assert list(STUDY) == [
        *("NFT", "NFT + KD", BIAS, "EL + RB", "CEAG", "CEAG (table)", PASSES, FEASIBLE),
        *("CEAG held-out + KD", "FairGRAPE"),
    ]
    assert {"Performance-weighted loss", "GroupDRO", "Group-balanced sampling"} < set(KINDS)


def test_the_data_set_is_a_part_of_a_cell() -> None:
    grid = replace(GRID, groups="race", steps=(0.1,))
    ours, faces = (
        cells_of(replace(grid, dataset=name), names=["NFT", "CEAG", "all pairs"], seeds=[0], augment=False)
        for name in ("cifar100", "utkface")
    )
    assert beyond_cells.missing([asdict(cell) for cell in ours], [*ours, *faces]) == faces
    assert beyond_cells.missing([asdict(cell) for cell in faces], [*ours, *faces]) == ours
    assert [beyond_cells.trained_as(cell).dataset for cell in faces] == ["utkface"] * 3


def test_fairgrapes_batches_are_a_part_of_its_cells_alone() -> None:
    cells = cells_of(GRID, names=list(KINDS), seeds=[0], augment=False)
    told = {cell.method: cell.importance_batches for cell in cells if cell.importance_batches}
    assert told == {"FairGRAPE": 2, "FairGRAPE (fast)": 2}
    (other,) = cells_of(replace(GRID, importance_batches=3), names=["FairGRAPE"], seeds=[0], augment=False)
    assert beyond_cells.missing([asdict(cell) for cell in cells], [other]) == [other]


def test_only_runs_of_equal_cost_share_a_fleet_and_biases_are_not_trained() -> None:
    cells = cells_of(GRID, names=[*STUDY, "FairGRAPE (fast)"], seeds=[0, 1], augment=False)
    parts = beyond_train.fleets(cells, 45)
    trained = [cell for part in parts for cell in part]
    assert len(trained) == len(set(trained)) == len(cells) - 2 - 4  # no biases; passes and best feasible
    together = [{cell.method for cell in part} for part in parts]
    assert {"NFT", "EL + RB", "CEAG", "CEAG (table)"} in together
    for alone in ("NFT + KD", "CEAG held-out + KD", FEASIBLE, "FairGRAPE", "FairGRAPE (fast)"):
        assert {alone} in together
    rest = [cell for part in parts[1:] for cell in part]
    assert beyond_train.fleets(rest, 45) == parts[1:]  # what is left after a kill makes the same fleets


def test_mixed_fleets_are_few_but_of_one_data_and_never_with_scores() -> None:
    few = cells_of(replace(GRID, heldout_used=6), names=[PASSES], seeds=[0], augment=False)
    cells = cells_of(GRID, names=[*STUDY, "CEAG cross-fitted (passes)"], seeds=[0, 1], augment=False)
    parts = beyond_train.fleets([*cells, *few], 45, mixed=True)
    assert [{cell.method for cell in part} for part in parts] == [
        {"NFT", "NFT + KD", "EL + RB", "CEAG", "CEAG (table)", FEASIBLE, "CEAG held-out + KD"},
        {"FairGRAPE"},
        {"CEAG cross-fitted (passes)"},
        {FEASIBLE},
    ]
    alone = beyond_train.fleets(cells, 45)
    added = {beyond_cells.trained_as(cell) for cell in few}
    assert {cell for part in parts for cell in part} == {cell for part in alone for cell in part} | added


# --- the choice ---


def counts_of(gap: float, samples: int) -> dict[str, list[int]]:
    """Two groups, the first of which pays so much more than the mean."""
    broke = round(2 * gap * samples)
    return {"samples": [samples] * 2, "broke": [broke, 0], "fixed": [0, 0]}


def row(
    step: float, seed: int, *, gap: float, accuracy: float, audit: float = 0.0, samples: int = 10**6
) -> dict[str, Any]:
    cell = Cell(method="CEAG", groups="class", sparsity=0.9, seed=seed, tolerance=0.01, dual_lr=step)
    return asdict(cell) | {
        "choice": {"max_excess_gap": gap, "accuracy": accuracy},
        "changes": {"choice": counts_of(gap, samples)},
        "audit": {"max_excess_gap": audit, "accuracy": 1 - audit},
    }


def test_the_most_accurate_step_within_the_tolerance_is_chosen_else_the_smallest_gap() -> None:
    rows = [
        row(0.1, 0, gap=0.05, accuracy=0.9),
        row(0.2, 0, gap=0.009, accuracy=0.6),
        row(0.3, 0, gap=0.01, accuracy=0.7),
    ]
    assert [r["dual_lr"] for r in chosen(rows)] == [0.3]
    for tolerance, best in ((0.001, 0.2), (0.5, 0.1)):  # the choice is by what the method aims at
        aimed = [r | {"tolerance": tolerance} for r in rows]
        assert [r["dual_lr"] for r in chosen(aimed)] == [best]
    rivals = [r | {"method": "GroupDRO", "tolerance": None} for r in rows]  # without a bound: the usual one
    assert [r["dual_lr"] for r in chosen(rivals)] == [0.3]


def test_gaps_that_few_samples_show_do_not_choose_a_step() -> None:
    """Not the smallest of noisy gaps, but the most accurate of the steps that are not shown to be beyond."""
    steps = {0.1: (0.08, 0.9), 0.2: (0.06, 0.6), 0.3: (0.3, 0.95)}
    for samples, best in ((40, 0.1), (10**5, 0.2)):  # 0.3 is shown to be beyond it by both
        rows = [row(s, 0, gap=g, accuracy=a, samples=samples) for s, (g, a) in steps.items()]
        assert [r["dual_lr"] for r in chosen(rows)] == [best]


@pytest.mark.parametrize(
    ("values", "best"), [((0.4, 0.6, 0.7), 0.1), ((0.4, 0.3, 0.2), 0.1), ((0.9, 0.7, 0.6), 0.3)]
)
def test_of_other_formulations_the_step_is_one_that_meets_their_own_constraints(
    values: tuple[float, ...], best: float
) -> None:
    """The most accurate of these; if there is none, the one that is nearest to it. All on training data."""
    rows = [
        row(step, 0, gap=step, accuracy=1 - step)
        | {"method": "CELG", "tolerance": 0.5, "constraint": {"allowed": 0.5, "value": {"train": value}}}
        for step, value in zip((0.1, 0.2, 0.3), values, strict=True)
    ]
    assert [r["dual_lr"] for r in chosen(rows)] == [best]


def test_steps_are_compared_over_the_seeds_that_all_have() -> None:
    rows = [
        row(0.1, 0, gap=0.03, accuracy=0.5),
        row(0.1, 1, gap=0.0, accuracy=0.5),
        row(0.2, 0, gap=0.02, accuracy=0.5),
    ]
    assert {r["dual_lr"] for r in chosen(rows)} == {0.2}


def test_rows_of_one_data_set_are_never_chosen_on_those_of_another() -> None:
    """The same settings, but the better step of one is the worse of the other."""
    ours = [row(0.1, 0, gap=0.001, accuracy=0.9), row(0.2, 0, gap=0.001, accuracy=0.5)]
    faces = [row(0.1, 0, gap=0.001, accuracy=0.4), row(0.2, 0, gap=0.001, accuracy=0.8)]
    picked = chosen([*ours, *(entry | {"dataset": "utkface"} for entry in faces)])
    assert [(r["dataset"], r["dual_lr"]) for r in picked] == [("cifar100", 0.1), ("utkface", 0.2)]


@given(st.lists(st.floats(-1, 1), min_size=6, max_size=6))
def test_the_choice_never_looks_at_the_audit_split(audit: list[float]) -> None:
    values = [(s, seed, 0.02 * s + 0.01 * seed) for s in (1.0, 2.0, 3.0) for seed in (0, 1)]
    rows = [row(s, seed, gap=g, accuracy=0.5, audit=a) for (s, seed, g), a in zip(values, audit, strict=True)]
    assert [r["dual_lr"] for r in chosen(rows)] == [1.0, 1.0]
    blind = [{name: value for name, value in r.items() if name != "audit"} for r in rows]
    assert len(chosen(blind)) == 2


# --- numbers ---


@given(
    st.lists(st.tuples(st.integers(2, 40), st.integers(0, 40), st.integers(0, 40)), min_size=2, max_size=6)
)
def test_numbers_from_counts_are_those_of_the_samples(groups: list[tuple[int, int, int]]) -> None:
    counts: dict[str, list[int]] = {"samples": [], "broke": [], "fixed": []}
    dense, sparse, ids = [], [], []
    for g, (n, b, f) in enumerate(groups):
        b, f = min(b, n), min(f, n - min(b, n))
        for name, value in zip(counts, (n, b, f), strict=True):
            counts[name].append(value)
        dense += [True] * b + [False] * f + [True] * (n - b - f)
        sparse += [False] * b + [True] * f + [True] * (n - b - f)
        ids += [g] * n
    d, s, line = torch.tensor(dense).double(), torch.tensor(sparse).double(), torch.tensor(ids)
    errors = psi_standard_errors(*paired_counts(d, s, line, count=len(groups)))
    assert beyond_rows.standard_error(counts) == pytest.approx(float(errors.mean()), abs=1e-12)
    gaps = torch.stack([(d - s)[line == g].mean() for g in range(len(groups))])
    told = beyond_rows.measures(counts)
    assert told["worst_gap"] == pytest.approx(float(gaps.max()), abs=1e-12)
    assert told["max_excess_gap"] == pytest.approx(float(gaps.max() - (d - s).mean()), abs=1e-12)
    assert told["pairwise_disparity"] == pytest.approx(float(gaps.max() - gaps.min()), abs=1e-12)


def test_groups_without_samples_have_no_standard_error() -> None:
    known = {"samples": [9, 20], "broke": [0, 1], "fixed": [0, 1]}
    with_empty = {name: [*values, 0] for name, values in known.items()}
    assert beyond_rows.standard_error(with_empty) == pytest.approx(beyond_rows.standard_error(known))


def test_what_is_constrained_follows_the_formulation() -> None:
    labels = torch.zeros(8, dtype=torch.int64)
    groups = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    sparse = torch.tensor([0, 0, 1, 1, 0, 0, 0, 1])  # dense is always right: Δ = 1/2 and 1/4, ψ = ±1/8
    losses = torch.tensor([1.0] * 4 + [2.0] * 4)
    dense = Predictions(labels, labels, groups, torch.zeros(8))
    answers = Predictions(labels, sparse, groups, losses)
    cells = cells_of(GRID, names=[*FORMULATIONS, "EL + RB", "NFT"], seeds=[0], augment=False)
    found = {c.method: beyond_rows.constrained(method_of(c), dense, answers, 2) for c in cells}
    assert found == {
        "CEAG": 0.125,
        "CELG": 0.5,
        "Ψ_PW": 0.25,
        "all pairs": 0.25,
        "equalized": 0.125,
        "approximately equal": 0.125,
        "two-sided": 0.125,
        "EL + RB": 0.5,
        "NFT": None,
    }


def test_multipliers_are_told_after_pruning_with_their_change_at_the_end() -> None:
    history = torch.arange(20.0).unsqueeze(1) * torch.tensor([1.0, -0.5, 0.0])
    told = beyond_rows.multipliers_of(history, 5)
    assert told is not None
    assert (told["rows"], told["active"], told["largest"], len(told["sizes"])) == (3, 2, 19.0, 15)
    assert (told["sum"], told["size"], told["sum_change"], told["size_change"]) == (9.5, 28.5, 5.0, 15.0)
    assert beyond_rows.multipliers_of(torch.zeros(20, 0), 5) is None


# --- runs ---


def test_every_method_leaves_a_row_whose_numbers_agree(finished: tuple[Path, Bench]) -> None:
    folder, _ = finished
    rows = rows_in(folder)
    cells = cells_of(GRID, names=list(KINDS), seeds=[0, 1], augment=False)
    assert beyond_cells.missing(rows, cells) == []
    wanted = {beyond_cells.key_of(asdict(cell)) for cell in cells}
    for entry in (entry for entry in rows if beyond_cells.key_of(entry) in wanted):
        assert entry["changes"]["audit"]["samples"] == [40, 40]
        assert entry["changes"]["heldout"]["samples"] == [20, 20]
        weighs = entry["method"] == "GroupDRO"  # its weights of groups are no multipliers of constraints
        assert weighs or (entry["constraint"] is None) == (entry["multipliers"] is None)
        if entry["constraint"] and entry["method"].startswith("CEAG"):
            for split in beyond_rows.SPLITS:
                value = entry["constraint"]["value"][split]
                assert value == pytest.approx(entry[split]["max_excess_gap"], abs=1e-6)
    plain, biased = (
        next(r for r in rows if (r["method"], r["seed"], r["groups"]) == (name, 0, "superclass"))
        for name in ("NFT", BIAS)
    )
    assert plain["multipliers"] is None
    assert biased["heldout"]["max_excess_gap"] <= plain["heldout"]["max_excess_gap"] + 1e-9
    assert biased["seconds"] >= biased["fit_seconds"] > 0


def test_the_answers_are_those_that_the_rows_were_counted_from(finished: tuple[Path, Bench]) -> None:
    folder, bench = finished
    document = answers_of(folder)
    answers = beyond_answers.answers_in(document)
    for entry in rows_in(folder):
        grouping = bench.views.groupings[entry["groups"]]
        groups, size = beyond_answers.groups_in(document, entry["groups"], "cifar100"), len(grouping.names)
        assert groups.tolist() == grouping.of["audit"].tolist()
        own, counts = answers[beyond_cells.key_of(entry)], entry["changes"]["audit"]
        dense, sparse = own.dense_right, own.right
        assert np.bincount(groups[dense & ~sparse], minlength=size).tolist() == counts["broke"]
        assert np.bincount(groups[~dense & sparse], minlength=size).tolist() == counts["fixed"]
        assert sparse.mean() == pytest.approx(entry["audit"]["accuracy"])
        assert own.dense.tolist() == bench.views.whole.answers["audit"].predictions.tolist()


def test_what_is_followed_is_told_by_where_the_multipliers_look(finished: tuple[Path, Bench]) -> None:
    rows = [r for r in rows_in(finished[0]) if (r["seed"], r["groups"]) == (0, "superclass")]
    told = {(r["method"], r["heldout_used"]): r["followed"] for r in rows}
    for name in ("NFT", "NFT + KD", "FairGRAPE", "Performance-weighted loss", "Group-balanced sampling"):
        assert told[name, None] is None
    splits = {name: own["split"] for (name, _), own in told.items() if own}
    on_train = ("CEAG", "CEAG (table)", "EL + RB", "all pairs", "GroupDRO")
    assert {splits[name] for name in on_train} == {"train"}
    assert {splits[n] for n in (BIAS, PASSES, FEASIBLE, "CEAG held-out (ring)")} == {"heldout"}
    assert splits["CEAG cross-fitted (passes)"] == "folds"
    assert told[BIAS, None]["samples"] == [20, 20]
    assert told[BIAS, 6]["samples"] == [6, 6]
    names = ("CEAG cross-fitted (passes)", PASSES)
    crossed, held = (next(r for r in rows if r["method"] == name) for name in names)
    assert crossed["followed"]["samples"] == [50, 50]  # all training samples
    # Three times as many samples that change as often: smaller by the root of three, but for small numbers.
    ratio = crossed["standard_error"]["heldout"] / crossed["followed"]["standard_error"]
    assert ratio == pytest.approx(3**0.5, rel=0.1)
    assert held["followed"]["standard_error"] == held["standard_error"]["heldout"]


def test_the_last_and_the_best_feasible_iterate_are_of_one_training(finished: tuple[Path, Bench]) -> None:
    rows = rows_in(finished[0])
    told = {(r["method"], r["seed"], r["dual_lr"]): r for r in rows if r["heldout_used"] is None}
    pairs = [[told[name, seed, 0.1] for seed in (0, 1)] for name in (PASSES, FEASIBLE)]
    for last, best in zip(*pairs, strict=True):
        assert (last["kept_epoch"], last["shared"], best["shared"]) == (2, True, False)
        assert last["multipliers"] == best["multipliers"]
        assert (last["audit"] == best["audit"]) == (best["kept_epoch"] == 2)
    assert any(best["kept_epoch"] < 2 for best in pairs[1])


def test_finished_cells_are_not_trained_again(finished: tuple[Path, Bench]) -> None:
    folder, bench = finished
    before = (folder / "beyond.json").read_text(encoding="utf-8")
    said: list[str] = []
    beyond_train.fill(bench, some_cells(0, 1), place(folder, say=said.append))
    assert said == ["6 of 6 runs are finished."]
    assert (folder / "beyond.json").read_text(encoding="utf-8") == before


class Dies:
    """Kills its own process after some epochs."""

    def __init__(self, after: int) -> None:
        self.left = after

    def start(self, runs: Sequence[Any], epochs: int, past: Sequence[Any]) -> None:
        pass

    def epoch(self, rows: Sequence[Any]) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def finish(self) -> None:
        pass


def fill_and_die(folder: Path, epochs: int) -> None:
    beyond_train.fill(begin(folder), some_cells(0, 1), place(folder, hooks=(Dies(epochs),)))


def numbers(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    timed = ("seconds", "fit_seconds", "resumed", "fleet")
    return [{name: value for name, value in entry.items() if name not in timed} for entry in rows]


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL on Windows")
def test_a_killed_study_goes_on_and_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    process = multiprocessing.get_context("spawn").Process(target=fill_and_die, args=(killed, 5))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert {r["method"] for r in rows_in(killed)} == {"NFT", BIAS}  # the first fleet and its biases
    for folder in (whole, killed):
        beyond_train.fill(begin(folder), some_cells(0, 1), place(folder))
    assert numbers(rows_in(killed)) == numbers(rows_in(whole))
    assert answers_of(killed) == answers_of(whole)


def test_a_bias_asked_for_later_leaves_the_row_of_nft_as_it_was(tmp_path: Path) -> None:
    bench, (plain, bias) = replace(begin(tmp_path), grid=replace(GRID, sizes={})), some_cells(0)[:2]
    beyond_train.fill(bench, [plain], place(tmp_path))
    before = rows_in(tmp_path)
    asked = replace(bias, heldout_used=5)
    beyond_train.fill(bench, [asked], place(tmp_path))
    assert [r for r in rows_in(tmp_path) if r["heldout_used"] is None] == before
    assert beyond_cells.missing(rows_in(tmp_path), [asked]) == []


# --- the files ---


def test_rows_that_contradict_their_counts_are_refused(finished: tuple[Path, Bench], tmp_path: Path) -> None:
    document = beyond_results.read(finished[0] / "beyond.json")
    document["runs"][0]["audit"]["max_excess_gap"] += 0.1
    document["runs"][1]["method"] = "MAGIC"
    path = tmp_path / "beyond.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InputProblems, match="the groups give") as told:
        beyond_results.read(path)
    assert "method is MAGIC" in str(told.value)


def test_other_audit_samples_are_refused(finished: tuple[Path, Bench], tmp_path: Path) -> None:
    folder, bench = finished
    path = tmp_path / "beyond_answers.json"
    path.write_bytes((folder / "beyond_answers.json").read_bytes())
    whole = bench.views.whole
    splits = dict(whole.data.evaluate)
    splits["audit"] = beyond_splits.take(splits["audit"], np.arange(80)[::-1].copy())
    other = replace(whole, data=replace(whole.data, evaluate=splits))
    with pytest.raises(InputProblems, match="other audit samples"):
        beyond_answers.add(path, other, {}, dataset="cifar100", groups="superclass")


def test_answers_of_a_data_set_that_is_not_described_are_refused(
    finished: tuple[Path, Bench], tmp_path: Path
) -> None:
    path = tmp_path / "beyond_answers.json"
    document = answers_of(finished[0])
    document["runs"][0]["dataset"] = "utkface"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InputProblems, match="1 runs are of utkface, which is not described"):
        beyond_answers.read(path)
    document["datasets"]["utkface"] = {"labels": "?"}
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InputProblems, match="must be described by labels, groups and dense"):
        beyond_answers.read(path)


@given(st.lists(st.integers(0, 255), min_size=1, max_size=100))
def test_classes_come_back(classes: list[int]) -> None:
    assert beyond_answers.unpacked(beyond_answers.packed(classes)).tolist() == classes


def test_more_classes_than_a_byte_holds_are_refused() -> None:
    with pytest.raises(InputProblems, match="up to 256"):
        beyond_answers.packed(np.array([3, 256]))


def test_ten_thousand_answers_are_some_kilobytes() -> None:
    rng = np.random.default_rng(0)
    dense, other = rng.integers(0, 100, (2, 10_000))
    predicted = np.where(rng.random(10_000) < 0.25, other, dense)
    assert len(beyond_answers.packed((predicted - dense) % 256)) < 6000
    assert len(beyond_answers.packed(predicted)) > 10_000


def test_the_dense_model_must_not_have_seen_the_held_out_images(tmp_path: Path) -> None:
    where, weights = place(tmp_path), tmp_path / "weights.safetensors"
    check = partial(beyond_dense.refuse_other, where.results, weights, origin=ORIGIN)
    with pytest.raises(InputProblems, match="train it first, with `dense`"):
        check(images="?")
    recipe = replace(FEW, pruning_epochs=0)
    untrained = runner.measure(tiny(), three(), NAMES, recipe=recipe, where=where)
    document = beyond_dense.train(untrained, weights, recipe, where, origin=ORIGIN, settings={"seed": 0})
    held = beyond_results.read(where.results)
    assert beyond_results.dense_of(held, Origin("utkface", 10)) is None
    assert beyond_results.dense_of(held, ORIGIN) == document
    assert set(document["accuracy"]) == set(beyond_rows.SPLITS)
    check(images=beyond_splits.identity(three()))
    other = beyond_splits.all_splits(images(40, 0), images(20, 1), per_class=11)
    with pytest.raises(InputProblems, match="trained on other images than these with 10 a class held out"):
        check(images=beyond_splits.identity(other))
    dense_model.write_weights(weights, small_cnn((4, 6, 6), num_classes=4, in_channels=3))
    with pytest.raises(InputProblems, match="another dense model"):
        check(images=beyond_splits.identity(three()))


# --- what people read ---


def test_the_tables_have_every_method_once_and_are_paired_with_nft(finished: tuple[Path, Bench]) -> None:
    folder, _ = finished
    results, answers = beyond_results.read(folder / "beyond.json"), answers_of(folder)
    whole = results | {"runs": [r for r in results["runs"] if r["groups"] == "superclass"]}
    whole["runs"] = [r for r in whole["runs"] if r["heldout_used"] is None]
    told = beyond_table.lines(whole, answers)
    text = "\n".join(told)
    begins = "CIFAR-100, superclass groups, 80.0% sparse, without augmentation, 10 a class held out"
    assert told[0].startswith(begins)
    for name, kind in KINDS.items():
        steps = {"none": 0, "usual": 2, "el": 1, "dro": 0}[kind.steps]  # the last table has every dual step
        tables = 2 if name == "NFT" else 3
        faced = 2 * (kind.follows_unseen and name != BIAS)  # against the class bias and CEAG as well
        faced += name == BOTH  # and against distillation alone
        assert sum(line.startswith(f"{name}  ") for line in told) == tables + faced + steps, name
    assert "floor max ψ" in text
    assert " to " in text
    widths = {len(line) for line in told[2 : 2 + len(KINDS) + 1]}
    assert len(widths) == 1


def test_another_method_can_be_what_all_are_compared_with(finished: tuple[Path, Bench]) -> None:
    results, answers = beyond_results.read(finished[0] / "beyond.json"), answers_of(finished[0])
    told = beyond_table.lines(results, answers)
    heads = [line.split("  ")[0] for line in told if line.startswith("against")]
    assert heads[:3] == ["against NFT", f"against {BIAS}", "against CEAG"]
    other = beyond_table.lines(results, answers, against="CEAG")
    heads = [line.split("  ")[0] for line in other if line.startswith("against")]
    assert heads[:3] == ["against CEAG", "against NFT", f"against {BIAS}"]
    of_ceag = other[other.index(next(line for line in other if line.startswith("against CEAG"))) :]
    assert any(line.startswith("NFT  ") for line in of_ceag)


def test_negative_weights_are_told_where_there_were_any(finished: tuple[Path, Bench]) -> None:
    results = beyond_results.read(finished[0] / "beyond.json")
    rows = [r for r in results["runs"] if (r["groups"], r["heldout_used"]) == ("superclass", None)]
    rows = [dict(r) for r in rows if r["method"] in ("NFT", "NFT + KD")]
    for entry in rows:
        entry["negative_weights"] = 1234 if entry["method"] == "NFT + KD" else 0
    told = beyond_table.lines({"runs": rows}, {"runs": []})
    plain, other = (re.split(r"\s{2,}", line) for line in told[3:5])
    assert re.split(r"\s{2,}", told[2])[-2] == "clipped"
    assert (plain[0], plain[-2], other[0], other[-2]) == ("NFT", "–", "NFT + KD", "1,234")


def test_settings_stand_side_by_side_before_all_else(finished: tuple[Path, Bench]) -> None:
    results, answers = beyond_results.read(finished[0] / "beyond.json"), answers_of(finished[0])
    told = beyond_table.lines(results, answers)
    begin = told.index("At a glance") + 2
    head, *lines = (re.split(r"\s{2,}", line) for line in told[begin : told.index("", begin)])
    assert head == ["unseen: accuracy · max ψ · payers' ψ", "Superclass", "Class"]
    run = {row["method"] for row in results["runs"] if not is_formulation(row["method"])}
    assert {line[0] for line in lines} == {*run, "max ψ by chance alone"}
    assert run > {*STUDY}
    plain = next(line for line in lines if line[0] == "NFT")
    own = [row for row in results["runs"] if (row["method"], row["groups"]) == ("NFT", "class")]
    mean = statistics.fmean(row["audit"]["accuracy"] for row in own)
    assert plain[2].startswith(f"{100 * mean:.1f} · ")
    assert plain[2].endswith(f"({len(own)} seeds)")  # fewer than three
    missing = [row for row in results["runs"] if (row["method"], row["groups"]) != ("CEAG", "class")]
    told = beyond_table.lines(results | {"runs": missing}, answers)
    assert next(line for line in told if line.startswith("CEAG  ")).endswith(" –")


def test_tables_of_markdown_say_the_same(finished: tuple[Path, Bench]) -> None:
    results, answers = beyond_results.read(finished[0] / "beyond.json"), answers_of(finished[0])
    plain = beyond_table.lines(results, answers)
    marked = beyond_table.lines(results, answers, markdown=True)
    assert marked[0].startswith("# ")
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in marked if line.startswith("|")]
    cells = [[cell.strip().replace("\\|", "|") for cell in row] for row in rows]
    tables = [row for row in cells if not set("".join(row)) <= {"-", ":"}]
    found = [line for line in plain if len(re.split(r"\s{2,}", line.strip())) > 1]
    assert tables == [re.split(r"\s{2,}", line.strip()) for line in found]
    assert all(sum(map(len, table)) for table in tables)


def numbers_in(text: str) -> tuple[list[str], list[float]]:
    """What stands between its numbers, and these."""
    number = r"\d[\d,]*(?:\.\d+)?(?:e-\d+)?"
    return re.split(number, text), [float(n.replace(",", "")) for n in re.findall(number, text)]


@pytest.mark.slow
def test_the_tables_of_the_docs_are_of_the_kept_results() -> None:
    """But for rounding on another machine: they are what `show --markdown` prints."""
    kept = runner.ROOT / "paper" / "results" / "beyond.json"
    results, answers = beyond_results.read(kept), beyond_answers.read(beyond_answers.path_of(kept))
    told = "\n".join(beyond_table.lines(results, answers, markdown=True)) + "\n"
    written = (runner.ROOT / "docs" / "unseen-tables.md").read_text(encoding="utf-8")
    (words, now), (same, then) = numbers_in(told), numbers_in(written)
    assert words == same
    assert now == pytest.approx(then, rel=0.02, abs=0.11)


def test_tables_without_answers_or_runs_are_told_too(finished: tuple[Path, Bench]) -> None:
    results = beyond_results.read(finished[0] / "beyond.json")
    assert "against NFT" in "\n".join(beyond_table.lines(results, {"runs": []}))
    assert beyond_table.lines({"runs": []}, {"runs": []}) == ["No run is finished yet."]


def test_a_run_compared_with_itself_does_not_differ(finished: tuple[Path, Bench]) -> None:
    document = answers_of(finished[0])
    one = next(iter(beyond_answers.answers_in(document).values()))
    groups = beyond_answers.groups_in(document, "superclass", "cifar100")
    found = beyond_pooled.differences([(one, one)], groups)
    assert {(d.values, d.sign) for d in found.values()} == {((0.0,), 0)}


def test_a_baseline_that_looks_at_held_out_samples_must_have_looked_at_as_many() -> None:
    base = row(0.1, 0, gap=0, accuracy=0.5) | {"method": PASSES}
    plain = base | {"method": "NFT", "dual_lr": None, "tolerance": None}
    for used in (None, 5):
        assert beyond_paired.partner(base | {"heldout_used": used}, [plain]) is plain
    assert beyond_paired.partner(base | {"seed": 1}, [plain]) is None
    assert beyond_paired.partner(base | {"epochs": 30}, [plain]) is None
    whole = plain | {"method": BIAS, "tolerance": 0.01}
    few = whole | {"heldout_used": 5}
    assert beyond_paired.partner(base, [few, whole]) is whole
    assert beyond_paired.partner(base | {"heldout_used": 5}, [few, whole]) is few
    assert beyond_paired.partner(base | {"heldout_used": 9}, [few, whole]) is None
    other = whole | {"tolerance": 0.02}
    assert beyond_paired.partner(base, [other, whole]) is whole  # of two, that of its own tolerance


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = ["--results", str(tmp_path / "beyond.json")]
    assert beyond.main(["list", *results, "--seeds", "0-1"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in STUDY)
    assert "all pairs" in listed
    assert beyond.main(["show", *results]) == 2
    assert "beyond.json does not exist: name a file that `study` has written" in capsys.readouterr().err
    (tmp_path / "beyond.json").write_text('{"runs": []}', encoding="utf-8")
    assert beyond.main(["show", *results]) == 0
    assert capsys.readouterr().out == "No run is finished yet.\n"
    absent = str(tmp_path / "none.safetensors")
    assert beyond.main(["study", *results, "--weights", absent, "--work", str(tmp_path / "work")]) == 2
    assert "train them first, with `dense`" in capsys.readouterr().err


def test_from_the_dense_model_to_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shrink(monkeypatch)
    places = places_in(tmp_path)
    places += ["--heldout", "10", "--device", "cpu"]
    assert beyond.main(["dense", *places, "--epochs", "2", "--batch", "32", "--lr", "0.05"]) == 0
    assert beyond.main(["dense", *places]) == 0
    told = capsys.readouterr().out
    assert "Held out: 20 of each of 2 groups; to choose on: 10 of each of 2 groups; 0 images left out" in told
    assert "% heldout" in told
    assert "The dense model is trained" in told
    small = ["--seeds", "0", "--epochs", "3", "--buffer", "8", "--refresh", "2", "--dual-lr", "0.1"]
    names = ["--methods", "NFT", "CEAG held-out (passes)"]
    assert beyond.main(["study", *places, *small, *names, "--augment", "no", "yes"]) == 0
    assert beyond.main(["study", *places, *small, "--heldout-used", "6", "4", "20"]) == 0
    assert beyond.main(["formulations", *places, *small, "--methods", "CEAG", "equalized"]) == 0
    runs = [run for run in rows_in(tmp_path) if run["groups"] == "superclass"]
    seen = {(run["method"], run["augment"], run["heldout_used"]) for run in runs}
    study = [(name, True, None) for name in ("NFT", PASSES, FEASIBLE)]
    study += [(name, False, None) for name in STUDY]  # 20 of a group are all of them
    few = [(name, False, used) for used in (4, 6) for name, kind in STUDY.items() if kind.sees_heldout]
    riding = [(BIAS, True, None), (BIAS, True, 6)]
    assert seen == {*study, *few, *riding, ("equalized", False, None)}
    looked_at = {run["heldout_used"]: sum(run["changes"]["heldout"]["samples"]) for run in runs}
    assert looked_at == {None: 40, 4: 8, 6: 12}
    capsys.readouterr()
    results = ["--results", str(tmp_path / "beyond.json")]
    assert beyond.main(["show", *results]) == 0
    shown = capsys.readouterr().out
    assert shown.count("superclass groups, 95.0% sparse") == 5
    assert "6 a group looked at" in shown
    assert beyond.main(["show", *results, "--against", "CEAG"]) == 0
    assert "against CEAG" in capsys.readouterr().out
    assert re.search("^CEAG ", shown, re.MULTILINE)
    assert beyond.main(["show", *results, "--dual-lr", "77"]) == 0  # runs without a step are always shown
    other = capsys.readouterr().out
    assert other.startswith("No run has a dual step of 77; there are ")
    assert re.search("^NFT ", other, re.MULTILINE)
    assert not re.search("^CEAG ", other, re.MULTILINE)
    assert beyond.main(["show", *results, "--against", "GroupDRO", "--dual-lr", "0.1"]) == 0
    assert capsys.readouterr().out.startswith(
        "No run of GroupDRO is finished: nothing is compared with it.\n"
    )
    assert beyond.main(["list", *places, *small]) == 0
    assert "dense model, 10 a class held out" in capsys.readouterr().out


def flags_of(*words: str) -> Any:
    return beyond.parser().parse_args(list(words))


def test_flags_become_the_grid_and_the_recipe() -> None:
    words = ("study", "--heldout-used", "20", "--dual-lr", "0.1", "--epochs", "20", "--groups", "class")
    flags = flags_of(*words)
    seeing = [name for name, kind in STUDY.items() if kind.sees_heldout]
    assert beyond_flags.study_methods(flags, 20) == seeing
    grid = beyond_flags.grid_of(flags, 20)
    assert (grid.heldout_used, grid.steps, grid.groups, grid.sparsity) == (20, [0.1], "class", 0.95)
    assert (grid.importance_batches, grid.sizes["class"]) == (10, [10, 20, 25])
    bench = Bench(Views(None, {}), grid, beyond_flags.recipe_of(flags), SOURCES["cifar100"].augment)  # type: ignore[arg-type]
    cell = Cell(method="FairGRAPE", groups="class", sparsity=0.95, seed=0, importance_batches=10)
    plain, augmented = (bench.recipe_of(replace(cell, augment=augment)) for augment in (False, True))
    assert (plain.epochs, plain.pruning_epochs, plain.importance_batches) == (20, 5, 10)
    assert (plain.augment, augmented.augment) == (None, Both(Crop(4), Flip()))
    assert plain.only_at_end == ("train", "audit")  # the audit split is looked at once
    assert beyond_flags.weights_of(flags).name == "cifar100_heldout50.safetensors"
    assert beyond_flags.grid_of(flags_of("study")).importance_batches == 50
    assert flags_of("study").augment == flags_of("formulations").augment == ["no"]
    assert beyond_flags.study_methods(flags_of("study"), None) == list(STUDY)
    fewer = beyond_flags.study_methods(flags_of("study", "--part=1", "--without", "FairGRAPE", "CEAG"), None)
    assert fewer == [name for name in STUDY if name not in ("FairGRAPE", "CEAG")]
    for command in ("study", "formulations", "timing", "list"):
        named = flags_of(command, "--methods", "NFT", "CEAG", "--without", "CEAG")
        assert beyond_flags.methods_of(named) == ["NFT"]


def test_numbers_of_held_out_samples_are_told_together_and_all_of_them_once() -> None:
    told = flags_of("study", "--heldout-used", "25", "100", "250", "all", "25")
    assert beyond_flags.sizes_looked_at(told) == [25, 100, None]
    of_classes = flags_of("study", "--groups", "class", "--heldout-used", "25", "50")
    assert beyond_flags.sizes_looked_at(of_classes) == [25, None]
    assert beyond_flags.sizes_of(told) == {"superclass": [25, 100], "class": [10, 25]}
    fewer = flags_of("study", "--heldout", "20")  # 100 of a superclass are all of them then
    assert beyond_flags.sizes_of(fewer) == {"superclass": [25], "class": [10]}
