"""Tables of the report on the paper as HTML text: everything that comes from a file is escaped."""

from collections.abc import Sequence

from evenprune import paper_wording as words
from evenprune.maximum import Range
from evenprune.paper_ablations import Further
from evenprune.paper_cells import Cell, Figure, Table
from evenprune.paper_charts import Scale, escaped, floor_axis, floor_row, floor_scale, marked
from evenprune.paper_comparison import PaperReport
from evenprune.paper_fields import MEASURES, SPLITS
from evenprune.paper_groups import GroupAccuracy
from evenprune.paper_results import Task
from evenprune.paper_runtimes import RuntimeRow, RuntimeTable, Timing
from evenprune.wording import MISSING

HEADS = {
    "accuracy": 'Acc<span class="long">uracy</span>',
    "pairwise_disparity": "Ψ<sub>PW</sub>",
    "max_excess_gap": "max ψ",
}
SPLIT_WORDS = {"train": "Training data", "test": "Test data"}
MOST_PIPS = 10
Labelled = Sequence[tuple[str, Cell]]


def number(value: str, extra: str = "", kind: str = "") -> str:
    """A cell: the number, and beside or (in a narrow window) below it the rest."""
    return f'<td class="num {kind}"><b>{value}</b> <small>{extra}</small></td>'


def boxed(table: str, label: str, kind: str = "") -> str:
    return (
        f'<div class="scroll {kind}" tabindex="0" role="region" aria-label="{escaped(label)}">{table}</div>'
    )


# --- cells: here, paper, difference, noise floor ---


def cells_table(rows: Labelled, label: str, *more: str) -> str:
    """The four lines of every cell, for both splits; `more` are further bodies."""
    bodies = "".join([*(_cell(*row) for row in rows), *more])
    return boxed(f'<table class="cells">{cells_head()}{bodies}</table>', label)


def cells_head() -> str:
    heads = "".join(f'<th scope="col" class="{first(m)}">{HEADS[m]}</th>' for _ in SPLITS for m in MEASURES)
    splits = "".join(f'<th scope="colgroup" colspan="3" class="first">{SPLIT_WORDS[s]}</th>' for s in SPLITS)
    return (
        f'<thead><tr><th rowspan="2"><span class="sr">Line</span></th>{splits}</tr><tr>{heads}</tr></thead>'
    )


def first(measure: str) -> str:
    return "first" if measure == "accuracy" else ""


def _cell(label: str, cell: Cell) -> str:
    figures = [(m, cell.figures[split][m]) for split in SPLITS for m in MEASURES]
    lines = [
        line("here", [number(words.mean(f.here), words.deviation(f.here), first(m)) for m, f in figures])
    ]
    if any(f.paper for _, f in figures):
        paper = [
            number(words.printed_mean(f.paper), words.printed_deviation(f.paper), f"soft {first(m)}")
            for m, f in figures
        ]
        lines.append(line("paper", paper))
    if any(f.difference is not None for _, f in figures):
        lines.append(line("difference", [_difference(m, f) for m, f in figures]))
    if any(f.floor for _, f in figures):
        lines.append(line("noise floor", [floor(m, f.floor) for m, f in figures]))
    return cell_body(marked(label), _told(cell), lines)


def cell_body(name: str, told: str, lines: Sequence[str]) -> str:
    """The lines of a cell below its name and what is known of it."""
    who = f'<th colspan="7" scope="rowgroup"><div><b>{name}</b>{told}</div></th>'
    return f'<tbody><tr class="who">{who}</tr>{"".join(lines)}</tbody>'


def line(name: str, cells: Sequence[str], kind: str | None = None) -> str:
    return f'<tr class="{kind or name.split()[-1]}"><th scope="row">{name}</th>{"".join(cells)}</tr>'


def _difference(measure: str, figure: Figure) -> str:
    if figure.difference is None:
        return number(MISSING, kind=first(measure))
    kind = f"{words.distance(figure)} {first(measure)}"
    return number(words.signed(figure.difference), words.errors(figure), kind)


def floor(measure: str, of: Range | None) -> str:
    if of is None:
        return number("", kind=first(measure))
    low, high = words.COARSE.number(of.low), words.COARSE.number(of.high)
    return number(words.COARSE.number(of.mean), f"{low}–{high}", first(measure))


def _told(cell: Cell) -> str:
    """What is known of the cell beside its numbers."""
    if not cell.seeds:
        return '<span class="fact">not run yet</span>'
    told = [f"{len(cell.seeds)} seed{'s' if len(cell.seeds) > 1 else ''}"]
    if cell.met is not None:
        told.append(f"tolerance met: {words.tolerance_met(cell)} {pips(cell)}")
    if cell.worst is not None:
        told.append(escaped(words.worst(cell.worst)))
    if cell.verdicts:
        told.append(f"test audits: {words.verdicts(cell.verdicts)}")
    told += words.multipliers(cell)
    return "".join(f'<span class="fact">{part}</span>' for part in told)


def pips(cell: Cell) -> str:
    """One circle a seed, in their order: filled where the tolerance was met."""
    if cell.tolerance is None or len(cell.met_by_seed) > MOST_PIPS:
        return ""
    said = {one: words.seed_met(one, cell.tolerance) for one in cell.met_by_seed}
    marks = "".join(f'<i class="{"on" if one.met else ""}" title="{text}"></i>' for one, text in said.items())
    return f'<span class="pips" role="img" aria-label="{"; ".join(said.values())}">{marks}</span>'


def sparsity_tables(tables: Sequence[Table], size: str = "") -> str:
    """`size` tells the size of the images where it is not the paper's."""
    parts = []
    for table in tables:
        limit = "" if table.tolerance is None else f", tolerance {words.points(table.tolerance)}"
        title = f"{words.sparsity(table.sparsity)} sparse{limit}{size}"
        rows = [(cell.method, cell) for cell in table.cells]
        parts.append(f"<h3>{title}</h3>{cells_table(rows, f'{words.short_title(table.task)}, {title}')}")
    return "".join(parts)


def further_table(report: PaperReport) -> str:
    named = [(further_name(row, words.size(report, row.task)), row.cell) for row in report.further]
    return cells_table(named, "Further runs")


def further_name(row: Further, size: str = "") -> str:
    parts = [
        words.short_title(row.task) + size,
        words.method_name(row.cell.method),
        words.sparsity(row.sparsity),
    ]
    parts += [] if row.tolerance is None else [f"tolerance {100 * row.tolerance:g}"]
    parts += [] if row.buffer is None else [f"buffer {row.buffer}"]
    parts += [] if row.dual_lr is None else [f"dual step {row.dual_lr:g}"]
    parts += [] if row.overall == "micro" else [f"overall {row.overall}"]
    return ", ".join(parts)


# --- at a glance ---


def glance_table(tables: Sequence[Table]) -> str:
    """Difference of the accuracies, method by sparsity, and whether it counts as the paper's."""
    top = "".join(
        f'<th scope="colgroup" colspan="2" class="first">{words.sparsity(t.sparsity)}</th>' for t in tables
    )
    under = '<th scope="col" class="first">train</th><th scope="col">test</th>' * len(tables)
    body = "".join(
        f'<tr><th scope="row">{escaped(method)}</th>'
        f"{''.join(_glance(_named(table, method), split) for table in tables for split in SPLITS)}</tr>"
        for method in _methods(tables)
    )
    head = f'<thead><tr><th rowspan="2" scope="col">Method</th>{top}</tr><tr>{under}</tr></thead>'
    return boxed(
        f'<table class="glance">{head}<tbody>{body}</tbody></table>', "Differences of the accuracies"
    )


def _methods(tables: Sequence[Table]) -> list[str]:
    return list(dict.fromkeys(cell.method for table in tables for cell in table.cells))


def _named(table: Table, method: str) -> Cell | None:
    return next((cell for cell in table.cells if cell.method == method), None)


def _glance(cell: Cell | None, split: str) -> str:
    first = "first" if split == "train" else ""
    if cell is None or cell.near[split] is None:
        return f'<td class="num {first}">{MISSING}</td>'
    sign, word, kind = ("✓", "within", "within") if cell.near[split] else ("✗", "outside", "beyond")
    value = words.signed(cell.figures[split]["accuracy"].difference)
    tick = f'<span class="tick {kind}" aria-label="{word}">{sign}</span>'
    return f'<td class="num {first}"><b>{value}</b> {tick}</td>'


def met_table(tables: Sequence[Table]) -> str:
    """How many seeds kept every group within the tolerance on training data."""
    top = "".join(map(_limit_head, tables))
    body = "".join(
        f'<tr><th scope="row">{escaped(m)}</th>{"".join(_met(_named(t, m)) for t in tables)}</tr>'
        for m in _methods(tables)
    )
    head = f'<thead><tr><th scope="col">Method</th>{top}</tr></thead>'
    return boxed(f'<table class="glance met">{head}<tbody>{body}</tbody></table>', "Tolerance met")


def _limit_head(table: Table) -> str:
    limit = "" if table.tolerance is None else f"<small>≤ {words.points(table.tolerance)}</small>"
    return f'<th scope="col" class="first">{words.sparsity(table.sparsity)}{limit}</th>'


def _met(cell: Cell | None) -> str:
    paper = (
        ""
        if cell is None or cell.paper_met is None
        else f"<small>paper: {words.CHOSEN[cell.paper_met]}</small>"
    )
    if cell is None or cell.met is None:
        return f'<td class="num first">{MISSING}{paper}</td>'
    n = len(cell.seeds)
    return f'<td class="num first">{pips(cell)}<b>{cell.met} of {n}</b>{paper}</td>'


# --- disparities beside the noise floor ---


def floor_plots(tables: Sequence[Table], measure: str) -> str:
    """One row a method and sparsity, all on one scale."""
    scale = floor_scale(cell.figures["test"][measure] for t in tables for cell in t.cells)
    if scale is None:
        return ""
    rows = []
    for table in tables:
        rows.append(f'<div class="part">{words.sparsity(table.sparsity)} sparse</div>')
        rows += [_floor_plot(cell.method, cell.figures["test"][measure], scale) for cell in table.cells]
    head = (
        f'<div class="line head"><span></span>{floor_axis(scale)}<span class="what">runs above</span></div>'
    )
    return f'<div class="floors"><h3>{HEADS[measure]} on test data, points</h3>{head}{"".join(rows)}</div>'


def _floor_plot(method: str, figure: Figure, scale: Scale) -> str:
    beyond = f"{figure.beyond} of {figure.here.n}" if figure.beyond is not None and figure.here else ""
    said = f"{words.mean(figure.here)} here" if figure.here else "not run yet"
    return (
        f'<div class="line"><span class="who">{escaped(method)}</span>{floor_row(figure, scale)}'
        f'<span class="what num">{beyond}</span><span class="sr">{said}</span></div>'
    )


# --- wall-clock ---


def runtime_table(table: RuntimeTable) -> str:
    """A row for each method; columns that nobody has are left out."""
    times = [time for row in table.rows for time in (*row.alone, *row.fleets)]
    devices = {time.device for time in times}
    shown = {
        "Paper, A100<small>median (min to max)</small>": any(row.paper for row in table.rows),
        "Here, one run alone": any(time.fleet == 1 for time in times),
        "Here, in a fleet<small>time over runs</small>": any(time.fleet > 1 for time in times),
    }
    heads = "".join(f'<th scope="col" class="first">{head}</th>' for head, there in shown.items() if there)
    body = "".join(_runtime_row(row, list(shown.values()), len(devices) > 1) for row in table.rows)
    head = f'<thead><tr><th scope="col">Method</th>{heads}</tr></thead>'
    kind = "times beside" if any(time.ratio is not None for time in times) else "times"
    return boxed(f'<table class="{kind}">{head}<tbody>{body}</tbody></table>', "Wall-clock", "fit")


def _runtime_row(row: RuntimeRow, shown: Sequence[bool], devices: bool) -> str:
    paper = number(MISSING, kind="first soft")
    if row.paper:
        paper = number(
            f"{row.paper.median:,.0f} s", f"({row.paper.low:,.0f} to {row.paper.high:,.0f})", "first soft"
        )
    cells = [paper, *(_timings(times, devices) for times in (row.alone, row.fleets))]
    there = "".join(cell for cell, wanted in zip(cells, shown, strict=True) if wanted)
    return f'<tr><th scope="row">{marked(words.method_name(row.method))}</th>{there}</tr>'


def _timings(times: Sequence[Timing], devices: bool) -> str:
    if not times:
        return number(MISSING, kind="first")
    return f'<td class="num first">{"".join(_timing(time, devices) for time in times)}</td>'


def _timing(time: Timing, devices: bool) -> str:
    """`devices`: whether to name the device, as there are several."""
    ratio = "" if time.ratio is None else f" <em>{words.faster(time.ratio)}</em>"
    at = "several sparsities" if time.sparsity is None else words.sparsity(time.sparsity)
    told = [words.timing_of(time), at, *([escaped(time.device)] if devices else [])]
    seconds = f"<b>{words.seconds(time.median)}</b>{ratio}"
    return f'<div class="timing"><small>{", ".join(told)}</small>{seconds}</div>'


# --- groups ---


def group_accuracy_table(table: GroupAccuracy, size: str) -> str:
    heads = "".join(f'<th scope="col" class="first">{escaped(name)}</th>' for name in table.names)
    body = "".join(_group_row(method, figures) for method, figures in table.rows)
    head = f'<thead><tr><th scope="col">Method</th>{heads}</tr></thead>'
    title = f"{SPLIT_WORDS[table.split]}, {words.sparsity(table.sparsity)} sparse{size}"
    table_html = boxed(f'<table class="groups">{head}<tbody>{body}</tbody></table>', title)
    return f"<div><h3>{title}</h3>{table_html}</div>"


def _group_row(method: str, figures: Sequence[Figure]) -> str:
    cells = "".join(map(_group_cell, figures))
    return f'<tr><th scope="row">{escaped(method)}</th>{cells}</tr>'


def _group_cell(figure: Figure) -> str:
    here = words.COARSE.number(figure.here.mean if figure.here else None)
    paper = f"<small>paper {words.printed_mean(figure.paper)}</small>"
    return f'<td class="num first {words.distance(figure)}"><b>{here}</b>{paper}</td>'


# --- what was not run ---


def unrun_tables(report: PaperReport) -> str:
    """The paper's numbers of the tasks that no run belongs to."""
    unrun = [summary.task for summary in report.summaries if not summary.ran]
    return "".join(_unrun(task, [t for t in report.tables if t.task == task]) for task in unrun)


def _unrun(task: Task, tables: Sequence[Table]) -> str:
    return f"<details><summary>{escaped(words.task_title(task))}</summary>{sparsity_tables(tables)}</details>"
