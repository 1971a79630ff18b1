"""A comparison of methods as one HTML file that asks nobody for anything."""

import html
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from evenprune import page
from evenprune.comparison_wording import (
    METHODS,
    acting_sentence,
    baseline,
    constraint_sentence,
    headline,
    key_of,
    low,
    results,
    titled,
    unit_of,
    unseen_sentence,
)
from evenprune.embedding import filled, rounded, script_json, short_name, with_units
from evenprune.wording import STATUSES, Document, status, visible

SPLITS = ("train", "heldout", "test")
MOST_MULTIPLIERS = 60_000  # values in the page; more epochs than fit are thinned
MOST_LINES = 100  # multipliers per method: the largest, if there are more
MOST_EPOCHS = 240
MOST_AUDIT_ROWS = 6_000  # over all audits; each keeps its worst groups
LOOKS = 6  # colours and shapes in the template
FIXED_LOOKS = {"nft": 0, "el_rb": 1, "ceag": 2}
AUDIT_COLUMNS = {
    "dense": "dense", "pruned": "pruned", "excess": "excess_gap", "lower": "lower", "upper": "upper",
    "testLower": "test_lower", "testUpper": "test_upper",
}  # fmt: skip
AUDIT_COUNTS = {"count": "samples", "broke": "broke", "fixed": "fixed"}


def to_html(document: Document) -> str:
    """The comparison as one self-contained page; every name in it is data, never markup."""
    fields = {
        "TITLE": html.escape(short_name(document["title"])),
        "SENTENCE": html.escape(with_units(headline(document))),
        "UNSEEN": html.escape(with_units(unseen_sentence(document))),
        "SELECTED": html.escape(with_units(visible(document.get("selected_because") or ""))),
        "DATA": script_json(_page_data(document)),
    }
    return filled("comparison_page.html", fields)


def _page_data(document: Document) -> dict[str, Any]:
    """The document by columns, names once, numbers rounded, long histories thinned."""
    methods = titled(document)
    there = [split for split in SPLITS if any(results(method, split) for method in methods)]
    splits = [split for split in there if any(document["samples"][split])]  # else no sample has a group
    plain = ("tolerance", "confidence", "epochs", "pruning_epochs", "parameters")
    audits = sum(len(run.get("audits") or {}) for method in methods for run in method["runs"])
    kept = max(20, MOST_AUDIT_ROWS // max(audits, 1))
    names = _names(document)
    places = {name: place for place, name in enumerate(names)}
    return {
        **{key: document.get(key) for key in plain},
        **{key: rounded(document.get(key)) for key in ("sparsity", "seconds")},
        "title": short_name(document["title"]),
        "model": short_name(document["model"]),
        "command": short_name(document["command"]) if document.get("command") else None,
        "unit": asdict(unit_of(document)),
        "groups": len(document["groups"]),
        "names": [short_name(name) for name in names],
        "splits": splits,
        "samples": {split: list(document["samples"][split]) for split in splits},
        "dense": {split: _level(document["dense"][split]) for split in splits},
        "baseline": baseline(methods),
        "acting": acting_sentence(document),
        "constraint": constraint_sentence(document),
        "notes": [visible(note) for note in document.get("notes") or []],
        "statuses": STATUSES,
        "methods": [
            {"look": look, **_method_data(method, document, splits)}
            | {"audits": {split: _audits(method, split, kept, places) for split in splits}}
            | {"pages": {split: _links(method, split) for split in splits}}
            for look, method in zip(_looks(methods), methods, strict=True)
        ],
    }


def _looks(methods: Sequence[Document]) -> list[int]:
    """Colour and shape of each method: known ones always look the same, the others take what is free."""
    wanted = [FIXED_LOOKS.get(key_of(method["name"])) for method in methods]
    free = itertools.cycle(sorted(set(range(1, LOOKS)) - set(wanted)) or range(1, LOOKS))
    return [next(free) if look is None or look in wanted[:at] else look for at, look in enumerate(wanted)]


def _level(values: Document) -> dict[str, Any]:
    return {"accuracy": rounded(values["accuracy"]), "group": _rounded_list(values["group_accuracy"])}


def _method_data(method: Document, document: Document, splits: Sequence[str]) -> dict[str, Any]:
    runs, key = method["runs"], key_of(method["name"])
    return {
        "title": method["title"],
        "says": METHODS[key][1] if key in METHODS else "",
        "settings": [
            [short_name(name), short_name(value)] for name, value in (method.get("settings") or {}).items()
        ],
        "seeds": [short_name(run["seed"]) for run in runs],
        "sparsity": [rounded(run.get("sparsity")) for run in runs],
        "results": {split: [_result(run.get(split)) for run in runs] for split in splits},
        "gaps": _gap_history(runs),
        "multipliers": _multiplier_history(runs, document),
    }


def _result(result: Document | None) -> dict[str, Any] | None:
    if not result:
        return None
    return {
        "accuracy": rounded(result["accuracy"]),
        "worst": rounded(result["max_excess_gap"]),
        "disparity": rounded(result["pairwise_disparity"]),
        "group": _rounded_list(result["group_accuracy"]),
        "excess": _rounded_list(result["excess_gaps"]),
        "verdict": result["verdict"] if result["verdict"] in ("pass", "fail", "inconclusive") else None,
    }


def _gap_history(runs: Sequence[Document]) -> dict[str, Any]:
    """The worst excess gap of every run by epoch: the epochs, then [runs][epochs] for each split."""
    epochs = _thinned(_epochs(runs), MOST_EPOCHS)
    rows = [{row["epoch"]: row for row in run["history"]} for run in runs]
    keys = {
        "train": "max_excess_gap",
        "heldout": "heldout_max_excess_gap",
        "test": "test_max_excess_gap",
    }
    values = {
        split: [[_brief((of.get(epoch) or {}).get(key)) for epoch in epochs] for of in rows]
        for split, key in keys.items()
    }
    return {"epochs": epochs, **values}


def _multiplier_history(runs: Sequence[Document], document: Document) -> dict[str, Any] | None:
    """The largest multipliers of every run: [runs][epochs][lines]; None for methods without any."""
    rows = [{row["epoch"]: row.get("multipliers") or [] for row in run["history"]} for run in runs]
    count = max((len(values) for of in rows for values in of.values()), default=0)
    if not count:
        return None
    lines = _largest([values for of in rows for values in of.values()], count)
    share = MOST_MULTIPLIERS // max(1, len(document["methods"]) * len(runs) * len(lines))
    epochs = _thinned(_epochs(runs), min(MOST_EPOCHS, max(share, 12)))
    names = document["groups"] if count == len(document["groups"]) else None
    return {
        "names": [short_name(names[line]) if names else f"constraint {line + 1}" for line in lines],
        "epochs": epochs,
        "values": [[_picked(of.get(epoch) or [], lines) for epoch in epochs] for of in rows],
    }


def _largest(rows: Sequence[Sequence[float | None]], count: int) -> list[int]:
    """The lines with the largest peaks, in their own order."""
    if count <= MOST_LINES:
        return list(range(count))
    peaks = [0.0] * count
    for row in rows:
        for line, value in enumerate(row):
            peaks[line] = max(peaks[line], abs(value or 0.0))
    return sorted(sorted(range(count), key=peaks.__getitem__, reverse=True)[:MOST_LINES])


def _picked(row: Sequence[float | None], lines: Sequence[int]) -> list[float | None]:
    return [_brief(row[line]) if line < len(row) else None for line in lines]


def _epochs(runs: Sequence[Document]) -> list[int]:
    return sorted({row["epoch"] for run in runs for row in run["history"]})


def _thinned(epochs: list[int], most: int) -> list[int]:
    """Every n-th epoch, and always the last."""
    stride = math.ceil(len(epochs) / most) if epochs else 1
    return epochs if stride == 1 else sorted({*epochs[::stride], epochs[-1]})


def _names(document: Document) -> list[str]:
    """The groups, then whatever else the audits speak of (they may name their groups in their own way)."""
    runs = [run for method in document["methods"] for run in method["runs"]]
    audits = [audit for run in runs for audit in (run.get("audits") or {}).values() if audit]
    audited = [str(group["group"]) for audit in audits for group in audit["groups"]]
    return [*map(str, document["groups"]), *sorted(set(audited) - set(map(str, document["groups"])))]


def _audits(method: Document, split: str, kept: int, places: Mapping[str, int]) -> list[Any]:
    audits = [(run.get("audits") or {}).get(split) for run in method["runs"]]
    return [_audit(audit, kept, places) if audit else None for audit in audits]


def _links(method: Document, split: str) -> list[str | None]:
    """The page of each run's audit, as an address that can only lie below this page."""
    pages = [(run.get("pages") or {}).get(split) for run in method["runs"]]
    return [quote(page, safe="/") if page else None for page in pages]


def _audit(audit: Document, kept: int, places: Mapping[str, int]) -> dict[str, Any]:
    groups = sorted(audit["groups"], key=lambda group: -low(group["excess_gap"]))[:kept]
    worst = audit["max_excess_gap"]
    return {
        "verdict": audit["verdict"],
        "sentence": page.headline(audit),
        "samples": audit["samples"],
        "all": len(audit["groups"]),
        "debiased": rounded(worst["debiased"]),
        "floor": [rounded(audit["noise_floor"]["max_excess_gap"][key]) for key in ("low", "high")],
        "notes": [short_name(note) for note in audit["notes"]],
        "group": [places[str(group["group"])] for group in groups],
        "status": [STATUSES.index(status(group, audit["tolerance"])) for group in groups],
        **{column: [group[key] for group in groups] for column, key in AUDIT_COUNTS.items()},
        **{column: _rounded_list([group[key] for group in groups]) for column, key in AUDIT_COLUMNS.items()},
    }


def _rounded_list(values: Sequence[float | None]) -> list[float | None]:
    return [rounded(value) for value in values]


def _brief(value: float | None) -> float | None:
    return rounded(value, digits=3)  # enough for a line in a picture
