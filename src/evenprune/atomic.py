"""The one place that writes files: a reader sees the old content or the new, never half of it."""

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def folder_problems(name: str, folder: str | os.PathLike[str]) -> list[str]:
    """Why there can be no such folder: it, or one that it is to lie in, is a file. name: of the setting."""
    files = [path for path in (Path(folder), *Path(folder).parents) if path.is_file()]
    if not files:
        return []
    what = "a file" if files[0] == Path(folder) else f"but {str(files[0])!r} is a file"
    return [f"{name} is {str(folder)!r}, {what}: give a folder"]


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
def growing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open, at its end, a file that is written in several sittings; what it holds survives a failure.

    It bears a name of its own (such as x.part) until `put_in_place`. One process at a time may write it.
    """
    try:
        with open(path, "ab") as file:
            _claim(file, path)
            yield file
    except OSError as error:
        raise _clear(error, path) from error


def put_in_place(part: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Give a file that was written under another name, and is whole, its own name."""
    try:
        with open(part, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise _clear(error, path) from error
    _sync_folder(os.path.dirname(os.path.realpath(path)))


def _claim(file: BinaryIO, path: str | os.PathLike[str]) -> None:
    """Refuse a file that another process is writing, where the system can tell."""
    busy = BlockingIOError(errno.EAGAIN, "another process is writing it; wait until that one ends")
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise busy from None
    except (ImportError, OSError):  # Windows, or a file system without locks
        return
    if not os.path.exists(path) or not os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
        raise busy  # that process has just given the file its own name


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
