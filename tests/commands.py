"""The command `evenprune`, started as a user starts it, or called within this process, which is much faster.

A call sees the same arguments and gives the same streams and exit code. What only a process of its own shows
(the entry point, a reader that leaves, modules that must not be loaded) is tested in one.
"""

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from evenprune.cli import main

COMMAND = [sys.executable, "-m", "evenprune"]
Done = subprocess.CompletedProcess[str]


def started(*arguments: Any, **options: Any) -> Done:
    """In a process of its own."""
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **options)


def called(*arguments: Any, cwd: Path | None = None) -> Done:
    """In this process: what a process would have printed, from C and Rust too, and its exit code."""
    words = ["evenprune", *map(str, arguments)]
    with _empty_file() as out, _empty_file() as err:
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.chdir(cwd or Path.cwd()),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            _in_place_of(1, out),
            _in_place_of(2, err),
        ):
            patch.setattr(sys, "argv", words)
            patch.setattr(sys, "path", sys.path.copy())
            code = _exit_code()
        return Done(words, code, *map(_text, (out, err)))


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """As on a full disk: files cannot grow beyond `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _exit_code() -> int:
    try:
        main()
    except SystemExit as end:
        return 0 if end.code is None else int(end.code)
    return 0


def _empty_file() -> Any:
    return tempfile.TemporaryFile("w+", encoding="utf-8")


@contextlib.contextmanager
def _in_place_of(stream: int, file: IO[str]) -> Iterator[None]:
    """The file instead of a stream of the system's, which code that is not Python writes to."""
    before = os.dup(stream)
    os.dup2(file.fileno(), stream)
    try:
        yield
    finally:
        file.flush()
        os.dup2(before, stream)
        os.close(before)


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()
