"""The study on unseen data, planned: what one training serves, tuning on some seeds, parts, what is left."""

import multiprocessing
import os
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from evenprune import class_bias, limits
from evenprune.recipe import Run
from evenprune.tally import InputProblems
from paper import (
    beyond,
    beyond_cells,
    beyond_flags,
    beyond_plan,
    beyond_results,
    beyond_rows,
    beyond_train,
    runner,
)
from paper.beyond_cells import SPARSITY, Cell, cells_of, riders, trained_as, tuned, tuning
from paper.beyond_methods import BIAS, BY_SIZE, FORMULATIONS, KINDS, OF_ONE_SIZE, ONCE, PASSES, STUDY, grouped
from paper.beyond_plan import CROSSED, OTHERS, PARTS, crossed_part
from paper.beyond_summary import blocks
from tests.test_paper_beyond import (
    FEW,
    GRID,
    Dies,
    answers_of,
    begin,
    counts_of,
    numbers,
    place,
    places_in,
    rows_in,
    shrink,
)

# --- what one training serves ---


def test_methods_that_do_not_look_at_groups_are_trained_once_for_all_of_them() -> None:
    free = {"NFT", "NFT + KD", BIAS, "Performance-weighted loss"}
    assert {name for name in KINDS if not grouped(name)} == free
    for groups in ("superclass", "class"):
        cells = cells_of(replace(GRID, groups=groups), names=list(STUDY), seeds=[0], augment=False)
        own = {cell.method: trained_as(cell).groups for cell in cells}
        assert {name for name, where in own.items() if where != groups} == (
            set() if groups == "superclass" else free & set(STUDY)
        )
    (plain,) = cells_of(GRID, names=["NFT"], seeds=[0], augment=False)
    assert {(c.method, c.groups, c.heldout_used) for c in riders(plain, GRID)} == {
        *(("NFT", groups, None) for groups in ("superclass", "class")),
        *((BIAS, "superclass", used) for used in (None, 6)),
        *((BIAS, "class", used) for used in (None, 4)),
    }
    assert {trained_as(cell) for cell in riders(plain, GRID)} == {plain}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """NFT and NFT + KD, asked for with one grouping; and what was said."""
    folder, said = tmp_path_factory.mktemp("served"), list[str]()
    cells = cells_of(GRID, names=["NFT", "NFT + KD"], seeds=[0, 1], augment=False)
    beyond_train.fill(begin(folder), cells, place(folder, say=said.append))
    return folder, said


def row_like(folder: Path, **values: Any) -> dict[str, Any]:
    (found,) = [r for r in rows_in(folder) if values.items() <= r.items()]
    return found


def test_rows_of_both_groupings_and_all_sizes_come_from_one_training(
    served: tuple[Path, list[str]],
) -> None:
    folder, said = served
    assert [line.split(",")[0] for line in said[1:]] == ["Fleet 1 of 2: 2 runs", "Fleet 2 of 2: 2 runs"]
    assert len(rows_in(folder)) == 2 * (2 + 2 + 4)  # seeds × (NFT, NFT + KD, biases)
    again: list[str] = []
    every = [*STUDY][:3]
    cells = [
        cell
        for groups, used in (("superclass", None), ("superclass", 6), ("class", None), ("class", 4))
        for cell in cells_of(
            replace(GRID, groups=groups, heldout_used=used), names=every, seeds=[0, 1], augment=False
        )
    ]
    beyond_train.fill(begin(folder), cells, place(folder, say=again.append))
    assert len(again) == 1  # nothing is trained
    assert again[0].endswith("runs are finished.")


@pytest.mark.parametrize("method", ["NFT", "NFT + KD"])
def test_a_row_of_classes_is_that_of_a_training_with_classes(
    served: tuple[Path, list[str]], tmp_path: Path, method: str
) -> None:
    """The slow way: the same run trained again, with classes as groups."""
    bench = begin(tmp_path)
    (cell,) = cells_of(replace(GRID, groups="class"), names=[method], seeds=[1], augment=False)
    view = bench.views.of(cell)
    run = Run(method=beyond_cells.method_of(cell), sparsity=cell.sparsity, seed=1)
    trained = runner.fit_fleet(view.start, [run], FEW, place(tmp_path), kind="slow")
    (fitted,) = trained.fitted
    slow = beyond_rows.row_of(view.start, cell, fitted.predictions, run.method, {})
    told = row_like(served[0], method=method, groups="class", seed=1)
    assert told["shared"]
    for name, value in slow.items():
        assert told[name] == (pytest.approx(value) if isinstance(value, float) else value), name
    assert len(told["changes"]["audit"]["samples"]) == 4


@pytest.mark.parametrize(("groups", "used"), [("superclass", 6), ("class", 4), ("class", None)])
def test_a_bias_is_fitted_to_so_many_held_out_samples(
    served: tuple[Path, list[str]], tmp_path: Path, groups: str, used: int | None
) -> None:
    bench = begin(tmp_path)
    (plain,) = cells_of(GRID, names=["NFT"], seeds=[0], augment=False)
    trained = runner.fit_fleet(
        bench.views.of(plain).start,
        [Run(method=beyond_cells.method_of(plain), sparsity=plain.sparsity, seed=0)],
        FEW,
        place(tmp_path),
        kind="slow",
    )
    view = bench.views.of(replace(plain, groups=groups, heldout_used=used))
    held, audit = (view.start.data.evaluate[name] for name in ("heldout", "audit"))
    model = trained.fitted[0].model
    logits = [class_bias.logits_of(model, split) for split in (held, audit)]
    units = class_bias.units_of(held.labels, held.groups, classes=4) if groups == "superclass" else None
    right = view.start.answers["heldout"].correct
    found = class_bias.fit(logits[0], held.labels, held.groups, right, tolerance=0.01, units=units)
    told = row_like(served[0], method=BIAS, groups=groups, heldout_used=used, seed=0)
    assert told["changes"]["heldout"]["samples"] == torch.bincount(held.groups).tolist()
    assert set(told["changes"]["heldout"]["samples"]) == {used or 10}
    after = (found.predictions(logits[1]) == audit.labels).double().mean()
    assert told["audit"]["accuracy"] == pytest.approx(float(after))
    assert told["followed"]["samples"] == told["changes"]["heldout"]["samples"]


def test_seconds_of_a_training_count_once(served: tuple[Path, list[str]]) -> None:
    rows = rows_in(served[0])
    assert sum(not r["shared"] for r in rows) == 4
    assert {r["groups"] for r in rows if not r["shared"]} == {"superclass"}
    (of_rows,) = [fact for fact in beyond.beyond_page.facts(rows) if "rows" in fact]
    assert of_rows == "16 rows of 4 trainings"


# --- tuning ---


def stepped(*seeds: int) -> list[Cell]:
    return cells_of(GRID, names=["NFT", "CEAG", "EL + RB"], seeds=seeds, augment=False)


def test_every_step_with_some_seeds_and_one_step_with_the_others() -> None:
    cells = stepped(0, 1, 2)
    first = tuning(cells, [0])
    assert {(c.method, c.dual_lr, c.seed) for c in first} == {
        *(("NFT", None, seed) for seed in (0, 1, 2)),  # nothing to choose
        *(("EL + RB", 0.01, seed) for seed in (0, 1, 2)),
        *(("CEAG", step, 0) for step in (0.1, 1.0)),
    }
    for best in (0.1, 1.0):
        rows = [asdict(cell) | told(gap=0.0 if cell.dual_lr == best else 0.3) for cell in first]
        rest = tuned(rows, cells, [0])
        assert {(c.method, c.dual_lr, c.seed) for c in rest} == {("CEAG", best, seed) for seed in (1, 2)}
        noise = [r | told(gap=0.0) for r in map(asdict, cells) if r["dual_lr"] != best and r["seed"]]
        assert tuned([*rows, *noise], cells, [0]) == rest  # seeds that are not tuned on do not count
    assert len(tuned([], cells, [0])) == 2  # not chosen yet: one step stands for it
    assert tuning(cells, [0, 1, 2]) == cells
    assert tuned([], cells, [0, 1, 2]) == []


def told(*, gap: float) -> dict[str, Any]:
    return {
        "choice": {"max_excess_gap": gap, "accuracy": 0.5},
        "changes": {"choice": counts_of(gap, samples=10**6)},
    }


def best_by_hand(steps: dict[float, list[dict[str, Any]]]) -> float:
    """The rule, with the limits of the audit: by Bonferroni, for all groups together."""

    def merit(rows: list[dict[str, Any]]) -> tuple[float, float]:
        gap, accuracy = (np.mean([row["choice"][m] for row in rows]) for m in ("max_excess_gap", "accuracy"))
        lower = []
        for row in rows:
            n, broke, fixed = (
                np.array(row["changes"]["choice"][k], float) for k in ("samples", "broke", "fixed")
            )
            counts = limits.Counts(n, broke, fixed, n)
            z = limits.quantile(1 - 0.05 / n.size)
            lower.append(limits.excess_limits(counts, counts.outside_of(counts.total()), (z, z))[0][0].max())
        if np.mean(lower) > GRID.tolerance:
            return 0.0, -float(gap)
        return (2.0 if gap <= GRID.tolerance else 1.0), float(accuracy)

    return max(sorted(steps), key=lambda step: merit(steps[step]))


def test_tuning_chooses_on_the_choice_split_and_the_tables_show_that_choice(tmp_path: Path) -> None:
    said: list[str] = []
    cells = stepped(0, 1, 2)
    beyond_train.run(begin(tmp_path), cells, place(tmp_path, fleet=45, say=said.append), tune=[0, 1])
    rows = [r for r in rows_in(tmp_path) if r["method"] == "CEAG"]
    by_step = {step: [r for r in rows if r["dual_lr"] == step] for step in (0.1, 1.0)}
    assert sorted(map(len, by_step.values())) == [2, 3]
    best = max(by_step, key=lambda step: len(by_step[step]))
    assert best == best_by_hand({step: own[:2] for step, own in by_step.items()})
    assert f"Dual steps, chosen on the choice split with seeds 0, 1: CEAG: {best:g}." in said
    found = blocks({"runs": rows_in(tmp_path)}, answers_of(tmp_path), tolerance=0.01)
    entry = next(e for block in found for e in block.entries if e.method == "CEAG")
    assert (entry.step, len(entry.rows), entry.steps, entry.tuned_on) == (best, 3, 2, (0, 1))
    listed = beyond_cells.planned(rows_in(tmp_path), cells, [0, 1])
    assert beyond_cells.missing(rows_in(tmp_path), listed) == []  # `list` asks for no more
    assert len(listed) == len(cells) - 1
    before = rows_in(tmp_path)
    again: list[str] = []
    beyond_train.run(begin(tmp_path), cells, place(tmp_path, say=again.append), tune=[0, 1])
    assert sum("Fleet" in line for line in again) == 0
    assert rows_in(tmp_path) == before


def run_and_die(folder: Path, epochs: int | None) -> None:
    hooks = () if epochs is None else (Dies(epochs),)
    cells = cells_of(GRID, names=["CEAG"], seeds=[0, 1, 2], augment=False)
    beyond_train.run(begin(folder), cells, place(folder, hooks=hooks), tune=[0])


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL on Windows")
@pytest.mark.parametrize("epochs", [2, 5])  # while tuning; while training with the chosen step
def test_killed_tuning_goes_on_and_ends_as_if_it_had_not_been(tmp_path: Path, epochs: int) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    process = multiprocessing.get_context("spawn").Process(target=run_and_die, args=(killed, epochs))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert len(rows_in(killed)) == (0 if epochs == 2 else 2)
    for folder in (whole, killed):
        run_and_die(folder, None)
    assert numbers(rows_in(killed)) == numbers(rows_in(whole))
    assert answers_of(killed) == answers_of(whole)


def test_seeds_to_tune_on_must_be_among_the_seeds() -> None:
    parse = beyond.parser().parse_args
    assert beyond_flags.tune_seeds(parse(["study"])) == [0, 1]
    assert beyond_flags.tune_seeds(parse(["study", "--seeds", "0"])) == [0]
    assert beyond_flags.tune_seeds(parse(["study", "--tune-seeds", "2,4"])) == [2, 4]
    with pytest.raises(InputProblems, match="chosen with seeds 0-1, and --seeds is 3, 4: give those too"):
        beyond_flags.tune_seeds(parse(["study", "--seeds", "3-4"]))


# --- parts ---


def flags_of_part(number: int, *words: str) -> Any:
    told = ["study", "--part", str(number), *words]
    flags = beyond.parser(beyond_flags.dataset_in(told)).parse_args(told)
    return beyond_flags.with_part(flags, PARTS[number - 1])


def places_of(settings: Sequence[Sequence[Cell]]) -> set[tuple[Any, ...]]:
    """Of those that have not the sparsity that the study is about, that too."""
    cells = [cell for own in settings for cell in own]
    rare = [() if c.sparsity == SPARSITY[c.dataset] else (c.sparsity,) for c in cells]
    places = [(c.dataset, c.groups, c.augment, c.heldout_used) for c in cells]
    return {(*place, *more) for place, more in zip(places, rare, strict=True)}


def test_the_parts_are_in_the_order_of_the_study() -> None:
    told = [
        (part.title, places_of(beyond_flags.settings_of(flags_of_part(n)))) for n, part in enumerate(PARTS, 1)
    ]
    assert told == [
        ("superclasses", {("cifar100", "superclass", False, None)}),
        ("UTKFace", {("utkface", "race", False, None)}),
        ("formulations", {("cifar100", "superclass", False, None)}),
        ("classes", {("cifar100", "class", False, None)}),
        (
            "numbers of held-out samples",
            {("cifar100", "superclass", False, used) for used in (25, 100)},
        ),
        (
            "numbers of held-out samples, UTKFace",
            {("utkface", "race", False, used) for used in (0.1, 0.3, None)},
        ),
        ("superclasses, augmented", {("cifar100", "superclass", True, None)}),
        ("UTKFace, augmented", {("utkface", "race", True, None)}),
        ("classes, augmented", {("cifar100", "class", True, None)}),
        ("other rivals, lower limit", {("cifar100", "superclass", False, None)}),
        ("cross-fitting", {("cifar100", "superclass", False, None)}),
        ("98 % sparse", {("cifar100", "superclass", False, None, 0.98)}),
        ("small faces, by age", {("small_faces", "age", False, None)}),
        (
            "numbers of held-out samples, small faces",
            {("small_faces", "age", False, used) for used in (0.1, 0.3, None)},
        ),
        ("other rivals, cross-fitting, small faces", {("small_faces", "age", False, None)}),
        ("other rivals, UTKFace", {("utkface", "race", False, None)}),
    ]


def test_the_parts_have_every_method_of_the_study_and_all_that_is_expected() -> None:
    numbers_ = range(1, len(PARTS) + 1)
    settings = [own for n in numbers_ for own in beyond_flags.settings_of(flags_of_part(n))]
    every = [cell for own in settings for cell in own]
    assert {cell.method for cell in every} == {*STUDY, *ONCE, *FORMULATIONS}
    here = {c.method for c in every if (c.groups, c.augment, c.heldout_used) == ("superclass", False, None)}
    assert here == {*STUDY, *OF_ONE_SIZE, *FORMULATIONS}
    for groups, augment in (("superclass", True), ("class", False), ("class", True), ("race", False)):
        own = {c.method for c in every if (c.groups, c.augment, c.heldout_used) == (groups, augment, None)}
        others = set(OTHERS) if groups == "race" else set()
        assert own - {*BY_SIZE} == set(STUDY) - {*BY_SIZE} | others
        assert set(STUDY) <= own


def test_models_of_folds_are_trained_before_the_part_that_needs_them() -> None:
    crossed = {name: crossed_part(name) for name in ("cifar100", "utkface", "small_faces")}
    assert crossed == {"cifar100": 11, "utkface": None, "small_faces": 15}
    for name, number in crossed.items():
        if number is not None:
            assert beyond_flags.needs_folds(beyond_flags.settings_of(flags_of_part(number))), name


def test_what_contradicts_a_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert beyond.main(["study", "--part", "1", "--methods", "NFT"]) == 2
    assert "leave --methods out" in capsys.readouterr().err
    assert beyond.main(["study", "--part", "2", "--dataset", "cifar100"]) == 2
    assert "is of utkface; leave --dataset cifar100 out" in capsys.readouterr().err
    flags = flags_of_part(2, "--epochs", "30")
    assert (flags.dataset, flags.epochs, flags.sparsity, flags.heldout) == ("utkface", 30, 0.925, 0.2)


# --- the plan ---


def plan(tmp_path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, list[str]]:
    assert beyond.main(["plan", "--results", str(tmp_path / "beyond.json"), *words]) == 0
    lines = [re.split(r"\s{2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
    return {line[0]: line[1:] for line in lines if len(line) > 1}


def test_the_smallest_study_of_a_setting_is_60_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--seconds-per-run", "27", "--seconds-per-fleet", "10"]
    told = plan(tmp_path, capsys, *words)
    assert told["part"] == ["runs, at least", "epochs", "in fleets of", "minutes"]
    # NFT and KD 5 each, FairGRAPE 5, and 3 steps × 2 seeds + 3 of EL + RB and each CEAG
    minutes = (60 * 27 + 3 * 10) / 60
    assert told["1 superclasses"] == ["60", "3,600", "40 5 15", f"{minutes:.1f}"]
    assert told["2 UTKFace"][0] == "50"  # tuned on one seed: 3 + 4 runs
    assert told["4 classes"][0] == "40"  # so is this; NFT and KD are there, and what a class bias needs
    assert told["11 cross-fitting"][:2] == ["7", "2,100"]  # each with four companions
    half = plan(tmp_path, capsys, "--epochs", "30", "--seconds-per-run", "27")
    assert half["1 superclasses"] == ["60", "1,800", "40 5 15", f"{60 * 27 / 120:.1f}"]
    apart = plan(tmp_path, capsys, "--no-mixed", "--dataset", "cifar100")
    assert apart["1 superclasses"] == ["60", "3,600", "23 5 6 6 5 9 3 3", "–"]
    assert not any("UTKFace" in name for name in apart)


def test_the_plan_names_the_dense_models_that_are_to_be_trained_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert beyond.main(["plan", "--results", str(tmp_path / "beyond.json")]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[-6:-1] == [
        "First: dense --dataset cifar100",
        "Before part 11: dense --folds 4",
        "First: dense --dataset utkface",
        "First: dense --dataset small_faces",
        "Before part 15: dense --folds 4 --dataset small_faces",
    ]


def test_the_plan_tells_of_runs_of_other_lengths() -> None:
    rows = [{"epochs": 60}, *[{"epochs": 30}] * 3, {"epochs": 20}]
    (said,) = beyond_plan.other_lengths(rows, 60)
    assert said == (
        "Not counted here: runs of other lengths (3 of 30 epochs, 1 of 20 epochs). --epochs N counts those "
        "of N."
    )
    assert list(beyond_plan.other_lengths(rows[:1], 60)) == []


def test_runs_that_are_finished_are_not_planned_again() -> None:
    flags = flags_of_part(1)
    settings, grid = beyond_flags.settings_of(flags), beyond_flags.grid_of(flags)
    (cells,) = settings

    def needed(rows: Sequence[dict[str, Any]]) -> int:
        need, _ = beyond_plan.need(
            rows, settings, grid, tune=[0, 1], fleets=lambda c: beyond_train.fleets(c, 45)
        )
        return need.runs

    first = [asdict(cell) | told(gap=0.1) for cell in tuning(cells, [0, 1])]
    assert needed([]) == 60
    assert needed(first) == 15
    last = [asdict(cell) | told(gap=0.1) for cell in tuned(first, cells, [0, 1])]
    assert needed([*first, *last]) == 0
    assert needed([*first, *last[1:]]) == 1
    assert needed([r | {"epochs": 30} for r in [*first, *last]]) == 60  # another study


def test_the_plan_is_what_is_then_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shrink(monkeypatch)
    places = places_in(tmp_path)
    small = ["--seeds", "0-2", "--epochs", "3", "--buffer", "8", "--refresh", "2", "--heldout", "10"]
    small += ["--dual-lr", "0.1", "--el-dual-lr", "0.01", "0.1", "--fleet", "6"]  # EL + RB is tuned
    assert beyond.main(["dense", *places, "--heldout", "10", "--epochs", "2", "--batch", "32"]) == 0
    for number in (1, 4, 5, 10):
        capsys.readouterr()
        assert beyond.main(["plan", *places[:2], *small, "--dataset", "cifar100"]) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if re.match(rf"\s*{number} ", line)]
        _, runs, _, sizes, _ = re.split(r"\s{2,}", lines[0].strip())
        assert beyond.main(["study", "--part", str(number), *places, *small, "--device", "cpu"]) == 0
        trained = re.findall(r"^Fleet \d+ of \d+: (\d+) runs", capsys.readouterr().out, re.M)
        assert trained == sizes.split()
        assert sum(map(int, trained)) == int(runs) > 0
    for name in ("Performance-weighted loss", "GroupDRO", "FairGRAPE"):
        assert row_like(tmp_path, method=name, groups="superclass", seed=2)["epochs"] == 3
    assert row_like(tmp_path, method="FairGRAPE", groups="class", seed=0)["importance_batches"] == 1


def test_rows_of_other_epochs_stand_in_other_tables(served: tuple[Path, list[str]]) -> None:
    rows = [r for r in rows_in(served[0]) if r["heldout_used"] is None]
    short = [r | {"epochs": 2} for r in rows]
    found = blocks({"runs": [*rows, *short]}, {"runs": []}, tolerance=0.01)
    assert sorted((b.setting.groups, b.setting.epochs) for b in found) == [
        (groups, epochs) for groups in ("class", "superclass") for epochs in (2, 3)
    ]
    for block in found:
        assert {r["epochs"] for e in block.entries for r in e.rows} == {block.setting.epochs}
        assert {len(e.rows) for e in block.entries} == {2}


def test_without_numba_fairgrape_is_refused_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    cells = cells_of(GRID, names=["NFT", "FairGRAPE"], seeds=[0], augment=False)
    with pytest.raises(InputProblems, match=r'FairGRAPE needs numba: .* "FairGRAPE \(fast\)" does without'):
        beyond_train.fill(begin(tmp_path), cells, place(tmp_path))
    assert not (tmp_path / "beyond.json").exists()


# --- seconds ---


def test_every_method_is_timed_in_a_fleet_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shrink(monkeypatch)
    places = [*places_in(tmp_path), "--heldout", "10", "--commit", "abc"]
    settings = ["--fleet", "2", "--buffer", "8", "--refresh", "2"]
    assert beyond.main(["dense", *places, "--epochs", "2", "--batch", "32"]) == 0
    assert beyond.main(["timing", *places, "--epochs", "4", *settings]) == 2
    assert "--epochs is 4: FairGRAPE has its cost where weights are pruned" in capsys.readouterr().err
    assert beyond.main(["timing", *places, *settings, "--methods", "CEAG cross-fitted (passes)"]) == 2
    assert "CEAG cross-fitted (passes) trains companions as well" in capsys.readouterr().err
    few = ["--epochs", "4", *settings, "--methods", "NFT", BIAS, "CEAG"]  # a bias comes with NFT
    assert beyond.main(["timing", *places, *few]) == 0
    small = ["--epochs", "8", *settings]
    assert beyond.main(["timing", *places, *small, "--without", "CEAG"]) == 0
    held = beyond_results.read(tmp_path / "beyond.json")["timings"]
    assert [t["method"] for t in held if t["epochs"] == 4] == ["NFT", "CEAG"]
    assert "CEAG" not in {t["method"] for t in held if t["epochs"] == 8}
    assert beyond.main(["timing", *places, *small]) == 0
    held = beyond_results.read(tmp_path / "beyond.json")
    timed = {timing["method"]: timing for timing in held["timings"] if timing["epochs"] == 8}
    names = {*STUDY, *ONCE} - {
        BIAS,
        PASSES,
        *CROSSED,
    }  # with others' trainings, or companions
    assert set(timed) == names
    assert {(t["fleet"], t["epochs"], t["dataset"], t["groups"]) for t in timed.values()} == {
        (2, 8, "cifar100", "superclass")
    }
    assert all(t["seconds"] < t["seconds_per_60_epochs"] for t in timed.values())
    assert beyond.main(["timing", *places, *small]) == 0  # nothing again
    assert beyond_results.read(tmp_path / "beyond.json") == held
    assert beyond.main(["timing", *places, *small, "--again"]) == 0
    assert len(beyond_results.read(tmp_path / "beyond.json")["timings"]) == 2 * len(names) + 2
    capsys.readouterr()
    told = "\n".join(beyond.beyond_table.lines(held, {"runs": []}))
    page = beyond.beyond_page.to_html(held, {"runs": []})
    for name, timing in timed.items():
        spent = f"{timing['seconds_per_60_epochs']:.1f}"
        assert re.search(rf"{re.escape(name)} +CIFAR-100, superclass +2 +{spent} ", told)
        assert f"<b>{spent}</b>" in page
    assert "What the methods cost" in page
