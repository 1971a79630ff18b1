"""Fetch a file over HTTP: checked, continued where it broke off, never half there under its own name."""

import contextlib
import hashlib
import http.client
import os
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from evenprune import atomic

PIECE = 1 << 18  # bytes read at a time
LONGEST_PAUSE = 60.0  # seconds
PASSING = (408, 425, 429)  # client errors that may be gone a moment later, as may all server errors
Heard = Callable[[int, str], None]  # bytes there so far, and what is new (a retry), if anything


class DownloadFailed(RuntimeError):
    """The file could not be fetched; the message says what there is of it, and how to go on."""


class _Refused(Exception):
    """Trying again would not help."""


class _Broken(Exception):
    """Trying again may help."""


@dataclass(frozen=True)
class Remote:
    """A published file: where it lies, how long it is, and its checksums by hashlib's names."""

    url: str
    size: int
    checksums: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Patience:
    """How long to keep trying. A try that gets further than all before it starts the count anew."""

    tries: int = 5  # in a row without getting further
    pause: float = 1.0  # seconds before the second try; twice as long before each one after it
    timeout: float = 30.0  # seconds without a byte


@dataclass(frozen=True)
class Fetched:
    path: Path
    received: int  # bytes that came over the network this time; 0: the file was there already


def fetch(
    remote: Remote,
    folder: Path,
    *,
    patience: Patience = Patience(),  # noqa: B008 - frozen
    heard: Heard = lambda size, news: None,
) -> Fetched:
    """The file in the folder, fetched if it is not there; after a failure or a kill, the rest of it."""
    target = folder / remote.name
    if target.exists():
        _check_present(target, remote)
        return Fetched(target, received=0)
    part = target.with_name(f"{remote.name}.part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic.growing(part) as file:
            received = _complete(remote, file, part, patience, heard)
        atomic.put_in_place(part, target)
    except OSError as error:
        raise DownloadFailed(f"{error} {_other_means(remote, target)}") from error
    return Fetched(target, received)


def differences(path: Path, remote: Remote) -> list[str]:
    """How a file differs from the published one; empty if it does not."""
    size = path.stat().st_size
    if size != remote.size:
        return [f"{size:,} bytes instead of {remote.size:,}"]
    digests = {name: hashlib.new(name, usedforsecurity=False) for name in remote.checksums}
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            for digest in digests.values():
                digest.update(piece)
    return [
        f"{name.upper()} {digest.hexdigest()} instead of {remote.checksums[name]}"
        for name, digest in digests.items()
        if digest.hexdigest() != remote.checksums[name]
    ]


# --- what a person is told ---


def _check_present(target: Path, remote: Remote) -> None:
    if not target.is_file():
        raise DownloadFailed(f"{target} is no file; name another folder, or move it away.")
    wrong = differences(target, remote)
    if wrong:
        raise DownloadFailed(
            f"{target} is there, but is not the file published at {remote.url}: {'; '.join(wrong)}. "
            "It was left as it is; move it away and run the command again, or name another folder."
        )


def _unfinished(remote: Remote, part: Path, reason: str) -> DownloadFailed:
    size, target = part.stat().st_size, part.with_suffix("")
    there = f"{size:,} of {remote.size:,} bytes were received"
    if not size:
        _remove(part)
        again = f"{there}. Run the same command again later."
    else:
        again = f"{there} and lie in {part}. Run the same command again: it continues there."
    return DownloadFailed(
        f"{remote.url} could not be fetched: {reason}. {again} {_other_means(remote, target)}"
    )


def _other_means(remote: Remote, target: Path) -> str:
    sums = ", ".join(f"{name.upper()} {value}" for name, value in remote.checksums.items())
    return f"Or fetch the file by other means and put it at {target} ({remote.size:,} bytes, {sums})."


# --- the work ---


def _complete(remote: Remote, file: BinaryIO, part: Path, patience: Patience, heard: Heard) -> int:
    """Fetch what is missing and check the whole; how many bytes came."""
    before = _size(file)
    if before > remote.size:
        file.truncate(before := 0)
    received = _fill(remote, file, part, patience, heard)
    wrong = differences(part, remote)
    if wrong and before:  # what lay there from an earlier call may be to blame: once more, all of it
        heard(0, "what was there is damaged; starting over")
        file.truncate(0)
        received += _fill(remote, file, part, patience, heard)
        wrong = differences(part, remote)
    if wrong:
        file.truncate(0)
        _remove(part)
        raise DownloadFailed(
            f"{remote.url} gave another file than the published one: {'; '.join(wrong)}. It was removed. "
            f"Try again later, or over another network. {_other_means(remote, part.with_suffix(''))}"
        )
    return received


def _fill(remote: Remote, file: BinaryIO, part: Path, patience: Patience, heard: Heard) -> int:
    """Try until the file is as long as it should be; how many bytes came."""
    furthest, failures, received = _size(file), 0, 0

    def counted(size: int, news: str = "") -> None:
        nonlocal received
        received += size
        heard(_size(file), news)

    while _size(file) < remote.size:
        try:
            _go_on(remote, file, patience.timeout, counted)
        except _Refused as error:
            raise _unfinished(remote, part, str(error)) from error
        except _Broken as error:
            failures = 1 if _size(file) > furthest else failures + 1
            furthest = max(furthest, _size(file))
            if failures >= patience.tries:
                tries = f" ({failures} tries without getting further)" if failures > 1 else ""
                raise _unfinished(remote, part, f"{error}{tries}") from error
            pause = min(patience.pause * 2 ** (failures - 1), LONGEST_PAUSE)
            counted(0, f"{error}; trying again in {pause:.3g} s")
            time.sleep(pause)
    return received


def _go_on(remote: Remote, file: BinaryIO, timeout: float, counted: Callable[[int], None]) -> None:
    """One request: append what comes, from where the file ends, or from the start if the server must."""
    start = _size(file)
    headers = {"User-Agent": "evenprune", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    with _opened(urllib.request.Request(remote.url, headers=headers), file, timeout) as response:
        first = _first_byte(response, start, remote.size)
        if first != start:
            file.truncate(first)
        while _size(file) < remote.size and (piece := _piece(response, remote.size - _size(file))):
            file.write(piece)
            file.flush()
            counted(len(piece))
    if _size(file) < remote.size:
        raise _Broken("the connection ended early")


@contextlib.contextmanager
def _opened(request: urllib.request.Request, file: BinaryIO, timeout: float) -> Iterator[Any]:
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and _size(file):  # it does not know the rest: all of it, then
            file.truncate(0)
            raise _Broken("the server could not continue the file") from error
        kind = _Broken if error.code >= 500 or error.code in PASSING else _Refused
        raise kind(f"the server answered {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        kind = _Refused if isinstance(error.reason, ssl.SSLCertVerificationError) else _Broken
        raise kind(f"no connection ({_reason(error.reason)})") from error
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(f"no answer ({_reason(error)})") from error
    with response:
        yield response


def _first_byte(response: Any, asked: int, size: int) -> int:
    """Where in the file the answer begins. A server without ranges sends everything, from 0."""
    if response.status == 206:
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if found is None or int(found[1]) > asked:
            raise _Refused(
                f"the server sent {response.headers.get('Content-Range')!r}, not from {asked:,} on"
            )
        first, total = int(found[1]), found[2]
    else:
        first, total = 0, response.headers.get("Content-Length", "")
    if total.isdecimal() and int(total) != size:
        raise _Refused(f"the server has a file of {int(total):,} bytes there, not of {size:,}")
    return first


def _piece(response: Any, most: int) -> bytes:
    try:
        return bytes(response.read1(min(PIECE, most)))
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(f"the connection broke off ({_reason(error)})") from error


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _remove(part: Path) -> None:
    with contextlib.suppress(OSError):  # some systems keep files that are open; an empty one does no harm
        part.unlink()


def _reason(error: object) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__).split("\n")[0]
