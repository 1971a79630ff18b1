"""The report on UTKFace alone: sizes of images, worst groups, micro against macro, nothing of CIFAR-100."""

import copy
import html
import json
import re
import statistics
from dataclasses import replace

import pytest
import torch

from evenprune import (
    methods,
    paper_cells,
    paper_comparison,
    paper_groups,
    paper_page,
    paper_pair_wording,
    paper_results,
    paper_text,
    paper_wording,
)
from evenprune.gap_constraint import GapConstraint
from evenprune.paper_cells import Spread, WorstGroup
from evenprune.paper_comparison import PaperReport
from evenprune.paper_printed import FACES, WITHOUT_OTHERS, printed
from evenprune.paper_results import Task
from evenprune.reference import DenseReference
from tests import paper_documents

SIZE = "128 px, the paper 200"
CROSSED = Task("utkface", "race", "race x gender")
RACES = ["White", "Black", "Asian", "Indian", "Others"]


def document() -> dict:
    """Every kind of table that UTKFace has, with groups named as the loader names them."""
    made = paper_documents.faces(seeds=range(3))
    cells = {cell.method: cell for cell in printed().cells[FACES, 0.925]}
    macro = [
        paper_documents.run((FACES, 0.925), cells["CEAG"], seed, groups=5, overall="macro")
        for seed in range(3)
    ]
    nft = printed().cells[FACES, 0.9][0]
    others = [
        paper_documents.run((FACES, 0.9), nft, seed, groups=4, group=WITHOUT_OTHERS.group)
        for seed in range(2)
    ]
    odd = paper_documents.run((FACES, 0.925), cells["CEAG"], 0, groups=5, dual_lr=0.5)
    made["runs"] += [*macro, *others, odd]
    made["runs"] = [run | {"image_size": 128} for run in made["runs"]]
    crossed = [f"{race} × {gender}" for race in RACES for gender in ("male", "female")]
    for model, names in zip(made["dense"], (RACES, crossed), strict=True):
        model["groups"] = names
    del made["note"]
    return made


@pytest.fixture(scope="module")
def told() -> dict:
    return document()


@pytest.fixture(scope="module")
def report(told, tmp_path_factory) -> PaperReport:
    path = tmp_path_factory.mktemp("faces") / "utkface.json"
    path.write_text(json.dumps(told), encoding="utf-8")
    return paper_comparison.compare(paper_results.read([path]))


@pytest.fixture(scope="module")
def page(report) -> str:
    return paper_page.to_html(report)


@pytest.fixture(scope="module")
def text(report) -> str:
    return paper_text.to_text(report)


def section(page: str, name: str) -> str:
    return page.split(f'<section id="{name}"')[1].split("</section>")[0]


# --- the size of the images ---


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        ("glance-0", 1), ("glance-1", 1), ("floor-0", 1), ("floor-1", 1),
        ("table-1-0", 3), ("table-1-1", 3), ("table-2", 2), ("table-3", 3), ("classes", 2),
        ("group-accuracy", 2 + 12), ("further", 1),
    ],
)  # fmt: skip
def test_the_size_of_the_images_stands_at_every_table_and_picture(page, name, heads):
    found = re.findall(
        rf"<(?:h2|h3|summary|b)[^>]*>[^<]*{re.escape(SIZE)}[^<]*</(?:h2|h3|summary|b)>", section(page, name)
    )
    assert len(found) == heads
    tables = re.findall(r"<h3[^>]*>(.*?)</h3>", section(page, name))
    plots = {"max ψ on test data, points", "Ψ<sub>PW</sub> on test data, points"}
    gaps = {"Who paid: excess gap of every group"}  # its menu says it
    assert all(SIZE in title or title in plots | gaps for title in tables)


def test_the_menu_of_groups_tells_the_size(page):
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert {SIZE in table["title"] for table in data["groups"]} == {True}


def test_every_heading_of_the_text_tells_the_size(text):
    heads = [line for line in text.splitlines() if line.startswith("UTKFace") and ":" in line]
    assert len(heads) == 2 * 3 + 3 + 2  # two tasks in three tables, three ablations, two tables of times
    assert all(f"({SIZE})" in head for head in heads)


def test_images_as_large_as_the_papers_need_no_word(told, tmp_path):
    runs = [run | {"image_size": 200} for run in told["runs"]]
    path = tmp_path / "utkface.json"
    path.write_text(json.dumps(told | {"runs": runs}), encoding="utf-8")
    same = paper_comparison.compare(paper_results.read([path]))
    assert " px" not in paper_text.to_text(same)
    assert not re.search(r"<h[23][^>]*>[^<]* px", paper_page.to_html(same))


# --- nothing of other data sets ---


def test_no_word_of_cifar_where_none_was_run(page, text):
    told = page.split('<section id="unrun"')[0] + page.split('<section id="reading"')[1].split("<script")[0]
    for word in ("cifar100_multipliers", "Table 4", "A100", "table estimator"):
        assert word not in told
    assert "CIFAR" not in text
    assert "A100" not in text


# --- the worst group ---


def slow_worst(runs: list[dict], names: list[str]) -> tuple[dict[str, int], float]:
    """From the accuracies of the groups and the counts, seed by seed."""
    counts: dict[str, int] = {}
    gaps = []
    for run in runs:
        changes = run["changes"]["train"]
        overall = (sum(changes["broke"]) - sum(changes["fixed"])) / sum(changes["samples"])
        found = [
            (b - c) / n - overall
            for n, b, c in zip(changes["samples"], changes["broke"], changes["fixed"], strict=True)
        ]
        gaps.append(max(found))
        for name, gap in zip(names, found, strict=True):
            counts[name] = counts.get(name, 0) + (gap == max(found))
    return counts, statistics.fmean(gaps)


def cells(report: PaperReport, task: Task, sparsity: float) -> dict[str, paper_cells.Cell]:
    table = next(t for t in report.tables if (t.task, t.sparsity) == (task, sparsity))
    return {cell.method: cell for cell in table.cells}


@pytest.mark.parametrize("method", ["NFT", "CEAG"])
def test_the_worst_group_is_the_one_that_is_worst_most_often(told, report, method):
    own = [
        r
        for r in told["runs"]
        if (r["method"], r["sparsity"], r["group"]) == (method, 0.9, "race") and r.get("overall") is None
    ]
    counts, gap = slow_worst(own, RACES)
    worst = cells(report, FACES, 0.9)[method].worst
    assert worst is not None
    assert (worst.seeds, worst.of) == (max(counts.values()), 3)
    assert counts[worst.name] == worst.seeds
    assert worst.multiple == pytest.approx(gap / 0.01)
    figure = next(c for c in printed().cells[FACES, 0.9] if c.method == method)
    assert worst.paper_multiple == pytest.approx(figure.figures["train"]["max_excess_gap"].mean / 0.01)


def test_the_papers_worst_group_follows_from_its_printed_accuracies():
    paper = printed()
    assert paper_groups.printed_worst((FACES, 0.925), "NFT", RACES, paper) == ("Others",)
    assert paper_groups.printed_worst((FACES, 0.9), "NFT", RACES, paper) == ("Others",)
    assert paper_groups.printed_worst((FACES, 0.925), "NFT + ES", RACES, paper) == ()
    crossed = [f"{race} × {gender}" for race in RACES for gender in ("male", "female")]
    (name,) = paper_groups.printed_worst((CROSSED, 0.925), "NFT", crossed, paper)
    dense, nft = (paper.group_accuracy[CROSSED, 0.925, "train", m] for m in ("Dense", "NFT"))
    most = max(nft, key=lambda group: dense[group].mean - nft[group].mean)
    assert name == crossed[list(nft).index(most)]
    assert paper_groups.printed_worst((CROSSED, 0.925), "NFT", ["a"], paper) == (most,)  # its own name
    ties = paper_groups.printed_worst((FACES, 0.85), "CEAG", RACES, paper)
    assert len(ties) > 1


def test_the_worst_group_is_told_on_page_and_in_text(report, page, text):
    worst = cells(report, FACES, 0.925)["NFT"].worst
    assert worst is not None
    said = paper_wording.worst(worst)
    assert said == (
        f"worst on train: {worst.name} ({worst.seeds} of 3 seeds), {100 * worst.multiple * 0.01:.1f} × ε; "
        f"paper: Others, 25.3 × ε"
    )
    assert said in html.unescape(section(page, "table-1-0"))
    told = text.split("tolerance and worst group on training data")[1].split("UTKFace")[0]
    line = next(row for row in told.split("92.5 %")[1].splitlines() if row.startswith("  NFT "))
    assert line.split()[4:] == [
        worst.name, f"{worst.seeds}/3", f"{worst.multiple:.1f}", "×", "ε", "Others", "25.3", "×", "ε",
    ]  # fmt: skip


def test_words_for_worst_groups():
    bare = WorstGroup("otter", 2, 5, None, (), None)
    assert paper_wording.worst(bare) == "worst on train: otter (2 of 5 seeds)"
    tied = replace(bare, multiple=0.914, paper=("White", "Black"), paper_multiple=1.0)
    assert paper_wording.worst(tied) == (
        "worst on train: otter (2 of 5 seeds), 0.91 × ε; paper: White or Black, 1.0 × ε"
    )


def test_groups_without_names_have_no_worst_one(told, tmp_path):
    path = tmp_path / "utkface.json"
    path.write_text(json.dumps({"runs": told["runs"]}), encoding="utf-8")
    found = paper_comparison.compare(paper_results.read([path]))
    assert all(cell.worst is None for table in found.tables for cell in table.cells)


# --- micro against macro ---


def test_macro_is_compared_with_micro_seed_by_seed(told, report, page, text):
    usual = {"method": "CEAG", "sparsity": 0.925, "group": "race", "tolerance": 0.01}
    usual["dual_lr"] = printed().settings[FACES, 0.925].dual_lr
    own = [r for r in told["runs"] if usual == {key: r[key] for key in usual}]
    ways = {
        how: {r["seed"]: r for r in own if r.get("overall", "micro") == how} for how in ("micro", "macro")
    }
    ablation = next(a for a in report.ablations if a.heading == "overall accuracy")
    contrast = ablation.contrast
    assert contrast is not None
    assert contrast.seeds == (0, 1, 2)
    for split, key in (("train", "accuracy"), ("test", "accuracy"), ("train", "max_excess_gap")):
        differences = [ways["macro"][s][split][key] - ways["micro"][s][split][key] for s in range(3)]
        pair = contrast.figures[split][key]
        assert pair.difference.mean == pytest.approx(statistics.fmean(differences))
        assert pair.difference.standard_error == pytest.approx(statistics.stdev(differences) / 3**0.5)
    said = paper_pair_wording.contrast_sentence(contrast, "micro", "macro")
    assert said.startswith("CEAG, macro minus micro, 3 seeds: training accuracy ")
    assert said in html.unescape(section(page, "table-3"))
    assert said in " ".join(text.split())
    last = section(page, "table-3").split("macro (published) minus micro (ours)")[1].split("</tbody>")[0]
    assert last.count(" se</small>") == 6


def test_without_macro_runs_there_is_nothing_to_compare(told, tmp_path):
    kept = [run for run in told["runs"] if run.get("overall") != "macro"]
    path = tmp_path / "utkface.json"
    path.write_text(json.dumps(told | {"runs": kept}), encoding="utf-8")
    found = paper_comparison.compare(paper_results.read([path]))
    assert [a.contrast for a in found.ablations] == [None, None]
    assert "macro minus micro" not in paper_page.to_html(found)


# --- noise floors in the text ---


def test_every_test_disparity_of_the_text_stands_beside_its_floor(report, text):
    tables = text.split(": test data\n")[1:]
    for task, part in zip((FACES, CROSSED), tables, strict=True):
        assert "Ψ_PW paper se floor max ψ paper se floor audits" in " ".join(part.split("\n")[0].split())
        for sparsity in (0.85, 0.9, 0.925):
            rows = part.split(f"\n{100 * sparsity:g} %\n")[1].splitlines()
            for method, cell in cells(report, task, sparsity).items():
                line = next(row for row in rows if row.startswith(f"  {method} "))
                numbers = line[len(f"  {method}") :].replace("± ", "±").split()
                floors = [
                    f"{100 * cell.figures['test'][key].floor.mean:.1f}"
                    for key in ("pairwise_disparity", "max_excess_gap")
                ]
                assert [numbers[8], numbers[13]] == floors


def test_the_ablations_of_the_text_have_floors_too(report, text):
    for ablation in report.ablations:
        part = text.split(f"{ablation.method} by {ablation.heading}\n")[1]
        assert "floor" in part.splitlines()[0]
        for label, cell in ablation.rows:
            line = next(row for row in part.splitlines() if row.startswith(f"{label} "))
            floor = cell.figures["test"]["max_excess_gap"].floor
            assert floor is not None
            assert line.split()[-2] == f"{100 * floor.mean:.1f}"


def test_the_text_fits(text):
    assert max(map(len, text.splitlines())) <= paper_text.WIDTH
    assert "…" not in text


# --- multipliers ---


def cell_with(method: str, *, ends: list[float], negative: list[int]) -> paper_cells.Cell:
    seeds = tuple(range(len(ends)))
    made = paper_cells.cell_of(method, [], None, {})
    return replace(made, seeds=seeds, multiplier_sum=Spread.of(ends), negative_weights=Spread.of(negative))


@pytest.mark.parametrize(
    ("method", "ends", "negative", "said"),
    [
        ("CEAG", [0.03, 0.03], [18_000, 19_000], "Σλ at the end 0.03, above 1 earlier in 2 of 2 seeds"),
        ("CEAG", [0.03, 0.05], [18_000, 0], "Σλ at the end 0.04, above 1 earlier in 1 of 2 seeds"),
        ("CEAG (no RB)", [0.5, 1.5], [9, 9], "Σλ at the end 1.00, above 1 at times in 2 of 2 seeds"),
        ("CEAG", [0.03, 0.05], [0, 0], "Σλ at the end 0.04"),
        ("EL", [0.3, 0.5], [700, 900], "Σλ at the end 0.40"),  # may be negative at any sum
    ],
)
def test_what_is_said_of_multipliers_holds_for_any_data(method, ends, negative, said):
    told = paper_wording.multipliers(cell_with(method, ends=ends, negative=negative))
    assert told[0] == said
    assert len(told) == 1 + (sum(negative) > 0)
    assert all("negative sample weights a run, all steps counted" in part for part in told[1:])


@pytest.mark.parametrize("method", ["ceag", "ceag_no_rb", "el"])
def test_only_multipliers_above_one_make_weights_of_ceag_negative(method):
    """What the words rest on, with the real weights; the equalized loss is not so."""
    torch.manual_seed(0)
    groups = torch.arange(400) % 4
    ones = torch.ones(400, dtype=torch.bool)
    dense = DenseReference.from_outcomes(
        correct=ones, losses=torch.zeros(400), groups=groups, names=list("abcd")
    )
    options = {"dual_lr": 0.02} if method == "el" else {"dual_lr": 0.3, "tolerance": 0.01}
    rings = {"k": 8} if method == "ceag" else {}
    made = GapConstraint(dense, getattr(methods, method)(negative="keep", **options, **rings))
    below = above = 0
    for _ in range(60):
        batch = torch.randint(4, (32,))
        right = torch.rand(32) > 0.1 + 0.2 * batch
        before = int(made.negative_weights)
        made.weights(3.0 * (batch > 0) + torch.rand(32), right, batch)
        new, total = int(made.negative_weights) - before, float(made.multipliers.sum())
        below, above = (below + new, above) if total <= 1 else (below, above + new)
    assert above > 0
    assert (below > 0) is (method == "el")


# --- times ---


def test_times_of_many_fleets_fit_eighty_columns(told, tmp_path):
    document = copy.deepcopy(told)
    for place, run in enumerate(document["runs"]):
        run |= {"fleet": 10 + place % 7, "seconds": 100.0 + place % 7}
    path = tmp_path / "utkface.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    text = paper_text.to_text(paper_comparison.compare(paper_results.read([path])))
    heads = [line for line in text.splitlines() if "seconds per run" in line]
    assert [head.endswith("seconds per run (median) on NVIDIA H200") for head in heads] == [True, True]
    part = text.split(heads[0])[1].split(heads[1])[0]
    assert max(map(len, part.splitlines())) <= 80
    shown = {line[-17:].strip() for line in part.splitlines()}
    assert {f"mixed fleet of {10 + i}" for i in range(7)} <= shown
