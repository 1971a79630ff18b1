"""What all outputs of an audit share: units and numbers, safe names, the verdict in one sentence."""

import math
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Document = Mapping[str, Any]  # an audit as Audit.to_dict() gives it
STATUSES = ("beyond", "unproven", "within", "tiny")
MISSING = "–"


@dataclass(frozen=True)
class Unit:
    """How a measure is written: accuracies and scores in percent points, losses in their own unit."""

    noun: str
    scale: float
    digits: int
    word: str

    def number(self, value: float | None) -> str:
        """A difference without its unit: "6.1"."""
        if value is None or not math.isfinite(value):
            return MISSING
        text = f"{abs(value) * self.scale:,.{self.digits}f}"
        negative = value < 0 and float(text.replace(",", "")) > 0
        return f"−{text}" if negative else text

    def amount(self, value: float | None) -> str:
        """A difference with its unit: "6.1 points"."""
        return self.number(value) + self.word

    def level(self, value: float | None) -> str:
        """A mean, not a difference: "91.2 %", or a plain loss."""
        percent = " %" if self.word and value is not None and math.isfinite(value) else ""
        return self.number(value) + percent

    def span(self, low: float | None, high: float | None) -> str:
        return f"{self.number(low)} to {self.number(high)}"


def unit_of(document: Document) -> Unit:
    """The unit of a document, with as many decimals as keep its limits apart from the tolerance."""
    noun = str(document["measure"])
    scale, word, fewest = (1.0, "", 3) if noun == "loss" else (100.0, " points", 1)
    digits = next((d for d in (fewest, fewest + 1) if _tells_apart(document, scale, d)), fewest + 2)
    return Unit(noun=noun, scale=scale, digits=digits, word=word)


def _tells_apart(document: Document, scale: float, digits: int) -> bool:
    tolerance = document["tolerance"] * scale
    worst = document["max_excess_gap"]
    others = [worst[key] * scale for key in ("estimate", "lower", "upper") if worst[key] is not None]
    exact = abs(round(tolerance, digits) - tolerance) < 1e-9
    return exact and all(
        round(other, digits) != round(tolerance, digits) or abs(other - tolerance) < 1e-9 for other in others
    )


def percent(fraction: float) -> str:
    """A confidence as people write it: 0.95 is "95 %", 0.975 is "97.5 %"."""
    return f"{fraction * 100:.6g} %"


def significant(value: float | None) -> str:
    """A number of any size and unknown unit to four digits: "0.01234", "12,340", "1.234e−7"."""
    if value is None or not math.isfinite(value):
        return MISSING
    size = float(f"{abs(value):.4g}")
    if size and not 1e-4 <= size < 1e7:
        digits, _, power = f"{size:.3e}".partition("e")
        text = f"{digits.rstrip('0').rstrip('.')}e{int(power)}".replace("-", "−")
    else:
        text = f"{size:,.12g}"
    return f"−{text}" if value < 0 and size else text


def visible(text: object) -> str:
    """Text that can steer neither a terminal nor the direction of the words around it."""
    return "".join(_visible_character(character) for character in str(text))


def _visible_character(character: str) -> str:
    kind = unicodedata.category(character)
    if character in "\t\n\v\f\r\x85" or kind in ("Zl", "Zp"):
        return " "
    steers = unicodedata.bidirectional(character) in (
        "LRE",
        "RLE",
        "LRO",
        "RLO",
        "PDF",
        "LRI",
        "RLI",
        "FSI",
        "PDI",
    )
    return "\ufffd" if kind in ("Cc", "Cs") or steers else character


def shorten(text: str, longest: int) -> str:
    """At most `longest` characters, cut in the middle: names of groups often differ at their end."""
    if len(text) <= longest:
        return text
    tail = (longest - 1) // 3
    return f"{text[: longest - 1 - tail]}…{text[len(text) - tail :]}"


def quoted(name: object) -> str:
    """A name in quotes; right-to-left names are isolated, so that numbers after them stay in place."""
    text = visible(shorten(str(name), 60))
    if any(unicodedata.bidirectional(character) in ("R", "AL", "AN") for character in text):
        text = f"\u2068{text}\u2069"
    return f"“{text}”"


def status(group: Document, tolerance: float) -> str:
    """One of STATUSES: proven beyond the tolerance, unproven either way, proven within, too small to tell."""
    if group["violates"]:
        return "beyond"
    if group["tiny"]:
        return "tiny"
    upper = group["test_upper"]
    return "within" if upper is not None and upper <= tolerance else "unproven"


def models_of(document: Document) -> dict[str, Document]:
    """Every pruned model of the document by name; a document of one model has just itself."""
    return dict(document.get("models") or {document["model"]: document})


def verdict_sentence(document: Document) -> str:
    """The verdict in one sentence for people who read no statistics."""
    several = len(models_of(document)) > 1
    where = f" (model {quoted(document['model'])})" if several else ""
    sentences = {"pass": _pass_sentence, "fail": _fail_sentence, "inconclusive": _inconclusive_sentence}
    return sentences[document["verdict"]](document, unit_of(document), where)


def _pass_sentence(document: Document, unit: Unit, where: str) -> str:
    worst = document["max_excess_gap"]
    return (
        f"Pass: with {percent(document['confidence'])} confidence, pruning{where} "
        f"{_too_much(document, unit, 'no group')}; the largest excess is estimated at "
        f"{unit.amount(worst['estimate'])} ({quoted(worst['group'])}), at most {unit.amount(worst['upper'])}."
    )


def _fail_sentence(document: Document, unit: Unit, where: str) -> str:
    proven = [group for group in document["groups"] if group["violates"]]
    worst = max(proven, key=lambda group: group["test_lower"])
    others = len(proven) - 1
    more = f", and {others} other group{'s are' if others > 1 else ' is'} beyond it too" if others else ""
    return (
        f"Fail: pruning{where} {_cost_this_group(worst, unit)} than the average, at least "
        f"{unit.amount(worst['test_lower'])} with {percent(document['confidence'])} confidence; "
        f"the tolerance is {unit.amount(document['tolerance'])}{more}."
    )


def _inconclusive_sentence(document: Document, unit: Unit, where: str) -> str:
    worst = document["max_excess_gap"]
    return (
        f"Inconclusive: {document['samples']:,} samples neither prove nor rule out that pruning{where} "
        f"{_too_much(document, unit, 'some group')}; the worst estimate is "
        f"{unit.amount(worst['estimate'])} ({quoted(worst['group'])}), the truth may lie anywhere from "
        f"{unit.number(worst['lower'])} to {unit.amount(worst['upper'])} "
        f"(one-sided {percent(document['confidence'])} limits){_what_settles(document)}."
    )


def _too_much(document: Document, unit: Unit, whom: str) -> str:
    limit = unit.amount(document["tolerance"])
    if unit.noun == "loss":
        return f"raised the loss of {whom} by more than {limit} beyond the average"
    return f"cost {whom} more than {limit} of {unit.noun} beyond the average"


def _cost_this_group(group: Document, unit: Unit) -> str:
    name, excess = quoted(group["group"]), unit.amount(group["excess_gap"])
    if group["gap"] <= 0:  # it did not get worse, but gained less than the others
        return f"improved the {unit.noun} of {name} by {excess} less"
    if unit.noun == "loss":
        return f"raised the loss of {name} by {excess} more"
    return f"cost {name} {excess} more {unit.noun}"


def _what_settles(document: Document) -> str:
    tiny = [group for group in document["groups"] if group["tiny"]]
    settle = document.get("settle")
    if settle is None:
        return (
            f"; {quoted(tiny[0]['group'])} has too few samples ({tiny[0]['samples']:,}) to judge"
            if tiny
            else ""
        )
    if settle["samples_per_group"] is None:
        return "; this lies so close to the tolerance that no realistic number of samples would settle it"
    total = f" ({settle['samples']:,} in all)" if settle["samples"] is not None else ""
    return (
        f"; about {settle['samples_per_group']:,} samples per group{total} would likely settle it "
        f"as a {settle['verdict']}"
    )
