"""The three splits of an experiment by name: "train", "heldout" and "test", which is the one that is audited.

"validation" and "audit" are other names of the last two, wherever a split is named.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from evenprune.method import FOLDS, Method
from evenprune.recipe import Recipe

TRAIN, HELDOUT, AUDITED = "train", "heldout", "test"
SYNONYMS = {"validation": HELDOUT, "audit": AUDITED}
V = TypeVar("V")


def name_of(split: str) -> str:
    """The name by which a split is known here."""
    return SYNONYMS.get(split, split)


class BySplit(dict[str, V]):
    """Values by split; [] takes either name of a split."""

    def __missing__(self, split: str) -> V:
        if name_of(split) in self:
            return self[name_of(split)]
        raise KeyError(f"there is no split {split!r}; there are {', '.join(map(repr, self))}")


def gathered(train: Any, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The splits in order, and what is wrong with how they were given; `given` may have either name, or None.

    An audit needs samples, so there must be a split for it; a held-out one may be absent.
    """
    there = {name: value for name, value in given.items() if value is not None}
    problems = [
        f"{other}= and {name}= are two names of one split: give one of them"
        for other, name in SYNONYMS.items()
        if other in there and name in there
    ]
    known = {name_of(name): value for name, value in there.items()}
    if AUDITED not in known:
        problems.append(
            "audit is missing: give samples that neither train nor choose, as audit=… (or test=…)"
        )
    apart = {name: known[name] for name in (HELDOUT, AUDITED) if name in known}
    return {TRAIN: train} | apart, problems


def resolved(method: Method) -> Method:
    """The method, with the splits that it names called as they are here."""
    multipliers_on, keep_on = (
        None if n is None else name_of(n) for n in (method.multipliers_on, method.keep_on)
    )
    return replace(method, multipliers_on=multipliers_on, keep_on=keep_on)


def renamed(recipe: Recipe) -> Recipe:
    """The recipe, with the splits that it names called as they are here."""
    return replace(recipe, only_at_end=tuple(dict.fromkeys(map(name_of, recipe.only_at_end))))


def problems(methods: Sequence[Method], select: str | None, splits: Container[str]) -> list[str]:
    """What is wrong with the splits that methods and a choice name; `splits` are there."""
    return [
        *steered(methods),
        *unknown(methods),
        *absent(methods, select, splits),
        *select_problems(select),
    ]


def steered(methods: Sequence[Method]) -> list[str]:
    """Samples that steer the training cannot audit it."""
    return [
        f"method {method.name!r}: {key}={given!r}, but the test data is for the audit; hold out another "
        "split, give it as heldout=…, and name that."
        for method in methods
        for key in ("multipliers_on", "keep_on")
        if (given := getattr(method, key)) is not None and name_of(given) == AUDITED
    ]


def unknown(methods: Sequence[Method]) -> list[str]:
    """Who names a split that there cannot be."""
    more = {"multipliers_on": f", or {FOLDS!r}, the training samples by cross-fitting"}
    return [
        f"method {method.name!r}: {key}={given!r} is no split; name 'heldout', samples given as heldout=…"
        f"{more.get(key, '')}."
        for method in methods
        for key in ("multipliers_on", "keep_on")
        if (given := getattr(method, key)) is not None
        and name_of(given) not in (TRAIN, HELDOUT, AUDITED, *([FOLDS] if key in more else []))
    ]


def absent(methods: Sequence[Method], select: str | None, splits: Container[str]) -> list[str]:
    """Who names the held-out split where none was given."""
    if HELDOUT in splits:
        return []
    named = [f"select={select!r}"] if select is not None and name_of(select) == HELDOUT else []
    named += [
        f"{key}={given!r} of method {method.name!r}"
        for method in methods
        for key in ("multipliers_on", "keep_on")
        if (given := getattr(method, key)) is not None and name_of(given) == HELDOUT
    ]
    return [f"{one} needs heldout=…, samples that neither train nor audit." for one in dict.fromkeys(named)]


def select_problems(select: str | None) -> list[str]:
    if select is None or name_of(select) == HELDOUT:
        return []
    return [f"select is {select!r}: choose on 'heldout', a split that neither trains nor audits."]
