"""The recipe, varied: which files are read, which runs are compared with which, and what is said of it."""

import copy
import html
import json
import math
import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evenprune import (
    paper_comparison,
    paper_files,
    paper_page,
    paper_pair_wording,
    paper_pairs,
    paper_results,
    paper_text,
)
from evenprune.paper_cells import audit_of, is_printed, table_of
from evenprune.paper_printed import CIFAR, printed
from evenprune.paper_results import Results
from evenprune.paper_runtimes import timed_runs
from evenprune.paper_variants import Variant, variants
from evenprune.tally import InputProblems
from tests import paper_documents
from tests.commands import called

HARD = (CIFAR, 0.95)
STORED = Path(__file__).parent.parent / "paper" / "results"


@pytest.fixture(scope="module")
def few() -> dict:
    return paper_documents.document(seeds=range(3), groups=8)


@pytest.fixture(scope="module")
def home(few, tmp_path_factory) -> Path:
    """As the runner leaves it: results, variants in a folder beside them, and the files of another study."""
    folder = tmp_path_factory.mktemp("home") / "paper" / "results"
    (folder / "variants").mkdir(parents=True)
    save(folder / "cifar100.json", few)
    for name, document in paper_documents.variants().items():
        save(folder / "variants" / name, document)
    beyond = [{key: value for key, value in run.items() if key != "target"} for run in few["runs"][:3]]
    save(folder / "beyond.json", {"runs": beyond})
    save(folder / "beyond_first.json", {"runs": few["runs"][:3]})
    save(folder / "other_study.json", {"runs": beyond})
    save(folder / "cifar100_decay_last.json", {"runs": [few["runs"][0] | {"recipe": "decay_last"}]})
    return folder


def save(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def results(home) -> Results:
    return paper_results.read(paper_files.with_companions(paper_files.default_files(home)))


@pytest.fixture(scope="module")
def report(results) -> paper_comparison.PaperReport:
    return paper_comparison.compare(results)


# --- files ---


def test_only_files_of_the_papers_tables_are_taken_by_themselves(home):
    assert paper_files.default_files(home) == [home / "cifar100.json"]
    found = paper_files.with_companions([home / "cifar100.json"])
    assert [path.name for path in found[1:]] == sorted(paper_documents.variants())


def test_variants_of_other_data_sets_are_left_alone(home, tmp_path):
    (tmp_path / "variants").mkdir()
    for name, document in paper_documents.variants().items():
        save(tmp_path / "variants" / name, document)
    faces = save(tmp_path / "utkface.json", paper_documents.faces(seeds=[0]))
    assert paper_files.with_companions([faces]) == [faces]
    torn = tmp_path / "variants" / "torn.json"
    torn.write_text("{", encoding="utf-8")
    assert paper_files.with_companions([faces]) == [faces, torn]  # so that reading it says why


def test_a_file_named_twice_is_read_once(home, monkeypatch):
    monkeypatch.chdir(home)
    named = [Path("cifar100.json"), Path("variants/cifar100_decay_last.json"), home / "cifar100.json"]
    found = paper_files.with_companions(named)
    assert len(found) == len({path.resolve() for path in found}) == 4


def test_a_file_of_another_study_is_refused_in_one_sentence(home):
    with pytest.raises(InputProblems) as error:
        paper_results.read([home / "beyond.json"])
    (said,) = error.value.problems
    assert "none of its runs names a target" in said


# --- they are not mixed with the tables ---


def test_runs_of_another_recipe_are_in_no_cell_and_no_time_of_the_tables(few, home, results):
    alone = paper_results.read([home / "cifar100.json"])
    named = paper_results.read([home / "variants" / "cifar100_decay_last.json", home / "cifar100.json"])
    assert len(results.variants) == 15
    assert len(named.variants) == 9
    for found in (results, named):
        assert found.runs == alone.runs
        assert (found.timed, timed_runs(found.runs)) == (alone.timed, timed_runs(alone.runs))
        assert table_of(HARD, found.runs, printed()) == table_of(HARD, alone.runs, printed())
    assert not any(is_printed(run, printed()) for run in results.variants)


@pytest.mark.parametrize("way", [{"recipe": "mine"}, {"epochs": 12}, {"recipe": "mine", "epochs": 12}])
def test_one_such_run_within_a_results_file_is_none_of_its_cells(few, tmp_path, way):
    document = copy.deepcopy(few)
    other = document["runs"][0] | way | {"seconds": 1.0}
    document["runs"].append(other)
    document["timings"].append(document["timings"][0] | {"recipe": "mine", "seconds_per_60_epochs": 1.0})
    found = paper_results.read([save(tmp_path / "cifar100.json", document)])
    assert len(found.variants) == 1
    assert min(time.seconds for time in (*found.timed, *timed_runs(found.runs))) > 1
    assert found.runs == paper_results.read([save(tmp_path / "usual.json", few)]).runs


def test_the_same_variant_twice_is_refused(home, tmp_path):
    path = home / "variants" / "cifar100_decay_last.json"
    again = save(tmp_path / "again.json", json.loads(path.read_text()))
    with pytest.raises(InputProblems, match="NFT, 95 %, seed 0, recipe decay_last"):
        paper_results.read([path, again])


# --- the comparison ---


def by_hand(first: list[dict], second: list[dict], split: str, key: str) -> tuple[float, float]:
    one, other = ({r["seed"]: r[split][key] for r in runs} for runs in (first, second))
    differences = [other[seed] - one[seed] for seed in sorted(one)]
    return statistics.fmean(differences), statistics.stdev(differences) / math.sqrt(len(differences))


def test_the_fast_loop_is_compared_with_the_plain_one(report):
    files = paper_documents.variants()
    plain, fast = (files[f"cifar100_{name}_8_epochs.json"]["runs"] for name in ("plain", "fast"))
    found = report.variants[0]
    assert (found.first, found.second, found.epochs, found.sparsity) == ("plain", "fast", 8, 0.925)
    (row,) = found.rows
    assert (row.method, row.seeds) == ("CEAG", (0, 1, 2))
    for split in ("train", "test"):
        for key in ("accuracy", "max_excess_gap"):
            pair = row.figures[split][key]
            mean, error = by_hand(plain, fast, split, key)
            assert pair.difference.mean == pytest.approx(mean)
            assert pair.difference.standard_error == pytest.approx(error)
            assert pair.first.mean == pytest.approx(statistics.fmean(r[split][key] for r in plain))
            assert pair.second.sd == pytest.approx(statistics.stdev(r[split][key] for r in fast))
            assert pair.paper is None  # the paper prints nothing of 8 epochs


def test_another_recipe_is_compared_with_the_same_seeds_of_the_table(few, report):
    found = report.variants[1]
    assert (found.first, found.second, found.epochs) == ("table", "decay_last", 60)
    assert [row.method for row in found.rows] == ["NFT", "EL + RB", "CEAG"]
    decay = paper_documents.variants()["cifar100_decay_last.json"]["runs"]
    usual = [r for r in few["runs"] if (r["method"], r["sparsity"], r["fleet"]) == ("EL + RB", 0.95, 30)]
    pair = found.rows[1].figures["train"]["accuracy"]
    mean, error = by_hand(usual, [r for r in decay if r["method"] == "EL + RB"], "train", "accuracy")
    assert (pair.difference.mean, pair.difference.standard_error) == (
        pytest.approx(mean),
        pytest.approx(error),
    )
    assert pair.first.mean == pytest.approx(statistics.fmean(r["train"]["accuracy"] for r in usual))
    assert pair.paper is not None
    assert pair.paper.mean == 0.946


@pytest.mark.parametrize(
    ("name", "changed"),
    [("dual_5", {"dual_lr": 5e-5}), ("macro", {"overall": "macro"}), ("ring_1", {"buffer": 1})],
)
def test_another_method_is_compared_with_the_papers_and_its_numbers(results, name, changed):
    usual = [run for run in results.variants if run.recipe == "decay_last" and run.method == "EL + RB"]
    stepped = [replace(run, recipe=name, **changed) for run in usual]
    (found,) = variants(stepped, results.runs, printed())
    assert (found.first, found.second) == ("table", name)
    words = {
        "dual_5": ("5 × dual step", "5 times the dual step"),
        "macro": ("groups alike", "groups averaged alike"),
        "ring_1": ("rings of one", "rings of one sample"),
    }
    assert paper_pair_wording.short_name(name) == words[name][0]
    assert paper_pair_wording.variant_title(found).startswith(words[name][1])
    (row,) = found.rows
    assert (row.method, row.seeds) == ("EL + RB", (0, 1, 2))
    assert row.figures["train"]["accuracy"].paper.mean == 0.946
    assert variants([replace(run, recipe="other") for run in stepped], results.runs, printed()) == ()


def test_detached_means_are_compared_with_the_same_cell_of_the_table(results):
    usual = [run for run in results.variants if run.recipe == "decay_last" and run.method == "EL + RB"]
    (found,) = variants([replace(run, recipe="detached") for run in usual], results.runs, printed())
    assert (found.first, found.second, len(found.rows)) == ("table", "detached", 1)
    assert paper_pair_wording.short_name("detached") == "detached mean"
    assert paper_pair_wording.variant_title(found).startswith("no gradient through the overall loss")


def test_constraints_that_act_while_pruning_are_compared_with_the_same_cell_of_the_table(results):
    usual = [run for run in results.variants if run.recipe == "decay_last" and run.method == "CEAG"]
    (found,) = variants([replace(run, recipe="while_pruning") for run in usual], results.runs, printed())
    assert (found.first, found.second, len(found.rows)) == ("table", "while_pruning", 1)
    assert paper_pair_wording.short_name("while_pruning") == "while pruning"
    assert paper_pair_wording.variant_title(found) == (
        "constraints that act from the first epoch on, beside the recipe of table 1"
    )
    (both,) = variants(
        [replace(r, recipe="while_pruning_decay_last") for r in usual], results.runs, printed()
    )
    assert paper_pair_wording.short_name(both.second) == "while pruning, last decay"
    assert paper_pair_wording.variant_title(both) == (
        "constraints from the first epoch on, weight decay on the last layer alone, beside weight decay on "
        "all layers, as in table 1"
    )


def test_a_ring_that_was_not_varied_is_compared_with_rings_of_its_length(results):
    ceag = [run for run in results.variants if run.recipe == "decay_last" and run.method == "CEAG"]
    other = [replace(run, buffer=20) for run in results.runs if run.method == "CEAG"]
    (found,) = variants([replace(run, recipe="ring_1") for run in ceag], [*other, *results.runs], printed())
    (same,) = variants([replace(run, recipe="detached") for run in ceag], results.runs, printed())
    assert found.rows == same.rows


def test_other_numbers_of_bits_are_named():
    assert paper_pair_wording.short_name("tf32") == "TF32"
    assert paper_pair_wording.recipe_name("tf32") == (
        "float32 with convolutions in TF32, as the paper's published code"
    )
    assert paper_pair_wording.recipe_name("float32") == "float32 throughout"


def test_runs_of_different_code_are_told_apart(results):
    own = [run for run in results.variants if run.recipe == "decay_last"]

    def said(before: str | None, after: str | None) -> str:
        usual = [replace(run, commit=before) for run in results.runs]
        (found,) = variants([replace(run, commit=after) for run in own], usual, printed())
        return " ".join(paper_pair_wording.sentences(found))

    told = "the runs of NFT, EL + RB and CEAG are of different code (table 1: aaa; decay of last layer: bbb)."
    assert said("aaa", "bbb").endswith(told)
    for pair in (("aaa", "aaa"), ("aaa", None), (None, None)):
        assert "different code" not in said(*pair)


def test_only_shared_seeds_are_compared_and_runs_without_a_counterpart_are_named(results):
    kept = [run for run in results.runs if run.seed != 1]
    found = variants(results.variants, kept, printed())[1]
    assert {row.seeds for row in found.rows} == {(0, 2)}
    fast = [run for run in results.variants if run.recipe == "fast"]
    lonely = replace(results, runs=(), variants=tuple(fast))
    made = paper_comparison.compare(lonely)
    assert made.variants == ()
    assert len(made.variants_alone) == 3
    for text in (paper_page.to_html(made), paper_text.to_text(made)):
        assert "Nothing to compare with: cifar100 CEAG, 92.5 %, seed 0" in text


def test_another_recipe_with_fewer_epochs_waits_for_the_usual_one_as_short(results):
    short = [replace(run, epochs=8) for run in results.variants if run.recipe == "decay_last"]
    assert variants(short, results.runs, printed()) == ()
    usual = [replace(run, recipe="fast") for run in short]
    (found,) = variants([*short, *usual], results.runs, printed())
    assert (found.first, found.second, found.epochs) == ("fast", "decay_last", 8)


def test_the_stored_variants_say_what_they_say_by_hand():
    """The real files: both ways to train are there, with three seeds each."""
    found = paper_results.read(paper_files.with_companions([STORED / "cifar100.json"]))
    made = {(v.first, v.second): v for v in variants(found.variants, found.runs, printed())}
    runs = {
        name: json.loads((STORED / "variants" / f"cifar100_{name}.json").read_text())["runs"]
        for name in ("plain_8_epochs", "fast_8_epochs", "decay_last")
    }
    table = json.loads((STORED / "cifar100.json").read_text())["runs"]
    pair = made["plain", "fast"].rows[0].figures["test"]["accuracy"]
    mean, error = by_hand(runs["plain_8_epochs"], runs["fast_8_epochs"], "test", "accuracy")
    assert (pair.difference.mean, pair.difference.standard_error, pair.difference.n) == (
        pytest.approx(mean),
        pytest.approx(error),
        3,
    )
    for row in made["table", "decay_last"].rows:
        one, other = (
            [r for r in those if (r["method"], r["sparsity"]) == (row.method, 0.95) and r["seed"] < 3]
            for those in ([r for r in table if r["buffer"] in (None, 0, 40)], runs["decay_last"])
        )
        mean, _ = by_hand(one, other, "train", "accuracy")
        assert row.figures["train"]["accuracy"].difference.mean == pytest.approx(mean)


# --- paired differences ---


@pytest.mark.parametrize("degrees", [*range(1, 13), 20, 50, 1000])
def test_students_quantile(degrees):
    assert paper_pairs.student(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=4e-4)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=8))
def test_limits_are_those_of_a_paired_t_test(differences):
    found = paper_pairs.paired(differences)
    assert found.mean == pytest.approx(statistics.fmean(differences))
    if found.standard_error is not None and found.standard_error > 1e-6:
        expected = stats.t.interval(0.95, len(differences) - 1, found.mean, found.standard_error)
        assert (found.low, found.high) == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_a_single_seed_has_a_difference_and_nothing_more(results):
    one = [run for run in results.variants if run.seed == 0]
    found = variants(one, results.runs, printed())
    difference = found[0].rows[0].figures["test"]["accuracy"].difference
    assert (difference.n, difference.standard_error, difference.beyond_chance) == (1, None, None)
    assert "a single seed, so no limits" in paper_pair_wording.sentences(found[0])[0]
    assert "beyond chance" not in " ".join(paper_pair_wording.sentences(found[1]))


# --- what is said ---


def shifted(variant: Variant, shifts: list[float]) -> str:
    """The sentence where the second way is off from the first by so much, seed by seed."""
    row = variant.rows[0]
    first = row.figures["train"]["accuracy"].first
    pair = paper_pairs.Pair(first, first, paper_pairs.paired(shifts), None)
    figures = {split: dict.fromkeys(of, pair) for split, of in row.figures.items()}
    return paper_pair_wording.contrast_sentence(replace(row, figures=figures), "plain", "fast")


def test_the_sentence_follows_the_numbers(report):
    variant = report.variants[0]
    spread = variant.rows[0].figures["train"]["accuracy"].first.sd
    assert spread is not None
    none = shifted(variant, [0.01, -0.01, 0.002])
    assert "+0.07 ± 0.58 points (95 % limits −2.43 to +2.57: no difference to be seen)" in none
    far = shifted(variant, [-0.05, -0.051, -0.049])
    assert "−5.00 ± 0.06 points (95 % limits −5.25 to −4.75: a difference)" in far
    small = shifted(variant, [spread / 2, 0.501 * spread, 0.499 * spread])
    assert f"a difference, though smaller than between seeds of plain, sd {100 * spread:.2f}" in small


def test_the_sentence_on_a_recipe_tells_whether_it_comes_nearer_to_the_paper(report):
    variant = report.variants[1]
    said = paper_pair_wording.sentences(variant)
    assert said[0].startswith("Decay of last layer minus table 1, 3 seeds: training accuracy ")
    pairs = [row.figures["train"]["accuracy"] for row in variant.rows]
    before, after = (
        statistics.fmean(
            100 * abs(spread.mean - pair.paper.mean) for spread, pair in zip(of, pairs, strict=True)
        )
        for of in ([pair.first for pair in pairs], [pair.second for pair in pairs])
    )
    word = "nearer to" if after < before else "further from"
    assert f"{word} the paper's (mean distance {before:.2f}, then {after:.2f})" in said[0]
    beyond = sum(bool(pair.difference.beyond_chance) for pair in pairs)
    assert f"beyond chance (95 %) in {beyond} of 3" in said[0]
    swapped = [
        replace(
            row,
            figures={
                split: {m: replace(p, first=p.second, second=p.first) for m, p in of.items()}
                for split, of in row.figures.items()
            },
        )
        for row in variant.rows
    ]
    word = "further from" if after < before else "nearer to"
    assert f"{word} the paper's" in paper_pair_wording.sentences(replace(variant, rows=tuple(swapped)))[0]


def test_page_text_and_document_show_the_section(report, results):
    page, text = paper_page.to_html(report), paper_text.to_text(report)
    section = page.split('<section id="variants"')[1].split("</section>")[0]
    assert "The recipe, varied" in section
    assert section.count("<tbody>") == 2 + 1 + 3  # an overview of two places, and the cells
    pair = report.variants[0].rows[0].figures["test"]["accuracy"]
    error = pair.difference.standard_error
    assert error is not None
    for part in (f"{100 * pair.first.mean:.2f}", f"± {100 * error:.2f} se"):
        assert part in section
    floor = report.variants[0].rows[0].figures["test"]["max_excess_gap"].floor
    audits = [audit_of(run, 0.5) for run in results.variants if run.recipe == "fast"]
    assert floor.mean == pytest.approx(
        statistics.fmean(a.noise_floor["max_excess_gap"]["mean"] for a in audits)
    )
    assert f"<b>{100 * floor.mean:.1f}</b>" in section
    assert re.search(rf"max ψ .* {100 * floor.mean:.1f}$", text, re.MULTILINE)
    overview = section.split("<details>")[0]
    for variant in report.variants:
        for row in variant.rows:
            for own in (row.figures[split]["accuracy"] for split in ("train", "test")):
                moved = f"<b>{100 * own.second.mean:.2f}</b> <small>from {100 * own.first.mean:.2f}</small>"
                assert moved in overview
    for variant in report.variants:
        for sentence in paper_pair_wording.sentences(variant):
            assert sentence in html.unescape(section)
            assert sentence in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= paper_text.WIDTH
    assert "…" not in text
    document = json.loads(json.dumps(paper_comparison.to_document(report), allow_nan=False))
    shown = document["variants"][0]["rows"][0]["figures"]["test"]["accuracy"]
    assert shown["difference"]["mean"] == pytest.approx(pair.difference.mean)
    assert shown["first"]["values"] == list(pair.first.values)


def test_without_a_folder_of_variants_there_is_no_section(home):
    bare = paper_comparison.compare(paper_results.read([home / "cifar100.json"]))
    assert bare.variants == ()
    for text in (paper_page.to_html(bare), paper_text.to_text(bare)):
        assert "The recipe, varied" not in text


def test_names_of_recipes_are_plain_text(results):
    renamed = [replace(run, recipe="<img src=x>\x1b[31m") for run in results.variants if run.length == 60]
    made = paper_comparison.compare(replace(results, variants=tuple(renamed)))
    assert "<img" not in paper_page.to_html(made)
    assert "&lt;img" in paper_page.to_html(made)
    assert "\x1b" not in paper_text.to_text(made)


def test_the_command_reads_the_folder_of_variants(home):
    done = called("report", "paper", "--json", "all.json", cwd=home.parent.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert "The recipe, varied: CIFAR-100, 95 %: weight decay on the last layer alone" in done.stdout
    document = json.loads((home.parent.parent / "all.json").read_text(encoding="utf-8"))
    assert [v["second"] for v in document["variants"]] == ["fast", "decay_last"]
    assert len(document["files"]) == 4
