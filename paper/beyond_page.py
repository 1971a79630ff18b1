"""The study as one HTML file that asks nobody for anything; its tables and pictures need no script."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from evenprune.embedding import filled, rounded, script_json, with_units
from evenprune.paper_cells import Spread
from evenprune.paper_charts import escaped, marked
from evenprune.paper_wording import counted, duration
from paper import beyond_charts as charts
from paper import beyond_findings as findings
from paper import beyond_page_tables as tables
from paper import beyond_words as words
from paper.beyond_measures import PAYERS
from paper.beyond_methods import BASELINES
from paper.beyond_paired import Row
from paper.beyond_summary import (
    DISPARITIES,
    MEASURES,
    SHOWN,
    Block,
    Constrained,
    Entry,
    Gain,
    blocks,
    gains,
    newest_timings,
)
from paper.beyond_words import HELD_SPLITS
from paper.results_file import Document

Section = tuple[str, str, str]  # its name, its title in the contents, its text
HERE = Path(__file__).parent


def to_html(
    results: Document,
    answers: Document,
    *,
    tolerance: float | None = None,
    against: str = BASELINES[0],
    files: Sequence[str] = (),
) -> str:
    """Every name in it is data, never markup; what has not been run is said to be missing.

    `against`: the method that all others are compared with.
    """
    found = sorted(blocks(results, answers, tolerance=tolerance, against=against), key=words.order)
    sections = list(_sections(found, results))
    fields = {
        "HEADLINE": _text(findings.headline(found)),
        "SUMMARY": _text(_summary(found)),
        "FACTS": "  ·  ".join(escaped(fact) for fact in facts(results["runs"])),
        "CONTENTS": "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title, _ in sections),
        "SECTIONS": "\n".join(text for _, _, text in sections),
        "TOLERANCE": escaped(findings.tolerances(found)),
        "AGAINST": marked(against),
        "SOURCES": _sources(files),
        "DATA": script_json({"unit": {"scale": 100, "digits": 1}, "rows": csv_rows(found)}),
    }
    return filled("beyond_page.html", fields, folder=HERE)


def _text(said: str) -> str:
    return marked(with_units(said))


# --- the top ---


def _summary(found: Sequence[Block]) -> str:
    if not found:
        return (
            "This page fills as runs finish: python paper/beyond.py dense trains the dense model, study and "
            "formulations the runs."
        )
    return (
        "Every run prunes a dense model that has not seen the held-out images, and is judged once, on images "
        f"that nothing was trained or chosen on. The tolerance is {findings.tolerances(found)}."
    )


def facts(runs: Sequence[Row]) -> list[str]:
    """What the page was made from."""
    if not runs:
        return ["0 rows"]
    # Of rows that share a training only its own counts; of a class bias the fit does.
    trained = [run for run in runs if not run["shared"]]
    spent = sum(run["seconds"] or 0 for run in trained) + sum(run.get("fit_seconds", 0) for run in runs)
    more = "over " * any(run["seconds"] is None for run in trained)
    told = [f"{len(runs):,} rows of {len(trained):,} trainings", f"{more}{duration(spent)} of computing"]
    told.append(counted(Counter(str(run["versions"]["device"]) for run in runs)))
    told.append(f"torch {counted(Counter(str(run['versions']['torch']) for run in runs))}")
    commits = Counter(str(run["commit"]) for run in runs if run.get("commit"))
    return [*told, f"commit {counted(commits)}"] if commits else told


def _sources(files: Iterable[str]) -> str:
    return "".join(f"<li>{escaped(file)}</li>" for file in files) or "<li>No file.</li>"


# --- sections ---


def _section(name: str, title: str, lead: str, *parts: str) -> Section:
    text = f'{_heading(name, title)}<p class="lead">{lead}</p>{"".join(parts)}'
    return name, marked(title), _titled(name, text)


def _heading(name: str, title: str) -> str:
    return f'<h2 id="{name}-title">{marked(title)}</h2>'


def _titled(name: str, text: str) -> str:
    return f'<section id="{name}" aria-labelledby="{name}-title">{text}</section>'


def _sections(found: Sequence[Block], results: Document) -> Iterator[Section]:
    titles = words.short_titles(found)
    if found:
        yield _findings(found)
        yield _gains(found)
    brief = words.short_titles(found, brief=True)
    for place, (block, *names) in enumerate(zip(found, titles, brief, strict=True)):
        yield _setting(block, names, place, found)
    yield _formulations(found, titles)
    yield from _seconds(results)
    yield _dense(results)
    yield _unrun(found)


def findings_list(found: Iterable[findings.Finding]) -> str:
    items = "".join(f"<div><dt>{_text(head)}</dt><dd>{_text(said)}</dd></div>" for head, said in found)
    return f'<dl class="findings">{items}</dl>'


def _findings(found: Sequence[Block]) -> Section:
    base = marked(found[0].against)
    lead = (
        "Harm is max ψ on unseen data: what the worst group lost beyond the average. Where groups are many, "
        "which one that is, is mostly chance; so payers are looked at as well: the fifth of the groups that "
        "NFT takes most from by the held-out and choice samples, named before unseen ones are looked at. The "
        "question itself, what payers lose, was asked after the first tables had been seen. “Clearly” means "
        f"that the 95 % limits of the difference from the {base} runs of the same seeds, on the same "
        "samples, exclude zero: the mean over seeds would be on that side with other seeds and on other "
        "samples too. That five seeds all lie on one side says less: they share the dense model and the "
        "samples."
    )
    under = (
        f"On unseen data, minus {base}'s, in points: mean ± standard deviation over seeds; the limits of the "
        "mean, and in how many seeds it is better. Coloured if in all, bold if clearly. What overshoots "
        f"puts payers farther ahead of the average than they are behind it with {base}. The row of {base} "
        "is its own value. A dash: not run there. Settings that look at fewer held-out samples follow "
        "below."
    )
    said = f"<h3>In words</h3>{findings_list(findings.study_findings(found))}"
    main = [block for block in found if not is_variant(block, found)]
    glances = [
        f'<h3>At a glance: {marked(title)}</h3><p class="lead">{text}</p>{tables.glance_table(main, measure)}'
        for measure, title, text in (
            (PAYERS, "what payers lose beyond the average", under),
            (findings.HARM, "max ψ", f"Likewise; below {base}'s, what chance alone would show."),
        )
    ]
    return _section("findings", "What works and what does not", lead, *glances, said)


def _gains(found: Sequence[Block]) -> Section:
    title = "Gain and how well ψ is known"
    tasks = gains(found)
    base = found[0].against
    if not tasks:
        return _section("gain", title, f"No method that follows unseen samples is compared with {base} yet.")
    lead = (
        "Multipliers and class biases that follow unseen samples can only follow what is to be seen there: "
        "the fewer samples a group has, the larger the standard error of its ψ, and the more of it is noise. "
        "One dot a method and number of samples that it follows (named above; cross-fitting follows all "
        "training samples), methods a little aside of each other; below zero, payers lose "
        f"less on unseen data than with {marked(base)}; whiskers: standard deviation over seeds."
    )
    panels = [(own, name) for own, name in zip(tasks.values(), words.task_titles(list(tasks)), strict=True)]
    several = [(own, name) for own, name in panels if len(findings.sizes(own)) > 1]
    single = [(own, name) for own, name in panels if len(findings.sizes(own)) == 1]
    if not several:
        return _section("gain", title, lead, _gain_panels(single))
    rest = _details("Tasks with one number of samples only", _gain_panels(single)) if single else ""
    return _section("gain", title, lead, _gain_panels(several), rest)


def _gain_panels(panels: Iterable[tuple[Sequence[Gain], str]]) -> str:
    return f'<div class="panels">{"".join(_gain_panel(own, name) for own, name in panels)}</div>'


def _gain_panel(own: Sequence[Gain], title: str) -> str:
    chart = charts.gain_chart(own, charts.gain_frame(own), f"Gain against standard error: {title}")
    return (
        f'<div><h3>{marked(title)}</h3><p class="facts tight">{_text(findings.gain_sentence(own))}</p>{chart}'
        f"<details><summary>The same as a table</summary>{tables.gain_table(own, title)}</details></div>"
    )


def _setting(block: Block, names: Sequence[str], place: int, found: Sequence[Block]) -> Section:
    """`names`: its title, and the one in the contents."""
    name, (title, listed) = f"setting-{place}", names
    alike = [b for b in found if tables.setting_key(b.setting) == tables.setting_key(block.setting)]
    scale = charts.harm_scale(alike)
    assert scale is not None
    lead = (
        f"{escaped(words.title(block.setting))}; {block.groups} groups, {block.heldout_samples} held-out "
        "samples a group looked at. Percent and points, mean ± standard deviation over seeds."
    )
    left = [one for one in block.constraints if one not in findings.formulated(block)]
    told = findings.block_findings(block)
    base = marked(block.against)
    parts = [
        findings_list(told),
        tables.methods_table(block, title),
        f"<h3>Is it more than chance, and does it differ from {base}?</h3>",
        charts.harm_legend(block.against),
        charts.harm_plot(block, scale, charts.difference_scale(alike)),
        f"<h3>Differences from {base}, sample by sample</h3>",
        tables.paired_table(block.against, block.entries, f"Against {block.against}: {title}")
        or f'<p class="facts tight">No method but {base}.</p>',
        *_faced(block, title),
        _details("On the choice split, which the dual step was chosen on", tables.choice_table(block, title)),
        _details("Constraints and multipliers, every dual step", tables.constraint_table(left, title))
        if left
        else "",
    ]
    summary = f'<summary>{_heading(name, title)}<span class="gist">{_text(_gist(told))}</span></summary>'
    shown = "" if is_variant(block, found) else " open"
    text = f'<details class="fold"{shown}>{summary}<p class="lead">{lead}</p>{"".join(parts)}</details>'
    return name, marked(listed), _titled(name, text)


def _faced(block: Block, title: str) -> Iterator[str]:
    """What follows unseen samples has to face more than one baseline."""
    for name, entries in block.faced.items():
        yield f"<h3>Multipliers on unseen samples, against {marked(name)}</h3>"
        yield tables.paired_table(name, entries, f"Against {name}: {title}")


def _gist(told: Sequence[findings.Finding]) -> str:
    """What stands under the title of a setting that is folded: the first finding, and one that names some."""
    first, *rest = told
    shown = [first, *(finding for finding in rest if finding[1] != "none")][:2]
    return " ".join(f"{head}: {said.removesuffix('.')}." for head, said in shown)


def is_variant(block: Block, found: Iterable[Block]) -> bool:
    """Whether it looks at fewer held-out samples than a setting that is there too: it is folded away."""
    family = block.setting.family
    return block.setting != family and any(other.setting == family for other in found)


def _details(summary: str, text: str) -> str:
    return f"<details><summary>{summary}</summary>{text}</details>"


def _formulations(found: Sequence[Block], titles: Sequence[str]) -> Section:
    title = "Formulations: which become feasible"
    own = [(findings.formulated(block), name) for block, name in zip(found, titles, strict=True)]
    own = [(constraints, name) for constraints, name in own if constraints]
    if not own:
        said = "Other ways to write the constraint are not run yet: python paper/beyond.py formulations."
        return _section("formulations", title, said)
    lead = (
        "Every dual step. “train” is the left side of the worst constraint on training data, to be at most "
        "“allowed” (fractions; of CELG a loss); “held” counts the seeds whose constraints all hold. Σ|λ| is "
        "the size of the multipliers after the last epoch, its change that of the last 10 epochs; the "
        "pictures show it after each epoch once pruning has ended, mean over seeds."
    )
    parts = [part for constraints, name in own for part in _formulated(constraints, name)]
    return _section("formulations", title, lead, *parts)


def _formulated(constraints: Sequence[Constrained], name: str) -> list[str]:
    return [
        f"<h3>{marked(name)}</h3>",
        findings_list(findings.formulation_findings(constraints)),
        tables.constraint_table(constraints, f"Constraints: {name}"),
        "<h3>Σ|λ| by epoch</h3>",
        charts.multiplier_panels(constraints),
    ]


def _seconds(results: Document) -> Iterator[Section]:
    timed = newest_timings(results)
    if timed:
        lead = (
            "Seconds a run of 60 epochs, each method in a fleet of its own, scaled from the epochs that were "
            "timed. In the tables above, runs of one fleet share its seconds, whatever their method costs."
        )
        yield _section("seconds", "What the methods cost", lead, tables.timing_table(timed))


def _dense(results: Document) -> Section:
    models = results.get("dense", [])
    lead = "Accuracy of the models that the runs start from. They were not trained on the held-out images."
    part = tables.dense_table(models) if models else '<p class="facts tight">Not trained yet.</p>'
    folds = results.get("folds", [])
    crossed = f"<h3>Cross-fitting: each without its fold</h3>{tables.fold_table(folds)}" if folds else ""
    return _section("dense", "The dense models", lead, part, crossed)


def _unrun(found: Sequence[Block]) -> Section:
    said = findings.unrun(found)
    lead = "What the study is to have and these results do not." if said else "All that is planned is here."
    items = "".join(f"<li>{_text(item)}</li>" for item in said)
    return _section(
        "unrun", "Not run yet", lead, f'<div class="prose"><ul>{items}</ul></div>' if said else ""
    )


# --- numbers to take away ---


def csv_rows(found: Iterable[Block]) -> list[list[Any]]:
    """One line a setting, method, split and measure; fractions."""
    return [
        [
            *vars(block.setting).values(),
            *(entry.name, entry.step, split, measure, *_csv_numbers(entry, split, measure)),
        ]
        for block in found
        for entry in block.entries
        for split in HELD_SPLITS
        for measure in SHOWN.get(split, MEASURES)
    ]


def _csv_numbers(entry: Entry, split: str, measure: str) -> list[Any]:
    own, apart = entry.spread(split, measure), None
    floor: Sequence[float | None] = (None, None, None)
    limits: Sequence[float | None] = (None, None)
    if split == "audit" and measure in DISPARITIES:
        floor = list(vars(entry.floor(measure)).values())
    if split == "audit" and (found := entry.difference(measure)) is not None:
        apart, limits = entry.apart(measure), (rounded(found.lower), rounded(found.upper))
    beside = [entry.against, *_csv_spread(apart), *limits]
    return [*_csv_spread(own), len(entry.rows), *map(rounded, floor), *beside]


def _csv_spread(spread: Spread | None) -> list[float | None]:
    return [None, None] if spread is None else [rounded(spread.mean), rounded(spread.sd)]
