"""An audit document as text, Markdown, JSON, a page or a picture; how it was made is not known here."""

import json
import math
import os
import textwrap
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from evenprune import atomic, page
from evenprune.wording import (
    MISSING,
    Document,
    Unit,
    models_of,
    percent,
    quoted,
    shorten,
    significant,
    status,
    unit_of,
    verdict_sentence,
    visible,
)

__all__ = ["to_html", "to_json", "to_markdown", "to_text", "verdict_sentence", "write"]

WIDTH = 110  # of a terminal
WIDEST_CELL = 28  # but for the first of a row
MOST_GROUPS, WORST_GROUPS = 40, 20  # with more than the first, only so many of the worst are listed
Table = list[list[str]]  # the first row is the header

to_html = page.to_html


def write(document: Document, path: str | os.PathLike[str]) -> None:
    """Write the document in the format that the suffix of the path names, atomically."""
    suffix = Path(path).suffix.lower()
    writers = _writers()
    if suffix not in writers:
        raise ValueError(
            f"Cannot save as {os.fspath(path)}: the name must end in one of {', '.join(writers)}."
        )
    content = writers[suffix](document)
    if isinstance(content, bytes):
        atomic.write_bytes(path, content)
    else:
        atomic.write_text(path, content)


def _writers() -> dict[str, Callable[[Document], str | bytes]]:
    from evenprune import pictures  # here, because few runs want pictures

    return {
        ".html": to_html,
        ".json": to_json,
        ".md": to_markdown,
        ".txt": to_text,
        ".svg": pictures.to_svg,
        ".png": pictures.to_png,
    }


def to_json(document: Document) -> str:
    """The whole document as JSON; numbers that JSON does not know (NaN, infinity) become null."""
    return json.dumps(_finite(document), ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def to_text(document: Document) -> str:
    """The audit for a terminal: the verdict first, then the figures, then the groups, the worst first."""
    parts = [*map(_wrapped, _subject(document)), _wrapped(verdict_sentence(document))]
    parts.append(_text_table(_figures(document)))
    if len(models_of(document)) > 1:
        parts += [_text_table(_models_table(document)), *map(_wrapped, _comparison_lines(document))]
        whole = _side_by_side(document)
        shown = _fitting(whole)
        title = f"Excess gap by group and model{_in_unit(document)}:\n"
        parts.append(title + _text_table(shown) + _left_out(whole[0][len(shown[0]) :]))
    else:
        parts.append(_text_table(_groups_table(document)))
    parts[-1] += _more_groups(document)
    if document.get("columns"):
        whole = _columns_table(document)
        shown = _fitting(whole)
        parts.append(_text_table(shown) + _left_out(whole[0][len(shown[0]) :]))
    parts += [_wrapped(f"Note: {visible(note)}") for note in document["notes"]]
    return "\n\n".join(parts) + "\n"


def to_markdown(document: Document) -> str:
    """The audit as Markdown for a pull request or a wiki; names cannot break out of their cells."""
    several = len(models_of(document)) > 1
    parts = [f"## Audit: {document['verdict']}", *map(_escaped, _subject(document))]
    parts.append(_escaped(verdict_sentence(document)))
    parts.append(_markdown_table(_figures(document)))
    if several:
        parts += ["### Models", _markdown_table(_models_table(document))]
        parts.append("\n".join(f"- {_escaped(line)}" for line in _comparison_lines(document)))
        parts += [f"### Excess gap by group and model{_in_unit(document)}"]
    else:
        parts += ["### Groups"]
    parts.append(_markdown_table(_side_by_side(document) if several else _groups_table(document)))
    parts.append(_more_groups(document).strip())
    if document.get("columns"):
        parts += ["### Further columns", _markdown_table(_columns_table(document))]
    if document["notes"]:
        parts += ["### Notes", "\n".join(f"- {_escaped(visible(note))}" for note in document["notes"])]
    return "\n\n".join(part for part in parts if part) + "\n"


def _subject(document: Document) -> list[str]:
    """Which model on which data, where that is known."""
    return [visible(document["subject"])] if document.get("subject") else []


# --- what the tables say ---


def _in_unit(document: Document) -> str:
    word = unit_of(document).word.strip()
    return f"{f', in {word}' if word else ''} (! is proven beyond the tolerance)"


def _figures(document: Document) -> Table:
    unit, overall, worst = unit_of(document), document["overall"], document["max_excess_gap"]
    floor = document["noise_floor"]
    of_model = f" ({visible(document['model'])})" if len(models_of(document)) > 1 else ""
    return [
        [f"figure{of_model}", "estimate", f"{percent(document['confidence'])} limits", "by chance alone"],
        [f"overall {unit.noun}", f"{unit.level(overall['dense'])} → {unit.level(overall['pruned'])}", "", ""],
        ["overall gap", unit.amount(overall["gap"]), unit.span(overall["lower"], overall["upper"]), ""],
        ["worst excess gap (limits one-sided)", unit.amount(worst["estimate"]),
         unit.span(worst["lower"], worst["upper"]), _floor(floor["max_excess_gap"], unit)],
        ["  de-biased", unit.amount(worst["debiased"]), "", ""],
        ["pairwise disparity", unit.amount(document["pairwise_disparity"]), "",
         _floor(floor["pairwise_disparity"], unit)],
        ["tolerance", unit.amount(document["tolerance"]), "", ""],
    ]  # fmt: skip


def _floor(floor: Document, unit: Unit) -> str:
    return unit.span(floor["low"], floor["high"])


def _worst_first(groups: Sequence[Document]) -> list[Document]:
    return sorted(groups, key=lambda group: -group["excess_gap"])


def _listed(groups: Sequence[Document]) -> list[Document]:
    """All groups if they are few; else the worst, and each that is proven beyond the tolerance."""
    ranked = _worst_first(groups)
    if len(ranked) <= MOST_GROUPS:
        return ranked
    return ranked[:WORST_GROUPS] + [group for group in ranked[WORST_GROUPS:] if group["violates"]]


def _more_groups(document: Document) -> str:
    hidden = len(document["groups"]) - len(_listed(document["groups"]))
    return f"\n… and {hidden:,} more groups; the JSON and the HTML page list all of them." if hidden else ""


def _groups_table(document: Document) -> Table:
    unit = unit_of(document)
    broke, fixed = ("broke", "fixed") if document["measure"] == "accuracy" else ("worse", "better")
    header = [
        "group",
        "samples",
        "dense",
        "pruned",
        "gap",
        "excess",
        "limits",
        broke,
        fixed,
        "status",
    ]
    return [header] + [_group_row(group, document, unit) for group in _listed(document["groups"])]


def _group_row(group: Document, document: Document, unit: Unit) -> list[str]:
    fell = ", fell" if group["fell"] else ""
    return [
        visible(group["group"]), f"{group['samples']:,}", unit.number(group["dense"]),
        unit.number(group["pruned"]), unit.number(group["gap"]), unit.number(group["excess_gap"]),
        unit.span(group["lower"], group["upper"]), f"{group['broke']:,}", f"{group['fixed']:,}",
        status(group, document["tolerance"]) + fell,
    ]  # fmt: skip


def _models_table(document: Document) -> Table:
    worst = ["worst excess", "one-sided limits"]
    header = ["model", "verdict", "pruned", "gap", *worst, "disparity", "worst group"]
    return [header] + [
        _model_row(name, audit, unit_of(document)) for name, audit in models_of(document).items()
    ]


def _model_row(name: str, audit: Document, unit: Unit) -> list[str]:
    worst = audit["max_excess_gap"]
    return [
        visible(name), audit["verdict"], unit.level(audit["overall"]["pruned"]),
        unit.number(audit["overall"]["gap"]), unit.number(worst["estimate"]),
        unit.span(worst["lower"], worst["upper"]), unit.number(audit["pairwise_disparity"]),
        visible(worst["group"]),
    ]  # fmt: skip


def _side_by_side(document: Document) -> Table:
    """Excess gap of each group in each model, those beyond the tolerance marked."""
    models, unit = models_of(document), unit_of(document)
    by_model = [{group["group"]: group for group in audit["groups"]} for audit in models.values()]
    header = ["group", "samples", *map(visible, models)]
    rows = [
        [visible(group["group"]), f"{group['samples']:,}"]
        + [_excess_cell(audit.get(group["group"]), unit) for audit in by_model]
        for group in _listed(document["groups"])
    ]
    return [header, *rows]


def _columns_table(document: Document) -> Table:
    """The further columns that came with the audit, for the groups that are listed."""
    columns, marked = document["columns"], document.get("approximate") or {}

    def cell(title: str, name: str) -> str:
        return ("≈ " if name in marked.get(title, ()) else "") + significant(columns[title].get(name))

    return [["group", *map(visible, columns)]] + [
        [visible(name), *(cell(title, name) for title in columns)]
        for name in (group["group"] for group in _listed(document["groups"]))
    ]


def _excess_cell(group: Document | None, unit: Unit) -> str:
    if group is None:
        return MISSING
    return unit.number(group["excess_gap"]) + ("!" if group["violates"] else " ")


def _comparison_lines(document: Document) -> list[str]:
    return [_comparison_line(pair, unit_of(document)) for pair in document.get("comparisons") or []]


def _comparison_line(pair: Document, unit: Unit) -> str:
    def change(key: str, word: str) -> str:
        value = pair[key]
        return f"{word} {unit.amount(value['estimate'])} ({unit.span(value['lower'], value['upper'])})"

    changes = [
        change("accuracy", unit.noun),
        change("max_excess_gap", "worst excess gap"),
        change("pairwise_disparity", "disparity"),
    ]
    proven = f"provably better for {_some(pair['better'])}, worse for {_some(pair['worse'])}"
    return f"{quoted(pair['second'])} minus {quoted(pair['first'])}: {', '.join(changes)}; {proven}."


def _some(names: Sequence[str], most: int = 4) -> str:
    if not names:
        return "no group"
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(quoted(name) for name in names[:most]) + more


# --- how a terminal shows them ---


def _wrapped(text: str) -> str:
    together = text.replace(" %", "\u00a0%")  # "95 %" stays on one line
    return textwrap.fill(together, WIDTH, break_on_hyphens=False).replace("\u00a0%", " %")


def _columns_wide(text: str) -> int:
    """How many columns a terminal gives the text: none to marks, two to wide East Asian letters and emoji."""
    return sum(_character_wide(character) for character in text)


def _character_wide(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _clipped(text: str, widest: int) -> str:
    """Cut in the middle, as long names of groups often differ at their end."""
    kept = min(len(text), widest)
    clipped = text
    while _columns_wide(clipped) > widest and kept > 1:
        clipped = shorten(text, kept)
        kept -= 1
    return clipped


def _padded(text: str, width: int, *, right: bool) -> str:
    space = " " * (width - _columns_wide(text))
    return space + text if right else text + space


def _fitting(table: Table) -> Table:
    """Leave out the last columns that no terminal of WIDTH could show beside a readable first one."""
    kept = len(table[0])
    widths = [min(width, WIDEST_CELL) for width in _widths(table)]
    while kept > 3 and sum(widths[1:kept]) + 2 * kept > WIDTH - 16:
        kept -= 1
    return [row[:kept] for row in table]


def _left_out(models: Sequence[str]) -> str:
    """Which models have no column, in one line with as many of their names as it holds."""
    if not models:
        return ""
    names = [_clipped(name, WIDEST_CELL) for name in models]
    said = (
        f"No room for the columns of {_some(names, most)}; other formats have all." for most in (4, 3, 2, 1)
    )
    return "\n" + next(line for line in said if _columns_wide(line) <= WIDTH)


def _widths(table: Table) -> list[int]:
    return [max(_columns_wide(cell) for cell in column) for column in zip(*table, strict=True)]


def _text_table(table: Table) -> str:
    """Aligned columns: words to the left, numbers to the right, names shortened until the line fits."""
    table = [[_clipped(row[0], 60), *(_clipped(cell, WIDEST_CELL) for cell in row[1:])] for row in table]
    widths = _widths(table)
    over = max(0, sum(widths) + 2 * (len(widths) - 1) - WIDTH)
    widths[0] = max(8, widths[0] - over)
    numeric = [_is_numeric(column) for column in zip(*table[1:], strict=True)]
    lines = [
        "  ".join(
            _padded(_clipped(cell, width), width, right=right)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in table
    ]
    return "\n".join([lines[0], "─" * min(WIDTH, sum(widths) + 2 * (len(widths) - 1)), *lines[1:]])


def _is_numeric(column: Sequence[str]) -> bool:
    return all(cell[:1] in "−–≈0123456789" for cell in column if cell)


# --- how Markdown shows them ---

_MARKDOWN = str.maketrans(
    {character: f"\\{character}" for character in "\\`*_[]|~$#"}
    | {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;"}
)


def _escaped(text: str) -> str:
    """Text that stays text: no tables, links, HTML, formulas or mentions come out of it."""
    return text.translate(_MARKDOWN).replace("://", "&#58;//").replace("www.", "www&#46;")


def _markdown_table(table: Table) -> str:
    numeric = [_is_numeric(column) for column in zip(*table[1:], strict=True)]
    rule = ["---:" if right else "---" for right in numeric]
    body = [[_escaped(cell.strip()) for cell in row] for row in table]
    return "\n".join(f"| {' | '.join(row)} |" for row in [body[0], rule, *body[1:]])
