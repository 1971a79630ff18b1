"""Numbers that come with an audit, to be shown beside its groups: {title: {name of a group: number}}."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from evenprune.tally import InputProblems
from evenprune.verdict import Approximate, Audit, Columns


def read_columns(columns: Any) -> tuple[Columns, list[str]]:
    """The columns with names as text and numbers as floats, None for what is not finite; or the problems."""
    if columns is None:
        return {}, []
    if not isinstance(columns, Mapping) or not all(isinstance(c, Mapping) for c in columns.values()):
        return {}, ["columns must be a mapping {title: {name of a group: number}}"]
    problems = _same_names("columns", columns)
    if not all(str(title).strip() for title in columns):
        problems.append("columns has an empty title: name every column")
    for title, values in columns.items():
        problems += _same_names(f"columns[{title!r}]", values)
        wrong = [name for name, value in values.items() if not _is_number(value)]
        if wrong:
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            place = f"columns[{title!r}][{wrong[0]!r}]"
            problems.append(f"{place} is {values[wrong[0]]!r}{more}: give a number, or None")
    if problems:
        return {}, problems
    return {str(title): {str(k): _finite(v) for k, v in c.items()} for title, c in columns.items()}, []


def _same_names(what: str, names: Mapping[Any, Any]) -> list[str]:
    texts = [str(name) for name in names]
    twice = sorted({text for text in texts if texts.count(text) > 1}) if len(set(texts)) < len(texts) else []
    return [f"{what} has keys that read the same: {', '.join(map(repr, twice[:5]))}"] if twice else []


def _is_number(value: Any) -> bool:
    return value is None or (
        isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    )


def _finite(value: Any) -> float | None:
    if value is None or not np.isfinite(value):
        return None
    return value if isinstance(value, Approximate) else float(value)


def with_columns(audit: Audit, columns: Columns) -> tuple[Audit, list[str]]:
    """The audit and each of its models with the columns, and a note on names that are no group of it.

    A column none of whose names is a group is refused: it belongs to something else.
    """
    groups = {group.group for group in audit.groups}
    lost = [title for title, values in columns.items() if values and not groups & values.keys()]
    if lost:
        known = ", ".join(repr(group.group) for group in audit.groups[:8])
        raise InputProblems(
            [f"columns[{title!r}] names no group of this audit; it has {known}" for title in lost]
        )
    strange = list(dict.fromkeys(name for c in columns.values() for name in c if name not in groups))
    names = ", ".join(f"“{name}”" for name in strange[:8]) + (", …" if len(strange) > 8 else "")
    notes = [f"Columns were given for groups that have no samples here: {names}."] if strange else []
    notes += _unconverged(columns)
    kept: Columns = {title: {k: v for k, v in c.items() if k in groups} for title, c in columns.items()}
    models = {name: replace(one, columns=kept) for name, one in audit.models.items()}
    return replace(audit, columns=kept, models=models), notes


def _unconverged(columns: Columns) -> list[str]:
    """What ≈ means, in each column that has it."""
    marked = {t: [k for k, v in c.items() if isinstance(v, Approximate)] for t, c in columns.items()}
    return [
        f"In the column “{title}” ≈ marks {len(names)} number{'s' * (len(names) > 1)} whose computation did "
        f"not converge: {', '.join(names[:8])}{', …' if len(names) > 8 else ''}."
        for title, names in marked.items()
        if names
    ]
