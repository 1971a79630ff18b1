"""Tables of the study as HTML text: the numbers are those of the plain text, letter by letter."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evenprune.paper_charts import escaped, marked
from evenprune.paper_page_tables import boxed
from evenprune.paper_wording import COARSE, duration
from evenprune.wording import MISSING
from paper import beyond_findings as findings
from paper import beyond_words as words
from paper.beyond_measures import PAYERS
from paper.beyond_methods import METHODS, is_formulation
from paper.beyond_paired import Setting
from paper.beyond_pooled import BETTER
from paper.beyond_summary import DISPARITIES, MEASURES, SHOWN, Block, Constrained, Entry, Gain
from paper.beyond_words import HELD_SPLITS, TITLES, percent, plain

SPLITS = {"train": "Training data", "audit": "Unseen data"}
INKS = {
    "better": "within sure",
    "overshot": "beyond sure",
    "worse": "beyond sure",
    "seems better": "within",
    "seems worse": "beyond",
}
UNRUN = '<span class="soft">not run yet</span>'
COLUMNS = 2 + sum(map(len, SHOWN.values()))  # of a method that was run, beside its name


def cell(text: str, *, kind: str = "", below: str = "", head: str = "") -> str:
    """A number, its deviation beside it and more below; `head` names it where a row is broken up."""
    value, _, sd = text.replace("-", "−").partition(" ± ")
    spread = f" <small>± {sd}</small>" if sd else ""
    under = f'<small class="below">{below}</small>' if below else ""
    return f'<td class="num {kind}" data-head="{escaped(head)}"><b>{value}</b>{spread}{under}</td>'


def row_head(name: str, more: str = "") -> str:
    under = f'<small class="below">{more}</small>' if more else ""
    return f'<th scope="row">{marked(name)}{under}</th>'


def heads(names: Iterable[str]) -> str:
    return "".join(f'<th scope="col">{marked(name)}</th>' for name in names)


def table(kind: str, head: str, body: str, label: str) -> str:
    return boxed(f'<table class="{kind}"><thead>{head}</thead>{body}</table>', label)


# --- all methods, training and unseen data ---


def methods_table(block: Block, label: str) -> str:
    named = "".join(
        f'<th scope="col" class="{"first" if m == "accuracy" else ""}">{marked(TITLES[m])}</th>'
        for measures in SHOWN.values()
        for m in measures
    )
    splits = "".join(
        f'<th scope="colgroup" colspan="{len(SHOWN[split])}" class="first">{word}</th>'
        for split, word in SPLITS.items()
    )
    ends = '<th rowspan="2" scope="col" class="first">Audits</th><th rowspan="2" scope="col">Seconds</th>'
    head = f'<tr><th rowspan="2" scope="col">Method</th>{splits}{ends}</tr><tr>{named}</tr>'
    entries = {n: [e for e in block.entries if e.method == n] for n in findings.expected(block)}
    more = [entry for entry in block.entries if entry.method not in entries]
    body = "".join(_method_rows(name, own) for name, own in entries.items())
    further = "".join(map(_method_row, more))
    rest = f'<tbody class="more">{further}</tbody>' if further else ""
    return table("methods stack", head, f"<tbody>{body}</tbody>{rest}", label)


def _method_rows(name: str, own: Sequence[Entry]) -> str:
    if not own:
        return (
            f'<tr class="unrun">{row_head(name)}<td colspan="{COLUMNS}" class="left first">{UNRUN}</td></tr>'
        )
    return "".join(map(_method_row, own))


def _method_row(entry: Entry) -> str:
    step = "" if entry.step is None else f", step {entry.step:g}"
    seeds = f"{len(entry.rows)} seed{'' if len(entry.rows) == 1 else 's'}{step}"
    if entry.negative_weights:
        seeds += f"<br>{words.clipped(entry)} weights clipped"
    cells = "".join(_measured(entry, split, m) for split, measures in SHOWN.items() for m in measures)
    verdicts = "<br>".join(_verdict(word, count) for word, count in entry.verdicts.items())
    facts = [f"max ψ {words.harm(entry)}", f"de-biased {words.debiased(entry)}"]
    if entry.settling is not None:
        facts += [f"{words.settling(entry)} a group", "would settle it"]
    below = f'<small class="below">{"<br>".join(map(marked, facts))}</small>'
    audits = f'<td class="first audits" data-head="audits">{verdicts}{below}</td>'
    spent = cell(words.seconds(entry), below="mixed fleet" * entry.mixed, head="seconds")
    return f"<tr>{row_head(entry.name, seeds)}{cells}{audits}{spent}</tr>"


def _verdict(word: str, count: int) -> str:
    return f'<span class="{word}-ink">{count} {word}</span>'


def _measured(entry: Entry, split: str, measure: str) -> str:
    kind = "first" if measure == "accuracy" else ""
    below = _chance(entry, measure) if split == "audit" and measure in DISPARITIES else ""
    named = "acc." if measure == "accuracy" else TITLES[measure]
    head = f"{HELD_SPLITS[split]} {named}"
    return cell(percent(entry.spread(split, measure)), kind=kind, below=below, head=head)


def _chance(entry: Entry, measure: str) -> str:
    floor = entry.floor(measure)
    low, high = COARSE.number(floor.low), COARSE.number(floor.high)
    return f"chance {COARSE.number(floor.mean)}<br>({low}–{high})"


# --- against a baseline ---


def paired_table(baseline: str, entries: Iterable[Entry], label: str) -> str:
    names = [f"Minus {baseline}, same samples", *(TITLES[m] for m in BETTER), "same class"]
    body = "".join(
        f"<tr>{row_head(entry.name)}{''.join(_difference(entry, m) for m in BETTER)}"
        f"{cell(words.same(entry), head='same class')}</tr>"
        for entry in entries
        if entry.method != baseline
    )
    head = f"<tr>{heads(names)}</tr>"
    return table("plain paired stack", head, f"<tbody>{body}</tbody>", label) if body else ""


def _difference(entry: Entry, measure: str) -> str:
    kind = INKS.get(findings.standing(entry, measure), "")
    told = findings.counts(entry, measure)
    return cell(words.difference(entry, measure), kind=kind, below=told, head=TITLES[measure])


def glance_table(found: Sequence[Block], measure: str) -> str:
    """The difference from the baseline's, method by setting."""
    entries = [e for block in found for e in block.entries if not is_formulation(e.method)]
    absent = [name for block in found for name in findings.unrun_methods(block)]
    places = {name: METHODS[name] for name in absent} | {e.name: METHODS[e.method] for e in entries}
    shown = sorted(places, key=lambda name: (places[name], name))
    pairs = list(zip(found, words.short_titles(found, brief=True), strict=True))
    head = f"<tr>{heads(['Method'])}{''.join(map(_setting_head, words.short_titles(found)))}</tr>"
    body = "".join(
        f"<tr>{row_head(name)}{''.join(_glance(block, name, title, measure) for block, title in pairs)}</tr>"
        for name in shown
    )
    label = f"{TITLES[measure]} on unseen data minus {found[0].against}'s"
    return table("glance against stack", head, f"<tbody>{body}</tbody>", label)


def _setting_head(title: str) -> str:
    return f'<th scope="col" class="first">{"<br>".join(escaped(part) for part in title.split(", "))}</th>'


def _named(block: Block, name: str) -> Entry | None:
    return next((entry for entry in block.entries if entry.name == name), None)


def _glance(block: Block, name: str, head: str, measure: str) -> str:
    entry = _named(block, name)
    if entry is None:
        usual = name in findings.expected(block) and not any(e.method == name for e in block.entries)
        told, kind = (UNRUN, "") if usual else (f'<span class="soft">{MISSING}</span>', " none")
        return f'<td class="first{kind}" data-head="{escaped(head)}">{told}</td>'
    if entry.method == block.against:
        chance = _chance(entry, measure) if measure in DISPARITIES else ""
        return cell(percent(entry.spread("audit", measure)), kind="first soft", below=chance, head=head)
    kind = f"first {INKS.get(findings.standing(entry, measure), '')}"
    told = findings.counts(entry, measure, brief=True)
    return cell(words.difference(entry, measure), kind=kind, below=told, head=head)


# --- what the choice rests on ---


def choice_table(block: Block, label: str) -> str:
    named = ["Choice split", *(TITLES[m] for m in MEASURES), *words.HELD]
    body = "".join(
        f"<tr>{row_head(entry.name)}{''.join(cell(percent(entry.spread('choice', m))) for m in MEASURES)}"
        f"{''.join(map(cell, words.held(block, entry)))}</tr>"
        for entry in block.entries
    )
    return table("plain choice", f"<tr>{heads(named)}</tr>", f"<tbody>{body}</tbody>", label)


def gain_table(own: Sequence[Gain], label: str) -> str:
    named = ["Method", "followed a group", "s.e. of ψ", f"{TITLES[PAYERS]} minus {own[0].entry.against}'s"]
    body = "".join(
        f"<tr>{row_head(g.entry.name)}{cell(str(g.followed.samples))}{cell(percent(g.followed.error))}"
        f"{_difference(g.entry, PAYERS)}</tr>"
        for g in own
    )
    return table("plain", f"<tr>{heads(named)}</tr>", f"<tbody>{body}</tbody>", label)


# --- constraints and multipliers ---


def constraint_table(constraints: Sequence[Constrained], label: str) -> str:
    feasible = [f"held: {word}" for word in HELD_SPLITS.values()]
    names = ["Constraints", "step", "allowed", "train", *feasible, "Σ|λ|", "its change", "active"]
    body = "".join(_constraint_row(one, names) for one in constraints)
    return table("plain constraints stack", f"<tr>{heads(names)}</tr>", f"<tbody>{body}</tbody>", label)


def _constraint_row(one: Constrained, names: Sequence[str]) -> str:
    texts = [words.step(one.step), f"{one.allowed:g}", plain(one.value)]
    cells = [cell(text, head=head) for text, head in zip(texts, names[1:4], strict=True)]
    cells += [_held(one, split, head) for split, head in zip(HELD_SPLITS, names[4:-3], strict=True)]
    texts = [plain(one.size), plain(one.change), words.active(one)]
    cells += [cell(text, head=head) for text, head in zip(texts, names[-3:], strict=True)]
    return f"<tr>{row_head(one.name)}{''.join(cells)}</tr>"


def pips(on: int, of: int) -> str:
    """A circle a seed, so many of them filled."""
    marks = "".join(f'<i class="{"on" if place < on else ""}"></i>' for place in range(of))
    return f'<span class="pips" aria-hidden="true">{marks}</span>'


def _held(one: Constrained, split: str, head: str) -> str:
    count = one.held[split]
    return (
        f'<td class="num" data-head="{escaped(head)}">{pips(count, one.seeds)}'
        f"<b>{words.of_seeds(count, one.seeds)}</b></td>"
    )


# --- seconds ---


def timing_table(timed: Sequence[Mapping[str, Any]]) -> str:
    names = ["Method", "task", "runs at once", "seconds a run", "epochs timed", "device"]
    body = "".join(
        f"<tr>{row_head(one['method'])}"
        f"<td>{escaped(words.dataset(one['dataset']))}"
        f'<small class="below">{escaped(one["groups"])}</small></td>'
        f"{cell(str(one['fleet']))}{cell(words.seconds_of(one))}{cell(str(one['epochs']))}"
        f"<td><small>{escaped(one['versions']['device'])}</small></td></tr>"
        for one in timed
    )
    return table("plain", f"<tr>{heads(names)}</tr>", f"<tbody>{body}</tbody>", "Seconds of the methods")


# --- the dense models ---


def dense_table(models: Sequence[Mapping[str, Any]]) -> str:
    named = ["Held out a class", *(f"{word} data" for word in HELD_SPLITS.values()), "trained in", "weights"]
    body = "".join(map(_dense_row, models))
    return table("plain dense", f"<tr>{heads(named)}</tr>", f"<tbody>{body}</tbody>", "The dense models")


def _dense_row(model: Mapping[str, Any]) -> str:
    name = words.dataset(model["dataset"])
    accuracy, spent = model["accuracy"], model["seconds"]
    cells = "".join(cell(text) for text in findings.accuracies(accuracy, HELD_SPLITS))
    return (
        f"<tr>{row_head(_held_out(model), escaped(name))}{cells}{cell(duration(spent))}"
        f"<td><small>{escaped(model['weights'])}</small></td></tr>"
    )


def _held_out(model: Mapping[str, Any]) -> str:
    """Of a class: a number, or below 1 a share."""
    value = model["heldout_per_class"]
    return f"{100 * value:g} %" if 0 < value < 1 else f"{value:g}"


def fold_table(entries: Sequence[Mapping[str, Any]]) -> str:
    """The dense models of cross-fitting, each trained without its fold: means over folds."""
    splits = {
        "rest": "its training images",
        "fold": "its fold",
        "heldout": "held-out data",
        "audit": "unseen data",
    }
    named = ["Held out a class", "folds", *splits.values()]
    body = "".join(
        f"<tr>{row_head(_held_out(one), escaped(words.dataset(one['dataset'])))}{cell(str(one['folds']))}"
        f"{''.join(cell(text) for text in findings.accuracies(one['accuracy'], splits))}</tr>"
        for one in entries
    )
    label = "The dense models of cross-fitting"
    return table("plain dense", f"<tr>{heads(named)}</tr>", f"<tbody>{body}</tbody>", label)


def setting_key(setting: Setting) -> tuple[str, str]:
    """Settings whose pictures share a scale."""
    return setting.dataset, setting.groups
