"""The one place that writes files: a reader sees the old content or the new, never half of it."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write text as UTF-8. Lone surrogates, which UTF-8 cannot hold, are written as \\udcXX."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    with replace(path) as file:
        file.write(data)


@contextlib.contextmanager
def replace(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` when the block ends well, and vanishes when it does not."""
    try:
        if _is_stream(path):
            with open(path, "wb") as stream:
                yield stream
        else:
            with _replacing(os.path.realpath(path)) as file:
                yield file
    except OSError as error:
        raise _clear(error, path) from error


@contextlib.contextmanager
def _replacing(target: str) -> Iterator[BinaryIO]:
    if os.path.isdir(target):
        raise IsADirectoryError("it is a folder; name a file inside it")
    temporary = os.path.join(os.path.dirname(target), f".evenprune-{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            _keep_mode(target, temporary)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_folder(os.path.dirname(target))


def _is_stream(path: str | os.PathLike[str]) -> bool:
    """Devices and pipes (/dev/stdout, /dev/null) are written to: replacing them would destroy them."""
    place = Path(path)
    return place.exists() and not place.is_dir() and (not place.is_file() or place.parts[:2] == ("/", "dev"))


def _keep_mode(target: str, temporary: str) -> None:
    if os.path.exists(target):
        os.chmod(temporary, os.stat(target).st_mode & 0o7777)


def _sync_folder(folder: str) -> None:
    """Make the new name itself survive a power cut; some systems cannot open a folder, and need not."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _clear(error: OSError, path: str | os.PathLike[str]) -> OSError:
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        reason = f"the folder {folder} does not exist; create it first"
    else:
        reason = error.strerror or str(error)
    clear = type(error)(f"Cannot write {os.fspath(path)}: {reason}.")
    clear.errno = error.errno
    return clear
