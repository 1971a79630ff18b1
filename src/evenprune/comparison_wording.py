"""A comparison of methods in two sentences: what they did on the training data, and on data not seen."""

import math
import re
from collections.abc import Sequence
from statistics import fmean

from evenprune.wording import Document, Unit, quoted, shorten, visible

WHERE = "on the training data"
# key of a method -> the name people know it by, and what it does in a few words
METHODS = {
    "nft": ("NFT", "plain fine-tuning"),
    "nft_es": ("NFT+ES", "plain fine-tuning, best epoch kept"),
    "fairgrape": ("FairGRAPE", "every group keeps its share of the weights' importance"),
    "fairgrape_fast": ("FairGRAPE (fast)", "FairGRAPE by its one-line rule"),
    "el": ("EL", "equalizes the groups' losses"),
    "el_rb": ("EL+RB", "equalizes the groups' losses"),
    "ceag": ("CEAG", "bounds each excess gap"),
    "ceag_no_rb": ("CEAG (no RB)", "bounds every excess gap, batch by batch"),
    "celg": ("CELG", "bounds every excess gap of the loss"),
    "pairwise": ("Ψ_PW", "bounds the largest disparity"),
    "all_pairs": ("All pairs", "bounds the disparity of all pairs"),
    "equalized": ("Equalized", "drives every excess gap to zero"),
    "approximately_equal": ("Approximately equal", "bounds the size of every excess gap"),
    "two_sided": ("Two-sided", "bounds every excess gap on both sides"),
    "kd": ("KD", "learns from the dense model as well"),
    "performance_weighted": ("Performance-weighted", "weighs samples that the dense model finds hard"),
    "group_dro": ("Group DRO", "weighs the groups with the largest loss"),
    "balanced": ("Balanced", "draws every group as often"),
}


def headline(document: Document) -> str:
    """What happened on the training data, where the methods act: the baseline first, then the others."""
    methods = titled(document)
    if all(_worst(method, "train") is None for method in methods):
        return "The training samples have no groups to compare: who paid is told by unseen data alone."
    plain = baseline(methods)
    others = [method for place, method in enumerate(methods) if place != plain]
    others.sort(key=lambda method: _rank(document, method))
    if plain is None:
        return _sentence(_others(document, others, alone=True))
    said = _baseline_clause(document, methods[plain])
    return _sentence(said + (f"; {_others(document, others)}" if others else ""))


def unseen_sentence(document: Document) -> str:
    """What happened on the test data, which no method has seen."""
    methods = [method for method in titled(document) if results(method, "test")]
    known = [(_worst(method, "test"), method["title"]) for method in methods]
    pairs = sorted((worst, name) for worst, name in known if worst is not None)
    if not pairs:
        return "There is no test data in this comparison: nothing here speaks of unseen samples."
    said = f"On unseen test data the worst-hit group lost {_each(document, pairs)}{_mean_of(methods)}"
    return f"{said}. {_kept_unseen(document, methods)}"


def acting_sentence(document: Document) -> str:
    """Which data the methods look at, and which rows therefore speak of unseen data."""
    chosen = _choices(document)
    if not chosen:
        return "The methods act on the training data; only the test rows speak of data they have not seen."
    return (
        f"The methods train on the training data. On the held-out data {', '.join(chosen)}: so the held-out "
        "rows are no evidence either; only the test rows speak of data that nothing was trained or chosen on."
    )


def constraint_sentence(document: Document) -> str:
    """On which data constraints act: there they can be met, which says little of other data."""
    followers = _with_setting(document, "multipliers_on")
    there = f", that of {_some(followers)} on the held-out data" if followers else ""
    meeting = "Meeting it there shows that the method did its work, no more."
    return f"The constraint acts on the training data{there}. {meeting}"


def _choices(document: Document) -> list[str]:
    """What the held-out data was used for."""
    settings = ("multipliers_on", "keep_on", "class_bias_on")
    followers, keepers, biased = (_some(_with_setting(document, key)) for key in settings)
    uses = {
        "the multipliers of {} follow their gaps": followers,
        "{} picks its iterate": keepers,
        "the bias of {} is fitted": biased,
        "one run was chosen": document.get("selected_on") == "heldout",
    }
    return [words.format(who) for words, who in uses.items() if who]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 2} more" if len(names) > 3 else ""
    return ", ".join(names[:2] if more else names) + more


def _with_setting(document: Document, key: str) -> list[str]:
    methods = titled(document)
    return [method["title"] for method in methods if (method.get("settings") or {}).get(key) == "heldout"]


def baseline(methods: Sequence[Document]) -> int | None:
    """The place of plain fine-tuning among the methods, if it is there."""
    keys = [key_of(method["name"]) for method in methods]
    return next((keys.index(key) for key in ("nft", "nft_es") if key in keys), None)


def key_of(name: object) -> str:
    """The key in `METHODS` of a key or title: "EL+RB" is "el_rb"; "CEAG (ε = 1 %)" is none of them."""
    keys = {_plain(title): key for key, (title, _) in METHODS.items()}
    return keys.get(_plain(name), _plain(name))


def _plain(name: object) -> str:
    return re.sub(r"[\s+_()-]+", "_", str(name).lower()).strip("_")


def title_of(key: str) -> str:
    """The name people know a method by; what is no key in `METHODS` stays as it is."""
    return METHODS[key][0] if key in METHODS else key


def titled(document: Document) -> list[Document]:
    """The methods, each with the title people know it by; no two the same."""
    names = [method["name"] for method in document["methods"]]
    known = [title_of(key) if (key := key_of(name)) in METHODS else _own(name) for name in names]
    nth = [known[: place + 1].count(title) for place, title in enumerate(known)]
    titles = [title if n == 1 else f"{title} ({n})" for title, n in zip(known, nth, strict=True)]
    return [{**method, "title": title} for method, title in zip(document["methods"], titles, strict=True)]


def _own(name: object) -> str:
    return visible(shorten(str(name), 40))


def results(method: Document, split: str) -> list[Document]:
    """The results of all runs on a split; runs that were not measured there are left out."""
    return [run[split] for run in method["runs"] if run.get(split)]


def unit_of(document: Document) -> Unit:
    """Points with as many decimals as the tolerance needs."""
    points = document["tolerance"] * 100
    digits = next((d for d in (1, 2) if abs(round(points, d) - points) < 1e-9), 3)
    return Unit(noun="accuracy", scale=100.0, digits=digits, word=" points")


def low(value: float | None) -> float:
    """The value for an ordering in which what is not known comes lowest."""
    return -math.inf if value is None else value


def _each(document: Document, pairs: Sequence[tuple[float, str]]) -> str:
    """Least harm first; of many methods only the two ends."""
    unit = unit_of(document)
    (least, best), (most, last) = pairs[0], pairs[-1]
    if len(pairs) > 4:
        return f"between {unit.number(least)} ({best}) and {unit.amount(most)} ({last}) more than the average"
    rest = [f"{unit.number(worst)} with {name}" for worst, name in pairs[1:]]
    return ", ".join([f"{unit.amount(least)} more than the average with {best}", *rest])


def _kept_unseen(document: Document, methods: Sequence[Document]) -> str:
    met = {method["title"]: _met(document, method, "test") for method in methods}
    several = max(seeds for _, seeds in met.values()) > 1
    kept = [f"{name} {_times(*counts)}" if several else name for name, counts in met.items() if counts[0]]
    if kept:
        return f"Every group stayed within {_limit(document)} there with {', '.join(kept)}."
    trained = any(_met(document, method, "train")[0] for method in methods)
    moral = ": what holds in training need not carry over" if trained else ""
    return f"No method stayed within {_limit(document)} there{' in any seed' if several else ''}{moral}."


def _baseline_clause(document: Document, method: Document) -> str:
    name = f"plain fine-tuning ({method['title']})"
    met, seeds = _met(document, method, "train")
    if not met:
        return f"{name} {_cost(document, method)} than the average {WHERE}{_mean_of([method])}"
    kept = "already kept" if met == seeds else "kept"
    times = f" {_times(met, seeds)}" if seeds > 1 else ""
    return f"{name} {kept} every group within {_limit(document)} of the average {WHERE}{times}"


def _cost(document: Document, method: Document) -> str:
    """What a method did to the group that is its worst in most seeds; to no one group if there is none."""
    runs, unit = results(method, "train"), unit_of(document)
    worst = [max(range(len(run["excess_gaps"])), key=lambda g: low(run["excess_gaps"][g])) for run in runs]
    usual = max(set(worst), key=worst.count) if worst else 0
    excess = [run["excess_gaps"][usual] for run in runs]
    if worst.count(usual) * 2 <= len(worst) or None in excess:
        amount = unit.amount(_worst(method, "train"))
        return f"cost the worst-hit group, not always the same one, {amount} more accuracy"
    group, amount = quoted(document["groups"][usual]), unit.amount(fmean(excess))
    pruned = fmean(low(run["group_accuracy"][usual]) for run in runs)
    dense = document["dense"]["train"]["group_accuracy"][usual]
    if dense is not None and pruned >= dense:
        return f"improved {group} by {amount} less"
    return f"cost {group} {amount} more accuracy"


def _others(document: Document, others: Sequence[Document], *, alone: bool = False) -> str:
    """How often each of the methods met the tolerance, the best first."""
    first, (kept, seeds) = others[0]["title"], _met(document, others[0], "train")
    where = f" of the average {WHERE}" if alone else ""
    limit = f"within {_limit(document)}{where}"
    if not kept:
        return _none(document, others, limit, "no method" if alone else "no other method")
    times = f" {_times(kept, seeds)}" if seeds > 1 else ""
    met = [(method["title"], *_met(document, method, "train")) for method in others[1:]]
    rest = [f"{name} {_times(k, n, known=n == seeds)}" for name, k, n in met if k][:3]
    failed = [f"{name} {_times(0, n, known=n == seeds)}" for name, k, n in met if not k]
    if len(failed) > 2:
        failed = [f"the other {len(failed)} methods " + ("in no seed" if seeds > 1 else "did not")]
    return ", ".join([f"{first} kept every group {limit}{times}", *rest, *failed])


def _none(document: Document, others: Sequence[Document], limit: str, nobody: str) -> str:
    first, worst = others[0]["title"], unit_of(document).amount(_worst(others[0], "train"))
    several = len(others[0]["runs"]) > 1
    seeds = " in any seed" if several else ""
    if len(others) == 1:
        return f"{first} did not keep every group {limit}{seeds}: {worst} for the worst-hit group"
    return f"{nobody} kept every group {limit}{seeds}; {first} came closest with {worst}"


def _rank(document: Document, method: Document) -> tuple[float, float]:
    kept, seeds = _met(document, method, "train")
    worst = _worst(method, "train")
    return -kept / max(seeds, 1), math.inf if worst is None else worst


def _times(kept: int, seeds: int, *, known: bool = False) -> str:
    """In how many seeds; shorter where the number of seeds has been said."""
    if seeds == 1:
        return "too" if kept else "did not"
    if kept == seeds:
        return f"in all {seeds}" + ("" if known else " seeds")
    return f"in {kept or 'none'}" + ("" if known else f" of {seeds} seeds")


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _mean_of(methods: Sequence[Document]) -> str:
    seeds = {len(method["runs"]) for method in methods}
    if max(seeds) == 1:
        return ""
    return f" (mean of {max(seeds)} seeds)" if len(seeds) == 1 else " (mean over seeds)"


def _met(document: Document, method: Document, split: str) -> tuple[int, int]:
    """In how many seeds the worst excess gap is within the tolerance, and of how many."""
    worst = [run["max_excess_gap"] for run in results(method, split)]
    limit = document["tolerance"] + 1e-9
    return sum(value is not None and value <= limit for value in worst), len(worst)


def _worst(method: Document, split: str) -> float | None:
    values = [run["max_excess_gap"] for run in results(method, split)]
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _limit(document: Document) -> str:
    points = float(f"{document['tolerance'] * 100:.6g}")
    return f"{points:g} point{'' if points == 1 else 's'}"
