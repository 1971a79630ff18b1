"""The two files of the study: rows of numbers, and the answers of every run to every audit sample.

beyond.json          {"runs": [one entry per cell], "dense": [one entry per number of held-out samples],
                      "folds": [one entry per number of held-out samples and of folds]}
beyond_correct.json  {"runs": [{the cell, "dense": its place in the list, "correct": bits}], "dense": [bits],
                      "samples": N, "groups": {"superclass": ids as bytes}}; base64, one bit or byte a sample
"""

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenprune.tally import InputProblems, IntArray
from paper import results_file
from paper.beyond_cells import IDENTITY, KINDS, Cell, key_of
from paper.beyond_rows import COUNTED, SPLITS, measures, packed, unpacked
from paper.results_file import CLOSE, COUNTS, TEXT, VERSIONS, WHOLE, Document, broken_rules
from paper.runner import Start

METHODS = {name: place for place, name in enumerate(KINDS)}
NUMBERS = ("accuracy", "max_excess_gap", "pairwise_disparity", "worst_gap")
SIZE = ("a number", lambda value: isinstance(value, int | float) and not isinstance(value, bool))
ALWAYS = tuple(name for name in IDENTITY if name != "folds")  # rows of before have none
RULES: dict[str, results_file.Rule] = {
    **dict.fromkeys(ALWAYS, ("there", lambda value: True)),
    "method": (f"one of {', '.join(KINDS)}", lambda value: value in KINDS),
    "groups": TEXT,
    "seed": WHOLE,
    "sparsity": SIZE,
    **dict.fromkeys(
        SPLITS, (f"an object of {', '.join(NUMBERS)}", lambda value: not _numbers_missing(value, NUMBERS))
    ),
    "changes": (
        f"counts ({', '.join(COUNTS)}) of {', '.join(COUNTED)}",
        lambda value: isinstance(value, Mapping) and all(_counts(value.get(split)) for split in COUNTED),
    ),
    "seconds": SIZE,
    "versions": VERSIONS,
}
DENSE_RULES: dict[str, results_file.Rule] = {
    "heldout_per_class": WHOLE,
    "weights": TEXT,
    "sha256": TEXT,
    "training_images": TEXT,
    "accuracy": (f"numbers of {', '.join(SPLITS)}", lambda value: not _numbers_missing(value, SPLITS)),
    "seconds": SIZE,
    "versions": VERSIONS,
}
TEXTS = ("a list of texts", lambda value: isinstance(value, list) and all(TEXT[1](one) for one in value))
FOLD_SPLITS = ("rest", "fold", "heldout", "audit")  # of the training images: those it saw, and its fold
FOLD_RULES: dict[str, results_file.Rule] = {
    "heldout_per_class": WHOLE,
    "folds": WHOLE,
    "weights": TEXTS,
    "sha256": TEXTS,
    "fold_images": TEXTS,
    "accuracy": (
        f"numbers of {', '.join(FOLD_SPLITS)}",
        lambda value: not _numbers_missing(value, FOLD_SPLITS),
    ),
    "seconds": SIZE,
    "versions": VERSIONS,
}


def _numbers_missing(value: Any, names: Sequence[str]) -> bool:
    return not isinstance(value, Mapping) or not all(SIZE[1](value.get(name)) for name in names)


def _counts(value: Any) -> bool:
    if not isinstance(value, Mapping) or not all(isinstance(value.get(name), list) for name in COUNTS):
        return False
    lists = [value[name] for name in COUNTS]
    whole = all(WHOLE[1](number) for own in lists for number in own)
    return whole and len({len(own) for own in lists}) == 1 and sum(value["samples"]) > 0


def problems(document: Any) -> list[str]:
    """Everything that keeps a document from being the results of the study."""
    if not isinstance(document, dict) or not isinstance(document.get("runs"), list):
        return ['it must be {"runs": [ … ], … }']
    found = []
    for place, run in enumerate(document["runs"]):
        broken = broken_rules(run, RULES)
        found += [f"runs[{place}]: {problem}" for problem in broken or _arithmetic_problems(run)]
    if not found:
        times = Counter(key_of(run) for run in document["runs"])
        found += [f"there are {n} runs of {key}" for key, n in times.items() if n > 1]
    for place, model in enumerate(document.get("dense", [])):
        found += [f"dense[{place}]: {problem}" for problem in broken_rules(model, DENSE_RULES)]
    for place, models in enumerate(document.get("folds", [])):
        found += [f"folds[{place}]: {problem}" for problem in broken_rules(models, FOLD_RULES)]
    return found


def _arithmetic_problems(run: Mapping[str, Any]) -> list[str]:
    """The disparities of a split follow from its counts per group."""
    return [
        f"{split}: {name} is {run[split][name]:.6f}, but the groups give {value:.6f}"
        for split in COUNTED
        for name, value in measures(run["changes"][split]).items()
        if abs(run[split][name] - value) > CLOSE
    ]


def order(run: Mapping[str, Any]) -> tuple[Any, ...]:
    names = ("augment", "heldout_per_class", "heldout_used", "epochs")
    settings = tuple(run.get(name) or 0 for name in names)
    names = ("tolerance", "buffer", "refresh", "folds", "dual_lr", "seed")
    last = tuple(run.get(name) or 0 for name in names)
    return (
        run.get("groups", ""),
        run.get("sparsity") or 0,
        *settings,
        METHODS.get(run.get("method", ""), 99),
        *last,
    )


def read(path: Path) -> Document:
    return results_file.read(path, problems)


def add_runs(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows of cells that the file does not have yet; a cell that it has stays as it was."""

    def edit(document: Document) -> None:
        held = {key_of(run) for run in document["runs"]}
        document["runs"] += [row for row in rows if key_of(row) not in held]

    results_file.change(path, edit, check=problems, order=order)


def set_dense(path: Path, dense: Mapping[str, Any]) -> None:
    """The one dense model of all runs with that many samples held out."""

    def edit(document: Document) -> None:
        others = [
            m for m in document.get("dense", []) if m["heldout_per_class"] != dense["heldout_per_class"]
        ]
        document["dense"] = sorted([*others, dense], key=lambda model: int(model["heldout_per_class"]))

    results_file.change(path, edit, check=problems, order=order)


def dense_of(document: Document, per_class: int) -> Mapping[str, Any] | None:
    models = document.get("dense", [])
    return next((model for model in models if model["heldout_per_class"] == per_class), None)


def set_folds(path: Path, models: Mapping[str, Any]) -> None:
    """The dense models of all cross-fitted runs with that many samples held out and that many folds."""

    def key(entry: Mapping[str, Any]) -> tuple[int, int]:
        return int(entry["heldout_per_class"]), int(entry["folds"])

    def edit(document: Document) -> None:
        others = [entry for entry in document.get("folds", []) if key(entry) != key(models)]
        document["folds"] = sorted([*others, models], key=key)

    results_file.change(path, edit, check=problems, order=order)


def folds_of(document: Document, per_class: int, count: int) -> Mapping[str, Any] | None:
    wanted = (per_class, count)
    held = document.get("folds", [])
    return next((e for e in held if (e["heldout_per_class"], e["folds"]) == wanted), None)


# --- right and wrong ---


def correct_path(results: Path) -> Path:
    return results.with_name(f"{results.stem}_correct.json")


def correct_problems(document: Any) -> list[str]:
    if not isinstance(document, dict) or not isinstance(document.get("runs"), list):
        return ['it must be {"runs": [ … ], … }']
    told = [
        run for run in document["runs"] if not (isinstance(run, dict) and isinstance(run.get("correct"), str))
    ]
    return [f"{len(told)} runs have no answers"] if told else []


def add_correct(path: Path, start: Start, name: str, answers: Mapping[Cell, Any]) -> None:
    """Which audit samples each cell got right (`answers`: by cell, [N] bool), beside the dense model's."""
    dense = packed(start.answers["audit"].correct)
    groups = start.data.evaluate["audit"].groups.numpy().astype(np.uint8)
    facts = {"samples": groups.size, "groups": base64.b64encode(groups.tobytes()).decode()}

    def edit(document: Document) -> None:
        held = document.setdefault("groups", {}).setdefault(name, facts["groups"])
        if document.setdefault("samples", facts["samples"]) != facts["samples"] or held != facts["groups"]:
            raise InputProblems([f"{path} is of other audit samples; give --results another file"])
        models = document.setdefault("dense", [])
        if dense not in models:
            models.append(dense)
        place = models.index(dense)
        new = [{**asdict(cell), "dense": place, "correct": packed(right)} for cell, right in answers.items()]
        again = {key_of(run) for run in new}  # of a training whose rows were not written before a kill
        document["runs"] = [run for run in document["runs"] if key_of(run) not in again] + new

    results_file.change(path, edit, check=correct_problems, order=order)


def read_correct(path: Path) -> Document:
    return results_file.read(path, correct_problems)


def answers_in(document: Document) -> dict[tuple[Any, ...], tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
    """By cell: where the dense model is right and where the run is."""
    samples = document.get("samples", 0)
    dense = [unpacked(text, samples) for text in document.get("dense", [])]
    return {key_of(run): (dense[run["dense"]], unpacked(run["correct"], samples)) for run in document["runs"]}


def groups_in(document: Document, name: str) -> IntArray:
    ids = np.frombuffer(base64.b64decode(document["groups"][name]), dtype=np.uint8)
    return ids.astype(np.int64)
