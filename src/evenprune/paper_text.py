"""The report on the paper as tables of text for a terminal."""

import io
import itertools
from collections.abc import Iterator, Sequence

from rich.box import SIMPLE
from rich.console import Console, Group, RenderableType
from rich.table import Table as Grid

from evenprune import paper_pair_wording as pairs
from evenprune import paper_wording as words
from evenprune.paper_ablations import Ablation
from evenprune.paper_cells import Cell, Figure, Table
from evenprune.paper_comparison import PaperReport
from evenprune.paper_fields import MEASURES, SPLITS
from evenprune.paper_pairs import Pair
from evenprune.paper_results import EPOCHS
from evenprune.paper_runtimes import RuntimeRow, RuntimeTable, Timing
from evenprune.paper_variants import Variant
from evenprune.wording import MISSING, shorten, visible

WIDTH = 120
LONGEST = 24  # characters of a name in a table
LONG = {"whose time": 26}  # columns of words: these wrap
SPLIT_WORDS = {"train": "training data", "test": "test data"}
LEFT = ("method", "", "whose time", "worst group", "paper's worst", "data", "by seed")  # others: numbers


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
    for task in ran:
        title = f"\n{words.task_title(task)}{words.size(report, task)}"
        own = [table for table in report.tables if table.task == task]
        for split in SPLITS:
            yield f"{title}: {SPLIT_WORDS[split]}"
            yield _cells(own, split)
        yield f"{title}: tolerance and worst group on training data"
        yield _worst(own)
    for ablation in report.ablations:
        if any(cell.seeds for _, cell in ablation.rows):
            place = f"{words.short_title(ablation.task)}{words.size(report, ablation.task)}"
            yield f"\n{place}, {words.sparsity(ablation.sparsity)}: {ablation.method} by {ablation.heading}"
            yield from _ablation(ablation)
    for variant in report.variants:
        yield from _variant(variant, words.size(report, variant.task))
    if report.variants_alone:
        yield f"\n{pairs.alone_sentence(report.variants_alone)}"
    for runtimes in report.runtimes:
        yield from _runtimes(runtimes, words.size(report, runtimes.task))


LEGEND = (
    "\nMean ± standard deviation over seeds, in points; paper: its mean; se: here minus paper in standard "
    "errors of both. ψ: how much more accuracy than the average a group lost; max ψ: that of the worst "
    "group; Ψ_PW: from the best group to the worst; floor: the mean of the number before it by chance alone; "
    "audits: how many pass, are inconclusive, fail; ≤ ε: seeds with max ψ within the tolerance on training "
    "data."
)


def _grid(*heads: str) -> Grid:
    grid = Grid(box=SIMPLE, padding=(0, 1, 0, 0), show_edge=False)
    for head in heads:
        widest = LONG.get(head)
        grid.add_column(
            head, justify="left" if head in LEFT else "right", no_wrap=widest is None, max_width=widest
        )
    return grid


# --- table 1 ---


def _cells(tables: Sequence[Table], split: str) -> Grid:
    test = split == "test"
    heads = [h for m in MEASURES for h in (words.MEASURE_NAMES[m], "paper", "se", *_floor_head(m, test))]
    grid = _grid("method", *heads, "audits" if test else "≤ ε")
    for table in tables:
        grid.add_row(words.sparsity(table.sparsity))
        for i, cell in enumerate(table.cells):
            last = i == len(table.cells) - 1
            numbers = [text for m in MEASURES for text in _figure(cell.figures[split][m], m, test)]
            grid.add_row(f"  {cell.method}", *numbers, _end(cell, split), end_section=last)
    return grid


def _floor_head(measure: str, test: bool) -> list[str]:
    return ["floor"] if test and measure != "accuracy" else []


def _figure(figure: Figure, measure: str, test: bool) -> list[str]:
    here = f"{words.mean(figure.here)} {words.deviation(figure.here)}".strip()
    floors = [_floor(figure)] if _floor_head(measure, test) else []
    return [here, words.printed_mean(figure.paper), words.errors(figure).removesuffix(" se"), *floors]


def _floor(figure: Figure) -> str:
    return words.COARSE.number(figure.floor.mean) if figure.floor else MISSING


def _end(cell: Cell, split: str) -> str:
    if split == "train":
        return MISSING if cell.met is None else f"{cell.met}/{len(cell.seeds)}"
    counts = "/".join(str(cell.verdicts.get(word, 0)) for word in ("pass", "inconclusive", "fail"))
    return counts if cell.verdicts else MISSING


def _worst(tables: Sequence[Table]) -> Grid:
    """Seed by seed whether the tolerance was met, and who was worst; beside the paper's."""
    named = any(cell.worst and cell.worst.paper for table in tables for cell in table.cells)
    paper = [*(["paper's worst"] if named else []), "paper's max ψ"]
    grid = _grid("method", "by seed", "≤ ε", "paper", "worst group", "seeds", "max ψ", *paper)
    for table in tables:
        limit = "" if table.tolerance is None else f", ε = {100 * table.tolerance:g}"
        grid.add_row(f"{words.sparsity(table.sparsity)}{limit}")
        for i, cell in enumerate(table.cells):
            row = [*_met(cell), *_worst_group(cell, named=named)]
            grid.add_row(f"  {cell.method}", *row, end_section=i == len(table.cells) - 1)
    return grid


def _met(cell: Cell) -> list[str]:
    marks = "".join("●" if one.met else "○" for one in cell.met_by_seed) or MISSING
    return [marks, _end(cell, "train"), MISSING if cell.paper_met is None else words.CHOSEN[cell.paper_met]]


def _worst_group(cell: Cell, *, named: bool) -> list[str]:
    worst = cell.worst
    if worst is None:
        return [MISSING] * (5 if named else 4)
    here, paper = (
        MISSING if value is None else words.times(value) for value in (worst.multiple, worst.paper_multiple)
    )
    theirs = [_name(" or ".join(worst.paper)) or MISSING] if named else []
    return [_name(worst.name), f"{worst.seeds}/{worst.of}", here, *theirs, paper]


def _name(text: str) -> str:
    return shorten(visible(text), LONGEST)


# --- ablations and variants ---


def _ablation(ablation: Ablation) -> Iterator[RenderableType]:
    """One line a cell, both splits: accuracy and max ψ."""
    shown = [(split, measure) for split in SPLITS for measure in ("accuracy", "max_excess_gap")]
    short = {"accuracy": "acc.", "max_excess_gap": "max ψ"}
    heads = [h for s, m in shown for h in (f"{s} {short[m]}", "paper", *_floor_head(m, s == "test"))]
    grid = _grid("method", *heads, "≤ ε")
    for label, cell in ablation.rows:
        figures = []
        for split, measure in shown:
            here, paper, _, *floors = _figure(cell.figures[split][measure], measure, split == "test")
            figures += [here, paper, *floors]
        grid.add_row(label, *figures, _end(cell, "train"))
    yield grid
    if ablation.contrast is not None:
        yield pairs.contrast_sentence(ablation.contrast, "micro", "macro")


def _variant(variant: Variant, size: str) -> Iterator[RenderableType]:
    """One line a method, split and measure, so that it fits any terminal."""
    short = "" if variant.epochs == EPOCHS else f", {variant.epochs} epochs"
    place = f"{words.short_title(variant.task)}{size}, {words.sparsity(variant.sparsity)}{short}"
    yield f"\nThe recipe, varied: {place}: {pairs.variant_title(variant)}"
    yield " ".join(pairs.sentences(variant))
    names = pairs.short_name(variant.first), pairs.short_name(variant.second)
    printed = any(pair.paper for row in variant.rows for of in row.figures.values() for pair in of.values())
    grid = _grid("method", "data", "", *(["paper"] if printed else []), *names, "difference ± se", "floor")
    for row in variant.rows:
        lines = list(itertools.product(SPLITS, MEASURES))
        for i, (split, measure) in enumerate(lines):
            start = ["" if i else words.method_name(row.method), "" if i % len(MEASURES) else split]
            told = _pair(row.figures[split][measure], printed=printed)
            last = i == len(lines) - 1
            grid.add_row(*start, words.MEASURE_NAMES[measure], *told, end_section=last)
    yield grid


def _pair(pair: Pair, *, printed: bool) -> list[str]:
    paper = [words.printed_mean(pair.paper)] if printed else []
    both = [f"{words.mean(s)} {words.deviation(s)}".strip() for s in (pair.first, pair.second)]
    mean, error = pairs.difference(pair.difference)
    floor = "" if pair.floor is None else words.COARSE.number(pair.floor.mean)
    return [*paper, *both, f"{mean} {error.removesuffix(' se')}".strip(), floor]


# --- wall-clock ---


def _runtimes(table: RuntimeTable, size: str) -> Iterator[RenderableType]:
    """A table for each device, a line for each method and size of fleet."""
    times = [time for row in table.rows for time in (*row.alone, *row.fleets)]
    for device in dict.fromkeys(time.device for time in times):
        yield f"\n{words.short_title(table.task)}{size}: seconds per run (median) on {visible(device)}"
        yield _times(table.rows, device)


def _times(rows: Sequence[RuntimeRow], device: str) -> Grid:
    """With the paper's times and the ratio to them where it prints any."""
    printed = any(row.paper for row in rows)
    grid = _grid("method", "seconds", *(["paper, A100", ""] if printed else []), "whose time")
    for row in rows:
        own = [time for time in (*row.alone, *row.fleets) if time.device == device]
        paper = MISSING if row.paper is None else f"{row.paper.median:,.0f}"
        name = shorten(visible(row.method), 16)
        for i, time in enumerate(own):
            beside = ["" if i else paper, _ratio(time)] if printed else []
            seconds = words.seconds(time.median).removesuffix(" s")
            grid.add_row("" if i else name, seconds, *beside, words.timing_of(time))
        if not own:
            grid.add_row(name, MISSING, *([paper] if printed else []))
    return grid


def _ratio(time: Timing) -> str:
    return "" if time.ratio is None else words.faster(time.ratio)
