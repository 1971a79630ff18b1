"""The audit command: its flags, everything that can be wrong with them, and what it writes."""

import contextlib
import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from evenprune.tally import InputProblems

if TYPE_CHECKING:
    from evenprune.columns import Answers, Columns
    from evenprune.group_rules import GroupRules
    from evenprune.tally import Measure

PASS, FAIL, INCONCLUSIVE = 0, 1, 3  # exit codes


class Verdict(StrEnum):
    fail = "fail"
    pass_ = "pass"


class Missing(StrEnum):
    group = "group"
    drop = "drop"


def flag(name: str, text: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=text, metavar=metavar)


Column: TypeAlias = str | None
Several: TypeAlias = list[str] | None


@dataclass(frozen=True)
class AuditFlags:
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            show_default=False,
            help='CSV, TSV, Parquet, Arrow/Feather, JSON lines or NPZ; "-": CSV from standard input.',
        ),
    ] = None
    label: Annotated[Column, flag("--label", "Column of true classes.", "COL")] = None
    dense: Annotated[Column, flag("--dense", "Column of the dense model's predictions.", "COL")] = None
    pruned: Annotated[
        Several,
        flag("--pruned", "Column of a pruned model's predictions; repeatable.", "COL"),
    ] = None
    group: Annotated[Several, flag("--group", "Column of groups; repeated: their intersections.", "COL")] = (
        None
    )
    bin: Annotated[
        Several,
        flag("--bin", "Ranges of numbers in a group: age=18,30 or age=quantiles:4; repeatable.", "RULE"),
    ] = None
    merge_below: Annotated[
        int | None, flag("--merge-below", "Groups with fewer rows become one, “other”.", "N")
    ] = None
    tolerance: Annotated[
        float | None,
        flag("--tolerance", "How much more than the average a group may lose.", "X"),
    ] = None
    confidence: Annotated[float, flag("--confidence", "Confidence of the verdict.", "X")] = 0.95
    each: Annotated[bool, flag("--each", "Audit every attribute and every intersection.")] = False
    missing: Annotated[Missing, flag("--missing", "Rows without a group: one more group, or left out.")] = (
        Missing.group
    )
    min_samples: Annotated[
        int | None,
        flag("--min-samples", "Groups with fewer rows keep it from passing (10; losses, scores 30).", "N"),
    ] = None
    seed: Annotated[int, flag("--seed", "Seed of the random draws behind the limits.", "X")] = 0
    dense_correct: Annotated[
        Column, flag("--dense-correct", "Instead of classes: was the dense model right?", "COL")
    ] = None
    pruned_correct: Annotated[
        Several, flag("--pruned-correct", "Was the pruned model right? Repeatable.", "COL")
    ] = None
    dense_score: Annotated[
        Column, flag("--dense-score", "Instead of classes: the dense model's score (0–1).", "COL")
    ] = None
    pruned_score: Annotated[
        Several, flag("--pruned-score", "The pruned model's score; repeatable.", "COL")
    ] = None
    dense_loss: Annotated[
        Column, flag("--dense-loss", "Instead of classes: the dense model's loss.", "COL")
    ] = None
    pruned_loss: Annotated[Several, flag("--pruned-loss", "The pruned model's loss; repeatable.", "COL")] = (
        None
    )
    json: Annotated[str | None, flag("--json", 'Write the audit as JSON; "-": to the screen.', "F")] = None
    html: Annotated[str | None, flag("--html", "Write the audit as one self-contained page.", "F")] = None
    markdown: Annotated[str | None, flag("--markdown", "Write the audit as Markdown.", "F")] = None
    inconclusive: Annotated[
        Verdict | None, flag("--inconclusive", "What an inconclusive audit counts as.")
    ] = None
    quiet: Annotated[bool, flag("--quiet", "Print no table.")] = False


def audited(flags: AuditFlags) -> dict[str, Any]:
    """The audit document, or everything that stands in its way."""
    from evenprune import tables
    from evenprune.audit import Options, audit_tally, with_notes

    columns, problems = _columns(flags)
    rules, wrong = _rules(flags)
    problems += wrong
    if flags.tolerance is None:
        problems.append("--tolerance is missing: how much more than the average may a group lose, e.g. 0.02?")
    options = Options(
        tolerance=0.0 if flags.tolerance is None else flags.tolerance,
        confidence=flags.confidence,
        each=flags.each,
        missing=flags.missing.value,
        min_samples=flags.min_samples,
        seed=flags.seed,
    )
    problems += options.problems(_measure(flags)) + _output_problems(flags)
    try:
        if columns is None:
            raise InputProblems(tables.check(flags.file, _named(flags)) if flags.file else [])
        data, notes, merged = tables.read_grouped(flags.file or "-", columns, rules)
    except InputProblems as error:
        raise InputProblems(problems + error.problems) from None
    if problems:
        raise InputProblems(problems)
    return with_notes(audit_tally(data, options), notes, merged).to_dict()


def _rules(flags: AuditFlags) -> tuple["GroupRules", list[str]]:
    """How the groups are made, and what is wrong with that; then there are no rules."""
    from evenprune.group_rules import GroupRules, parse_bins

    bins, problems = parse_bins(flags.bin or [])
    problems += GroupRules(bins, flags.merge_below).problems(flags.group or [])
    if flags.each and flags.merge_below is not None:
        problems.append("--merge-below makes one column of groups, --each takes them apart: leave one out")
    return (GroupRules() if problems else GroupRules(bins, flags.merge_below)), problems


def _kinds(flags: AuditFlags) -> dict["Answers", tuple[str, str | None, list[str]]]:
    """For each kind of answers: the ending of its flags, the dense column, the pruned columns."""
    return {
        "classes": ("", flags.dense, flags.pruned or []),
        "correct": ("-correct", flags.dense_correct, flags.pruned_correct or []),
        "score": ("-score", flags.dense_score, flags.pruned_score or []),
        "loss": ("-loss", flags.dense_loss, flags.pruned_loss or []),
    }


def _measure(flags: AuditFlags) -> "Measure":
    return "loss" if flags.dense_loss or flags.pruned_loss else "accuracy"


def _columns(flags: AuditFlags) -> tuple["Columns | None", list[str]]:
    """The columns, if they are all named, and what is missing if they are not."""
    from evenprune.columns import Columns

    problems = [] if flags.file else ["FILE is missing: which table is to be audited?"]
    if not flags.group:
        problems.append("--group is missing: which column tells the groups apart?")
    used = {kind: named for kind, named in _kinds(flags).items() if named[1] or named[2]}
    if len(used) > 1:
        endings = " and ".join(f"--dense{ending}/--pruned{ending}" for ending, _, _ in used.values())
        return None, [*problems, f"{endings} exclude each other: give one kind of answers"]
    kind: Answers = next(iter(used), "classes")
    ending, dense, pruned = _kinds(flags)[kind]
    if kind == "classes" and not flags.label:
        problems.append("--label is missing: which column holds the true classes?")
    if not dense:
        problems.append(f"--dense{ending} is missing: which column holds the dense model's answers?")
    if not pruned:
        problems.append(f"--pruned{ending} is missing: which column holds the pruned model's answers?")
    if problems or dense is None:
        return None, problems
    label = flags.label if kind == "classes" else None
    groups = tuple(flags.group or [])
    return Columns(answers=kind, label=label, dense=dense, pruned=tuple(pruned), groups=groups), []


def _named(flags: AuditFlags) -> list[str]:
    answers = [c for _, dense, pruned in _kinds(flags).values() for c in (dense, *pruned)]
    return list(dict.fromkeys(c for c in (flags.label, *answers, *(flags.group or [])) if c))


def _outputs(flags: AuditFlags) -> dict[str, str]:
    wanted = {"--json": flags.json, "--html": flags.html, "--markdown": flags.markdown}
    return {flag: path for flag, path in wanted.items() if path is not None}


def _output_problems(flags: AuditFlags) -> list[str]:
    """Everything that would keep the outputs from being written, found before the work starts."""
    problems, taken = [], {}
    if flags.file and flags.file != "-":
        taken[os.path.realpath(flags.file)] = "FILE"
    for flag, path in _outputs(flags).items():
        place = path if path == "-" else os.path.realpath(path)
        if place in taken:
            problems.append(f"{flag} {path!r} is the same file as {taken[place]}")
        elif path != "-":
            problems += [
                f"{flag} {path!r} cannot be written: {reason}" for reason in _unwritable(Path(place))
            ]
        taken.setdefault(place, f"that of {flag}")
    return problems


def _unwritable(place: Path) -> list[str]:
    folder = place.parent
    if place.is_dir():
        return ["it is a folder; name a file inside it"]
    if not folder.is_dir():
        return [f"the folder {str(folder)!r} does not exist"]
    return [] if os.access(folder, os.W_OK | os.X_OK) else [f"the folder {str(folder)!r} is not writable"]


def rendered(flags: AuditFlags, document: dict[str, Any]) -> dict[str, str]:
    """The text for each output. The screen is named "-", and shows the table unless told otherwise."""
    from evenprune import report

    writers = {"--json": report.to_json, "--html": report.to_html, "--markdown": report.to_markdown}
    screen = {"-": "" if flags.quiet else report.to_text(document)}
    return screen | {path: writers[flag](document) for flag, path in _outputs(flags).items()}


def write(texts: dict[str, str]) -> None:
    """All files or none: each takes its place only after all of them are on the disk."""
    from evenprune import atomic

    try:
        with contextlib.ExitStack() as stack:
            for path in texts.keys() - {"-"}:
                file = stack.enter_context(atomic.replace(path))
                file.write(texts[path].encode("utf-8", "backslashreplace"))
                file.flush()
    except OSError as error:
        raise InputProblems([str(error)]) from None


def exit_code(verdict: str, inconclusive: Verdict | None) -> int:
    if verdict == "inconclusive":
        return INCONCLUSIVE if inconclusive is None else PASS if inconclusive is Verdict.pass_ else FAIL
    return PASS if verdict == "pass" else FAIL
