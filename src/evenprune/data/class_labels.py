"""Labels as people write them to class ids 0, 1, 2 …, and the names of the classes."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenprune.groups import is_missing, numbers_of, text_of
from evenprune.reading import counted, listed, quoted

MOST_VALUES = 1000  # of an attribute; with more, it is an identifier or a measurement
FEW_VALUES = 20  # so many are no problem, even if nearly every sample has one of its own
SHOWN = 5  # examples in a message
NOTHING = ("na", "n/a", "#n/a", "null")  # as other programs write a missing value
WHOLE = re.compile(r"(-?(?:0|[1-9]\d{0,17}))(?:\.0+)?")  # pandas writes 3.0 where some are missing


def plain(values: Sequence[Any]) -> list[Any]:
    """Values with None where one is missing; whole numbers as such, also where a file spells them as text."""
    found = [None if is_missing(value) else value for value in values]
    given = [value for value in found if value is not None]
    if given and all(isinstance(v, str) and WHOLE.fullmatch(v) for v in given):
        return [None if value is None else int(value.partition(".")[0]) for value in found]
    if given and all(type(v) is int or (isinstance(v, float) and v.is_integer()) for v in given):
        return [None if value is None else int(value) for value in found]
    return found


def column(values: Sequence[Any]) -> NDArray[Any]:
    """An attribute as samples hold it: whole numbers from 0 on, or texts (None: missing).

    Negative numbers become texts: samples take −1 for a missing value, and here it is one like any other.
    """
    found = plain(values)
    if found and all(type(value) is int and value >= 0 for value in found):
        return np.array(found, dtype=np.int64)
    return np.array([text_of(value) for value in found], dtype=object)


def lookalikes(what: str, values: Sequence[Any]) -> list[str]:
    """Notes on texts that differ in blanks or capitals alone, or that may stand for a missing value."""
    texts = [text for text in dict.fromkeys(map(text_of, values)) if text is not None]
    alike = dict[str, list[str]]()
    for text in texts:
        alike.setdefault(" ".join(text.split()).casefold(), []).append(text)
    same = [" and ".join(map(quoted, some[:3])) for some in alike.values() if len(some) > 1]
    empty = [text for name, some in alike.items() if name in NOTHING for text in some]
    notes = [f"{what}: {'; '.join(same[:SHOWN])} differ in blanks or capitals alone, and count as different"]
    more = f"{what}: {listed(empty)} counts as a value; leave it empty where nothing is known"
    return notes * bool(same) + [more] * bool(empty)


def too_many(values: Sequence[Any]) -> str:
    """How many different values there are, if nearly as many as samples, or thousands; else nothing."""
    texts = list(dict.fromkeys(map(text_of, values)))
    if len(texts) <= MOST_VALUES and len(texts) <= max(FEW_VALUES, len(values) / 2):
        return ""
    return f"{len(texts):,} different values on {len(values):,} samples, such as {listed(texts[:3])}"


def too_many_groups(name: str, values: Sequence[Any], *, merged_below: int | None = None) -> list[str]:
    """The problem of a column of groups that is an identifier or a measurement. merged_below: after that."""
    many = too_many(values)
    if not many:
        return []
    if merged_below is not None:
        after = f"after groups of fewer than {merged_below:,} training samples were merged"
        return [
            f"group column {quoted(name)} holds {many}, {after}: raise merge_below, or name another column"
        ]
    _, words = numbers_of(np.array(list(values), dtype=object))
    ranges = f"put its numbers into ranges, bins={{{quoted(name)}: 4}} (--bin {name}=quantiles:4), or name"
    hint = "is it an identifier? Name another column" if words else f"{ranges} another column"
    several = len(values) > 2 * len(set(map(text_of, values)))  # samples of a value, on average
    merge = ", or make one group of the small ones: merge_below=30 (--merge-below 30)" if several else ""
    return [f"group column {quoted(name)} holds {many}: {hint}{merge}"]


def numbered(
    labels: Sequence[Any], names: Sequence[str], *, classes: Sequence[str] | None, known: Sequence[str] | None
) -> tuple[NDArray[np.int64], tuple[str, ...], list[str]]:
    """Class ids [N], the names of the classes, and all that is wrong with the labels.

    classes: what stands for 0, 1, … Without it, whole numbers stay as they are (`known`: their names), and
    texts are numbered in sorted order. names: of the samples, for messages.
    """
    values = plain(labels)
    if known and classes is not None and set(classes) <= set(known):  # by their names, not by their codes
        names_of = {**dict(enumerate(known)), -1: None}
        values, known = [names_of.get(value, value) for value in values], None
    given = [value for value in values if value is not None and not (known and value == -1)]
    problems, many = _missing(values, names, known), too_many(given)
    if many:
        problems.append(f"the label holds {many}: is it the right column?")
    distinct = {text_of(value) or "" for value in given}
    if len(distinct) == 1:
        only = next(iter(distinct))
        only = known[int(only)] if known and only.isdecimal() and int(only) < len(known) else only
        problems.append(f"there is one class only: every label is {quoted(only)}; is it the right column?")
    whole = bool(given) and all(type(value) is int for value in given)
    if classes is not None:
        ordered, more = _as_wished(distinct, classes)
    elif whole:
        ordered, more = _as_counted(set(given), known)
    else:
        ordered, more = tuple(sorted(distinct)), _fractions(given)
    place = {name: number for number, name in enumerate(ordered)}
    texts = [text_of(value) for value in values]
    if whole and classes is None:
        place = {str(number): number for number in range(len(ordered))}
    ids = np.array([place.get(text or "", 0) for text in texts], dtype=np.int64)
    return ids, ordered, problems + more


def _missing(values: list[Any], names: Sequence[str], known: Sequence[str] | None) -> list[str]:
    absent = [i for i, value in enumerate(values) if value is None or (known and value == -1)]
    if not absent:
        return []
    examples = listed([names[i] for i in absent], SHOWN)
    of = f"of {len(values):,} samples"
    many = counted(len(absent), f"{of} has", f"{of} have")
    return [f"{many} no label: {examples}; fill it in, or leave such samples out"]


def _as_wished(distinct: set[str], classes: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    problems = []
    if len(set(classes)) < len(classes):
        problems.append(f"classes names one twice: {listed(list(classes))}")
    strangers = sorted(distinct - set(classes))
    if strangers:
        problems.append(
            f"there are labels {listed(strangers)}, which classes does not name: {listed(classes)}"
        )
    return tuple(classes), problems


def _as_counted(distinct: set[int], known: Sequence[str] | None) -> tuple[tuple[str, ...], list[str]]:
    least, most = min(distinct), max(distinct)
    if least < 0 or most >= (len(known) if known else max(MOST_VALUES, 10 * len(distinct))):
        what = f"the labels are whole numbers from {least:,} to {most:,}, {len(distinct):,} different ones"
        return (), [f"{what}: class ids are 0, 1, 2 …; number them anew, or name them in order as classes"]
    return tuple(known) if known else tuple(str(number) for number in range(most + 1)), []


def empty_classes(ids: NDArray[np.int64], classes: Sequence[str]) -> list[str]:
    """A note on whole numbers that leave some out: for each of those the model must have an output too."""
    used = np.unique(ids).tolist()
    if len(used) == len(classes):
        return []
    named = [classes[i] for i in used[:SHOWN]]
    more = ", …" if len(used) > SHOWN else ""
    return [
        f"of the labels 0 to {len(classes) - 1:,}, {len(used):,} occur, but the model is taken to have an "
        f"output for each. If it has outputs for these alone, name them in its order: "
        f"classes=[{', '.join(map(quoted, named))}{more}] (--classes {','.join(named)}{more})"
    ]


def _fractions(given: list[Any]) -> list[str]:
    numbers, words = numbers_of(np.fromiter(given, dtype=object, count=len(given)))  # lists stay lists
    fractions = [value for value, x in zip(given, numbers, strict=True) if np.isfinite(x) and x % 1]
    if words or not fractions:
        return []
    shown = listed(list(dict.fromkeys(fractions))[:3])
    return [
        f"the labels are fractions such as {shown}: a class is a name, or a whole number. If these are "
        "names, list all of them as classes (--classes)"
    ]
