"""The command line: reads the arguments, calls one function, prints, and exits with a code."""

import inspect
import os
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from evenprune import audit_command, cache_command, data_command, prune_command, report_command
from evenprune.audit_command import AuditFlags, flag
from evenprune.cache_command import CacheFlags
from evenprune.data_command import GetFlags
from evenprune.prune_command import PruneFlags, RunFlags
from evenprune.report_command import PaperFlags
from evenprune.tally import InputProblems

BAD_INPUT, DEFECT = 2, 70  # exit codes; those of an audit are in audit_command
T = TypeVar("T")

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 110},
)

data_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, context_settings={"max_content_width": 110}
)
app.add_typer(data_app, name="data")


def main() -> None:
    """What the command `evenprune` runs."""
    for stream in (sys.stdout, sys.stderr):  # a terminal that cannot show a letter shows its number
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    try:
        app(prog_name="evenprune")
    except Exception:  # a defect of ours must not look like a verdict: Python's own code for it is 1
        traceback.print_exc()
        sys.exit(DEFECT)


def taking(flags: type[T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Let a command take one dataclass, whose fields are its flags."""

    def decorate(command: Callable[[T], None]) -> Callable[..., None]:
        def run(**values: Any) -> None:
            command(flags(**values))

        run.__doc__ = command.__doc__
        run.__signature__ = inspect.signature(flags)  # type: ignore[attr-defined]
        run.__annotations__ = inspect.get_annotations(flags)
        return run

    return decorate


def say(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough; the exit code still tells the verdict
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def refuse(problems: list[str]) -> NoReturn:
    print(f"evenprune: {InputProblems(list(dict.fromkeys(problems)))}", file=sys.stderr)
    sys.exit(BAD_INPUT)


@app.callback(invoke_without_command=True)
def _evenprune(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Prune a network, and prove that no group paid for it."""
    if version:
        from importlib.metadata import version as installed

        say(f"evenprune {installed('evenprune')}\n")
        raise typer.Exit


@app.command("audit")
@taking(AuditFlags)
def _audit(flags: AuditFlags) -> None:
    """Did some group lose more accuracy than the rest when the model was pruned?

    Exit codes: 0 pass, 1 fail, 3 inconclusive, 2 bad usage or bad input.
    """
    try:
        document = audit_command.audited(flags)
        texts = audit_command.rendered(flags, document)
        audit_command.write(texts)
    except InputProblems as error:
        refuse(error.problems)
    say(texts["-"])
    sys.exit(audit_command.exit_code(document["verdict"], flags.inconclusive))


@app.command("sample-size")
def _sample_size(
    groups: Annotated[int, flag("--groups", "Number of groups.", "N")],
    tolerance: Annotated[float, flag("--tolerance", "Tolerance of the audit, e.g. 0.02.", "X")],
    disagreement: Annotated[
        float, flag("--disagreement", "Share of samples that one model alone gets right, e.g. 0.1.", "X")
    ],
    confidence: Annotated[float, flag("--confidence", "Confidence of the verdict.", "X")] = 0.95,
    power: Annotated[float, flag("--power", "Wanted probability that a harmless pruning passes.", "X")] = 0.8,
) -> None:
    """How many test samples does an audit need, before any data exists?"""
    from evenprune.limits import sample_size

    try:
        each = sample_size(
            groups=groups, tolerance=tolerance, disagreement=disagreement, confidence=confidence, power=power
        )
    except ValueError as error:
        refuse(getattr(error, "problems", [str(error)]))
    say(
        f"With {each:,} test samples per group, {each * groups:,} in all {groups:,} groups, a harmless "
        f"pruning passes with a probability of {power:.6g} (tolerance {tolerance:.6g}, "
        f"disagreement {disagreement:.6g}, confidence {confidence:.6g}).\n"
    )


@app.command("prune")
@taking(PruneFlags)
def _prune(flags: Any) -> None:
    """Prune a trained model so that no group loses much more than the others, and audit it.

    Exit codes, of the chosen or else the strictest test audit: 0 pass, 1 fail, 3 inconclusive; 2 bad usage or
    bad input.
    """
    _conduct(flags)


@app.command("run")
@taking(RunFlags)
def _run(flags: Any) -> None:
    """Run a built-in experiment; a flag that is not given has the value of that experiment.

    Exit codes, of the strictest test audit: 0 pass, 1 fail, 3 inconclusive; 2 bad usage or bad input.
    """
    _conduct(flags)


@data_app.callback()
def _data() -> None:
    """Data sets that experiments need, and what is kept of images."""


@data_app.command("get")
@taking(GetFlags)
def _data_get(flags: GetFlags) -> None:
    """Fetch a data set, checked; a download that broke off is continued, a finished one is found.

    Exit codes: 0 it is there, 2 it is not.
    """
    try:
        done = data_command.fetched(flags)
    except InputProblems as error:
        refuse(error.problems)
    say(data_command.report(done))


@data_app.command("caches")
@taking(CacheFlags)
def _data_caches(flags: CacheFlags) -> None:
    """List the decoded images that prune keeps on disk, or remove them."""
    try:
        text = cache_command.listed(flags)
    except InputProblems as error:
        refuse(error.problems)
    say(text)


def _note(text: str) -> None:
    print(f"evenprune: note: {text}", file=sys.stderr, flush=True)


def _conduct(flags: Any) -> NoReturn:
    try:
        result, folder, _ = prune_command.conducted(flags, tell=_note)
    except InputProblems as error:
        refuse(error.problems)
    say(prune_command.report(result, folder))
    sys.exit(audit_command.exit_code(result.verdict, None))


reports = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Write a report on many runs.")
app.add_typer(reports, name="report")


@reports.callback()
def _report() -> None:
    """Write a report on many runs."""


@reports.command("paper")
@taking(PaperFlags)
def _report_paper(flags: PaperFlags) -> None:
    """The paper's tables beside what was run: one self-contained page, and tables on the screen."""
    try:
        texts = report_command.reported(flags)
        audit_command.write(texts)
    except InputProblems as error:
        refuse(error.problems)
    say(texts["-"])
