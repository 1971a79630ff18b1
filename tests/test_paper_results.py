"""Results files become cells: what is read and refused, means and differences, floors, times, groups."""

import copy
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import evenprune
from evenprune import (
    paper_cells,
    paper_comparison,
    paper_files,
    paper_groups,
    paper_results,
    paper_wording,
)
from evenprune.paper_ablations import buffer_table, tolerance_table
from evenprune.paper_cells import (
    SeedMet,
    Spread,
    cell_of,
    figure,
    is_printed,
    one_per_seed,
    standard_errors,
    table_of,
)
from evenprune.paper_charts import thinned
from evenprune.paper_printed import CIFAR, FACES, ROUNDING, Number, printed
from evenprune.paper_results import Changes, Results, Run, Task, Timed
from evenprune.paper_runtimes import runtime_table, timed_runs
from evenprune.tally import InputProblems
from tests import paper_documents

HARD = (CIFAR, 0.95)


@pytest.fixture(scope="module")
def few() -> dict:
    """CIFAR-100 with 8 groups and 3 seeds: the form of the real file, quick to audit."""
    return paper_documents.document(seeds=range(3), groups=8)


@pytest.fixture(scope="module")
def report(few, tmp_path_factory) -> paper_comparison.PaperReport:
    return paper_comparison.compare(read(tmp_path_factory.mktemp("few"), few))


@pytest.fixture(scope="module")
def changed(few, tmp_path_factory) -> paper_comparison.PaperReport:
    """A run of another commit, whose counts contradict its figures."""
    document = copy.deepcopy(few)
    document["runs"][0]["commit"] = "fff0000"
    document["runs"][0]["test"]["max_excess_gap"] += 0.01
    return paper_comparison.compare(read(tmp_path_factory.mktemp("changed"), document))


def saved(folder: Path, document: object, name: str = "cifar100.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def read(folder: Path, document: object) -> Results:
    return paper_results.read([saved(folder, document)])


def run(method: str = "CEAG", seed: int = 0, **changed) -> Run:
    """A run of the paper's settings at 95 %, with figures that are easy to add up."""
    train = {"accuracy": 0.95, "max_excess_gap": 0.04, "pairwise_disparity": 0.09}
    test = {"accuracy": 0.62, "max_excess_gap": 0.15, "pairwise_disparity": 0.28}
    values = {"task": CIFAR, "sparsity": 0.95, "figures": {"train": train, "test": test}}
    return Run(method=method, seed=seed, **{**values, **changed})


def with_figures(run: Run, **train: float) -> Run:
    return replace(run, figures={**run.figures, "train": {**run.figures["train"], **train}})


def refused(folder: Path, document: object) -> list[str]:
    with pytest.raises(InputProblems) as error:
        read(folder, document)
    return error.value.problems


# --- the printed numbers ---


def test_percents_become_fractions_in_one_place():
    paper = printed()
    nft = paper.cells[CIFAR, 0.925][0]
    assert nft.method == "NFT"
    assert nft.figures["train"]["accuracy"] == Number(0.998, 0.0002)
    assert nft.figures["test"]["pairwise_disparity"] == Number(0.262, 0.0522)
    assert nft.figures["test"]["max_excess_gap"] == Number(0.143, 0.0339)
    assert paper.settings[CIFAR, 0.925].tolerance == 0.02
    assert paper.settings[CIFAR, 0.925].dual_lr == 0.002
    assert paper.buffers[40]["test"]["max_excess_gap"] == Number(0.148)
    assert paper.tolerances[0.015]["accuracy"] == Number(0.936)
    assert paper.runtime["NFT"].median == 3793  # seconds stay seconds
    group = paper.group_accuracy[Task("utkface", "race", "race x gender"), 0.925, "test", "CEAG"]
    assert group["W-M"] == Number(0.868, 0.0064)


def test_every_printed_number_is_a_fraction_and_every_cell_has_a_tolerance():
    paper = printed()
    assert sum(map(len, paper.cells.values())) == 68
    assert set(paper.cells) == set(paper.settings)
    numbers = [
        n for cells in paper.cells.values() for c in cells for f in c.figures.values() for n in f.values()
    ]
    assert all(0 <= number.mean <= 1 for number in numbers)
    assert len(numbers) == 68 * 6 - 6  # FairGRAPE has no training numbers


# --- means and differences ---


def test_a_difference_in_standard_errors_by_hand():
    here = Spread.of([0.65, 0.66, 0.67])
    assert here is not None
    assert (here.mean, here.n) == (pytest.approx(0.66), 3)
    assert here.sd == pytest.approx(0.01)
    expected = 0.02 / math.sqrt(0.01**2 / 3 + 0.02**2 / 5 + 0.001**2 / 12)
    assert standard_errors(here, Number(0.64, 0.02)) == pytest.approx(expected)


def test_a_printed_deviation_of_zero_is_no_certainty():
    same = Spread.of([0.999] * 5)
    assert same is not None
    assert standard_errors(same, Number(0.999, 0.0)) == 0
    assert standard_errors(same, Number(0.998, 0.0)) == pytest.approx(0.001 / ROUNDING)
    assert pytest.approx(0.00029, abs=2e-6) == ROUNDING


def test_without_a_printed_deviation_ours_stands_for_it():
    here = Spread.of([0.1, 0.2])
    assert here is not None
    sd = statistics.stdev([0.1, 0.2])
    expected = 0.05 / math.sqrt(sd**2 / 2 + sd**2 / 5 + ROUNDING**2)
    assert standard_errors(here, Number(0.1)) == pytest.approx(expected)


def test_one_seed_has_a_difference_but_no_spread():
    found = figure([0.7], Number(0.6, 0.1))
    assert found.here is not None
    assert (found.here.sd, found.difference, found.standard_errors) == (None, pytest.approx(0.1), None)


def test_no_runs_leave_the_printed_number():
    found = figure([], Number(0.6, 0.1))
    assert (found.here, found.paper, found.difference) == (None, Number(0.6, 0.1), None)


# --- which runs make a cell ---


@pytest.mark.parametrize(
    ("changed", "belongs"),
    [
        ({}, True),
        ({"tolerance": 0.05, "dual_lr": 0.001, "buffer": 40}, True),
        ({"buffer": 20}, False),
        ({"tolerance": 0.04}, False),
        ({"dual_lr": 0.002}, False),
        ({"method": "CEAG (no RB)", "buffer": 0}, True),
        ({"method": "CEAG (table)"}, False),
        ({"method": "EL", "dual_lr": 1e-5, "buffer": 0}, True),
        ({"method": "EL", "dual_lr": 1e-4}, False),
        ({"method": "NFT", "tolerance": None}, True),
        ({"sparsity": 0.5}, False),
        ({"task": Task("mine", "class", "class")}, False),
    ],
)
def test_only_the_papers_settings_make_a_cell_of_the_paper(changed, belongs):
    assert is_printed(run(**changed), printed()) is belongs


def test_the_tolerance_of_a_place_judges_every_method():
    runs = [with_figures(run(seed=seed), max_excess_gap=gap) for seed, gap in enumerate((0.05, 0.0501, 0.01))]
    runs += [with_figures(run("NFT", seed), max_excess_gap=0.05 - 0.01 * seed) for seed in range(2)]
    cells = {cell.method: cell for cell in table_of(HARD, runs, printed()).cells}
    assert (cells["CEAG"].met, cells["CEAG"].seeds) == (2, (0, 1, 2))  # exactly the tolerance is within it
    assert (cells["NFT"].met, cells["NFT"].paper_met) == (2, None)
    assert cells["CEAG"].paper_met is False
    assert (cells["EL"].met, cells["EL"].seeds, cells["EL"].figures["train"]["accuracy"].here) == (
        None,
        (),
        None,
    )


def test_a_seed_that_ran_alone_and_in_a_fleet_counts_once():
    both = [run(seed=0, fleet=1), run(seed=0, fleet=30), run(seed=1, fleet=1)]
    assert [(r.seed, r.fleet) for r in one_per_seed(both)] == [(0, 30), (1, 1)]
    assert one_per_seed(both[::-1]) == one_per_seed(both)


def test_whether_the_tolerance_was_met_is_told_seed_by_seed():
    gaps = (0.0501, 0.04, 0.05, 0.05000001)
    runs = [with_figures(run(seed=seed), max_excess_gap=gap) for seed, gap in enumerate(gaps)]
    cell = next(c for c in table_of(HARD, runs[::-1], printed()).cells if c.method == "CEAG")
    assert [(one.seed, one.disparity, one.met) for one in cell.met_by_seed] == [
        (0, 0.0501, False), (1, 0.04, True), (2, 0.05, True), (3, 0.05000001, False),
    ]  # fmt: skip
    assert cell.met == 2
    assert [paper_wording.seed_met(one, 0.05) for one in cell.met_by_seed] == [
        "seed 0: 5.01 > 5", "seed 1: 4.00 ≤ 5", "seed 2: 5.00 ≤ 5", "seed 3: 5.00000 > 5",
    ]  # fmt: skip


def test_a_bound_on_pairs_is_judged_by_them():
    alone = with_figures(run(method="PW"), max_excess_gap=0.01, pairwise_disparity=0.998)
    assert cell_of("PW", [alone], 0.1, {}).met_by_seed == (SeedMet(alone.seed, 0.998, met=False),)
    assert cell_of("CEAG", [replace(alone, method="CEAG")], 0.1, {}).met == 1


def test_near_is_one_point_in_training_and_one_and_a_half_in_test():
    def near(train: float, test: float) -> dict:
        figures = copy.deepcopy(dict(run().figures))
        figures["train"]["accuracy"], figures["test"]["accuracy"] = 0.956 + train, 0.627 + test
        cell = next(c for c in table_of(HARD, [run(figures=figures)], printed()).cells if c.method == "CEAG")
        return dict(cell.near)

    assert near(0.01, -0.015) == {"train": True, "test": True}
    assert near(0.0101, -0.0151) == {"train": False, "test": False}


# --- invariants ---


@st.composite
def seeded_runs(draw) -> list[Run]:
    """Some seeds of some methods, with any figures; every seed of a method at most once."""
    pairs = st.tuples(st.sampled_from(["NFT", "EL + RB", "CEAG"]), st.integers(0, 7))
    share = st.floats(0, 1)
    made = []
    for method, seed in draw(st.lists(pairs, unique=True, min_size=1, max_size=12)):
        figures = {
            split: {"accuracy": draw(share), "max_excess_gap": draw(share), "pairwise_disparity": draw(share)}
            for split in ("train", "test")
        }
        made.append(run(method, seed, figures=figures))
    return made


@settings(max_examples=60)
@given(seeded_runs(), st.randoms(use_true_random=False))
def test_the_order_of_runs_changes_nothing(runs, random):
    shuffled = list(runs)
    random.shuffle(shuffled)
    assert table_of(HARD, shuffled, printed()) == table_of(HARD, runs, printed())


@settings(max_examples=60)
@given(seeded_runs())
def test_a_cell_is_the_mean_of_its_own_seeds_whatever_the_others_are(runs):
    for cell in table_of(HARD, runs, printed()).cells:
        own = sorted((r for r in runs if r.method == cell.method), key=lambda r: r.seed)
        assert cell.seeds == tuple(r.seed for r in own)
        assert cell == next(c for c in table_of(HARD, own, printed()).cells if c.method == cell.method)
        for split in ("train", "test"):
            here = cell.figures[split]["max_excess_gap"].here
            values = [r.figures[split]["max_excess_gap"] for r in own]
            assert (here is None) == (not values)
            if here:
                assert here.mean == pytest.approx(np.mean(values), abs=1e-12)
                assert min(values) - 1e-12 <= here.mean <= max(values) + 1e-12
                assert (
                    here.sd is None if len(values) == 1 else here.sd == pytest.approx(np.std(values, ddof=1))
                )


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=400), st.integers(4, 60))
def test_thinning_keeps_ends_and_extremes(values, most):
    kept = thinned(values, most)
    places = [place for place, _ in kept]
    assert places == sorted(set(places))
    assert (places[0], places[-1]) == (0, len(values) - 1)
    assert all(values[place] == value for place, value in kept)
    assert max(value for _, value in kept) == max(values)
    assert min(value for _, value in kept) == min(values)
    assert len(kept) <= max(most, 4)


# --- the noise floor ---


def expanded(changes: Changes, accuracy: Sequence[float]) -> dict[str, np.ndarray]:
    """One row a sample, as people hand an audit its data: a slow, obvious twin of the counts."""
    rows = []
    for group, (n, b, c) in enumerate(zip(changes.samples, changes.broke, changes.fixed, strict=True)):
        both = round(accuracy[group] * n) - c
        times = {(1, 0): b, (0, 1): c, (1, 1): both, (0, 0): n - b - c - both}
        rows += [(group, *right) for right, count in times.items() for _ in range(count)]
    group, dense, pruned = np.array(rows).T
    return {"groups": group, "dense_correct": dense.astype(bool), "pruned_correct": pruned.astype(bool)}


def audit(one: Run) -> evenprune.Audit:
    accuracy = [value or 0.0 for value in one.group_accuracy["test"]]
    return evenprune.audit(**expanded(one.changes["test"], accuracy), tolerance=0.05)


def test_floor_and_verdict_are_those_of_the_audit():
    changes, accuracy = Changes((60, 80, 100, 0), (9, 8, 10, 0), (3, 4, 5, 0)), (0.7, 0.75, 0.8, None)
    one = run(changes={"test": changes}, group_accuracy={"test": accuracy})
    found, twin = paper_cells.audit_of(one, 0.05), audit(one)
    assert found is not None
    assert found.noise_floor == twin.noise_floor
    assert found.verdict == twin.verdict
    assert found.max_excess_gap.estimate == pytest.approx(
        max(g for g in changes.excess_gaps() if g is not None)
    )


def test_a_cell_averages_the_floors_of_its_seeds(few, tmp_path):
    results = read(tmp_path, few)
    cell = next(c for c in table_of(HARD, results.runs, printed()).cells if c.method == "NFT")
    own = one_per_seed(r for r in results.runs if (r.method, r.sparsity) == ("NFT", 0.95))
    for key in ("max_excess_gap", "pairwise_disparity"):
        floors = [audit(one).noise_floor[key] for one in own]
        figure = cell.figures["test"][key]
        assert figure.floor is not None
        for part in ("mean", "low", "high"):
            assert getattr(figure.floor, part) == pytest.approx(np.mean([floor[part] for floor in floors]))
        above = [r.figures["test"][key] > f["high"] for r, f in zip(own, floors, strict=True)]
        assert figure.beyond == sum(above)
    assert sum(cell.verdicts.values()) == 3
    assert cell.figures["train"]["max_excess_gap"].floor is None


def test_a_run_without_counts_has_no_floor():
    cell = next(c for c in table_of(HARD, [run()], printed()).cells if c.method == "CEAG")
    assert cell.figures["test"]["max_excess_gap"].floor is None
    assert cell.verdicts == {}


def test_the_band_of_a_group_holds_what_chance_does():
    rng = np.random.default_rng(0)
    n, inside = np.full(40, 100), []
    for _ in range(30):
        broke = rng.binomial(n, 0.1)
        changes = Changes(
            tuple(n.tolist()), tuple(broke.tolist()), tuple(rng.binomial(n - broke, 0.06).tolist())
        )
        low, high = paper_groups.chance_band(changes)
        gaps = np.array(changes.excess_gaps(), dtype=float)
        inside.append(np.mean((low <= gaps) & (gaps <= high)))
    assert np.mean(inside) == pytest.approx(0.95, abs=0.02)


# --- reading ---


def test_the_file_is_read_whole(few, tmp_path):
    results = read(tmp_path, few)
    assert len(results.runs) == len(few["runs"])
    first = next(r for r in results.runs if (r.method, r.sparsity, r.seed) == ("EL", 0.9, 0))
    told = next(r for r in few["runs"] if (r["method"], r["sparsity"], r["seed"]) == ("EL", 0.9, 0))
    assert first.figures["test"]["max_excess_gap"] == told["test"]["max_excess_gap"]
    assert list(first.changes["test"].broke) == told["changes"]["test"]["broke"]
    assert results.dense[0].groups == tuple(few["dense"]["groups"])
    assert results.dense[0].task == CIFAR


def test_spellings_meet(tmp_path, few):
    document = copy.deepcopy(few)
    for told in document["runs"]:
        told["method"] = told["method"].replace(" + ", "+")
    assert {r.method for r in read(tmp_path, document).runs} >= {"NFT + ES", "EL + RB"}
    document["runs"] = [document["runs"][0] | {"group": "race×gender"}]
    assert read(tmp_path, document).runs[0].task.group == "race x gender"


def test_all_problems_come_at_once_with_their_place(few, tmp_path):
    document = copy.deepcopy(few)
    del document["runs"][0]["seed"], document["runs"][0]["train"]["accuracy"]
    document["runs"][1]["test"]["accuracy"] = 66.7
    document["runs"][2]["sparsity"] = "a lot"
    document["runs"][3]["changes"]["test"]["broke"].append(1)
    document["runs"][4]["changes"]["train"]["fixed"][0] = 10_000
    document["runs"][5] = ["no run"]
    document["runs"][6]["test"]["max_excess_gap"] = float("nan")
    document["dense"]["train"] = None
    document["timings"][0]["fleet"] = 0
    said = refused(tmp_path, document)
    assert len(said) == 10
    assert all("cifar100.json: " in line for line in said)
    for part in (
        "run 1 (NFT, 0.9): seed is missing",
        "run 1 (NFT, 0.9): train.accuracy is missing",
        "run 2 (NFT, 0.9, seed 1): test.accuracy is 66.7: it must lie within [0, 1]: results are fractions",
        "run 3 (NFT, a lot, seed 2): sparsity is 'a lot': it must be a finite number",
        "run 4 (NFT + ES, 0.9, seed 0): the lists of test differ in length: 8 samples, 9 broke",
        "changes.train has a group in which more samples changed than there are",
        "run 6: must be an object",
        "test.max_excess_gap is nan: it must be a finite number",
        "dense: train.accuracy is missing",
        "timing 1: fleet is 0: it must be at least 1",
    ):
        assert any(part in line for line in said), part


def test_a_thousand_problems_are_not_all_listed(few, tmp_path):
    document = copy.deepcopy(few)
    for told in document["runs"]:
        del told["train"], told["test"]
    said = refused(tmp_path, document)
    assert len(said) == 41
    assert said[-1] == f"… and {6 * len(document['runs']) - 40:,} more problems like these"


def test_the_same_run_twice_is_refused(few, tmp_path):
    document = copy.deepcopy(few)
    document["runs"].append(copy.deepcopy(document["runs"][4]))
    (said,) = refused(tmp_path, document)
    assert said.startswith("the same run occurs 2 times (cifar100 NFT + ES, 90 %, seed 1): ")
    assert "cifar100.json: run 5; " in said
    assert f"cifar100.json: run {len(document['runs'])}" in said
    one, two = saved(tmp_path, few, "one.json"), saved(tmp_path, {"runs": few["runs"][:1]}, "two.json")
    with pytest.raises(InputProblems, match=r"one\.json: run 1; .*two\.json: run 1"):
        paper_results.read([one, two])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no JSON"),
        ("[]", 'has no list named "runs"'),
        ('{"runs": 3}', 'has no list named "runs"'),
        ('{"runs": []}', "there are no runs to report"),
        ('{"traces": []}', "there are no runs to report"),
        ("[" * 100_000, "is no JSON"),
        ("\ud800", "is no JSON"),
    ],
)
def test_files_that_are_none(tmp_path, text, said):
    path = tmp_path / "bad.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(InputProblems, match=said):
        paper_results.read([path])


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(InputProblems, match="cannot be read: No such file"):
        paper_results.read([tmp_path / "none.json"])
    with pytest.raises(InputProblems, match="there is no folder"):
        paper_files.default_files(tmp_path / "nowhere")
    with pytest.raises(InputProblems, match="holds no results"):
        paper_files.default_files(tmp_path)


def test_the_folder_gives_results_and_leaves_the_rest(few, tmp_path):
    wanted = [saved(tmp_path, few), saved(tmp_path, paper_documents.traces(20), "cifar100_multipliers.json")]
    saved(tmp_path, {"speed": 3}, "bench.json")
    assert paper_files.default_files(tmp_path) == wanted
    assert paper_files.with_companions(wanted[:1]) == wanted
    assert len(paper_results.read(wanted).traces) == 6
    (tmp_path / "torn.json").write_text('{"runs": [', encoding="utf-8")
    with pytest.raises(InputProblems, match=r"torn\.json is no JSON"):
        paper_results.read(paper_files.default_files(tmp_path))


# --- the other tables ---


def test_buffers_and_the_table_estimator(few, tmp_path):
    table = buffer_table(read(tmp_path, few).runs, printed())
    assert [label for label, _ in table.rows] == [
        "k = 0 (no buffer)", "k = 20", "k = 40", "k = 60", "k = 80", "Table estimator",
    ]  # fmt: skip
    assert all(cell.seeds == (0, 1, 2) for _, cell in table.rows)
    twenty = [r["train"]["accuracy"] for r in few["runs"] if r["buffer"] == 20]
    shown = table.rows[1][1].figures["train"]["accuracy"]
    assert shown.here is not None
    assert shown.here.mean == pytest.approx(statistics.fmean(twenty))
    assert shown.paper == Number(0.957)
    assert table.rows[-1][1].figures["train"]["accuracy"].paper is None


def test_tolerances_are_judged_by_their_own():
    runs = [
        replace(
            with_figures(run(seed=seed), max_excess_gap=0.012), task=FACES, sparsity=0.925, tolerance=limit
        )
        for seed in range(2)
        for limit in (0.0, 0.01, 0.015)
    ]
    rows = dict(tolerance_table(runs, printed()).rows)
    assert {label: cell.met for label, cell in rows.items()} == {
        "tolerance 0": 0, "tolerance 0.5": None, "tolerance 1": 0, "tolerance 1.5": 2,
    }  # fmt: skip


def test_every_run_is_shown_somewhere(report):
    assert [(row.cell.method, row.sparsity) for row in report.further] == [("PW", 0.95)]
    cells = [cell for table in report.tables for cell in table.cells]
    cells += [cell for ablation in report.ablations for _, cell in ablation.rows]
    assert sum(len(cell.seeds) for cell in cells) >= 18 * 3 + 4 * 3
    assert report.doubts == ()


def test_times_alone_and_in_fleets(few, tmp_path):
    results = read(tmp_path, few)
    table = runtime_table([*timed_runs(results.runs), *results.timed], CIFAR, printed())
    rows = {row.method: row for row in table.rows}
    assert list(rows)[:6] == ["NFT", "NFT + ES", "EL", "EL + RB", "CEAG (no RB)", "CEAG"]
    (alone,) = rows["NFT"].alone
    assert (alone.runs, alone.median, alone.device) == (1, 70.5, "NVIDIA H200")  # the timing, not the 71.5
    assert (alone.by_itself, alone.epochs) == (True, 6)
    assert alone.ratio == pytest.approx(3793 / 70.5)
    (run_of_table,) = rows["CEAG"].alone
    assert (run_of_table.median, run_of_table.by_itself) == (71.5, False)
    (fleet,) = rows["EL"].fleets
    seconds = [r["seconds"] for r in few["runs"] if (r["method"], r["sparsity"]) == ("EL", 0.95)]
    assert (fleet.fleet, fleet.runs, fleet.sparsity) == (30, 3, 0.95)
    assert (fleet.low, fleet.median, fleet.high) == (min(seconds), statistics.median(seconds), max(seconds))
    assert (rows["NFT + ES"].paper, rows["NFT + ES"].fleets[0].ratio) == (None, None)


def timed(method: str, seconds: float, **changed) -> Timed:
    values = {"task": CIFAR, "sparsity": 0.95, "fleet": 25, "device": "NVIDIA H200", **changed}
    return Timed(method=method, seconds=seconds, **values)


def test_a_methods_own_timing_is_not_pooled_with_mixed_fleets_of_the_same_size():
    times = [timed("CEAG", 30.0, mixed=True) for _ in range(5)] + [timed("CEAG", 20.0, by_itself=True)]
    times += [timed("CEAG", 28.0, mixed=True, fleet=35), timed("NFT", 30.0, mixed=True)]
    rows = {row.method: row for row in runtime_table(times, CIFAR, printed()).rows}
    own, other = rows["CEAG"].fleets
    assert (own.fleet, own.runs, own.median, own.high, own.mixed) == (25, 1, 20.0, 20.0, False)
    assert (other.fleet, other.median, other.mixed) == (35, 28.0, True)
    assert [paper_wording.timing_of(time) for time in (own, other)] == [
        "25 runs of this method", "mixed fleet of 35",
    ]  # fmt: skip
    assert paper_wording.timing_of(rows["NFT"].fleets[0]) == "mixed fleet of 25"


def test_whole_timings_count_before_scaled_ones():
    times = [timed("NFT", 40.0, by_itself=True, epochs=6), timed("NFT", 33.0, by_itself=True)]
    (row,) = [row for row in runtime_table(times, CIFAR, printed()).rows if row.method == "NFT"]
    assert (row.fleets[0].median, row.fleets[0].epochs) == (33.0, 60)
    (row,) = [row for row in runtime_table(times[:1], CIFAR, printed()).rows if row.method == "NFT"]
    assert paper_wording.timing_of(row.fleets[0]) == "25 runs of this method, scaled from 6 epochs"


def test_how_it_was_compiled_is_told_apart():
    times = [
        timed("NFT", 40.0, by_itself=True, compiled="False"),
        timed("NFT", 33.0, by_itself=True, warm=True),
    ]
    (row,) = [row for row in runtime_table(times, CIFAR, printed()).rows if row.method == "NFT"]
    assert [(time.median, paper_wording.timing_of(time)) for time in row.fleets] == [
        (33.0, "25 runs of this method, kernels compiled before"),
        (40.0, "25 runs of this method, no torch.compile"),
    ]


@pytest.mark.parametrize(
    ("methods", "mixed"),
    [(["NFT", "NFT"], False), (["NFT", "NFT + ES"], False), (["NFT", "CEAG"], True), (["NFT"], None)],
)
def test_a_fleet_is_known_by_its_time(tmp_path, few, methods, mixed):
    first = few["runs"][0] | {"fleet": 2, "seconds": 33.125}
    runs = [first | {"method": method, "seed": seed} for seed, method in enumerate(methods)]
    found = timed_runs(read(tmp_path, {"runs": [*runs, first | {"method": "EL", "seconds": 34.0}]}).runs)
    assert {time.mixed for time in found if time.seconds == 33.125} == {mixed}


def test_other_sparsities_stand_in_for_95():
    timed = [paper_results.Timed(CIFAR, "NFT", s, 5, 10 + s, "cpu") for s in (0.9, 0.925)]
    (row,) = [row for row in runtime_table(timed, CIFAR, printed()).rows if row.method == "NFT"]
    assert (row.fleets[0].runs, row.fleets[0].sparsity) == (2, None)


def test_gaps_of_groups_are_the_same_from_counts_and_from_accuracies(few, tmp_path):
    results = read(tmp_path, few)
    one, dense = results.runs[0], results.dense[0]
    for split in ("train", "test"):
        counted = paper_groups.excess_gaps(one, split, dense)
        without = paper_groups.excess_gaps(replace(one, changes={}), split, dense)
        assert counted == pytest.approx(without)
        assert max(counted) == pytest.approx(one.figures[split]["max_excess_gap"])
    assert paper_groups.excess_gaps(replace(one, changes={}, group_accuracy={}), "test", dense) is None


def test_a_group_without_samples_is_absent_not_zero():
    changes = Changes((10, 0, 20), (1, 0, 2), (0, 0, 1))
    assert changes.excess_gaps() == [pytest.approx(0.1 - 2 / 30), None, pytest.approx(0.05 - 2 / 30)]
    runs = [run(seed=seed, changes={"test": changes}) for seed in range(2)]
    table = paper_groups.group_table(HARD, runs, None, printed())
    assert table is not None
    (gaps,) = table.methods["test"]
    assert gaps.mean[1] is None
    assert gaps.band is not None
    assert gaps.band[0][1] is None
    assert table.names == ("group 1", "group 2", "group 3")


def test_groups_are_matched_by_name_where_they_can_be():
    ours = ("White × male", "Black × male", "White × female", "Black × female")
    assert paper_groups.matched(ours, ("W-M", "W-F", "B-M", "B-F")) == [0, 2, 1, 3]
    assert paper_groups.matched(("others", "white"), ("White", "Others")) == [1, 0]
    assert paper_groups.matched(("a", "b"), ("White", "Others")) == [0, 1]
    assert paper_groups.matched((), ("White", "Others")) == [0, 1]


def test_accuracies_of_groups_beside_the_papers(tmp_path):
    document = paper_documents.faces(seeds=range(2))
    results = read(tmp_path, document)
    table = paper_groups.group_accuracy((FACES, 0.925), "test", results, printed())
    assert table is not None
    assert table.names == ("White", "Black", "Asian", "Indian", "Others")
    rows = dict(table.rows)
    assert list(rows) == ["Dense", "NFT", "NFT + ES", "EL + RB", "CEAG"]
    own = [
        r for r in document["runs"]
        if (r["method"], r["sparsity"], r["group"]) == ("NFT", 0.925, "race")
    ]  # fmt: skip
    here = rows["NFT"][4].here
    assert here is not None
    assert here.values == tuple(r["group_accuracy"]["test"][4] for r in own)
    assert rows["NFT"][4].paper == printed().group_accuracy[FACES, 0.925, "test", "NFT"]["Others"]
    assert rows["NFT + ES"][0].paper is None


def test_counts_that_contradict_the_figures_are_told(changed):
    (said,) = changed.doubts
    assert said.startswith("cifar100 NFT, 90 %, seed 0: max_excess_gap on test data is")


def test_the_summary_counts_what_it_says(few, tmp_path):
    document = copy.deepcopy(few)
    document["runs"] = [r for r in document["runs"] if r["sparsity"] != 0.925]
    summary = next(s for s in paper_comparison.compare(read(tmp_path, document)).summaries if s.task == CIFAR)
    assert (summary.printed, summary.ran, summary.compared) == (18, 12, 72)
    assert summary.audited == 36
    assert [(at, n) for at, _, n, _ in summary.feasible] == [(0.9, 3), (0.95, 3)]
    met = [
        sum(
            r["train"]["max_excess_gap"] <= limit
            for r in document["runs"]
            if (r["method"], r["sparsity"], r["buffer"]) == ("CEAG", at, 40) and r["fleet"] > 1
        )
        for at, limit in ((0.9, 0.01), (0.95, 0.05))
    ]
    assert [m for _, m, _, _ in summary.feasible] == met


def test_what_it_was_made_with(few, changed):
    made = changed.made_with
    assert made.runs == len(few["runs"])
    assert made.commits == {"abc1234": made.runs - 1, "fff0000": 1}
    assert made.devices == {"NVIDIA H200": made.runs}
    assert made.seconds == pytest.approx(sum(r["seconds"] for r in few["runs"]))
    assert made.timed_alike == sum(r["method"] not in ("CEAG (table)", "PW") for r in few["runs"])


def test_a_training_that_served_two_cells_is_counted_once(few, tmp_path):
    document = copy.deepcopy(few)
    nft, early = (
        next(r for r in document["runs"] if (r["method"], r["sparsity"], r["seed"]) == (method, 0.9, 1))
        for method in ("NFT", "NFT + ES")
    )
    early["seconds"] = nft["seconds"]
    made = paper_comparison.made_with(read(tmp_path, document).runs, printed())
    seconds = [r["seconds"] for r in document["runs"] if r is not early]
    assert (made.runs, made.trainings) == (len(document["runs"]), len(document["runs"]) - 1)
    assert made.seconds == pytest.approx(sum(seconds))
    of_paper = {"NFT": 3793, "EL": 3874, "EL + RB": 4030, "CEAG (no RB)": 3788, "CEAG": 3868}
    alike = [r["method"].removesuffix(" + ES") for r in document["runs"] if r is not early]
    assert made.paper_seconds == sum(of_paper.get(method, 0) for method in alike)
    assert paper_wording.made_with(made)[0] == f"{made.runs} runs from {made.runs - 1} trainings"
    early["commit"] = "fff0000"  # another training, by chance as long
    assert paper_comparison.made_with(read(tmp_path, document).runs, printed()).trainings == made.runs


def test_the_document_is_plain_json(few, report):
    document = json.loads(json.dumps(paper_comparison.to_document(report), allow_nan=False))
    assert document["schema"] == "evenprune.paper/1"
    cell = next(
        t for t in document["tables"] if t["sparsity"] == 0.925 and t["task"]["dataset"] == "cifar100"
    )
    shown = cell["cells"][0]["figures"]["test"]["accuracy"]
    values = [
        r["test"]["accuracy"] for r in few["runs"] if (r["method"], r["sparsity"]) == ("NFT", 0.925)
    ]  # fmt: skip
    assert shown["here"]["mean"] == pytest.approx(statistics.fmean(values))
    assert shown["here"]["sd"] == pytest.approx(statistics.stdev(values))
    assert shown["here"]["n"] == 3
    assert shown["paper"] == {"mean": 0.649, "sd": 0.0039}
    told = [
        r["train"]["max_excess_gap"] for r in few["runs"] if (r["method"], r["sparsity"]) == ("NFT", 0.925)
    ]
    assert cell["cells"][0]["met_by_seed"] == [
        {"seed": seed, "disparity": gap, "met": gap <= 0.02} for seed, gap in enumerate(told)
    ]
    assert shown["difference"] == pytest.approx(statistics.fmean(values) - 0.649)
