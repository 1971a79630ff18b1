"""The report on the paper as one HTML file that asks nobody for anything; its tables need no script."""

import itertools
from collections.abc import Iterable
from typing import Any

from evenprune import paper_page_tables as tables
from evenprune import paper_page_variants as pairs
from evenprune import paper_pair_wording
from evenprune import paper_wording as words
from evenprune.embedding import filled, rounded, script_json, short_name, with_units
from evenprune.paper_ablations import Ablation
from evenprune.paper_charts import FLOOR_LEGEND, escaped, marked
from evenprune.paper_comparison import PaperReport
from evenprune.paper_fields import MEASURES, SPLITS
from evenprune.paper_groups import GroupGaps, GroupTable
from evenprune.paper_page_pictures import dense_models, multiplier_panels
from evenprune.paper_printed import CIFAR
from evenprune.paper_results import Task
from evenprune.paper_runtimes import RuntimeTable

BESIDE = 6  # columns up to which two tables stand beside each other


def to_html(report: PaperReport) -> str:
    """Every table beside the paper's numbers; every name in it is data, never markup."""
    sections = [section for section in _sections(report) if section]
    said = " ".join(words.summary_sentences(report))
    fields = {
        "HEADLINE": escaped(with_units(words.headline(report))),
        "SUMMARY": escaped(with_units(said)),
        "FACTS": "  ·  ".join(escaped(fact) for fact in words.made_with(report.made_with)),
        "SECTIONS": "\n".join(sections),
        "SOURCES": _sources(report),
        "DATA": script_json(_page_data(report)),
    }
    return filled("paper_page.html", fields)


def _section(name: str, title: str, lead: str, *parts: str, listed: str | None = None) -> str:
    """`listed` is its name in the table of contents: its title, unless told otherwise."""
    told = "" if listed is None else f' data-listed="{escaped(listed)}"'
    return (
        f'<section id="{name}" aria-labelledby="{name}-title"{told}><h2 id="{name}-title">{title}</h2>'
        f'<p class="lead">{lead}</p>{"".join(parts)}</section>'
    )


def _sections(report: PaperReport) -> Iterable[str]:
    ran = [summary.task for summary in report.summaries if summary.ran]
    for place, task in enumerate(ran):
        yield _glance(report, task, place)
        yield _floors(report, task, place)
    for place, task in enumerate(ran):
        yield _table_1(report, task, place)
    yield _table_2(report)
    yield _table_3(report)
    yield _variants(report)
    yield _table_4(report)
    yield _classes(report)
    yield _group_accuracies(report)
    yield _further(report)
    yield _unrun(report)


# --- sections ---


def _titled(report: PaperReport, task: Task) -> str:
    """The task's short name, and the size of its images where it is not the paper's."""
    return escaped(words.short_title(task) + words.size(report, task))


def _own(report: PaperReport, task: Task) -> list[Any]:
    return [table for table in report.tables if table.task == task]


def _glance(report: PaperReport, task: Task, place: int) -> str:
    own = _own(report, task)
    lead = words.size_note(report, task) + (
        "First: our mean accuracy minus the paper's, in points; ✓ within 1 point on training data and within "
        "1.5 points on test data. Then: in how many seeds every group stayed within the tolerance on "
        "training data, which is what CEAG is asked for."
    )
    lead += escaped(words.dense_note(report, task))
    both = f'<div class="pair">{tables.glance_table(own)}{tables.met_table(own)}</div>'
    title = f"At a glance: {_titled(report, task)}"
    return _section(f"glance-{place}", title, lead, both, listed=f"At a glance: {words.short_title(task)}")


def _floors(report: PaperReport, task: Task, place: int) -> str:
    own = _own(report, task)
    if not any(cell.figures["test"][m].floor for t in own for cell in t.cells for m in MEASURES):
        return ""
    lead = (
        "Even if pruning had harmed no group more than another, the worst of many groups would look harmed: "
        "each has few test samples. The grey band is the range (95 %) that chance alone gives, its line the "
        "mean; a number inside it is no sign of harm. At the right: how many runs lie above it."
    )
    plots = "".join(tables.floor_plots(own, m) for m in ("max_excess_gap", "pairwise_disparity"))
    title = f"Is it more than chance? {_titled(report, task)}"
    pair = f'<div class="pair wide">{plots}</div>'
    return _section(f"floor-{place}", title, lead, FLOOR_LEGEND, pair, listed="")


def _table_1(report: PaperReport, task: Task, place: int) -> str:
    lead = words.size_note(report, task) + (
        "Mean ± standard deviation over seeds, in percent and points. The difference is ours minus the "
        "paper's, then in standard errors (se) of both together; shaded from 2 se, more from 3."
    )
    title = f"Table 1: {escaped(words.task_title(task))}"
    short = f"Table 1: {words.short_title(task)}"
    drawn = tables.sparsity_tables(_own(report, task), words.size(report, task))
    return _section(f"table-1-{place}", title, lead, drawn, listed=short)


def _table_2(report: PaperReport) -> str:
    timed = [t for t in report.runtimes if any(row.alone or row.fleets for row in t.rows)]
    if not timed:
        return ""
    of_paper = any(row.paper for t in timed for row in t.rows)
    beside = ", beside the paper's on an A100 for CIFAR-100 at 95 %" if of_paper else ""
    older = " An A100 is an older GPU: not all of a ratio is the code's." if of_paper else ""
    lead = (
        f"Median seconds for one run, evaluations and, unless told, compilation included{beside}. A fleet "
        "trains many runs as one widened network: its time is divided by its runs, and all methods of a "
        f"mixed fleet share it.{older}"
    )
    parts = [f"<h3>{_titled(report, t.task)}{_device(t)}</h3>{tables.runtime_table(t)}" for t in timed]
    return _section("table-2", "Table 2: wall-clock", lead, *parts)


def _device(table: RuntimeTable) -> str:
    """The one device that all times are of; several are named at each time."""
    devices = {time.device for row in table.rows for time in (*row.alone, *row.fleets)}
    return f", {escaped(devices.pop())}" if len(devices) == 1 else ""


def _table_3(report: PaperReport) -> str:
    known = [a for a in report.ablations if any(cell.seeds for _, cell in a.rows)]
    if not known:
        return ""
    lead = " ".join(["Where the paper prints no spread, ours stands for both.", *_ablation_notes(known)])
    parts = [_ablation(report, ablation) for ablation in known]
    return _section("table-3", "Table 3: one setting changed", lead, *parts)


def _ablation_notes(known: Iterable[Ablation]) -> list[str]:
    """What the tables that are shown need to be understood."""
    shown = {ablation.heading for ablation in known}
    notes = {
        "buffer size k": "The table estimator, not in the paper, remembers one outcome of every training "
        "sample.",
        "overall accuracy": "Overall accuracy: micro weights the groups by their frequency; macro takes them "
        "alike, as the paper's published code does, so the paper's number stands beside both.",
    }
    return [note for heading, note in notes.items() if heading in shown]


def _ablation(report: PaperReport, ablation: Ablation) -> str:
    place = f"{_titled(report, ablation.task)}, {words.sparsity(ablation.sparsity)} sparse"
    told = ""
    if ablation.contrast is not None:
        sentence = paper_pair_wording.contrast_sentence(ablation.contrast, "micro", "macro")
        told = f'<p class="lead">{marked(sentence)}</p>'
    title = f"{place}: {ablation.method} by {ablation.heading}"
    return f"<h3>{title}</h3>{told}{pairs.ablation_table(ablation)}"


def _variants(report: PaperReport) -> str:
    if not report.variants and not report.variants_alone:
        return ""
    lead = (
        "Cells of the paper under another recipe; “from”: the same seeds under the one it is compared "
        "with. The difference is taken seed by seed: its mean ± its standard error; shaded where its 95 % "
        "limits (Student's t) leave out zero. Below, each with all its numbers."
    )
    sizes = [words.size(report, variant.task) for variant in report.variants]
    parts = [pairs.overview(report.variants, sizes)] if report.variants else []
    parts += [pairs.variant_part(*own) for own in zip(report.variants, sizes, strict=True)]
    if report.variants_alone:
        parts.append(
            f'<p class="facts">{marked(paper_pair_wording.alone_sentence(report.variants_alone))}</p>'
        )
    return _section("variants", "The recipe, varied", lead, *parts)


def _further(report: PaperReport) -> str:
    if not report.further:
        return ""
    lead = "Runs whose settings the paper prints no number for. The tolerance is the one they were judged by."
    return _section("further", "Further runs", lead, tables.further_table(report))


def _group_accuracies(report: PaperReport) -> str:
    if not report.group_accuracies:
        return ""
    lead = "Mean accuracy over seeds in percent, the paper's below it; shaded from 2 standard errors apart."
    parts = []
    for task in dict.fromkeys(table.task for table in report.group_accuracies):
        own = [table for table in report.group_accuracies if table.task == task]
        shape = "pair" if len(own[0].names) <= BESIDE else ""
        size = words.size(report, task)
        drawn = "".join(tables.group_accuracy_table(table, size) for table in own)
        title = escaped(words.task_title(task) + size)
        parts.append(f'<details><summary>{title}</summary><div class="{shape}">{drawn}</div></details>')
    return _section("group-accuracy", "Accuracy by group", lead, *parts)


def _unrun(report: PaperReport) -> str:
    found = tables.unrun_tables(report)
    lead = "The paper's numbers of the tasks that there are no runs for."
    return _section("unrun", "Not run yet", lead, found) if found else ""


def _table_4(report: PaperReport) -> str:
    title = "Table 4: the multipliers over time"
    if not report.traces:
        missing = "No multipliers were kept step by step; they would be drawn here from "
        named = f"{missing}{CIFAR.dataset}_multipliers.json."
        followed = any(summary.ran for summary in report.summaries if summary.task == CIFAR)
        return _section("table-4", title, named) if followed else ""
    lead = (
        "A multiplier is the extra weight on one group's loss; it moves at every training step once pruning "
        "has ended. With a buffer it moves on the last outcomes of its group, without one on those of the "
        "batch. <i>Travel</i> is the sum of its moves, forth and back, from one step that was kept to the "
        "next. The smaller pictures show the disparity on training data after each epoch, in points, with "
        "the tolerance as a dashed line."
    )
    return _section("table-4", title, lead, multiplier_panels(report.traces))


def _classes(report: PaperReport) -> str:
    dense = dense_models(report)
    if not dense and not report.groups:
        return ""
    lead = (
        "What the dense model knows of every group, and who paid for the pruning. Excess gap: what a group "
        "lost minus what all samples lost on average."
    )
    picker = (
        '<div id="gaps" hidden><h3>Who paid: excess gap of every group</h3><div class="tools">'
        '<label>Show <select id="place"></select></label><span class="switch" id="split"></span></div>'
        '<p class="lead" id="gaps-lead"></p><div class="panels three" id="gap-panels"></div></div>'
        '<noscript><p class="facts">The pictures of excess gaps need JavaScript, which is off.</p></noscript>'
    )
    return _section("classes", "Group by group", lead, *dense, picker if report.groups else "")


# --- what the page was made from ---


def _sources(report: PaperReport) -> str:
    items = [f"Results read from {', '.join(escaped(file) for file in report.files)}."]
    items += [escaped(note) for note in report.notes]
    items += [f"<b>Doubtful:</b> {escaped(doubt)}." for doubt in report.doubts[:20]]
    more = len(report.doubts) - 20
    items += [f"… and {more} more runs whose counts and figures differ."] if more > 0 else []
    return "".join(f"<li>{item}</li>" for item in items)


# --- data of the script ---


def _page_data(report: PaperReport) -> dict[str, Any]:
    return {
        "unit": {"scale": 100, "digits": 1},
        "groups": [_group_data(table, words.size(report, table.task)) for table in report.groups],
        "rows": [row for table in report.tables for row in _csv_rows(table, words.size(report, table.task))],
    }


def _group_data(table: GroupTable, size: str) -> dict[str, Any]:
    return {
        "title": f"{words.short_title(table.task)}{size}, {words.sparsity(table.sparsity)} sparse",
        "tolerance": table.tolerance,
        "names": [short_name(name) for name in table.names],
        "methods": {split: [_gap_data(gaps) for gaps in table.methods[split]] for split in SPLITS},
    }


def _gap_data(gaps: GroupGaps) -> dict[str, Any]:
    parts: dict[str, Any] = {key: _brief(getattr(gaps, key)) for key in ("mean", "low", "high")}
    return {
        "method": gaps.method,
        **parts,
        "band": [_brief(side) for side in gaps.band] if gaps.band else None,
    }


def _brief(values: Iterable[float | None]) -> list[float | None]:
    return [rounded(value, digits=3) for value in values]


def _csv_rows(table: Any, size: str) -> list[list[Any]]:
    rows = []
    for cell, split, measure in itertools.product(table.cells, SPLITS, MEASURES):
        f = cell.figures[split][measure]
        here = [f.here.mean, f.here.sd, f.here.n] if f.here else [None, None, 0]
        paper = [f.paper.mean, f.paper.sd] if f.paper else [None, None]
        floor = [f.floor.mean, f.floor.low, f.floor.high] if f.floor else [None, None, None]
        task = [table.task.dataset, table.task.target, table.task.group, table.sparsity]
        numbers = [*here, *paper, f.difference, f.standard_errors, *floor]
        rows.append([*task, cell.method, split, measure, *(rounded(x) for x in numbers), size.strip(" ()")])
    return rows
