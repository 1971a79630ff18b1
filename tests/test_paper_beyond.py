"""The study on unseen data: its splits, cells, choice on held-out data, rows, files, kills and tables."""

import json
import multiprocessing
import os
import signal
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

from evenprune import constraint
from evenprune.augment import Both, Crop, Flip
from evenprune.folds import Folds
from evenprune.models import small_cnn
from evenprune.predict import Predictions
from evenprune.recipe import Recipe, Split
from evenprune.tally import InputProblems
from paper import (
    beyond,
    beyond_cells,
    beyond_dense,
    beyond_folds,
    beyond_results,
    beyond_rows,
    beyond_splits,
    beyond_summary,
    beyond_table,
    dense_model,
    runner,
)
from paper.beyond_cells import FORMULATIONS, KINDS, STUDY, Cell, Grid, cells_of, chosen, method_of
from paper.beyond_data import LATE, SOURCES, Images
from paper.beyond_results import Origin
from paper.runner import Start, Where
from tests.test_paper_runner import images as images_of_four_classes

NAMES = ("animals", "things")  # two classes each
CPU = torch.device("cpu")
GRID = Grid(
    groups="superclass",
    sparsity=0.8,
    steps=(0.1, 1.0),
    el_steps=(0.01,),
    buffer=8,
    refresh=3,
    heldout_per_class=10,
    epochs=3,
    folds=2,
)
FEW = Recipe(
    epochs=3,
    pruning_epochs=1,
    batch_size=32,
    optimizer=partial(SGD, lr=0.02, momentum=0.9),
    only_at_end=LATE,
    importance_batches=2,
)
ORIGIN = Origin("cifar100", 10)


def images(each: int, seed: int) -> Split:
    """Two classes make a group."""
    made = images_of_four_classes(each, seed)
    return replace(made, groups=made.labels // 2)


def three(used: int | None = None) -> dict[str, Split]:
    return beyond_splits.three_splits(images(40, 0), images(20, 1), per_class=10, used=used)


def place(folder: Path, **changes: Any) -> Where:
    told = Where(
        results=folder / "beyond.json", work=folder / "work", device=CPU, fleet=4, say=lambda text: None
    )
    return replace(told, **changes)


def tiny() -> nn.Module:
    torch.manual_seed(3)
    return small_cnn((4, 6, 6), num_classes=4, in_channels=3)


def begin(folder: Path) -> Start:
    """A dense model that has learnt something: an untrained one has nothing to lose."""
    torch.set_num_threads(1)
    model, split = tiny(), three()["train"]
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    inputs = split.at(torch.arange(len(split)))
    for _ in range(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), split.labels).backward()
        optimizer.step()
    start = runner.measure(model.eval(), three(), NAMES, recipe=FEW, where=place(folder))
    of = beyond_folds.fold_of(split, GRID.folds)
    return beyond_folds.with_folds(start, Folds(of, (model,) * GRID.folds))


def shrink(patch: pytest.MonkeyPatch) -> None:
    """The commands on a few made-up images and a network for them."""
    torch.set_num_threads(1)
    made = Images(images(40, 0), images(20, 1), NAMES)
    small = {"read": lambda *_: made, "network": tiny, "recipe": FEW, "augment": Flip()}
    patch.setitem(SOURCES, "cifar100", replace(SOURCES["cifar100"], **small))


def some_cells(*seeds: int) -> list[Cell]:
    names = ["NFT", beyond_cells.BIAS, "CEAG held-out (passes)"]
    return cells_of(replace(GRID, steps=(0.1,)), names=names, seeds=seeds, augment=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Start]:
    """Every method of the study and every formulation, two seeds."""
    folder = tmp_path_factory.mktemp("beyond")
    start = begin(folder)
    cells = cells_of(GRID, names=list(KINDS), seeds=[0, 1], augment=False)
    beyond.fill(start, cells, FEW, place(folder, fleet=45))
    return folder, start


def rows_in(folder: Path) -> list[dict[str, Any]]:
    return beyond_results.read(folder / "beyond.json")["runs"]


# --- splits ---


def pictures(split: Split) -> list[bytes]:
    return [image.numpy().tobytes() for image in split.inputs]


def test_the_held_out_images_are_of_every_class_and_in_no_other_split() -> None:
    splits = three()
    assert torch.bincount(splits["heldout"].labels).tolist() == [10] * 4
    assert torch.bincount(splits["train"].labels).tolist() == [30] * 4
    assert len(splits["audit"]) == 80
    assert not set(pictures(splits["train"])) & set(pictures(splits["heldout"]))
    assert sorted(pictures(splits["train"]) + pictures(splits["heldout"])) == sorted(pictures(images(40, 0)))
    assert sorted(pictures(splits["audit"])) == sorted(pictures(images(20, 1)))


def test_the_draw_does_not_depend_on_the_order_of_the_images() -> None:
    train, test = images(40, 0), images(20, 1)
    mixed = [
        beyond_splits.take(split, np.random.default_rng(7).permutation(len(split))) for split in (train, test)
    ]
    first, again = (
        beyond_splits.three_splits(*pair, per_class=10, used=6) for pair in ((train, test), mixed)
    )
    for name in ("heldout", "audit"):
        assert pictures(first[name]) == pictures(again[name])
        assert torch.equal(first[name].labels, again[name].labels)
    assert beyond_splits.identity(first) == beyond_splits.identity(again)
    other = beyond_splits.three_splits(train, test, per_class=9)
    assert beyond_splits.identity(other) != beyond_splits.identity(first)


@given(used=st.integers(1, 20))
def test_few_held_out_samples_are_part_of_many_and_spread_over_the_classes(used: int) -> None:
    few, whole = three(used)["heldout"], three()["heldout"]
    assert torch.bincount(few.groups).tolist() == [used, used]
    assert set(pictures(few)) <= set(pictures(whole))
    each = torch.bincount(few.labels, minlength=4).tolist()
    assert abs(each[0] - each[1]) <= 1
    assert abs(each[2] - each[3]) <= 1


@pytest.mark.parametrize(("per_class", "used"), [(0, None), (40, None), (10, 21), (10, 0)])
def test_more_samples_than_there_are_are_refused(per_class: int, used: int | None) -> None:
    with pytest.raises(InputProblems, match=r"held-out samples a (class|group): give 1 to"):
        beyond_splits.three_splits(images(40, 0), images(20, 1), per_class=per_class, used=used)


def unequal(each: Sequence[int], seed: int) -> Split:
    """Four classes of so many images, each a group."""
    made = images_of_four_classes(max(each), seed)
    places = [np.flatnonzero((made.labels == label).numpy())[:n] for label, n in enumerate(each)]
    kept = beyond_splits.take(made, np.concatenate(places))
    return replace(kept, groups=kept.labels)


@given(share=st.floats(0.05, 0.9), used=st.floats(0.3, 0.95))
def test_shares_are_kept_by_groups_of_unequal_size(share: float, used: float) -> None:
    sizes, test = [60, 40, 30, 20], images(5, 1)
    splits = beyond_splits.three_splits(unequal(sizes, 0), test, per_class=share)
    held = torch.bincount(splits["heldout"].labels, minlength=4).tolist()
    assert held == [round(share * size) for size in sizes]
    assert (torch.bincount(splits["train"].labels) + torch.tensor(held)).tolist() == sizes
    assert not set(pictures(splits["train"])) & set(pictures(splits["heldout"]))
    wanted = [round(used * size) for size in held]
    if min(wanted) > 0:
        few = beyond_splits.three_splits(unequal(sizes, 0), test, per_class=share, used=used)
        assert torch.bincount(few["heldout"].groups, minlength=4).tolist() == wanted
        assert set(pictures(few["heldout"])) <= set(pictures(splits["heldout"]))
        assert beyond_splits.identity(few) == beyond_splits.identity(splits)


def test_small_shares_are_a_part_of_large_ones_and_of_numbers() -> None:
    def held_out(amount: float) -> set[bytes]:
        return set(pictures(beyond_splits.three_splits(train, test, per_class=amount)["heldout"]))

    train, test = unequal([60, 40, 30, 20], 0), images(5, 1)
    assert held_out(0.1) < held_out(0.3)
    assert held_out(0.05) <= held_out(3)  # at most three of each class
    mixed = beyond_splits.take(train, np.random.default_rng(5).permutation(len(train)))
    again = beyond_splits.three_splits(mixed, test, per_class=0.3)["heldout"]
    assert pictures(again) == pictures(beyond_splits.three_splits(train, test, per_class=0.3)["heldout"])


@pytest.mark.parametrize(
    ("amount", "used", "said"),
    [
        (0.02, None, "is 0 of the 20 samples of one class: at least 1 must be, and 1 be left"),
        (0.99, None, "is 20 of the 20 samples of one class"),
        (0.2, 0.1, "is 0 of the 4 samples of one group: at least 1 must be; give another share"),
        (2.5, None, "2.5 held-out samples a class: give 1 to 19"),
    ],
)
def test_shares_that_leave_a_class_with_nothing_are_refused(
    amount: float, used: float | None, said: str
) -> None:
    with pytest.raises(InputProblems, match=said):
        beyond_splits.three_splits(unequal([60, 40, 30, 20], 0), images(5, 1), per_class=amount, used=used)


# --- cells ---


def test_every_method_is_what_its_name_says() -> None:
    cells = cells_of(Grid(groups="superclass", steps=(0.002,)), names=list(KINDS), seeds=[0], augment=False)
    made = {cell.method: method_of(cell) for cell in cells}
    assert {m.negative for m in made.values()} == {"clip"}
    held = {name for name, m in made.items() if m.multipliers_on not in (None, "folds")}
    assert held == {name for name in made if "held-out" in name}
    assert all(made[name].multipliers_on == "heldout" for name in held)
    assert all(made[name].tolerance == 0.01 for name in made if name.startswith("CEAG"))
    assert (made["CEAG held-out (ring)"].estimator, made["CEAG held-out (ring)"].k) == ("ring", 40)
    passes = made["CEAG held-out (passes)"]
    assert (passes.estimator, passes.refresh, passes.caution, passes.distill) == ("pass", 88, 0, 0)
    assert made["CEAG held-out (passes, caution 1)"] == replace(passes, caution=1.0)
    assert made["CEAG held-out + KD"] == replace(passes, distill=0.9)
    assert made["CEAG held-out (passes, best feasible)"].keep_on == "heldout"
    assert made["CEAG cross-fitted (passes)"] == replace(passes, multipliers_on="folds")
    assert made["FairGRAPE (fast)"].importance == "fairgrape_fast"
    assert (made["Ψ_PW"].rows, made["all pairs"].rows, made["Ψ_PW"].tolerance) == ("extremes", "pairs", 0.02)
    assert (made["CELG"].measure, made["equalized"].kind, made["two-sided"].kind) == (
        "loss",
        "equal",
        "two_sided",
    )
    assert made["NFT"] == made[beyond_cells.BIAS]
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


def test_the_data_set_is_a_part_of_a_cell_and_cifar100_where_none_is_named() -> None:
    grid = replace(GRID, groups="race", steps=(0.1,))
    ours, faces = (
        cells_of(replace(grid, dataset=name), names=["NFT", "CEAG", "all pairs"], seeds=[0], augment=False)
        for name in ("cifar100", "utkface")
    )
    old = [{k: v for k, v in asdict(cell).items() if k != "dataset"} for cell in ours]
    assert beyond_cells.missing(old, [*ours, *faces]) == faces
    assert beyond_cells.missing([asdict(cell) for cell in faces], [*ours, *faces]) == ours
    assert [beyond_cells.trained_as(cell).dataset for cell in faces] == ["utkface"] * 3
    assert "dataset" not in beyond_results.RULES


def test_only_runs_of_equal_cost_share_a_fleet_and_biases_are_not_trained() -> None:
    cells = cells_of(GRID, names=list(STUDY), seeds=[0, 1], augment=False)
    parts = beyond.fleets(cells, 45)
    trained = [cell for part in parts for cell in part]
    assert len(trained) == len(set(trained)) == len(cells) - 2
    together = [{cell.method for cell in part} for part in parts]
    assert {"NFT", "EL + RB", "CEAG", "CEAG (table)"} in together
    for alone in ("NFT + KD", "CEAG held-out + KD", "CEAG held-out (ring)", "FairGRAPE (fast)"):
        assert {alone} in together
    rest = [cell for part in parts[1:] for cell in part]
    assert beyond.fleets(rest, 45) == parts[1:]  # what is left after a kill makes the same fleets


# --- the choice ---


def row(step: float, seed: int, *, gap: float, accuracy: float, audit: float = 0.0) -> dict[str, Any]:
    cell = Cell(method="CEAG", groups="class", sparsity=0.9, seed=seed, tolerance=0.01, dual_lr=step)
    return asdict(cell) | {
        "heldout": {"max_excess_gap": gap, "accuracy": accuracy},
        "audit": {"max_excess_gap": audit, "accuracy": 1 - audit},
    }


def test_the_most_accurate_step_within_the_tolerance_is_chosen_else_the_smallest_gap() -> None:
    rows = [
        row(0.1, 0, gap=0.05, accuracy=0.9),
        row(0.2, 0, gap=0.009, accuracy=0.6),
        row(0.3, 0, gap=0.01, accuracy=0.7),
    ]
    assert [r["dual_lr"] for r in chosen(rows)] == [0.3]
    assert [r["dual_lr"] for r in chosen(rows, tolerance=0.001)] == [0.2]
    assert [r["dual_lr"] for r in chosen(rows, tolerance=0.5)] == [0.1]


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
    faces = [entry | {"dataset": "utkface"} for entry in faces]
    old = [{name: value for name, value in entry.items() if name != "dataset"} for entry in ours]
    for own in (ours, old):
        picked = chosen([*own, *faces])
        assert [(beyond_cells.dataset_of(r), r["dual_lr"]) for r in picked] == [
            ("cifar100", 0.1),
            ("utkface", 0.2),
        ]
    assert {r["dual_lr"] for r in chosen([*ours[1:], *old[:1]])} == {0.1}  # named or not, one data set


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
    d, s, line = torch.tensor([dense]).double(), torch.tensor([sparse]).double(), torch.tensor(ids)
    number = torch.tensor([[*counts["samples"], 0]]).double()
    errors = constraint.standard_errors(s, d, line, number, number / len(ids))[:, :-1]
    assert beyond_rows.standard_error(counts) == pytest.approx(float(errors.mean()), abs=1e-12)
    gaps = torch.stack([(d - s)[0, line == g].mean() for g in range(len(groups))])
    told = beyond_rows.measures(counts)
    assert told["worst_gap"] == pytest.approx(float(gaps.max()), abs=1e-12)
    assert told["max_excess_gap"] == pytest.approx(float(gaps.max() - (d - s).mean()), abs=1e-12)
    assert told["pairwise_disparity"] == pytest.approx(float(gaps.max() - gaps.min()), abs=1e-12)


def test_the_standard_error_of_a_single_sample_is_not_known() -> None:
    assert beyond_rows.standard_error({"samples": [1, 9], "broke": [0, 1], "fixed": [0, 1]}) is None


@given(st.lists(st.booleans(), min_size=1, max_size=100))
def test_bits_come_back(right: list[bool]) -> None:
    assert beyond_rows.unpacked(beyond_rows.packed(torch.tensor(right)), len(right)).tolist() == right


def test_ten_thousand_answers_are_less_than_two_kilobytes() -> None:
    assert len(beyond_rows.packed(torch.rand(10_000) < 0.5)) < 1700


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


def test_every_method_leaves_a_row_whose_numbers_agree(finished: tuple[Path, Start]) -> None:
    folder, _ = finished
    rows = rows_in(folder)
    assert len(rows) == len(cells_of(GRID, names=list(KINDS), seeds=[0, 1], augment=False))
    for entry in rows:
        assert entry["changes"]["audit"]["samples"] == [40, 40]
        assert entry["changes"]["heldout"]["samples"] == [20, 20]
        assert (entry["constraint"] is None) == (entry["multipliers"] is None)
        if entry["constraint"] and entry["method"].startswith("CEAG"):
            for split in beyond_rows.SPLITS:
                value = entry["constraint"]["value"][split]
                assert value == pytest.approx(entry[split]["max_excess_gap"], abs=1e-6)
    plain = next(r for r in rows if (r["method"], r["seed"]) == ("NFT", 0))
    biased = next(r for r in rows if (r["method"], r["seed"]) == (beyond_cells.BIAS, 0))
    assert plain["multipliers"] is None
    assert biased["heldout"]["max_excess_gap"] <= plain["heldout"]["max_excess_gap"] + 1e-9
    assert biased["seconds"] >= biased["fit_seconds"] > 0


def test_the_answers_are_those_that_the_rows_were_counted_from(finished: tuple[Path, Start]) -> None:
    folder, start = finished
    document = beyond_results.read_correct(folder / "beyond_correct.json")
    answers, groups = beyond_results.answers_in(document), beyond_results.groups_in(document, "superclass")
    assert groups.tolist() == start.data.evaluate["audit"].groups.tolist()
    for entry in rows_in(folder):
        dense, sparse = answers[beyond_cells.key_of(entry)]
        counts = entry["changes"]["audit"]
        assert np.bincount(groups[dense & ~sparse], minlength=2).tolist() == counts["broke"]
        assert np.bincount(groups[~dense & sparse], minlength=2).tolist() == counts["fixed"]
        assert sparse.mean() == pytest.approx(entry["audit"]["accuracy"])


def test_finished_cells_are_not_trained_again(finished: tuple[Path, Start]) -> None:
    folder, start = finished
    before = (folder / "beyond.json").read_text(encoding="utf-8")
    said: list[str] = []
    beyond.fill(start, some_cells(0, 1), FEW, place(folder, say=said.append))
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
    beyond.fill(begin(folder), some_cells(0, 1), FEW, place(folder, hooks=(Dies(epochs),)))


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
    assert len(rows_in(killed)) == 4  # the first fleet: NFT and its biases
    for folder in (whole, killed):
        beyond.fill(begin(folder), some_cells(0, 1), FEW, place(folder))
    assert numbers(rows_in(killed)) == numbers(rows_in(whole))
    bits = [json.loads((f / "beyond_correct.json").read_text(encoding="utf-8")) for f in (whole, killed)]
    assert bits[0] == bits[1]


def test_a_bias_asked_for_later_leaves_the_row_of_nft_as_it_was(tmp_path: Path) -> None:
    start, (plain, bias) = begin(tmp_path), some_cells(0)[:2]
    beyond.fill(start, [plain], FEW, place(tmp_path))
    (before,) = rows_in(tmp_path)
    beyond.fill(start, [bias], FEW, place(tmp_path))
    assert [entry["method"] for entry in rows_in(tmp_path)] == ["NFT", beyond_cells.BIAS]
    assert rows_in(tmp_path)[0] == before


# --- the files ---


def test_rows_that_contradict_their_counts_are_refused(finished: tuple[Path, Start], tmp_path: Path) -> None:
    document = beyond_results.read(finished[0] / "beyond.json")
    document["runs"][0]["audit"]["max_excess_gap"] += 0.1
    document["runs"][1]["method"] = "MAGIC"
    path = tmp_path / "beyond.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InputProblems, match="the groups give") as told:
        beyond_results.read(path)
    assert "method is MAGIC" in str(told.value)


def test_other_audit_samples_are_refused(finished: tuple[Path, Start], tmp_path: Path) -> None:
    folder, start = finished
    path = tmp_path / "beyond_correct.json"
    path.write_bytes((folder / "beyond_correct.json").read_bytes())
    splits = dict(start.data.evaluate)
    splits["audit"] = beyond_splits.take(splits["audit"], np.arange(80)[::-1].copy())
    other = replace(start, data=replace(start.data, evaluate=splits))
    with pytest.raises(InputProblems, match="other audit samples"):
        beyond_results.add_correct(path, other, {}, dataset="cifar100", groups="superclass")


def old_form(folder: Path, to: Path) -> None:
    """Both files as they were before there was a second data set."""
    results = json.loads((folder / "beyond.json").read_text(encoding="utf-8"))
    correct = json.loads((folder / "beyond_correct.json").read_text(encoding="utf-8"))
    for entry in (*results["runs"], *correct["runs"]):
        del entry["dataset"]
    correct |= correct.pop("datasets")["cifar100"]
    assert set(correct) == {"runs", "samples", "groups", "dense"}
    for name, document in (("beyond.json", results), ("beyond_correct.json", correct)):
        (to / name).write_text(json.dumps(document), encoding="utf-8")


def test_files_that_name_no_data_set_are_those_of_cifar100(
    finished: tuple[Path, Start], tmp_path: Path
) -> None:
    folder, start = finished
    old_form(folder, tmp_path)
    new, old = (
        (beyond_results.read(f / "beyond.json"), beyond_results.read_correct(f / "beyond_correct.json"))
        for f in (folder, tmp_path)
    )
    assert beyond_table.lines(*old) == beyond_table.lines(*new)
    assert beyond_results.groups_in(old[1], "superclass", "cifar100").tolist() == [
        *start.data.evaluate["audit"].groups.tolist()
    ]
    before, again = (beyond_results.answers_in(correct) for _, correct in (new, old))
    assert set(before) == set(again)
    assert all(np.array_equal(before[key], again[key]) for key in before)
    assert beyond_results.of_dataset(old[0], "cifar100") == old[0]
    assert beyond_results.of_dataset(old[0], "utkface")["runs"] == []


def test_new_runs_go_into_files_of_before(finished: tuple[Path, Start], tmp_path: Path) -> None:
    folder, start = finished
    old_form(folder, tmp_path)
    said: list[str] = []
    beyond.fill(start, some_cells(0, 1), FEW, place(tmp_path, say=said.append))
    assert said == ["6 of 6 runs are finished."]  # none is trained again
    before = beyond_results.answers_in(beyond_results.read_correct(tmp_path / "beyond_correct.json"))
    beyond.fill(start, some_cells(7)[:1], FEW, place(tmp_path))
    correct = beyond_results.read_correct(tmp_path / "beyond_correct.json")
    assert set(correct) == {"runs", "datasets"}
    after = beyond_results.answers_in(correct)
    assert len(after) == len(before) + 1
    assert all(np.array_equal(after[key], own) for key, own in before.items())
    assert sum("dataset" in entry for entry in rows_in(tmp_path)) == 1


def test_answers_of_a_data_set_that_is_not_described_are_refused(
    finished: tuple[Path, Start], tmp_path: Path
) -> None:
    path = tmp_path / "beyond_correct.json"
    document = beyond_results.read_correct(finished[0] / "beyond_correct.json")
    document["runs"][0]["dataset"] = "utkface"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InputProblems, match="1 runs are of utkface, which is not described"):
        beyond_results.read_correct(path)
    document["datasets"]["utkface"] = {"samples": 80}
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InputProblems, match="must be described by samples, groups and dense"):
        beyond_results.read_correct(path)


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
    other = beyond_splits.three_splits(images(40, 0), images(20, 1), per_class=11)
    with pytest.raises(InputProblems, match="trained on other images than these with 10 a class held out"):
        check(images=beyond_splits.identity(other))
    dense_model.write_weights(weights, small_cnn((4, 6, 6), num_classes=4, in_channels=3))
    with pytest.raises(InputProblems, match="another dense model"):
        check(images=beyond_splits.identity(three()))


# --- what people read ---


def test_the_tables_have_every_method_once_and_are_paired_with_nft(finished: tuple[Path, Start]) -> None:
    folder, _ = finished
    results = beyond_results.read(folder / "beyond.json")
    correct = beyond_results.read_correct(folder / "beyond_correct.json")
    told = beyond_table.lines(results, correct)
    text = "\n".join(told)
    begins = "CIFAR-100, superclass groups, 80.0% sparse, without augmentation, 10 a class held out"
    assert told[0].startswith(begins)
    for name in KINDS:
        steps = {"none": 0, "usual": 2, "el": 1}[KINDS[name].steps]  # the last table has every dual step
        assert sum(line.startswith(f"{name}  ") for line in told) == (2 if name == "NFT" else 3) + steps, name
    assert "floor max ψ" in text
    assert " better, " in text
    widths = {len(line) for line in told[2 : 2 + len(KINDS) + 1]}
    assert len(widths) == 1


def test_tables_without_answers_or_runs_are_told_too(finished: tuple[Path, Start]) -> None:
    results = beyond_results.read(finished[0] / "beyond.json")
    assert "against NFT" in "\n".join(beyond_table.lines(results, {"runs": []}))
    assert beyond_table.lines({"runs": []}, {"runs": []}) == ["No run is finished yet."]


def test_a_run_compared_with_itself_does_not_differ(finished: tuple[Path, Start]) -> None:
    document = beyond_results.read_correct(finished[0] / "beyond_correct.json")
    one = next(iter(beyond_results.answers_in(document).values()))
    found = beyond_summary.compared(one, one, beyond_results.groups_in(document, "superclass"), 0.01)
    assert (found.accuracy.estimate, found.max_excess_gap.estimate) == (0, 0)
    assert beyond_summary.clear([found.accuracy, found.max_excess_gap], 1) == (0, 0)


def test_nft_is_found_whatever_number_of_held_out_samples_it_was_measured_with() -> None:
    base = row(0.1, 0, gap=0, accuracy=0.5)
    plain = base | {"method": "NFT", "dual_lr": None, "tolerance": None}
    few = plain | {"heldout_used": 5}
    answers = {beyond_cells.key_of(r): None for r in (plain, few)}
    for wanted, used in ((few, 5), (plain, None), (plain, 9)):
        assert beyond_summary.partner(base | {"heldout_used": used}, [plain, few], answers) is wanted
    assert beyond_summary.partner(base | {"seed": 1}, [plain, few], answers) is None


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = ["--results", str(tmp_path / "beyond.json")]
    assert beyond.main(["list", *results, "--seeds", "0-1"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in STUDY)
    assert "all pairs" in listed
    assert beyond.main(["show", *results]) == 0
    assert capsys.readouterr().out == "No run is finished yet.\n"
    absent = str(tmp_path / "none.safetensors")
    assert beyond.main(["study", *results, "--weights", absent, "--work", str(tmp_path / "work")]) == 2
    assert "train them first, with `dense`" in capsys.readouterr().err


def test_from_the_dense_model_to_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shrink(monkeypatch)
    paths = {"results": "beyond.json", "weights": "dense.safetensors", "work": "work"}
    places = [word for name, path in paths.items() for word in (f"--{name}", str(tmp_path / path))]
    places += ["--heldout", "10", "--device", "cpu"]
    assert beyond.main(["dense", *places, "--epochs", "2", "--batch", "32", "--lr", "0.05"]) == 0
    assert beyond.main(["dense", *places]) == 0
    told = capsys.readouterr().out
    assert "Held out: 20 of each of 2 groups." in told
    assert "% heldout" in told
    assert "The dense model is trained" in told
    small = ["--seeds", "0", "--epochs", "3", "--buffer", "8", "--refresh", "2", "--dual-lr", "0.1"]
    names = ["--methods", "NFT", "CEAG held-out (passes)"]
    assert beyond.main(["study", *places, *small, *names]) == 0
    assert beyond.main(["study", *places, *small, "--augment", "no", "--heldout-used", "6"]) == 0
    assert beyond.main(["formulations", *places, *small, "--methods", "CEAG", "equalized"]) == 0
    runs = rows_in(tmp_path)
    seen = {(run["method"], run["augment"], run["heldout_used"]) for run in runs}
    study = [(name, augment, None) for name in names[1:] for augment in (False, True)]
    few = [(name, False, 6) for name, kind in STUDY.items() if kind.sees_heldout]
    assert seen == {*study, *few, ("CEAG", False, None), ("equalized", False, None)}
    assert {sum(run["changes"]["heldout"]["samples"]) for run in runs if run["heldout_used"]} == {12}
    capsys.readouterr()
    assert beyond.main(["show", *places]) == 0
    shown = capsys.readouterr().out
    assert shown.count("superclass groups, 95.0% sparse") == 3
    assert "6 a group looked at" in shown
    assert beyond.main(["list", *places, *small]) == 0
    assert "dense model, 10 a class held out" in capsys.readouterr().out


def test_flags_become_the_grid_and_the_recipe() -> None:
    words = ["study", "--heldout-used", "20", "--dual-lr", "0.1", "--epochs", "20", "--groups", "class"]
    flags = beyond.parser().parse_args(words)
    assert beyond.study_methods(flags) == [name for name, kind in STUDY.items() if kind.sees_heldout]
    grid = beyond.grid_of(flags)
    assert (grid.heldout_used, grid.steps, grid.groups, grid.sparsity) == (20, [0.1], "class", 0.95)
    recipe = beyond.recipe_of(flags, augment=True)
    assert (recipe.epochs, recipe.pruning_epochs, recipe.augment) == (20, 5, Both(Crop(4), Flip()))
    assert beyond.recipe_of(flags, augment=False).augment is None
    assert recipe.only_at_end == ("train", "audit")  # the audit split is looked at once
    assert beyond.weights_of(flags).name == "cifar100_heldout50.safetensors"
    assert beyond.parser().parse_args(["formulations"]).augment == ["no"]
    assert beyond.study_methods(beyond.parser().parse_args(["study"])) == list(STUDY)
