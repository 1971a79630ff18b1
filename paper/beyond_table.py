"""The study as text or Markdown: a table a setting, all methods × {train, unseen}, paired differences."""

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from evenprune.reading import counted, listed
from evenprune.wording import MISSING
from paper import beyond_words as words
from paper.beyond_cells import key_of
from paper.beyond_measures import PAYERS
from paper.beyond_methods import BASELINES, METHODS, is_formulation
from paper.beyond_paired import Row
from paper.beyond_pooled import BETTER
from paper.beyond_summary import DISPARITIES, MEASURES, SHOWN, Block, Entry, blocks, newest_timings
from paper.beyond_words import HELD_SPLITS, TITLES, percent, plain
from paper.results_file import Document

MIXED = "*"
GLANCE = ("accuracy", "max_excess_gap", PAYERS)


def lines(
    results: Document,
    answers: Document,
    *,
    tolerance: float | None = None,
    against: str = BASELINES[0],
    payers: Sequence[str] = (),
    markdown: bool = False,
) -> list[str]:
    """Everything that `show` prints. Percent; mean ± standard deviation over seeds."""
    timed = newest_timings(results)
    if not results["runs"] and not timed:
        return ["No run is finished yet."]
    form, title = (marked, "## {}") if markdown else (aligned, "{}")
    every = blocks(results, answers, tolerance=tolerance, against=against, payers=payers)
    every.sort(key=words.order)
    whole = [block for block in every if block.setting.heldout_used is None]
    found = (
        [f"payers: {listed(payers)}, as asked for; not those that NFT takes most from", ""] if payers else []
    )
    found += [title.format("At a glance"), "", *form(_glance(whole)), ""] if len(whole) > 1 else []
    for block in every:
        tables = [_numbers(block), _heldout(block), _paired(against, block.entries)]
        tables += [_paired(baseline, entries) for baseline, entries in block.faced.items()]
        tables += [_multipliers(block)] if block.constraints else []
        found += [title.format(words.title(block.setting)), ""]
        found += [line for table in tables for line in (*form(table), "")]
    found += [*form(_timings(timed)), ""] if timed else []
    if markdown:
        return [*HEAD, *found, title.format("Words"), "", *(f"- {text}" for text in LEGEND)]
    return [*found, *(line for text in LEGEND for line in textwrap.wrap(text, 100))]


HEAD = (
    "# Unseen data: all tables",
    "",
    "Written by `python paper/beyond.py show --markdown`. Percent; mean ± standard deviation over seeds.",
    "",
)
LEGEND = (
    "A dual step is chosen on held-out samples that nothing follows (“choice”): within the tolerance of "
    "the method the most accurate, else of those that are not shown to be beyond it, else the smallest "
    "max ψ; of other formulations by their own constraints on training data. Never on the audit split, "
    "which is what “unseen” stands for.",
    "noise floor: what max ψ and Ψ_PW would be on so many audit samples if no group had been harmed.",
    "payers: the fifth of the groups that NFT takes most from by held-out and choice samples; their "
    "mean ψ. spread: standard deviation of ψ over groups, without what chance adds to it.",
    "limits of max ψ: 95 %, by the audit; de-biased: without what chance adds to a maximum.",
    "would settle: samples of a group that would turn inconclusive audits into others.",
    "seconds with a *: in a fleet of runs that cost more and less, so not of the method alone.",
    "clipped: sample weights of a run that would have been negative, and were set to zero.",
    "followed: samples of a group whose ψ moved multipliers or class bias, and its standard error there.",
    "carried over: how much of the groups' held-out gaps is there on unseen samples (the slope of a "
    "line over groups, means of seeds); worse: groups that lose more unseen samples than in “against”.",
    "against: paired by seed and audit sample; limits (about 95 %) of the mean, for other seeds and "
    "samples; “same” is the share of samples that both put into the same class.",
    "constraints: every dual step; “train” is the left side of the worst one, to be at most “allowed” "
    "(fractions; CELG and EL: losses); “held” counts seeds; the change is that of the last 10 epochs.",
)


# --- the tables ---


def _glance(found: Sequence[Block]) -> Iterator[list[str]]:
    """Settings side by side, of unseen data; other formulations stand in the table of theirs."""
    told = " · ".join(TITLES[m] for m in GLANCE)
    yield [f"unseen: {told}", *words.short_titles(found, brief=True)]
    by_method = [{entry.method: entry for entry in block.entries} for block in found]
    for method in METHODS:
        own = [there.get(method) for there in by_method]
        if any(own) and not is_formulation(method):
            yield [method, *(_in_short(entry) if entry else MISSING for entry in own)]
    floors = (block.entries[0].floor("max_excess_gap").mean if block.entries else None for block in found)
    yield ["max ψ by chance alone", *(MISSING if f is None else f"{100 * f:.1f}" for f in floors)]


def _in_short(entry: Entry) -> str:
    means = [entry.spread("audit", measure) for measure in GLANCE]
    told = " · ".join(MISSING if mean is None else f"{100 * mean.mean:z.1f}" for mean in means)
    few = len(entry.rows) < words.FEW
    return f"{told} ({counted(len(entry.rows), 'seed', 'seeds')})" if few else told


def _numbers(block: Block) -> Iterator[list[str]]:
    named = [f"{HELD_SPLITS[split]} {TITLES[m]}" for split, measures in SHOWN.items() for m in measures]
    audits = ["limits of max ψ", "de-biased", "verdicts", "would settle"]
    yield ["method", "step", "seeds", *named, "floor max ψ", "floor Ψ_PW", *audits, "clipped", "seconds"]
    for entry in block.entries:
        cells = [percent(entry.spread(split, m)) for split, measures in SHOWN.items() for m in measures]
        floors = [f"{100 * entry.floor(measure).mean:.1f}" for measure in DISPARITIES]
        verdicts = " ".join(f"{count} {word}" for word, count in entry.verdicts.items())
        told = [words.harm(entry), words.debiased(entry), verdicts, words.settling(entry)]
        rest = [words.clipped(entry) or MISSING, words.seconds(entry) + MIXED * entry.mixed]
        yield [entry.name, words.step(entry.step), str(len(entry.rows)), *cells, *floors, *told, *rest]


def _heldout(block: Block) -> Iterator[list[str]]:
    """What the choice rests on, how well ψ is known, and what holds unseen."""
    yield ["method", *(f"choice {TITLES[m]}" for m in MEASURES), *words.HELD]
    for entry in block.entries:
        choice = [percent(entry.spread("choice", m)) for m in MEASURES]
        yield [entry.name, *choice, *words.held(block, entry)]


def _multipliers(block: Block) -> Iterator[list[str]]:
    """Every dual step of every method: whether its own constraints hold, and whether multipliers settle."""
    feasible = [f"{word}: held" for word in HELD_SPLITS.values()]
    yield ["constraints", "step", "allowed", "train", *feasible, "Σ|λ|", "its change", "active"]
    for one in block.constraints:
        holds = [words.of_seeds(one.held[split], one.seeds) for split in HELD_SPLITS]
        values = [plain(value) for value in (one.size, one.change)]
        told = [one.name, words.step(one.step), f"{one.allowed:g}", plain(one.value)]
        yield [*told, *holds, *values, words.active(one)]


def _timings(timed: Sequence[Row]) -> Iterator[list[str]]:
    """Each method in a fleet of its own, on one device."""
    yield ["seconds of 60 epochs", "task", "runs at once", "a run", "device"]
    for one in timed:
        task = f"{words.dataset(one['dataset'])}, {one['groups']}"
        yield [one["method"], task, str(one["fleet"]), words.seconds_of(one), one["versions"]["device"]]


def _paired(baseline: str, entries: Iterable[Entry]) -> Iterator[list[str]]:
    measures = [word for m in BETTER for word in (TITLES[m], "limits")]
    yield [f"against {baseline}", "seeds", "same", *measures]
    for entry in entries:
        if entry.method != baseline:
            told = [(words.difference(entry, measure), words.limits(entry, measure)) for measure in BETTER]
            yield [
                entry.name,
                str(entry.compared),
                words.same(entry),
                *(text for pair in told for text in pair),
            ]


# --- text ---


def aligned(table: Iterable[Sequence[str]]) -> list[str]:
    rows = list(table)
    wide = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            t.ljust(w) if i == 0 else t.rjust(w) for i, (t, w) in enumerate(zip(row, wide, strict=True))
        )
        for row in rows
    ]


def marked(table: Iterable[Sequence[str]]) -> list[str]:
    """A table in Markdown: its first column to the left, the others to the right."""
    head, *rows = [[text.replace("|", "\\|") for text in row] for row in table]
    line = [":--", *["--:"] * (len(head) - 1)]
    return ["| " + " | ".join(row) + " |" for row in (head, line, *rows)]


def finished(rows: Iterable[Row], wanted: Iterable[Row]) -> list[str]:
    """One line a setting: the seeds that are there, and a dot for each that is missing."""
    held = {key_of(row) for row in rows}
    found: dict[tuple[str, ...], list[str]] = {}
    for row in wanted:
        used = "all" if row["heldout_used"] is None else f"{row['heldout_used']:g}"
        setting = (row["method"], words.step(row["dual_lr"]), "yes" if row["augment"] else "no", used)
        found.setdefault(setting, []).append(str(row["seed"]) if key_of(row) in held else "·")
    head = ["method", "step", "augment", "held out", "seeds finished (·: missing)"]
    return aligned([head, *([*setting, " ".join(seeds)] for setting, seeds in found.items())])


FLAGS = {  # what makes a setting -> the flag that names it
    "dataset": "dataset",
    "groups": "groups",
    "sparsity": "sparsity",
    "epochs": "epochs",
    "heldout_per_class": "heldout",
}


def elsewhere(rows: Iterable[Row], asked: Mapping[str, Any]) -> list[str]:
    """How many runs are of other settings than was asked for, and the flags that name these."""
    told = Counter(
        " ".join(f"--{flag} {row[name]}" for name, flag in FLAGS.items())
        for row in rows
        if any(row[name] != asked[name] for name in FLAGS)
    )
    head = [f"{told.total()} runs of other settings are there too, by the flags that name these:"]
    return [*(head if told else []), *(f"{count:>6}  {flags}" for flags, count in told.most_common())]


def absent(rows: Sequence[Row], *, steps: Sequence[float] | None, against: str) -> list[str]:
    """What was asked for by name and no run has; nothing where nothing is finished."""
    there = {row["dual_lr"] for row in rows} - {None}
    known = ", ".join(f"{step:g}" for step in sorted(there)) or "none"
    told = [
        f"No run has a dual step of {step:g}; there are {known}." for step in steps or () if step not in there
    ]
    compared = against in {row["method"] for row in rows}
    told += [] if compared else [f"No run of {against} is finished: nothing is compared with it."]
    return told if rows else []
