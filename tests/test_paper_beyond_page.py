"""The page of the study on unseen data: numbers, sentences, what it lacks, and how a Chromium shows it."""

import copy
import csv
import json
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evenprune
from evenprune.verdict import Comparison
from paper import (
    beyond,
    beyond_answers,
    beyond_charts,
    beyond_findings,
    beyond_page,
    beyond_results,
    beyond_rows,
    beyond_summary,
    beyond_table,
    beyond_train,
    beyond_words,
)
from paper.beyond_cells import Cell, cells_of
from paper.beyond_measures import PAYERS, gap_of, groups_worse, payers_of
from paper.beyond_methods import (
    BIAS,
    BOTH,
    FEASIBLE,
    FORMULATIONS,
    KD,
    KINDS,
    OF_ONE_SIZE,
    PASSES,
    SPARSER,
    STUDY,
)
from paper.beyond_pooled import BETTER
from paper.beyond_summary import Block
from tests import audit_documents
from tests.browsing import contrasts, page_colour, until
from tests.test_paper_beyond import GRID, begin, place

Documents = tuple[dict[str, Any], dict[str, Any]]  # results, answers
EMPTY: Documents = ({"runs": []}, {"runs": []})
HOSTILE = list(audit_documents.HOSTILE_NAMES)
# Of the study, of what is run in one setting, and of the formulations.
LEFT_OUT = ("CEAG held-out + KD", "GroupDRO", "two-sided")
RUN = [name for name in KINDS if name in {*STUDY, *OF_ONE_SIZE, *FORMULATIONS} - set(LEFT_OUT)]
SEEING = [name for name in RUN if KINDS[name].sees_heldout]
VERSIONS = {"python": "3.12.3", "torch": "2.11.0", "evenprune": "0.1.0", "device": "a GPU"}


# --- real runs ---


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds of nearly everything, two of some with augmentation, and some with few held-out samples."""
    made = tmp_path_factory.mktemp("beyond-page")
    grid = replace(GRID, steps=(0.1,), sizes={})
    bench, where = replace(begin(made), grid=grid), place(made, fleet=45)
    beyond_train.fill(bench, cells_of(grid, names=RUN, seeds=[0, 1, 2], augment=False), where)
    beyond_train.fill(bench, cells_of(grid, names=["NFT", "CEAG"], seeds=[0, 1], augment=True), where)
    few = cells_of(replace(grid, heldout_used=6), names=SEEING, seeds=[0, 1, 2], augment=False)
    beyond_train.fill(bench, few, where)
    return made


@pytest.fixture(scope="module")
def documents(folder: Path) -> Documents:
    """Of superclasses; classes ride on them."""
    read = beyond_results.read(folder / "beyond.json")
    answers = beyond_answers.read(folder / "beyond_answers.json")
    for document in (read, answers):
        own = [r for r in document["runs"] if r["groups"] == "superclass"]
        document["runs"] = [r for r in own if not (r["augment"] and r["method"] == BIAS)]
    return read, answers


def some_of(documents: Documents, *methods: str) -> Documents:
    """A copy with these methods only, which is quicker."""
    results, correct = (
        document | {"runs": [run for run in document["runs"] if run["method"] in methods]}
        for document in documents
    )
    return copy.deepcopy((results, correct))


def html_of(documents: Documents) -> str:
    return beyond_page.to_html(*documents)


@pytest.fixture(scope="module")
def html(documents: Documents) -> str:
    return html_of(documents)


@pytest.fixture(scope="module")
def found(documents: Documents) -> list[Block]:
    return blocks_of(documents)


def blocks_of(documents: Documents) -> list[Block]:
    return beyond_summary.blocks(*documents, tolerance=0.01)


# --- made-up runs, whose counts and answers agree ---

GROUPS = np.repeat([0, 1, 2], 3000)
AIMS = {name: 0.01 for name, kind in KINDS.items() if kind.tolerance in ("usual", "after")}
DENSE = np.ones(9000, dtype=bool)


def answers(lost: Sequence[int]) -> np.ndarray:
    """Of each group so many samples lost; the dense model is always right."""
    right = DENSE.copy()
    for group, count in enumerate(lost):
        right[np.flatnonzero(np.equal(GROUPS, group))[:count]] = False
    return right


def made_row(cell: Cell, right: np.ndarray, **more: Any) -> dict[str, Any]:
    lost = np.bincount(GROUPS[~right], minlength=3)
    counts = {"samples": [3000] * 3, "broke": lost.tolist(), "fixed": [0] * 3}
    told = {"accuracy": float(right.mean()), **beyond_rows.measures(counts)}
    error = beyond_rows.standard_error(counts)
    followed = {"split": "heldout", "samples": [3000] * 3, "standard_error": error}
    return {
        **asdict(cell),
        **{split: dict(told) for split in beyond_rows.SPLITS},
        "changes": {"heldout": counts, "choice": counts, "audit": counts},
        "standard_error": {"heldout": error, "choice": error, "audit": error},
        **dict.fromkeys(("multiplier_sum", "multipliers", "constraint")),
        "followed": followed if KINDS[cell.method].follows_unseen else None,
        "negative_weights": 0,
        "shared": False,
        "mixed": False,
        "seconds": 1.0,
        "versions": VERSIONS,
        "commit": "abc1234",
        **more,
    }


def made(lost: dict[str, Sequence[Sequence[int]]], **setting: Any) -> Documents:
    """`lost`: by method and seed, how many samples of each group were lost."""
    rows, kept = [], []
    for method, seeds in lost.items():
        for seed, counts in enumerate(seeds):
            told = {"groups": "class", "sparsity": 0.95, "tolerance": AIMS.get(method)} | setting
            cell = Cell(method=method, seed=seed, **told)
            right = answers(counts)
            rows.append(made_row(cell, right))
            kept.append({**asdict(cell), "dense": 0, "predicted": beyond_answers.packed(~right)})
    assert beyond_results.problems({"runs": rows}) == []
    # Class 0 is right, and what the dense model always says: a run that is wrong says class 1.
    nothing = beyond_answers.packed(~DENSE)
    own = {
        "labels": nothing,
        "groups": {rows[0]["groups"]: beyond_answers.packed(GROUPS)},
        "dense": [nothing],
    }
    document = {"runs": kept, "datasets": {rows[0]["dataset"]: own}}
    assert beyond_answers.problems(document) == []
    return {"runs": rows}, document


def joined(*parts: Documents) -> Documents:
    """Runs of several settings of one data set."""
    results, answers_ = ([run for part in parts for run in part[place]["runs"]] for place in (0, 1))
    return {"runs": results}, parts[0][1] | {"runs": answers_}


EVEN, WORSE, WORST = (300, 300, 300), (600, 300, 300), (1200, 300, 300)


# --- tables of a page and of a text ---


class Tables(HTMLParser):
    """Every table as rows of cells; a cell is the texts in it: ["61.2", "± 0.3", "chance 3.8 (2.2–5.8)"]."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, list[list[list[str]]]]] = []
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.found.append((dict(attributes).get("class") or "", []))
        elif tag == "tr":
            self.found[-1][1].append([])
        elif tag in ("td", "th"):
            self.found[-1][1][-1].append([])
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.inside and data.strip():
            self.found[-1][1][-1][-1].append(data.strip().replace("−", "-"))

    def of(self, kind: str) -> list[list[list[list[str]]]]:
        return [rows for name, rows in self.found if name == kind]


def name_in(cell: list[str]) -> str:
    """The name in a row's head: Ψ_PW is written with a subscript, seeds and steps follow."""
    return "Ψ_PW" if cell[:2] == ["Ψ", "PW"] else cell[0]


def number_in(cell: list[str]) -> str:
    return " ".join(cell[:2]) if len(cell) > 1 and cell[1].startswith("±") else cell[0]


Text = list[tuple[str, dict[str, list[list[str]]]]]


@pytest.fixture(scope="module")
def text(documents: Documents, html: str) -> Text:
    """The settings of the text, which are in the order of the page."""
    told = text_tables(documents)
    assert [html.index(title) for title, _ in told] == sorted(html.index(title) for title, _ in told)
    return told


def text_tables(documents: Documents) -> Text:
    """The title of every setting, and its tables by the first word of their heads."""
    found: Text = []
    for line in beyond_table.lines(*documents):
        words = re.split(r"\s{2,}", line.strip())
        if "held out," in line:
            found.append((line, {}))
        elif words[0].startswith(("method", "against ", "constraints")) and len(words) > 1:
            kind = "choice" if "s.e. of ψ" in words else words[0]
            found[-1][1][kind] = []
        elif len(words) > 5:
            found[-1][1][kind].append(words)
    return found


def test_the_main_tables_hold_the_numbers_of_the_text(text: Text, html: str) -> None:
    tables = Tables(html).of("methods stack")
    assert len(tables) == len(text) == 3
    compared = 0
    for rows, (_, own) in zip(tables, text, strict=True):
        shown = {name_in(row[0]): row for row in rows[2:] if len(row) == 13}
        assert list(shown) == [words[0] for words in own["method"]]
        for name, step, seeds, *numbers, floor, floor_pw, limits, less, verdicts, n, clipped, seconds in own[
            "method"
        ]:
            row = shown[name]
            told = f"{seeds} seeds" + ("" if step == "–" else f", step {step}")
            assert row[0][-1 - (clipped != "–")] == told
            assert (row[0][-1] == f"{clipped} weights clipped") == (clipped != "–")
            assert [number_in(cell) for cell in row[1:11]] == numbers
            assert [row[i][2].removeprefix("chance ") for i in (6, 7)] == [floor, floor_pw]
            facts = [
                f"max ψ {limits}",
                f"de-biased {less}",
                *([] if n == "–" else [f"{n} a group would settle it"]),
            ]
            assert " ".join(row[11]) == " ".join([verdicts, *facts]).replace("−", "-")
            assert number_in(row[12]) == seconds
            compared += 1
    assert compared == len(RUN) + 2 + len(SEEING)
    assert html.count("de-biased") == compared  # a hyphen, no minus


def test_the_other_tables_hold_the_numbers_of_the_text(text: Text, html: str) -> None:
    tables = Tables(html)
    shown = tables.of("plain paired stack")
    compared = [(kind, rows) for _, own in text for kind, rows in own.items() if kind.startswith("against")]
    told = [words for _, rows in compared for words in rows]
    rows = [row[1:] for rows in shown for row in rows[1:]]
    assert [[number_in(c) for c in row] for row in rows] == [[*w[3:11:2], w[2]] for w in told]
    limits = [cell[2].partition(";")[0] for row in rows for cell in row[:4]]
    assert limits == [word.replace("−", "-") for words in told for word in words[4:11:2]]
    heads = [rows[0][0][0].removeprefix("Minus ").removesuffix(", same samples") for rows in shown]
    assert heads == [kind.removeprefix("against ") for kind, _ in compared]
    held = tables.of("plain choice")
    assert {rows[0][0][0] for rows in held} == {"Choice split"}
    numbers = [[number_in(c) for c in row[1:]] for rows in held for row in rows[1:]]
    assert numbers == [words[1:] for _, own in text for words in own["choice"]]


def test_every_constraint_of_the_text_is_on_the_page_once(text: Text, html: str) -> None:
    shown = [
        [name_in(row[0]), *map(number_in, row[1:])]
        for rows in Tables(html).of("plain constraints stack")
        for row in rows[1:]
    ]
    told = [words for _, own in text for words in own.get("constraints", [])]
    assert sorted(shown) == sorted(told)
    assert {row[0] for row in shown} >= set(FORMULATIONS) - set(LEFT_OUT)


def test_numbers_are_means_and_deviations_of_the_runs(documents: Documents, html: str) -> None:
    """The slow way, from the rows of the file."""
    rows = [
        run
        for run in documents[0]["runs"]
        if (run["method"], run["augment"], run["heldout_used"]) == ("CELG", False, None)
    ]
    values = [100 * run["audit"]["max_excess_gap"] for run in rows]
    shown = next(row for rows in Tables(html).of("methods stack") for row in rows if row[0][0] == "CELG")
    told = [float(word) for word in number_in(shown[6]).split(" ± ")]
    assert told == pytest.approx([statistics.fmean(values), statistics.stdev(values)], abs=0.0501)


# --- numbers ---


def test_runs_above_chance_are_counted_against_their_own_noise_floor(found: list[Block]) -> None:
    counted = 0
    for block in found:
        for entry in block.entries:
            above = [
                row["audit"]["max_excess_gap"] > audit.noise_floor["max_excess_gap"]["high"]
                for row, audit in zip(entry.rows, entry.audits, strict=True)
            ]
            assert entry.above("max_excess_gap") == sum(above)
            counted += len(above)
    assert counted > 40
    (block,) = blocks_of(made({"NFT": [(320, 300, 290)], "CEAG": [WORST]}))
    first, last = block.entries
    floor = first.floor("max_excess_gap")
    assert floor.mean < first.rows[0]["audit"]["max_excess_gap"] < floor.high  # above the mean is not enough
    assert (first.above("max_excess_gap"), last.above("max_excess_gap")) == (0, 1)


def audited(first: np.ndarray, second: np.ndarray, dense: np.ndarray, groups: np.ndarray) -> Comparison:
    """The slow way to compare two runs: audit both, and leave out all but the comparison."""
    runs = {"first": first, "second": second}
    return evenprune.audit(
        dense_correct=dense, pruned_correct=runs, groups=groups, tolerance=0.01
    ).comparisons[0]


def test_runs_are_compared_as_an_audit_of_both_compares_them() -> None:
    lost = {"NFT": [WORSE, EVEN], "CEAG": [WORST, (310, 290, 305)], "NFT + KD": [EVEN, WORSE]}
    (block,) = blocks_of(made(lost))
    told = [(row, entry, at) for entry in block.entries for at, row in enumerate(entry.versus.rows)]
    assert len(told) == 4
    for row, entry, at in told:
        method, seed = row["method"], row["seed"]
        slow = audited(answers(lost["NFT"][seed]), answers(lost[method][seed]), DENSE, GROUPS)
        assert set(entry.versus.by) == set(BETTER)
        for measure in set(BETTER) - {PAYERS}:
            found = entry.versus.by[measure]
            assert found.values[at] == pytest.approx(getattr(slow, measure).estimate, abs=1e-12)


def gains_of(found: list[Block]) -> list[beyond_summary.Gain]:
    """Of the one task that has several numbers of held-out samples."""
    (own,) = [own for task, own in beyond_summary.gains(found).items() if not task.augment]
    return own


def test_a_gain_is_of_the_runs_that_are_compared(documents: Documents, found: list[Block]) -> None:
    own = gains_of(found)
    assert {gain.entry.method for gain in own} == {*SEEING, "CEAG cross-fitted (passes)"}
    sizes = [g.followed.samples for g in own if g.entry.method == BIAS]
    assert sizes == [6, 20]  # the largest standard error first
    gain = next(gain for gain in own if gain.followed.samples == 6)
    plain = {
        run["seed"]: run
        for run in documents[0]["runs"]
        if run["method"] == "NFT" and not run["augment"] and run["groups"] == gain.setting.groups
    }
    payers = payers_of(plain.values())
    apart = [
        gap_of(row["changes"]["audit"], payers) - gap_of(plain[row["seed"]]["changes"]["audit"], payers)
        for row in gain.entry.rows
    ]
    assert gain.difference.mean == pytest.approx(statistics.fmean(apart), abs=1e-9)
    errors = [row["standard_error"]["heldout"] for row in gain.entry.rows]
    assert gain.followed.error.mean == pytest.approx(statistics.fmean(errors))


def test_what_more_samples_gain_is_told_by_the_numbers(found: list[Block]) -> None:
    own = gains_of(found)
    several = [name for name in SEEING if len([g for g in own if g.entry.method == name]) > 1]
    assert BIAS in several
    ends = {
        n: sorted((g for g in own if g.entry.method == n), key=lambda g: g.followed.samples) for n in several
    }
    told = re.fullmatch(
        r"Run with 6 to 20 held-out samples a group\. Payers' ψ on unseen data minus NFT's, in points, with "
        r"the fewest → with the most: (.*)\. The limits of the two lie apart: (.*)\.",
        beyond_findings.gain_sentence(own),
    )
    assert told
    for name in several:
        values = (round(100 * ends[name][end].difference.mean, 1) for end in (0, -1))
        few, many = (f"{value:+.1f}".replace("-", "−") if value else "0.0" for value in values)
        assert re.search(rf"(^|, | and ){re.escape(f'{name} {few} → {many}')}(,| and |$)", told[1])


@pytest.mark.parametrize(
    ("many", "step", "end"),
    [
        (EVEN, 0.1, r" 0\.0 → −\d\.\d\. The limits of the two lie apart: CEAG held-out \(passes\)\."),
        (WORSE, 0.2, r" 0\.0 → 0\.0 \(dual steps 0\.1 → 0\.2\)\. The limits of the two lie apart: none\."),
    ],
)
def test_more_samples_gain_more_where_limits_lie_apart_and_other_dual_steps_are_named(
    many: Sequence[int], step: float, end: str
) -> None:
    """With few samples payers lose as much as with NFT; with many none of it, or as much."""
    few = made({PASSES: [WORSE] * 3}, heldout_used=10, dual_lr=0.1)
    for run in few[0]["runs"]:
        run["followed"]["samples"] = [10] * 3
    parts = made({"NFT": [WORSE] * 3}), made({PASSES: [many] * 3}, dual_lr=step), few
    (own,) = beyond_summary.gains(blocks_of(joined(*parts))).values()
    assert re.search(end, beyond_findings.gain_sentence(own))


def test_cross_fitted_runs_are_placed_by_the_training_samples_that_they_follow(found: list[Block]) -> None:
    own = gains_of(found)
    (crossed,) = [gain for gain in own if gain.entry.method == "CEAG cross-fitted (passes)"]
    held = [gain for gain in own if gain.followed.samples == 20]
    assert crossed.followed.samples == 50
    assert held
    assert all(crossed.followed.error.mean < gain.followed.error.mean for gain in held)


def test_gains_with_other_numbers_of_samples_held_out_stand_in_one_panel() -> None:
    """Each against the NFT of its own dense model."""
    lost = {"NFT": [WORSE] * 3, PASSES: [EVEN] * 3}
    first, second = made(lost, heldout_per_class=50), made(lost, heldout_per_class=20)
    third = made(lost, heldout_per_class=20, epochs=30)
    found = blocks_of(joined(first, second, third))
    (task, own), (other, few) = beyond_summary.gains(found).items()
    assert (len(own), len(few), task.epochs, other.epochs) == (2, 1, 60, 30)
    assert {gain.setting.heldout_per_class for gain in own} == {20, 50}
    assert beyond_words.task_titles([task, other]) == [
        f"Groups by class, without augmentation, {epochs} epochs" for epochs in (60, 30)
    ]


def test_a_data_set_is_never_chosen_on_another() -> None:
    """Two data sets with the same settings: on held-out data the small step is best in one of them only."""
    rows = []
    for data, best in (("cifar100", 0.1), ("utkface", 0.2)):
        for step in (0.1, 0.2):
            cell = Cell(method="CEAG", groups="race", sparsity=0.9, seed=0, tolerance=0.01, dual_lr=step)
            row = made_row(cell, answers(EVEN if step == best else WORSE))
            rows.append(row | {"dataset": data})
    chosen = blocks_of(({"runs": rows}, EMPTY[1]))
    assert [(b.setting.dataset, b.entries[0].step) for b in chosen] == [("cifar100", 0.1), ("utkface", 0.2)]


# --- sentences ---


def findings(documents: Documents) -> dict[str, str]:
    return dict(beyond_findings.study_findings(blocks_of(documents)))


def headline(documents: Documents) -> str:
    return beyond_findings.headline(blocks_of(documents))


def test_what_helps_and_what_harms_is_said_with_the_number_of_settings() -> None:
    documents = made({"NFT": [WORSE] * 3, "NFT + KD": [EVEN] * 3, "FairGRAPE": [WORST] * 3})
    assert headline(documents) == (
        "On unseen data 1 of 2 methods keeps the worst group's excess gap clearly below that of plain "
        "fine-tuning (NFT): NFT + KD (1 of 1 setting). The groups that held-out samples show to pay are "
        "clearly better off with 1 of 2."
    )
    told = findings(documents)
    assert told["Payers clearly better off than with NFT"] == "NFT + KD (1 of 1 setting)"
    assert told["Payers clearly worse off"] == "FairGRAPE (1 of 1 setting)"
    assert told["Clearly less harm than NFT"] == "NFT + KD (1 of 1 setting)"
    assert told["Clearly more harm"] == "FairGRAPE (1 of 1 setting)"
    assert told["Clearly less accurate"] == "FairGRAPE (1 of 1 setting)"
    assert told["Against the noise floor"].endswith("In no seed of any setting above it: NFT + KD.")
    # max ψ of (600, 300, 300) of 3,000 each: 20 % − 13.3 % = 6.7 %, beyond the tolerance
    assert "in 3 of 9 runs on training data, in 3 on unseen data" in told["From training to unseen data"]
    assert told["From training to unseen data"].endswith("3 pass, 0 inconclusive, 6 fail.")
    here = dict(beyond_findings.block_findings(blocks_of(documents)[0]))
    assert here["Max ψ clearly below NFT's"] == "NFT + KD (−6.7 points)"
    assert here["Clearly above NFT's"] == "FairGRAPE (+13.3 points)"
    assert here["Payers, by held-out samples"] == (
        "apple. On unseen samples NFT takes 6.7 points more from them than from all."
    )
    assert here["Payers clearly better off"] == "NFT + KD (−6.7 points)"
    assert here["Payers clearly worse off"] == "FairGRAPE (+13.3 points)"


def test_of_many_methods_the_headline_names_the_one_that_helps_most_often() -> None:
    names = ("NFT + KD", "EL + RB", "CEAG", "FairGRAPE")
    three = made({"NFT": [WORSE] * 3, **dict.fromkeys(names[:3], [EVEN] * 3)})
    assert "NFT + KD (1 of 1 setting), EL + RB (1 of 1 setting) and CEAG (1" in headline(three)
    four = made({"NFT": [WORSE] * 3, **dict.fromkeys(names, [EVEN] * 3)})
    assert headline(four) == (
        "On unseen data 4 of 4 methods keep the worst group's excess gap clearly below that of plain "
        "fine-tuning (NFT), above all NFT + KD (1 of 1 setting). The groups that held-out samples show "
        "to pay are clearly better off with 4 of 4, above all NFT + KD (1 of 1 setting)."
    )
    told = {"a": ["better", "mixed"], "b": ["better"], "c": ["better", "better"], "d": ["better", "worse"]}
    assert beyond_findings._above_all(told) == ", above all c (2 of 2 settings)"
    often = told | {"e": ["better", *["mixed"] * 3], "f": ["better", "better", "mixed"]}
    assert beyond_findings._above_all(often) == ", above all f (2 of 3 settings)"


def test_the_headline_counts_each_task_once_and_tells_distillation_from_multipliers() -> None:
    lost = {"NFT": [WORSE] * 3, KD: [WORSE] * 3, BOTH: [EVEN] * 3}
    tasks = [
        {"augment": augment, "groups": groups} for augment, groups in ((False, "class"), (True, "class"))
    ]
    both = [made(lost, **task) for task in tasks]
    few = made(lost, heldout_used=25)
    assert headline(joined(*both)) == headline(joined(*both, few))
    assert "clearly below that of plain fine-tuning (NFT) in some setting: CEAG held-out + KD (2 of 2" in (
        headline(joined(*both))
    )
    assert "Beyond" not in headline(joined(*both))  # of two settings a share says little
    three = [*both, made(lost, augment=True, sparsity=0.9)]
    assert headline(joined(*three)).endswith(
        " Beyond NFT + KD, CEAG held-out + KD lowers the worst gap clearly in 3 of 3 settings, and spares "
        "those who pay in 3."
    )


def test_groups_that_are_named_stand_in_place_of_those_who_pay() -> None:
    """Apples pay with NFT; ψ of (600, 300, 300) of 3,000 each is 20 − 13.3 % for them, −3.3 for others."""
    documents = made({"NFT": [WORSE] * 3, "NFT + KD": [EVEN] * 3})

    def told(*payers: str) -> list[str]:
        lines = beyond_table.lines(*documents, payers=payers)
        rows = [re.split(r"\s{2,}", line) for line in lines if line.startswith(("method", "NFT  "))]
        return [*lines[:1], rows[1][rows[0].index("unseen payers' ψ")]]

    assert told()[1] == told("apple")[1] == "6.7 ± 0.0"
    assert told("baby") == ["payers: 'baby', as asked for; not those that NFT takes most from", "-3.3 ± 0.0"]
    assert told("apple", "aquarium fish", "baby")[1] == "0.0 ± 0.0"
    assert told("Others")[1] == "–"  # who have no part in classes


def test_payers_who_are_farther_ahead_than_they_were_behind_are_told_apart() -> None:
    """Apples lose 6.7 points with NFT; ψ of (0, 600, 600) of 3,000 each is 0 − 13.3 %."""
    documents = made({"NFT": [WORSE] * 3, "NFT + KD": [EVEN] * 3, "CEAG": [(0, 600, 600)] * 3})
    assert headline(documents).endswith(
        "off with 1 of 2. With 1 of 2 they are farther ahead of the average than they had been behind."
    )
    told = findings(documents)
    assert told["Payers clearly better off than with NFT"] == "NFT + KD (1 of 1 setting)"
    assert told["Payers farther ahead than they had been behind"] == "CEAG (1 of 1 setting)"
    assert told["Groups clearly closer together (Ψ_PW)"] == "NFT + KD (1 of 1 setting)"
    assert told["Groups clearly farther apart (Ψ_PW)"] == "CEAG (1 of 1 setting)"
    (block,) = blocks_of(documents)
    here = dict(beyond_findings.block_findings(block))
    assert here["Payers farther ahead than they had been behind"] == "CEAG (−20.0 points)"
    payers = {e.name: (e.overshoots, beyond_findings.standing(e, PAYERS)) for e in block.entries[1:]}
    assert payers == {"NFT + KD": (False, "better"), "CEAG": (True, "overshot")}
    ceag = next(e for e in block.entries if e.name == "CEAG")
    assert beyond_findings.standing(ceag) == "mixed"
    assert re.search(r'class="num [^"]*beyond sure"[^>]*><b>−20\.0<', html_of(documents))
    assert beyond_findings.counts(ceag, PAYERS).endswith("; 3 of 3 seeds better; overshoots")
    assert "overshoots" not in beyond_findings.counts(ceag)
    # Who overshoots may still harm less: max ψ of (0, 330, 330) is 3.7 points, of (300, 0, 0) 6.7.
    (less,) = blocks_of(made({"NFT": [(300, 0, 0)] * 3, "CEAG": [(0, 330, 330)] * 3}))
    assert [beyond_findings.standing(less.entries[1], m) for m in (PAYERS, beyond_findings.HARM)] == [
        "overshot",
        "better",
    ]
    # Seeds without a partner are not compared: only theirs would be farther ahead.
    lost = {"NFT": [WORSE] * 3, "CEAG": [(200, 300, 400)] * 3 + [(0, 900, 900)] * 3}
    (some,) = blocks_of(made(lost))
    assert beyond_findings.standing(some.entries[1], PAYERS) == "better"
    # As far as they were behind is not farther.
    (even,) = blocks_of(made({"NFT": [WORSE] * 3, "CEAG": [(100, 300, 500)] * 3}))
    assert beyond_findings.standing(even.entries[1], PAYERS) == "better"


def test_what_differs_in_every_seed_but_not_clearly_is_told_apart() -> None:
    near, far, other = (306, 300, 300), (312, 300, 300), (300, 303, 300)
    lost = {"NFT": [far] * 3, "CEAG": [near] * 3, "EL + RB": [near, (318, 300, 300), other]}
    documents = made(lost)
    assert headline(documents).endswith(
        "; with 1 of 2 it is lower in every seed of some setting. The groups that held-out samples show to "
        "pay are clearly better off with 1 of 2."
    )
    told = findings(documents)
    assert told["Clearly less harm than NFT"] == "none"
    assert told["Less in every seed, but not clearly"] == "CEAG (1 of 1 setting)"
    assert told["In every setting now less, now more"] == "EL + RB"
    few = made({name: seeds[:2] for name, seeds in lost.items()})
    assert "Less in every seed, but not clearly" not in findings(few)
    here = dict(beyond_findings.block_findings(blocks_of(few)[0]))
    assert "CEAG (−0.1 points)" in here["Fewer than 3 seeds"]


def test_what_became_feasible_is_said_at_the_best_step(found: list[Block]) -> None:
    (own,) = filter(None, map(beyond_findings.formulated, found))
    one = next(c for c in own if c.method == "CELG")
    size, still, moving = (beyond_summary.Spread.of([value]) for value in (2.0, 0.1, -0.4))
    held = [
        replace(
            one,
            name=name,
            method=name,
            step=step,
            seeds=3,
            held=dict.fromkeys(one.held, count) | {"audit": 0},
        )
        for name, step, count in (("CELG", 0.1, 1), ("CELG", 0.2, 3), ("equalized", 0.1, 2), ("Ψ_PW", 0.1, 0))
    ]
    held = [replace(c, size=size, change=moving if c.name == "equalized" else still) for c in held]
    told = dict(beyond_findings.formulation_findings(held))
    assert told["Feasible on training data in all seeds"] == "CELG (3 of 3, step 0.2)"
    assert told["In some seeds at best"] == "equalized (2 of 3, step 0.1)"
    assert told["With no dual step in any seed"] == "Ψ_PW"
    assert told["Feasible on unseen data"] == "none"
    assert told["Multipliers not settled"].startswith("equalized (")
    assert "Diverged" not in told
    wild = [replace(c, diverged=2) if c.name == "Ψ_PW" else c for c in held]
    told = dict(beyond_findings.formulation_findings(wild))
    assert told["Diverged"] == "Ψ_PW (2 of 3, step 0.1)"
    assert told["Multipliers not settled"].startswith("equalized and Ψ_PW (")


# --- other baselines ---


def rival(documents: Documents, **options: Any) -> list[Block]:
    return beyond_summary.blocks(*documents, tolerance=0.01, **options)


def test_multipliers_on_unseen_samples_face_the_class_bias_and_ceag_too() -> None:
    lost = {"NFT": [WORST] * 3, BIAS: [EVEN] * 3, "CEAG": [WORSE] * 3, PASSES: [WORSE] * 3}
    documents = made(lost)
    (block,) = rival(documents)
    assert {name: [e.method for e in own] for name, own in block.faced.items()} == {
        BIAS: [PASSES],
        "CEAG": [PASSES],
    }
    told = findings(documents)
    here = f"{PASSES} (1 of 1 setting)"
    assert told[f"Multipliers on unseen samples, against {BIAS}"] == (
        f"clearly more harm: {here}; payers clearly worse off: {here}."
    )
    assert told["Multipliers on unseen samples, against CEAG"] == (
        "nothing is clear, or the same in every seed."
    )
    page = html_of(documents)
    shown = [
        rows for rows in Tables(page).of("plain paired stack") if rows[0][0][0].startswith(f"Minus {BIAS}")
    ]
    (row,) = shown[0][1:]
    # Against the class bias: 600 instead of 300 of the 3,000 samples of the first group are lost.
    told = ["-3.3 ± 0.0", "+6.7 ± 0.0", "+10.0 ± 0.0", "+6.7 ± 0.0", "96.7 ± 0.0"]
    assert [number_in(cell) for cell in row[1:]] == told


def test_multipliers_with_distillation_face_distillation_alone() -> None:
    documents = made({"NFT": [WORST] * 3, KD: [WORSE] * 3, PASSES: [WORSE] * 3, BOTH: [EVEN] * 3})
    (block,) = rival(documents)
    assert [e.method for e in block.faced[KD]] == [BOTH]
    told, here = findings(documents), f"{BOTH} (1 of 1 setting)"
    assert told[f"Multipliers on unseen samples, against {KD}"] == (
        f"clearly less harm: {here}; payers clearly better off: {here}."
    )


def test_every_method_can_be_compared_with_any_other() -> None:
    lost = {"NFT": [WORST] * 3, BIAS: [EVEN] * 3, "CEAG": [WORSE] * 3, PASSES: [WORSE] * 3}
    documents = made(lost)
    (block,) = rival(documents, against="CEAG")
    estimates = {
        e.method: [round(v, 9) for v in d.values] if (d := e.difference("max_excess_gap")) else []
        for e in block.entries
    }
    slow = {
        name: [
            audited(answers(a), answers(b), DENSE, GROUPS) for a, b in zip(lost["CEAG"], seeds, strict=True)
        ]
        for name, seeds in lost.items()
        if name != "CEAG"
    }
    assert estimates == {"CEAG": []} | {
        n: [round(c.max_excess_gap.estimate, 9) for c in own] for n, own in slow.items()
    }
    assert set(block.faced) == {"NFT", BIAS}
    page = beyond_page.to_html(*documents, against="CEAG")
    assert "clearly below that of CEAG: " in page
    assert "plain fine-tuning" not in page
    assert "Minus CEAG, same samples" in page
    assert "Max ψ clearly below CEAG&#x27;s" in page or "Max ψ clearly below CEAG's" in page


def test_pairs_tell_how_often_two_runs_say_the_same_class() -> None:
    (block,) = blocks_of(made({"NFT": [(600, 0, 0)], "CEAG": [(300, 300, 0)]}))
    assert block.entries[1].versus.same == (1 - (300 + 300) / 9000,)


def test_clipped_weights_and_mixed_fleets_are_told_where_there_were_any() -> None:
    documents = made({"NFT": [EVEN] * 2, "CEAG": [EVEN] * 2})
    for run in documents[0]["runs"]:
        if run["method"] == "CEAG":
            run |= {"negative_weights": 1000 + 200 * run["seed"], "mixed": True}
    rows = {row[0][0]: row for row in Tables(html_of(documents)).of("methods stack")[0][2:]}
    plain, other = rows["NFT"], rows["CEAG"]
    assert plain[0] == ["NFT", "2 seeds"]
    assert plain[12][:2] == ["1.0", "± 0.0"]
    assert other[0] == ["CEAG", "2 seeds", "1,100 weights clipped"]
    assert other[12] == ["1.0", "± 0.0", "mixed fleet"]
    line = next(line for line in beyond_table.lines(*documents) if line.startswith("CEAG "))
    assert re.split(r"\s{2,}", line)[-2:] == ["1,100", "1.0 ± 0.0*"]


def test_seconds_that_were_not_measured_are_not_told() -> None:
    documents = made({"NFT": [EVEN] * 2, "CEAG": [EVEN] * 2})
    measured = next(fact for fact in beyond_page.facts(documents[0]["runs"]) if "computing" in fact)
    assert not measured.startswith("over ")
    for run in documents[0]["runs"]:
        if run["method"] == "CEAG":
            run |= {"seconds": None, "mixed": True}
    assert not beyond_results.problems(documents[0])
    rows = {row[0][0]: row for row in Tables(html_of(documents)).of("methods stack")[0][2:]}
    assert rows["CEAG"][12] == ["–"]
    line = next(line for line in beyond_table.lines(*documents) if line.startswith("CEAG "))
    assert re.split(r"\s{2,}", line)[-1] == "–"
    less = next(fact for fact in beyond_page.facts(documents[0]["runs"]) if "computing" in fact)
    assert less == "over 2 seconds of computing"  # of NFT's two runs


def test_what_carries_over_and_who_is_worse_stand_beside_what_is_followed() -> None:
    documents = made({"NFT": [WORSE] * 2, "CEAG": [EVEN] * 2})
    table = [re.split(r"\s{2,}", line) for line in beyond_table.lines(*documents)]
    head = next(row for row in table if "carried over" in row)
    plain, other = table[table.index(head) + 1 : table.index(head) + 3]
    (block,) = blocks_of(documents)
    rows = block.entries[1].rows
    assert (plain[0], other[0]) == ("NFT", "CEAG")
    assert other[head.index("worse")] == f"{groups_worse(rows, block.entries[0].rows)} of {block.groups}"
    assert plain[head.index("worse")] == "–"
    held = statistics.fmean(row["heldout"]["max_excess_gap"] for row in rows)
    assert other[head.index("held-out max ψ")].startswith(f"{100 * held:.1f} ")


def test_the_page_says_when_the_question_of_payers_was_asked(html: str) -> None:
    told = " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())
    named = told.index("named before unseen ones are looked at.")
    said = "The question itself, what payers lose, was asked after the first tables had been seen."
    assert told[named:].index(said) < 50


# --- what is not there ---


def told_of_one(names: list[str]) -> list[str]:
    """Of one setting."""
    return beyond_findings.unrun(blocks_of(made(dict.fromkeys(names, [EVEN] * 5))))


def test_what_was_not_run_is_said_and_nothing_stands_in_its_place(found: list[Block], html: str) -> None:
    tables = Tables(html)
    unrun = [row for rows in tables.of("methods stack") for row in rows if row[1:] == [["not run yet"]]]
    assert [row[0] for row in unrun].count(["CEAG held-out + KD"]) == 2
    assert [row[0] for row in unrun].count(["GroupDRO"]) == 1  # belongs to one setting
    glances = tables.of("glance against stack")
    assert len(glances) == 2  # what payers lose, and max ψ
    for glance in glances:
        cells = {name_in(row[0]): row[1:] for row in glance[1:]}
        assert cells["CEAG held-out + KD"] == [["not run yet"]] * 2
        assert cells["GroupDRO"] == [["not run yet"], ["–"]]
        assert cells["NFT + KD"][1] == ["not run yet"]
    told = beyond_findings.unrun(found)
    assert "CIFAR-100, groups by class, with augmentation" in told
    assert "UTKFace, groups by race, without augmentation" in told
    assert "Formulations: two-sided" in told
    assert not any("other numbers of held-out samples" in line for line in told_of_one(["NFT"]))
    one = told_of_one(["NFT", PASSES])
    assert "CIFAR-100, groups by class, with augmentation" in one
    assert "CIFAR-100, groups by class, without augmentation" not in one
    assert "CIFAR-100, groups by class: multipliers with other numbers of held-out samples" in one
    shown = unescape(html).replace("\u00a0", " ").replace("Ψ<sub>PW</sub>", "Ψ_PW")
    assert [line for line in told if f"<li>{line}</li>" not in shown] == []


@pytest.mark.parametrize("name", [*OF_ONE_SIZE, FEASIBLE])
def test_what_belongs_to_one_setting_is_missed_there(name: str) -> None:
    lost = {"NFT": [EVEN] * 5}
    here = beyond_findings.unrun(blocks_of(made(lost, groups="superclass")))
    assert any(name in line for line in here)
    elsewhere = beyond_findings.unrun(blocks_of(made(lost, groups="superclass", augment=True)))
    assert any(name in line for line in elsewhere) == (name in STUDY)


def test_a_higher_sparsity_has_methods_of_its_own() -> None:
    """What is run there is not what is missing elsewhere; and groups that nobody trains on miss nothing."""
    lost = {name: [EVEN] * 5 for name in ("NFT", "NFT + KD", BIAS)}
    usual = blocks_of(made(lost, groups="superclass"))
    assert "A higher sparsity" in beyond_findings.unrun(usual)
    sparser = blocks_of(made(lost, groups="superclass", sparsity=0.98))
    told = beyond_findings.unrun(sparser)
    assert "A higher sparsity" not in told
    assert "CIFAR-100, groups by superclass, without augmentation" in told  # at the usual one
    absent = [name for name in SPARSER if name not in lost]
    assert beyond_findings.unrun_methods(sparser[0]) == absent
    assert beyond_findings.unrun_methods(blocks_of(made(lost, groups="class", sparsity=0.98))[0]) == []


def test_fewer_held_out_samples_miss_the_methods_that_are_to_look_at_them() -> None:
    lost = {BIAS: [EVEN] * 5}
    first, other = (
        beyond_findings.unrun_methods(blocks_of(made(lost, groups=groups, heldout_used=25))[0])
        for groups in ("superclass", "class")
    )
    assert first == [PASSES, FEASIBLE, "CEAG held-out (lower limit)"]
    assert other == []


def test_runs_without_answers_or_without_nft_are_not_compared(documents: Documents) -> None:
    page = html_of((documents[0], EMPTY[1]))
    assert "Nothing can be compared with plain fine-tuning (NFT) yet." in page
    assert "No method that follows unseen samples is compared with NFT yet" in page
    rows = [r for rows in Tables(page).of("plain paired stack") for r in rows[1:]]
    assert {tuple(c) for r in rows for c in r[1:5]} == {("–", "not compared")}
    assert {tuple(r[5]) for r in rows} == {("–",)}
    without = {"runs": [run for run in documents[0]["runs"] if run["method"] != "NFT"]}
    assert "there is no NFT run of their seeds" in html_of((without, documents[1]))


def test_the_dense_models_are_told_with_those_of_the_folds() -> None:
    accuracy = {"train": 0.999, "heldout": 0.702, "choice": 0.711, "audit": 0.7033}
    place = {"dataset": "cifar100", "heldout_per_class": 50}
    dense = place | {"weights": "w.safetensors", "accuracy": accuracy, "seconds": 200}
    shares = {"rest": 0.999, "fold": 0.66, "heldout": 0.65, "audit": 0.64}
    crossed = place | {"folds": 4, "accuracy": shares}
    page = html_of(({"runs": [], "dense": [dense], "folds": [crossed]}, EMPTY[1]))
    rows = [[" ".join(cell) for cell in table[1]] for table in Tables(page).of("plain dense")]
    assert rows == [
        ["50 CIFAR-100", "99.9 %", "70.2 %", "71.1 %", "70.3 %", "3 minutes", "w.safetensors"],
        ["50 CIFAR-100", "4", "99.9 %", "66.0 %", "65.0 %", "64.0 %"],
    ]
    assert "Not trained yet." not in page


def test_an_empty_file_is_a_page_that_says_so() -> None:
    page = html_of(EMPTY)
    assert "No run is finished yet." in page
    assert "Not trained yet." in page
    assert "not run yet: python paper/beyond.py formulations" in page
    assert Tables(page).found == []
    assert page.count("augmentation</li>") == 7


def test_another_data_set_stands_beside_the_first(documents: Documents) -> None:
    more = some_of(documents, "NFT", "CEAG", PASSES)
    for document in more:
        document["runs"] = [run for run in document["runs"] if run["heldout_used"] is None]
        document["runs"] += [
            run | {"dataset": "utkface", "groups": "race"} for run in copy.deepcopy(document["runs"])
        ]
    own = more[1]["datasets"]["cifar100"]
    more[1]["datasets"]["utkface"] = own | {"groups": {"race": own["groups"]["superclass"]}}
    page = html_of(more)
    assert len(Tables(page).of("methods stack")) == 4
    assert "UTKFace, race groups, 80.0% sparse" in page
    assert "<h3>UTKFace, groups by race, without augmentation</h3>" in page
    assert "UTKFace, groups by race, without augmentation</li>" not in page  # no longer missing


# --- what is folded away ---


def folds(page: str) -> dict[str, bool]:
    """The titles of the settings, and whether each is open."""
    shown = re.findall(r'<details class="fold"( open)?><summary><h2[^>]*>(.*?)</h2>', page)
    return {title: bool(opened) for opened, title in shown}


def test_only_settings_with_fewer_heldout_samples_are_folded(html: str) -> None:
    assert folds(html) == {
        "Groups by superclass, without augmentation, 20 held out a group": True,
        "Groups by superclass, with augmentation, 20 held out a group": True,
        "Groups by superclass, without augmentation, 6 held out a group": False,
    }


def test_fewer_heldout_samples_alone_stay_open() -> None:
    """Nothing to be a variant of."""
    only = made({"NFT": [WORSE] * 3, "CEAG held-out (ring)": [EVEN] * 3}, heldout_used=20)
    assert list(folds(html_of(only)).values()) == [True]


def test_a_folded_setting_says_what_was_found_in_it() -> None:
    whole = made({"NFT": [WORSE] * 3, "NFT + KD": [EVEN] * 3})
    few = made({"CEAG held-out (ring)": [WORST] * 3}, heldout_used=20)
    gists = re.findall(r'<span class="gist">(.*?)</span>', html_of(joined(whole, few)))
    assert [unescape(gist).replace("\u00a0", " ") for gist in gists] == [
        "Max ψ clearly below NFT's: NFT + KD (−6.7 points). Payers, by held-out samples: apple. On unseen "
        "samples NFT takes 6.7 points more from them than from all.",
        "Max ψ clearly below NFT's: none. Clearly above NFT's: CEAG held-out (ring) (+13.3 points).",
    ]


def test_it_has_the_style_of_the_report_on_the_paper(html: str) -> None:
    style = html.split("<style>\n")[1].split("</style>")[0]
    package = Path(evenprune.__file__).parent
    shared = [(package / name).read_text(encoding="utf-8") for name in ("page_base.css", "paper_page.css")]
    assert style.startswith("".join(shared))


# --- names and addresses ---


def hostile(documents: Documents) -> Documents:
    results, correct = some_of(documents, "NFT", "NFT + class bias", "CEAG", "CELG")
    for run in results["runs"]:
        run |= {"groups": HOSTILE[0], "dataset": HOSTILE[1], "commit": HOSTILE[0]}
        run["versions"] |= {"device": HOSTILE[1], "torch": HOSTILE[8]}
    for run in correct["runs"]:
        run |= {"groups": HOSTILE[0], "dataset": HOSTILE[1]}
    own = correct["datasets"].pop("cifar100")
    correct["datasets"][HOSTILE[1]] = own | {"groups": {HOSTILE[0]: own["groups"]["superclass"]}}
    accuracy = dict.fromkeys(beyond_rows.SPLITS, 0.5)
    results["dense"] = [
        {
            "heldout_per_class": 10,
            "weights": HOSTILE[0],
            "accuracy": accuracy,
            "seconds": 1,
            "dataset": HOSTILE[1],
        }
    ]
    timing = {"dataset": HOSTILE[1], "groups": HOSTILE[0], "sparsity": 0.9, "method": "NFT", "fleet": 5}
    timing |= {"epochs": 8, "seconds_per_60_epochs": 20.0, "versions": {"device": HOSTILE[1]}}
    results["timings"] = [timing]
    return results, correct


@pytest.fixture(scope="module")
def owned(documents: Documents) -> str:
    return beyond_page.to_html(*hostile(documents), files=[HOSTILE[0], HOSTILE[8]])


def test_names_cannot_leave_their_place(owned: str) -> None:
    assert owned.count("<script") == 3  # theme, data, program
    assert owned.count("</script>") == 3
    assert "<img" not in owned
    assert not set("<>&\u2028\u2029") & set(owned.split('id="data">')[1].split("</script>")[0])
    owned.encode("utf-8")


def test_the_page_refers_to_nothing_outside(html: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy[1]
    assert " style=" not in html
    assert "@@" not in html
    addresses = set(re.findall(r"""(?:https?:)?//[a-z][^\s"'<>]*""", html))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of a language, not a place


# --- the command ---


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, target = tmp_path / "mine.json", tmp_path / "page.html"
    documents = made({"NFT": [WORSE] * 3, "NFT + KD": [EVEN] * 3})
    for path, document in zip([results, beyond_answers.path_of(results)], documents, strict=True):
        path.write_text(json.dumps(document), encoding="utf-8")
    assert beyond.main(["page", "--results", str(results), "--to", str(target), "--tolerance", "0.02"]) == 0
    assert capsys.readouterr().out == f"Page: {target}\n"
    text = target.read_text(encoding="utf-8")
    assert "The tolerance is 2\u00a0points." in text
    assert "NFT + KD (1 of 1 setting)." in text
    assert "mine_answers.json</li>" in text


def test_by_default_it_is_beyond_html_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("none.json").write_text('{"runs": []}', encoding="utf-8")
    assert beyond.main(["page", "--results", "none.json"]) == 0
    assert "No run is finished yet." in (tmp_path / "beyond.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("beyond.json", "is a results file"),
        ("beyond_answers.json", "is a results file"),
        (".", "is a folder"),
        ("nowhere/x.html", "does not exist"),
    ],
)
def test_what_the_command_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str, said: str
) -> None:
    (tmp_path / "beyond.json").write_text(json.dumps({"runs": []}), encoding="utf-8")
    results = ["--results", str(tmp_path / "beyond.json")]
    assert beyond.main(["page", *results, "--to", str(tmp_path / target)]) == 2
    assert said in capsys.readouterr().err
    assert json.loads((tmp_path / "beyond.json").read_text(encoding="utf-8")) == {"runs": []}


# --- in a browser ---


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Open a page; at the end, no error was logged and nothing but the file was asked for."""
    pages, requests, troubles = [], [], []
    path = tmp_path / "beyond.html"

    def opened(text: str, **options: Any) -> Any:
        path.write_text(text, encoding="utf-8")
        page = browser.new_page(**options)
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.goto(path.as_uri())
        pages.append(page)
        return page

    yield opened
    assert troubles == []
    others = [url for url in requests if url.split("#")[0] != path.as_uri() and not url.startswith("data:")]
    assert others == []
    for page in pages:
        page.close()


@pytest.mark.browser
def test_contents_lead_to_every_section(show: Any, html: str) -> None:
    page = show(html)
    links = page.locator("#contents a").evaluate_all(
        "(all) => all.map((a) => a.getAttribute('href').slice(1))"
    )
    assert links == page.locator("main section[id]").evaluate_all("(all) => all.map((s) => s.id)")
    assert links[:3] == ["findings", "gain", "setting-0"]
    assert page.locator("#setting-0 .strips .line:not(.head)").count() == len(RUN)
    assert page.locator("#formulations .lines").count() == len(FORMULATIONS) - 1


def middles(marks: Any) -> list[tuple[float, float]]:
    """The middle of every mark on the screen."""
    script = "const b = m.getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2];"
    return marks.evaluate_all(f"(marks) => marks.map((m) => {{ {script} }})")


def on_a_line(values: Sequence[float], places: Sequence[float]) -> None:
    """From the left to the right, or from the top down."""
    low, high = (pick(range(len(values)), key=values.__getitem__) for pick in (min, max))
    assert places[high] > places[low]
    for value, place_ in zip(values, places, strict=True):
        share = (value - values[low]) / (values[high] - values[low])
        assert place_ == pytest.approx(places[low] + share * (places[high] - places[low]), abs=0.8)


@pytest.mark.browser
def test_harm_is_drawn_to_scale(show: Any, found: list[Block], html: str) -> None:
    """Positions on the screen are a straight line in the values, of seeds and of differences alike."""
    page = show(html)
    (block,) = filter(beyond_findings.formulated, found)
    seeds = [row["audit"]["max_excess_gap"] for entry in block.entries for row in entry.rows]
    plot = page.locator("#setting-0 .strips .line:not(.head)")
    floors = [entry.floor("max_excess_gap").mean for entry in block.entries]
    marks = [mark for kind in (".seed", ".floor-mean") for mark in middles(plot.locator(kind))]
    on_a_line([*seeds, *floors], [x for x, _ in marks])
    told = [entry.difference("max_excess_gap") for entry in block.entries]
    apart = [value for d in told if d is not None for value in d.values]
    on_a_line(apart, [x for x, _ in middles(plot.locator(".at"))])


@pytest.mark.browser
def test_gains_are_drawn_to_scale(show: Any, found: list[Block], html: str) -> None:
    page = show(html)
    own = gains_of(found)
    drawn = middles(page.locator("#gain .gains").first.locator(".gain"))
    names = list(beyond_charts.looks(own))
    aside = [beyond_charts.aside(names.index(gain.entry.name), len(names)) for gain in own]
    places = [x - moved for (x, _), moved in zip(drawn, aside, strict=True)]
    on_a_line([gain.followed.error.mean for gain in own], places)
    on_a_line([-gain.difference.mean for gain in own], [y for _, y in drawn])


@pytest.mark.browser
def test_without_script_it_says_the_same(show: Any, browser: Any, html: str) -> None:
    with_script = show(html).locator("main").inner_text()
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.set_content(html)
    assert page.locator("main").inner_text() == with_script
    context.close()


@pytest.mark.browser
@pytest.mark.parametrize("which", ["html", "empty", "owned"])
def test_no_window_scrolls_sideways(show: Any, request: pytest.FixtureRequest, which: str) -> None:
    text = html_of(EMPTY) if which == "empty" else request.getfixturevalue(which)
    page = show(text, viewport={"width": 320, "height": 800})
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    for width in (320, 390, 700, 1000, 1400):
        page.set_viewport_size({"width": width, "height": 800})
        until(page, f"innerWidth === {width}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def eight_settings() -> Documents:
    """As wide as it gets: long names, clear differences, two digits before the point."""
    names = ["NFT", BIAS, "CEAG", PASSES, FEASIBLE, "CEAG cross-fitted (passes)"]
    lost = {name: [WORST if place % 2 else EVEN] * 5 for place, name in enumerate(names)}
    settings = [
        {"augment": augment, "sparsity": sparsity, "epochs": epochs}
        for augment in (False, True)
        for sparsity in (0.925, 0.95)
        for epochs in (30, 60)
    ]
    return joined(*(made(lost, **setting) for setting in settings))


@pytest.mark.browser
def test_at_a_glance_eight_settings_need_no_scrolling_sideways(show: Any) -> None:
    page = show(html_of(eight_settings()), viewport={"width": 1300, "height": 900})
    glances = page.locator(".scroll:has(.glance)")
    assert page.locator(".glance thead th").count() == 2 * 9
    wide = glances.evaluate_all("(all) => all.filter((box) => box.scrollWidth > box.clientWidth).length")
    assert wide == 0
    cut = page.locator(".glance td, .glance th").evaluate_all(
        "(all) => all.filter((e) => e.scrollWidth > e.clientWidth).length"
    )
    assert cut == 0


@pytest.mark.browser
def test_on_a_phone_the_wide_tables_are_broken_up_and_named(show: Any, html: str) -> None:
    page = show(html, viewport={"width": 390, "height": 800})
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    boxes = page.locator(".scroll:has(.stack)").evaluate_all(
        "(all) => all.map((e) => [e.scrollWidth, e.clientWidth])"
    )
    assert len(boxes) > 6
    assert all(needed <= there for needed, there in boxes)
    named = page.locator("#setting-0 .methods tbody tr").first.locator("td")
    heads = named.evaluate_all("(all) => all.map((td) => getComputedStyle(td, '::before').content)")
    assert heads[:2] == ['"train acc."', '"train max ψ"']
    assert heads[-2:] == ['"audits"', '"seconds"']


@pytest.mark.browser
def test_colours_follow_the_reader_and_the_button(show: Any, html: str) -> None:
    light, dark = show(html, color_scheme="light"), show(html, color_scheme="dark")
    assert page_colour(light) != page_colour(dark)
    light.click("#theme")
    assert page_colour(light) == page_colour(dark)


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_their_background(show: Any, html: str, scheme: str) -> None:
    """Contrast of 4.5 or more (WCAG AA), coloured numbers too."""
    clear = made({"NFT": [WORSE] * 3, "NFT + KD": [EVEN] * 3, "FairGRAPE": [WORST] * 3})
    for text in (html, html_of(clear)):
        page = show(text, color_scheme=scheme)
        ratios = contrasts(
            page, "h1, h2, h3, p, dt, dd, td, th, td b, td small, th small, a, li, .audits span"
        )
        assert len(ratios) > 100
        assert min(ratios) >= 4.5


@pytest.mark.browser
def test_it_prints_in_light_colours_on_one_page_width(show: Any, html: str) -> None:
    page = show(html, color_scheme="dark", viewport={"width": 720, "height": 1000})
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.locator("nav").is_hidden()
    assert page.evaluate("document.documentElement.scrollWidth") <= 720
    assert page.pdf().startswith(b"%PDF")


@pytest.mark.browser
def test_a_link_in_the_contents_unfolds_what_it_leads_to(show: Any, html: str) -> None:
    page = show(html)
    last = page.locator("#setting-2")
    assert last.locator("table").first.is_hidden()
    assert last.locator(".gist").is_visible()
    page.click("#contents a[href='#setting-2']")
    assert last.locator("table").first.is_visible()
    assert last.locator(".gist").is_hidden()


@pytest.mark.browser
@pytest.mark.parametrize("address", ["setting-2", "no'such\"place", "%", ""])
def test_an_address_with_a_place_unfolds_it(browser: Any, html: str, tmp_path: Path, address: str) -> None:
    path, troubles = tmp_path / "beyond.html", list[str]()
    path.write_text(html, encoding="utf-8")
    page = browser.new_page()
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.goto(f"{path.as_uri()}#{address}")
    assert page.locator("#setting-2 table").first.is_visible() == (address == "setting-2")
    assert troubles == []
    page.close()


@pytest.mark.browser
def test_printing_unfolds_everything_and_folds_it_again(show: Any, html: str) -> None:
    page = show(html)
    count = "document.querySelectorAll('details:not([open])').length"
    page.evaluate(f"addEventListener('beforeprint', () => {{ window.printed = {count}; }})")
    before = page.evaluate(count)
    assert page.pdf().startswith(b"%PDF")
    assert (page.evaluate("window.printed"), page.evaluate(count)) == (0, before)
    assert before > 3


@pytest.mark.browser
def test_without_script_folded_settings_are_printed_too(browser: Any, html: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.set_content(html)
    assert page.locator("#setting-2 .methods").is_hidden()
    page.emulate_media(media="print")
    assert page.locator("#setting-2 .methods").is_visible()
    assert page.locator("#setting-2 .gist").is_hidden()
    context.close()


@pytest.mark.browser
def test_hostile_names_stay_text(show: Any, owned: str) -> None:
    page = show(owned)
    assert page.locator("main img, main script").count() == 0
    for part in ("#facts", "#sources", "#dense", "#seconds", "#setting-0 h2", "#findings thead", "#contents"):
        assert HOSTILE[0] in page.inner_text(part), part
    assert page.title() == "Does it hold on unseen data? · evenprune"


@pytest.mark.browser
def test_the_csv_has_every_number(
    show: Any, documents: Documents, found: list[Block], html: str, tmp_path: Path
) -> None:
    page = show(html)
    with page.expect_download() as download:
        page.click("#csv")
    download.value.save_as(tmp_path / "all.csv")
    with open(tmp_path / "all.csv", encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == (4 * 4 + 2) * sum(len(block.entries) for block in found)
    row = next(
        r for r in rows if (r["method"], r["split"], r["measure"]) == ("CELG", "audit", "max_excess_gap")
    )
    own = [run["audit"]["max_excess_gap"] for run in documents[0]["runs"] if run["method"] == "CELG"]
    assert float(row["mean"]) == pytest.approx(statistics.fmean(own), rel=1e-4)
    assert (row["dataset"], row["groups"], row["augment"], row["seeds"]) == (
        "cifar100",
        "superclass",
        "false",
        "3",
    )
    assert float(row["floor_low"]) <= float(row["floor_mean"]) <= float(row["floor_high"])
