"""Words and numbers of the report on the paper: titles, means, differences, the summary in sentences."""

from collections.abc import Mapping, Sequence

from evenprune.paper_cells import Cell, Figure, SeedMet, Spread, WorstGroup
from evenprune.paper_comparison import MadeWith, PaperReport, Summary
from evenprune.paper_printed import IMAGE_SIZES, Number
from evenprune.paper_results import EPOCHS, Task
from evenprune.paper_runtimes import Timing
from evenprune.wording import MISSING, Unit, shorten, visible

POINTS = Unit(noun="accuracy", scale=100, digits=2, word=" points")
COARSE = Unit(noun="accuracy", scale=100, digits=1, word=" points")
DATASETS = {"cifar100": "CIFAR-100", "utkface": "UTKFace", "fairface": "FairFace"}
MEASURE_NAMES = {"accuracy": "Accuracy", "pairwise_disparity": "Ψ_PW", "max_excess_gap": "max ψ"}
METHODS = {"PW": "Ψ_PW constrained (PW)"}  # others are called as the paper calls them
CHOSEN = {True: "yes", False: "no"}


# --- names ---


def task_title(task: Task) -> str:
    name = DATASETS.get(task.dataset, visible(task.dataset))
    if task.target == task.group == "class":
        return f"{name}, every class a group"
    return f"{name}, {task.target} predicted, groups by {task.group.replace(' x ', ' × ')}"


def short_title(task: Task) -> str:
    name = DATASETS.get(task.dataset, visible(task.dataset))
    return name if task.target == "class" else f"{name} {task.target} / {task.group.replace(' x ', ' × ')}"


def sparsity(value: float) -> str:
    return f"{100 * value:g} %"


def method_name(method: str) -> str:
    return METHODS.get(method, visible(method))


# --- numbers ---


def signed(value: float | None, digits: int = 2, scale: float = 100) -> str:
    """A difference with its sign: "+0.31", "−0.03", "0.00"."""
    if value is None:
        return MISSING
    text = f"{abs(value * scale):.{digits}f}"
    return text if float(text) == 0 else f"{'−' if value < 0 else '+'}{text}"


def mean(spread: Spread | None) -> str:
    return MISSING if spread is None else POINTS.number(spread.mean)


def deviation(spread: Spread | None) -> str:
    return "" if spread is None or spread.sd is None else f"± {POINTS.number(spread.sd)}"


def printed_mean(number: Number | None) -> str:
    return MISSING if number is None else COARSE.number(number.mean)


def printed_deviation(number: Number | None) -> str:
    return "" if number is None or number.sd is None else f"± {POINTS.number(number.sd)}"


def errors(figure: Figure) -> str:
    """The difference in standard errors: "+1.2 se"."""
    return "" if figure.standard_errors is None else f"{signed(figure.standard_errors, 1, 1)} se"


def distance(figure: Figure) -> str:
    """How far apart, for colours: "near", "apart" from 2 and "far" from 3 standard errors."""
    z = abs(figure.standard_errors or 0.0)
    return "far" if z >= 3 else "apart" if z >= 2 else "near"


def points(value: float) -> str:
    """ "1 point", "2.5 points"."""
    return f"{100 * value:g} point{'' if abs(100 * value - 1) < 1e-9 else 's'}"


def seconds(value: float) -> str:
    return f"{value:,.1f} s" if value < 100 else f"{value:,.0f} s"


def faster(ratio: float) -> str:
    """ "53 × faster", "2.4 × faster", "1.3 × slower"."""
    word, times = ("faster", ratio) if ratio >= 1 else ("slower", 1 / ratio)
    return f"{times:,.0f} × {word}" if times >= 10 else f"{times:.1f} × {word}"


def duration(value: float) -> str:
    """A time for people: "71 s", "42 minutes", "114 hours"."""
    if value < 120:
        return f"{value:.0f} seconds"
    return f"{value / 60:.0f} minutes" if value < 7200 else f"{value / 3600:,.0f} hours"


def verdicts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count)


# --- what is said of a cell ---


def tolerance_met(cell: Cell) -> str:
    """ "4 of 5 seeds (paper: yes)"."""
    if cell.met is None:
        return MISSING
    told = "" if cell.paper_met is None else f" (paper: {CHOSEN[cell.paper_met]})"
    return f"{cell.met} of {len(cell.seeds)} seeds{told}"


def seed_met(one: SeedMet, tolerance: float) -> str:
    """ "seed 0: 2.29 > 2", with as many digits as keep the two apart."""
    value, limit = 100 * one.disparity, 100 * tolerance
    digits = next((d for d in (2, 3, 4) if one.met or round(value, d) > limit), 5)
    text = f"{value:.{digits}f}".replace("-", "−")
    return f"seed {one.seed}: {text} {'≤' if one.met else '>'} {limit:g}"


def times(value: float) -> str:
    """How often the tolerance: "7.3 × ε", "0.92 × ε"."""
    return f"{value:.{1 if value >= 0.995 else 2}f} × ε"


def worst(group: WorstGroup) -> str:
    """ "worst on train: Others (5 of 5 seeds), 7.3 × ε; paper: Others, 8.2 × ε"."""
    here = [f"{shorten(visible(group.name), 40)} ({group.seeds} of {group.of} seeds)"]
    here += [] if group.multiple is None else [times(group.multiple)]
    theirs = [" or ".join(shorten(visible(name), 40) for name in group.paper)] if group.paper else []
    theirs += [] if group.paper_multiple is None else [times(group.paper_multiple)]
    paper = f"; paper: {', '.join(theirs)}" if theirs else ""
    return f"worst on train: {', '.join(here)}{paper}"


def multipliers(cell: Cell) -> list[str]:
    """The multipliers' sum at the end, and what is known of it before; the negative weights of all steps."""
    said = [f"{cell.diverged} of {len(cell.seeds)} seeds diverged"] if cell.diverged else []
    end, negative = cell.multiplier_sum, cell.negative_weights
    if end is not None and end.mean:
        said.append(f"Σλ at the end {end.mean:.2f}{_above_one(cell, end)}")
    if negative is not None and negative.mean:
        few = negative.mean < 10  # a rare one is not none
        number = f"{negative.mean:.1f}" if few else f"{negative.mean:,.0f}"
        said.append(f"{number} negative sample weights a run, all steps counted")
    return said


def _above_one(cell: Cell, end: Spread) -> str:
    """True whatever the data: CEAG's weights are negative only at steps whose multipliers sum to over 1."""
    if not cell.above_one:
        return ""
    when = "earlier" if max(end.values) <= 1 else "at times"
    return f", above 1 {when} in {cell.above_one} of {len(cell.seeds)} seeds"


def timing_of(time: Timing) -> str:
    """Whose time it is: "25 runs of this method", "mixed fleet of 35"."""
    if time.fleet == 1:
        said = "one run alone" if time.runs == 1 else f"{time.runs} runs, each alone"
    elif time.mixed is False:
        said = f"{time.fleet} runs of this method"
    else:
        said = f"{'mixed ' if time.mixed else ''}fleet of {time.fleet}"
    if time.by_itself and time.fleet > 1 and time.runs > 1:
        said += f", timed {time.runs} times"
    said += {"True": ", torch.compile", "False": ", no torch.compile"}.get(time.compiled or "", "")
    said += ", kernels compiled before" if time.warm else ""
    return said if time.epochs == EPOCHS else f"{said}, scaled from {time.epochs or 'fewer'} epochs"


def listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


# --- the summary ---


def headline(report: PaperReport) -> str:
    """What agrees, in one sentence."""
    ran = [summary for summary in report.summaries if summary.ran]
    cells, near = sum(s.ran for s in ran), {k: sum(s.near[k] for s in ran) for k in ("train", "test")}
    if not ran:
        return "No run here has the settings of a table of the paper."
    sets = list(dict.fromkeys(s.task.dataset for s in ran))
    total = sum(s.printed for s in report.summaries if s.task.dataset in sets)
    names = listed([DATASETS.get(name, name) for name in sets])
    which = f"All {total}" if cells == total else f"{cells} of {total}"
    return (
        f"{which} cells of {names} run again: training accuracy within 1 point of the paper's in "
        f"{near['train']}, test accuracy within 1.5 points in {near['test']}."
    )


def _sizes(summary: Summary) -> str:
    """ "images of 128 pixels; the paper used 200": of a task that has some of other sizes."""
    paper = IMAGE_SIZES.get(summary.task.dataset)
    told = "" if paper is None else f"; the paper used {paper}"
    return f"images of {listed([str(size) for size in summary.image_sizes])} pixels{told}"


def size_note(report: PaperReport, task: Task) -> str:
    """To begin a paragraph with; empty if the images are as large as the paper's."""
    own = [summary for summary in report.summaries if summary.task == task and summary.image_sizes]
    return f"Made with {_sizes(own[0])}. " if own else ""


def dense_note(report: PaperReport, task: Task) -> str:
    """To end a paragraph with; empty where the paper's dense model is not known."""
    own = [summary for summary in report.summaries if summary.task == task and "test" in summary.dense]
    return f" Before any pruning: {_dense(own[0])}." if own else ""


def _dense(summary: Summary) -> str:
    """How accurate the dense models are on test data: "78.1 % on test data here, 83.8 % in the paper …"."""
    here, paper = (f"{100 * value:.1f} %" for value in summary.dense["test"])
    return f"{here} on test data here, {paper} in the paper (by its groups' accuracies)"


def size(report: PaperReport, task: Task) -> str:
    """To end a heading with: " (128 px, the paper 200)"; empty if the images are as large as the paper's.

    A task that the paper has no table of is told by its data set.
    """
    known = [summary for summary in report.summaries if summary.task == task]
    known = known or [summary for summary in report.summaries if summary.task.dataset == task.dataset]
    found = sorted({side for summary in known for side in summary.image_sizes})
    if not found:
        return ""
    paper = IMAGE_SIZES.get(task.dataset)
    told = "" if paper is None else f", the paper {paper}"
    return f" ({listed([str(side) for side in found])} px{told})"


def _size_sentences(ran: Sequence[Summary]) -> list[str]:
    """One a data set."""
    notes = {s.task.dataset: _sizes(s) for s in ran if s.image_sizes}
    return [f"{DATASETS.get(name, visible(name))}: {note}." for name, note in notes.items()]


def _dense_sentences(ran: Sequence[Summary]) -> list[str]:
    """One for the tasks that start from equally accurate models: often it is the same model."""
    alike: dict[str, list[str]] = {}
    for summary in ran:
        if "test" in summary.dense:
            alike.setdefault(_dense(summary), []).append(short_title(summary.task))
    return [f"{listed(titles)}, before any pruning: {told}." for told, titles in alike.items()]


def summary_sentences(report: PaperReport) -> list[str]:
    ran = [summary for summary in report.summaries if summary.ran]
    said = [_feasible_sentence(summary) for summary in ran if summary.feasible]
    said += _size_sentences(ran)
    said += _dense_sentences(ran)
    compared, apart = sum(s.compared for s in ran), sum(s.apart for s in ran)
    if compared:
        said.append(
            f"Of {compared} numbers with a spread, {apart} lie more than 2 standard errors "
            "from the printed ones; with five seeds each, 5 to 10 % would if nothing differed."
        )
    audited, beyond = sum(s.audited for s in ran), sum(s.beyond for s in ran)
    if audited:
        said.append(
            f"On test data, the worst group's excess gap was above what chance alone shows (95 % range) in "
            f"{beyond} of {audited} runs."
        )
    return said


def _feasible_sentence(summary: Summary) -> str:
    parts = [f"{met} of {n} seeds at {sparsity(at)}" for at, met, n, _ in summary.feasible]
    of_paper = [f"{sparsity(at)} {CHOSEN[p]}" for at, _, _, p in summary.feasible if p is not None]
    told = f" (by its means, the paper: {', '.join(of_paper)})" if of_paper else ""
    title = short_title(summary.task)
    return f"{title}: CEAG kept every group within its tolerance in {listed(parts)}{told}."


def made_with(made: MadeWith) -> list[str]:
    """Facts, one a line."""
    shared = made.trainings < made.runs
    facts = [f"{made.runs:,} runs" + (f" from {made.trainings:,} trainings" if shared else "")]
    if made.seconds is not None:
        facts.append(f"{duration(made.seconds)} of computing")
    if made.paper_seconds is not None:
        facts.append(
            f"{made.timed_alike} of these would take {duration(made.paper_seconds)} "
            "at the paper's median times on an A100"
        )
    facts += [counted(made.devices)] if made.devices else []
    facts += [f"{name} {counted(versions)}" for name, versions in made.versions.items()]
    return [*facts, f"commit {counted(made.commits)}"] if made.commits else facts


def counted(counts: Mapping[str, int]) -> str:
    """The values there are; how many runs each, if they differ."""
    if len(counts) == 1:
        return visible(next(iter(counts)))
    return ", ".join(f"{visible(value)} ({count})" for value, count in counts.items())
