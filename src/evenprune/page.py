"""An audit document as one HTML file that asks nobody for anything: data, style and script are inside."""

import html
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from evenprune.embedding import filled, rounded, script_json, short_name, with_units
from evenprune.wording import STATUSES, Document, models_of, status, unit_of, verdict_sentence

TITLES = {"pass": "Pass", "fail": "Fail", "inconclusive": "Inconclusive"}
# column of the page -> key of a group in the document
NUMBERS = {
    "dense": "dense", "pruned": "pruned", "gap": "gap", "excess": "excess_gap",
    "lower": "lower", "upper": "upper", "testLower": "test_lower", "testUpper": "test_upper",
    "disagreement": "disagreement",
}  # fmt: skip
COUNTS = {"samples": "samples", "broke": "broke", "fixed": "fixed", "needed": "samples_needed"}


def to_html(document: Document) -> str:
    """The audit as one self-contained page; every name in it is data, never markup."""
    sentence, subject = headline(document), short_name(document.get("subject") or "")
    fields = {
        "VERDICT": document["verdict"],
        "TITLE": TITLES[document["verdict"]],
        "SUBJECT": html.escape(subject),
        "HEAD": html.escape(f"{subject} · " if subject else ""),
        "SENTENCE": html.escape(sentence),
        "LENGTH": "long" if len(sentence) > 200 else "short",
        "DATA": script_json(_page_data(document)),
    }
    return filled("report_page.html", fields)


def headline(document: Document) -> str:
    """The verdict sentence without its first word, which stands before it as a badge or in colour."""
    said = with_units(verdict_sentence(document).partition(": ")[2])
    return said[0].upper() + said[1:]


def _page_data(document: Document) -> dict[str, Any]:
    """The document by columns, names once, numbers rounded: a tenth of the size."""
    models = models_of(document)
    names = _all_names(models.values())
    places = {name: place for place, name in enumerate(names)}
    titles = list(dict.fromkeys(title for audit in models.values() for title in audit.get("columns") or {}))
    unit = max((unit_of(audit) for audit in models.values()), key=lambda unit: unit.digits)
    return {
        "names": [short_name(name) for name in names],
        "statuses": STATUSES,
        "unit": asdict(unit),
        "titles": [short_name(title) for title in titles],
        "models": [
            _model_data(name, audit, document, places)
            | {"further": _further(audit, titles), "rough": _rough(audit, titles)}
            for name, audit in models.items()
        ],
        "first": list(models).index(document["model"]) if document["model"] in models else 0,
        "comparisons": [_comparison_data(pair, places) for pair in document.get("comparisons") or []],
    }


def _all_names(audits: Iterable[Document]) -> list[str]:
    return list(dict.fromkeys(str(group["group"]) for audit in audits for group in audit["groups"]))


def _model_data(name: str, audit: Document, document: Document, places: dict[str, int]) -> dict[str, Any]:
    several = {"models": document["models"]} if document.get("models") else {}  # the sentence names the model
    plain = (
        "verdict",
        "tolerance",
        "confidence",
        "measure",
        "limits",
        "samples",
        "attributes",
        "grouping",
        "notes",
    )
    return {
        "name": short_name(name),
        "sentence": headline({**audit, **several}),
        **{key: audit[key] for key in plain},
        "overall": _rounded_all(audit["overall"]),
        "worst": _rounded_all(audit["max_excess_gap"]),
        "disparity": rounded(audit["pairwise_disparity"]),
        "floor": {key: _rounded_all(floor) for key, floor in audit["noise_floor"].items()},
        "columns": _columns(audit, places),
    }


def _columns(audit: Document, places: dict[str, int]) -> dict[str, list[Any]]:
    groups = audit["groups"]
    return {
        "group": [places[str(group["group"])] for group in groups],
        "status": [STATUSES.index(status(group, audit["tolerance"])) for group in groups],
        "fell": [int(group["fell"]) for group in groups],
        **{column: [rounded(group[key]) for group in groups] for column, key in NUMBERS.items()},
        **{column: [group[key] for group in groups] for column, key in COUNTS.items()},
    }


def _further(audit: Document, titles: Iterable[str]) -> list[list[float | None]]:
    """The columns that came with the audit: a list per title, a number per group."""
    given = audit.get("columns") or {}
    names = [group["group"] for group in audit["groups"]]
    return [[rounded(given.get(title, {}).get(name), 8) for name in names] for title in titles]


def _rough(audit: Document, titles: Iterable[str]) -> list[list[int]]:
    """The rows of each of these columns whose numbers did not converge."""
    marked = audit.get("approximate") or {}
    return [
        [row for row, group in enumerate(audit["groups"]) if group["group"] in marked.get(title, ())]
        for title in titles
    ]


def _comparison_data(pair: Document, places: dict[str, int]) -> dict[str, Any]:
    return {
        "first": short_name(pair["first"]),
        "second": short_name(pair["second"]),
        **{key: _rounded_all(pair[key]) for key in ("accuracy", "max_excess_gap", "pairwise_disparity")},
        **{key: [places[str(name)] for name in pair[key]] for key in ("better", "worse")},
    }


def _rounded_all(values: Document) -> dict[str, Any]:
    return {
        key: short_name(value) if isinstance(value, str) else rounded(value) for key, value in values.items()
    }
