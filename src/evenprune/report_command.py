"""The report commands: their flags, what they read, and what they write."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from evenprune.audit_command import flag
from evenprune.tally import InputProblems


@dataclass(frozen=True)
class PaperFlags:
    results: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RESULTS.json",
            show_default=False,
            help="Results files; if none is given, those in paper/results. Multipliers and variants beside "
            "them are read too.",
        ),
    ] = None
    output: Annotated[
        str, typer.Option("-o", "--output", help="The page to write.", metavar="F", show_default=True)
    ] = "paper.html"
    json: Annotated[str | None, flag("--json", 'Write all numbers as JSON; "-": to the screen.', "F")] = None


def reported(flags: PaperFlags) -> dict[str, str]:
    """The text of every output, by its path; what the screen shows is named "-"."""
    from evenprune import paper_page, paper_text, report
    from evenprune.paper_comparison import compare, to_document
    from evenprune.paper_results import read

    files = _files(flags)
    problems = _output_problems(flags, files)
    if problems:
        raise InputProblems(problems)
    found = compare(read(files))
    page = Path(flags.output).resolve()
    screen = f"{paper_text.to_text(found)}\nPage: {page}\n      {page.as_uri()}\n"
    texts = {"-": screen, flags.output: paper_page.to_html(found)}
    return texts if flags.json is None else texts | {flags.json: report.to_json(to_document(found))}


def _files(flags: PaperFlags) -> list[Path]:
    from evenprune.paper_files import default_files, with_companions

    return with_companions([Path(name) for name in flags.results] if flags.results else default_files())


def _output_problems(flags: PaperFlags, files: list[Path]) -> list[str]:
    """Everything that would keep the outputs from being written, found before the work starts."""
    taken = {os.path.realpath(file): f"the results file {file}" for file in files}
    outputs = {"--output": flags.output} | ({"--json": flags.json} if flags.json not in (None, "-") else {})
    problems = []
    for name, path in outputs.items():
        place = Path(os.path.realpath(str(path)))
        if str(place) in taken:
            problems.append(f"{name} {path!r} is the same file as {taken[str(place)]}")
        elif place.is_dir():
            problems.append(f"{name} {path!r} is a folder; name a file inside it")
        elif not place.parent.is_dir():
            problems.append(f"{name} {path!r} cannot be written: {str(place.parent)!r} does not exist")
        taken.setdefault(str(place), f"that of {name}")
    return problems
