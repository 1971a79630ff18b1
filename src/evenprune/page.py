"""An audit document as one HTML file that asks nobody for anything: data, style and script are inside."""

import base64
import functools
import hashlib
import html
import json
import math
import re
from collections.abc import Iterable
from importlib import resources
from typing import Any

from evenprune.wording import (
    STATUSES,
    Document,
    models_of,
    shorten,
    status,
    unit_of,
    verdict_sentence,
    visible,
)

LONGEST_NAME = 400  # keeps a page of 1,000 groups small even when their names are not
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
    fields = {
        "POLICY": _policy(),
        "VERDICT": document["verdict"],
        "TITLE": TITLES[document["verdict"]],
        "SENTENCE": html.escape(_headline(document)),
        "LENGTH": "long" if len(_headline(document)) > 200 else "short",
        "DATA": _json_for_script(_page_data(document)),
    }
    # One pass, so that a name that looks like a field is not filled in turn.
    return re.sub(r"@@([A-Z]+)@@", lambda match: fields[match[1]], _template())


@functools.cache
def _template() -> str:
    return resources.files("evenprune").joinpath("report_page.html").read_text(encoding="utf-8")


@functools.cache
def _policy() -> str:
    """Only this page's own script and style may act, known by their hashes; nothing may be fetched."""
    scripts = _hashes(re.findall(r"<script>(.*?)</script>", _template(), re.DOTALL))
    styles = _hashes(re.findall(r"<style>(.*?)</style>", _template(), re.DOTALL))
    rules = ["default-src 'none'", f"script-src {scripts}", f"style-src {styles}", "img-src data:"]
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])


def _hashes(blocks: Iterable[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(block.encode()).digest()).decode() for block in blocks)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


def _headline(document: Document) -> str:
    """The verdict sentence without its first word, which the badge above it says."""
    said = verdict_sentence(document).partition(": ")[2]
    together = said.replace(" points", "\u00a0points").replace(" %", "\u00a0%")  # numbers keep their units
    return together[0].upper() + together[1:]


def _json_for_script(data: Any) -> str:
    """JSON that can neither close its script element nor break a line; UTF-8 holds all of it."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _page_data(document: Document) -> dict[str, Any]:
    """The document by columns, names once, numbers rounded: a tenth of the size."""
    models = models_of(document)
    names = _all_names(models.values())
    places = {name: place for place, name in enumerate(names)}
    unit = max((unit_of(audit) for audit in models.values()), key=lambda unit: unit.digits)
    return {
        "names": [_name(name) for name in names],
        "statuses": STATUSES,
        "unit": {"noun": unit.noun, "scale": unit.scale, "digits": unit.digits, "word": unit.word},
        "models": [_model_data(name, audit, document, places) for name, audit in models.items()],
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
        "name": _name(name),
        "sentence": _headline({**audit, **several}),
        **{key: audit[key] for key in plain},
        "overall": _rounded_all(audit["overall"]),
        "worst": _rounded_all(audit["max_excess_gap"]),
        "disparity": _rounded(audit["pairwise_disparity"]),
        "floor": {key: _rounded_all(floor) for key, floor in audit["noise_floor"].items()},
        "columns": _columns(audit, places),
    }


def _columns(audit: Document, places: dict[str, int]) -> dict[str, list[Any]]:
    groups = audit["groups"]
    return {
        "group": [places[str(group["group"])] for group in groups],
        "status": [STATUSES.index(status(group, audit["tolerance"])) for group in groups],
        "fell": [int(group["fell"]) for group in groups],
        **{column: [_rounded(group[key]) for group in groups] for column, key in NUMBERS.items()},
        **{column: [group[key] for group in groups] for column, key in COUNTS.items()},
    }


def _comparison_data(pair: Document, places: dict[str, int]) -> dict[str, Any]:
    return {
        "first": _name(pair["first"]),
        "second": _name(pair["second"]),
        **{key: _rounded_all(pair[key]) for key in ("accuracy", "max_excess_gap", "pairwise_disparity")},
        **{key: [places[str(name)] for name in pair[key]] for key in ("better", "worse")},
    }


def _name(name: object) -> str:
    return visible(shorten(str(name), LONGEST_NAME))


def _rounded(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.5g}")


def _rounded_all(values: Document) -> dict[str, Any]:
    return {key: _name(value) if isinstance(value, str) else _rounded(value) for key, value in values.items()}
