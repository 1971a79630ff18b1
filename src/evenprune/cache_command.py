"""The command data caches: which decoded images a folder keeps, and their removal."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from evenprune.data import image_store
from evenprune.tally import InputProblems

DAY = 86400.0


@dataclass(frozen=True)
class CacheFlags:
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="Folder of decoded images (--cache of prune).")
    ] = str(image_store.FOLDER)
    unused: Annotated[
        float, typer.Option("--unused", metavar="DAYS", help="Only those not used for so many days.")
    ] = 0.0
    remove: Annotated[bool, typer.Option("--remove", help="Remove those that are listed.")] = False


def listed(flags: CacheFlags) -> str:
    """What the folder keeps, or what was removed from it."""
    folder, now = Path(flags.folder), time.time()
    if not folder.is_dir():
        return f"{folder}: there is no such folder, so nothing is kept.\n"
    try:
        found = [kept for kept in image_store.kept_in(folder) if now - kept.used >= flags.unused * DAY]
        if flags.remove:
            image_store.make_ready(folder)  # unfinished files go as well
            image_store.remove(found)
    except OSError as error:
        raise InputProblems([str(error)]) from error
    lines = [f"{_size(kept.size):>9}  {_ago(now - kept.used)}  {kept.what}" for kept in found]
    many, total = f"{len(found):,} cache{'' if len(found) == 1 else 's'}", _size(sum(k.size for k in found))
    if flags.remove:
        return "\n".join([*lines, f"{folder}: {many} removed, {total}.", ""])
    hint = " Remove with --remove; what is needed again is decoded again." if found else ""
    return "\n".join([*lines, f"{folder}: {many}, {total}.{hint}", ""])


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"


def _ago(seconds: float) -> str:
    days = int(seconds // DAY)
    return "used today     " if days < 1 else f"used {days:>4} d ago"
