"""Which files a report on the paper is made from: results, multipliers beside them, variants in a folder."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evenprune.paper_fields import at
from evenprune.tally import InputProblems

FOLDER = Path("paper") / "results"
VARIANTS = "variants"  # a folder beside a results file: the same cells under another recipe
ANOTHER_STUDY = "beyond"  # how the files of the study beyond the paper begin


def default_files(folder: Path = FOLDER) -> list[Path]:
    """Every file of the paper's tables in the folder; other JSON files there are left alone."""
    if not folder.is_dir():
        raise InputProblems(
            [f"there is no folder {folder} here: run the paper's experiments first, or name results files"]
        )
    wanted = [path for path in sorted(folder.glob("*.json")) if _is_of_the_tables(path)]
    if not wanted:
        raise InputProblems(
            [f'{folder} holds no results: no *.json file there lists "runs" of a table of the paper']
        )
    return wanted


def with_companions(files: Sequence[Path]) -> list[Path]:
    """The files, X_multipliers.json beside each X.json, and variants of the same data sets."""
    beside = [path.with_name(f"{path.stem}_multipliers.json") for path in files]
    folders = dict.fromkeys(path.parent / VARIANTS for path in files)
    variants = [path for folder in folders for path in sorted(folder.glob("*.json"))]
    wanted = {name for path in files for name in _datasets(path)}
    found = [
        *files,
        *(path for path in beside if path.is_file()),
        *(path for path in variants if _loaded(path) is None or _datasets(path) & wanted),
    ]
    return list({path.resolve(): path for path in reversed(found)}.values())[::-1]


def kind_of(document: Any) -> str | None:
    """What a file lists: "runs", "traces", or nothing that a report is made from."""
    kinds = ("runs", "traces")
    return next((k for k in kinds if isinstance(document, dict) and isinstance(document.get(k), list)), None)


def of_another_study(runs: Sequence[Any]) -> bool:
    """Runs that name no target belong to no table of the paper."""
    return bool(runs) and all(isinstance(run, dict) and "target" not in run for run in runs)


def _is_of_the_tables(path: Path) -> bool:
    """Also where it cannot be read: `read` then says why."""
    if path.name.startswith(ANOTHER_STUDY):
        return False
    document = _loaded(path)
    if document is None:
        return True
    runs = document["runs"] if kind_of(document) == "runs" else []
    varied = bool(runs) and all(at(run, "recipe") is not None for run in runs)
    return kind_of(document) is not None and not varied and not of_another_study(runs)


def _loaded(path: Path) -> Any:
    """None of a file that cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _datasets(path: Path) -> set[str]:
    document = _loaded(path)
    runs = document["runs"] if kind_of(document) == "runs" else []
    return {str(at(run, "dataset")) for run in runs}
