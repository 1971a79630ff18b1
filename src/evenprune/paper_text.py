"""The report on the paper as tables of text for a terminal."""

import io
import itertools
from collections.abc import Iterator, Sequence

from rich.box import SIMPLE
from rich.console import Console, Group, RenderableType
from rich.table import Table as Grid

from evenprune import paper_wording as words
from evenprune.paper_cells import Cell, Figure, Table
from evenprune.paper_comparison import PaperReport
from evenprune.paper_fields import MEASURES, SPLITS
from evenprune.paper_runtimes import RuntimeTable, Timing
from evenprune.wording import MISSING, visible

WIDTH = 120
SPLIT_WORDS = {"train": "training data", "test": "test data"}


def to_text(report: PaperReport) -> str:
    """The summary, then every table that there are runs for."""
    summary = " ".join([words.headline(report), *words.summary_sentences(report)])
    return _rendered([summary, *_parts(report), LEGEND])


def _rendered(parts: Sequence[RenderableType]) -> str:
    """Plain text, whatever the terminal; names are never taken for markup."""
    plain = {"color_system": None, "markup": False, "highlight": False, "emoji": False}
    console = Console(file=io.StringIO(), width=WIDTH, legacy_windows=False, **plain)  # type: ignore[arg-type]
    text = "".join(segment.text for segment in console.render(Group(*parts)))
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _parts(report: PaperReport) -> Iterator[RenderableType]:
    ran = [summary.task for summary in report.summaries if summary.ran]
    for task, split in itertools.product(ran, SPLITS):
        yield f"\n{words.task_title(task)}: {SPLIT_WORDS[split]}"
        yield _cells([table for table in report.tables if table.task == task], split)
    for ablation in report.ablations:
        if any(cell.seeds for _, cell in ablation.rows):
            yield f"\n{words.short_title(ablation.task)}: {ablation.method} by {ablation.heading}"
            yield _rows(ablation.rows)
    for runtimes in report.runtimes:
        if any(row.alone or row.fleets for row in runtimes.rows):
            yield f"\n{words.short_title(runtimes.task)}: seconds per run (median)"
            yield _times(runtimes)


LEGEND = (
    "\nMean ± standard deviation over seeds, in points; paper: its mean; se: here minus paper in standard "
    "errors of both. ψ: how much more accuracy than the average a group lost; max ψ: that of the worst "
    "group; Ψ_PW: from the best group to the worst; floor: the mean of max ψ by chance alone; audits: how "
    "many pass, are inconclusive, fail; ≤ ε: seeds with max ψ within the tolerance on training data."
)


def _grid(*heads: str) -> Grid:
    grid = Grid(box=SIMPLE, padding=(0, 1, 0, 0), show_edge=False)
    for head in heads:
        grid.add_column(head, justify="left" if head in ("method", "") else "right", no_wrap=True)
    return grid


def _cells(tables: Sequence[Table], split: str) -> Grid:
    ends = ["≤ ε"] if split == "train" else ["floor", "audits"]
    names = [head for m in MEASURES for head in (words.MEASURE_NAMES[m], "paper", "se")]
    grid = _grid("", "method", *names, *ends)
    for table in tables:
        for i, cell in enumerate(table.cells):
            last = i == len(table.cells) - 1
            start = "" if i else words.sparsity(table.sparsity)
            grid.add_row(start, cell.method, *_figures(cell, split), *_ends(cell, split), end_section=last)
    return grid


def _figures(cell: Cell, split: str) -> list[str]:
    return [text for measure in MEASURES for text in _figure(cell.figures[split][measure])]


def _figure(figure: Figure) -> tuple[str, str, str]:
    here = f"{words.mean(figure.here)} {words.deviation(figure.here)}".strip()
    return here, words.printed_mean(figure.paper), words.errors(figure).removesuffix(" se")


def _ends(cell: Cell, split: str) -> list[str]:
    if split == "train":
        return [MISSING if cell.met is None else f"{cell.met}/{len(cell.seeds)}"]
    floor = cell.figures["test"]["max_excess_gap"].floor
    counts = "/".join(str(cell.verdicts.get(word, 0)) for word in ("pass", "inconclusive", "fail"))
    return [words.COARSE.number(floor.mean) if floor else MISSING, counts if cell.verdicts else MISSING]


def _rows(rows: Sequence[tuple[str, Cell]]) -> Grid:
    """One line a cell, both splits: accuracy and max ψ."""
    shown = [(split, measure) for split in SPLITS for measure in ("accuracy", "max_excess_gap")]
    short = {"accuracy": "acc.", "max_excess_gap": "max ψ"}
    heads = [head for split, m in shown for head in (f"{split} {short[m]}", "paper")]
    grid = _grid("method", *heads, "≤ ε")
    for label, cell in rows:
        figures = [text for split, measure in shown for text in _figure(cell.figures[split][measure])[:2]]
        grid.add_row(label, *figures, *_ends(cell, "train"))
    return grid


def _times(table: RuntimeTable) -> Grid:
    grid = _grid("method", "paper, A100", "alone", "in a fleet", "device")
    for row in table.rows:
        times = [*row.alone, *row.fleets]
        devices = ", ".join(dict.fromkeys(visible(time.device) for time in times))
        paper = MISSING if row.paper is None else f"{row.paper.median:,.0f}"
        grid.add_row(words.method_name(row.method), paper, _timings(row.alone), _timings(row.fleets), devices)
    return grid


def _timings(times: Sequence[Timing]) -> str:
    return ", ".join(map(_timing, times)) or MISSING


def _timing(time: Timing) -> str:
    ratio = "" if time.ratio is None else f" ({words.faster(time.ratio)})"
    return f"{time.median:.1f}{'' if time.fleet == 1 else f' in {time.fleet}'}{ratio}"
