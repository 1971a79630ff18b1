"""The command data get: its flags, the download behind it, and what it says when the file is there."""

import contextlib
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenprune.tally import InputProblems

if TYPE_CHECKING:
    from evenprune.download import Fetched, Heard, Remote


class DataSet(StrEnum):
    cifar100 = "cifar100"


class Form(StrEnum):
    python = "python"
    binary = "binary"


@dataclass(frozen=True)
class GetFlags:
    name: Annotated[DataSet, typer.Argument(metavar="NAME", show_default=False, help="The data set.")]
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="FOLDER", help="Folder to put it in (data/NAME); made if absent."),
    ] = None
    format: Annotated[
        Form, typer.Option("--format", help="Which of the official archives; both hold the same images.")
    ] = Form.python


def fetched(flags: GetFlags) -> "Fetched":
    """The archive, fetched or found; or why it is not there, and how to go on."""
    from evenprune.data.cifar100 import ARCHIVES
    from evenprune.download import DownloadFailed, fetch

    remote, folder = ARCHIVES[flags.format.value], Path(flags.to or Path("data") / flags.name.value)
    try:
        with _progress(remote) as heard:
            return fetch(remote, folder, heard=heard)
    except DownloadFailed as error:
        raise InputProblems([str(error)]) from error


def report(done: "Fetched") -> str:
    """Where the file lies, and what to do next."""
    size, folder = done.path.stat().st_size, str(done.path.parent)
    news = f"fetched ({done.received:,} bytes)" if done.received else "already there"
    code = f"from evenprune.data import cifar100; print(cifar100.load({folder!r}))"
    return (
        f"{done.path}: {news}; {size:,} bytes, checksums as published.\n"
        "It is read as it is; there is nothing to unpack.\n"
        f"Next: python -c {shlex.quote(code)}\n"
        "or, in a checkout of evenprune, the paper's tables: "
        f"python paper/cifar100.py table --data {shlex.quote(folder)}\n"
    )


@contextlib.contextmanager
def _progress(remote: "Remote") -> Iterator["Heard"]:
    """A bar on a terminal, nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.progress import TransferSpeedColumn as Speed

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        Speed(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(remote.name, total=remote.size)

        def heard(size: int, news: str) -> None:
            bar.update(task, completed=size)
            if news and console.is_terminal:
                console.log(news, markup=False, highlight=False)

        yield heard
