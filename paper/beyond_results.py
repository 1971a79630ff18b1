"""The two files of the study: rows of numbers, and the answers of every run to every audit sample.

beyond.json          {"runs": [one entry per cell], "dense": [one entry per data set and number of held-out
                      samples], "folds": [the same, and per number of folds]}
beyond_correct.json  {"runs": [{the cell, "dense": its place in the list, "correct": bits}],
                      "datasets": {"cifar100": {"samples": N, "groups": {"superclass": ids as bytes},
                      "dense": [bits]}}}; base64, one bit or byte a sample

Entries that name no data set are of CIFAR-100; so is all of an answer file that has "samples", "groups" and
"dense" beside "runs", as both files had before there was another.
"""

import base64
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenprune.tally import InputProblems, IntArray
from paper import results_file
from paper.beyond_cells import DATASET, IDENTITY, KINDS, Cell, amount, dataset_of, key_of
from paper.beyond_rows import COUNTED, SPLITS, measures, packed, unpacked
from paper.results_file import CLOSE, COUNTS, TEXT, VERSIONS, WHOLE, Document, broken_rules
from paper.runner import Start

METHODS = {name: place for place, name in enumerate(KINDS)}
NUMBERS = ("accuracy", "max_excess_gap", "pairwise_disparity", "worst_gap")
SIZE = ("a number", lambda value: isinstance(value, int | float) and not isinstance(value, bool))
ALWAYS = tuple(name for name in IDENTITY if name not in ("folds", "dataset"))  # rows of before have none
HELD_OUT: results_file.Rule = (
    "a whole number, or a share between 0 and 1",
    lambda value: WHOLE[1](value) or (isinstance(value, float) and 0 < value < 1),
)
EXTRAS: dict[str, results_file.Rule] = {"dataset": TEXT, "image_size": WHOLE}
RULES: dict[str, results_file.Rule] = {
    **dict.fromkeys(ALWAYS, ("there", lambda value: True)),
    "method": (f"one of {', '.join(KINDS)}", lambda value: value in KINDS),
    "groups": TEXT,
    "heldout_per_class": HELD_OUT,
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
    "heldout_per_class": HELD_OUT,
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
    "heldout_per_class": HELD_OUT,
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
        broken = broken_rules(run, RULES, EXTRAS)
        found += [f"runs[{place}]: {problem}" for problem in broken or _arithmetic_problems(run)]
    if not found:
        times = Counter(key_of(run) for run in document["runs"])
        found += [f"there are {n} runs of {key}" for key, n in times.items() if n > 1]
    for place, model in enumerate(document.get("dense", [])):
        found += [f"dense[{place}]: {problem}" for problem in broken_rules(model, DENSE_RULES, EXTRAS)]
    for place, models in enumerate(document.get("folds", [])):
        found += [f"folds[{place}]: {problem}" for problem in broken_rules(models, FOLD_RULES, EXTRAS)]
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
        dataset_of(run),
        run.get("groups", ""),
        run.get("sparsity") or 0,
        *settings,
        METHODS.get(run.get("method", ""), 99),
        *last,
    )


def read(path: Path) -> Document:
    return results_file.read(path, problems)


def of_dataset(document: Document, name: str | None) -> Document:
    """The part of the results that is of one data set; all of them for None."""
    parts = {part: document[part] for part in ("runs", "dense", "folds") if part in document and name}
    own = {part: [e for e in entries if dataset_of(e) == name] for part, entries in parts.items()}
    return document | own


def add_runs(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows of cells that the file does not have yet; a cell that it has stays as it was."""

    def edit(document: Document) -> None:
        held = {key_of(run) for run in document["runs"]}
        document["runs"] += [row for row in rows if key_of(row) not in held]

    results_file.change(path, edit, check=problems, order=order)


@dataclass(frozen=True)
class Origin:
    """Which samples the dense models of some runs have not seen."""

    dataset: str
    heldout_per_class: float

    @staticmethod
    def of(values: Mapping[str, Any]) -> "Origin":
        """Of a row, or of what is said of dense models."""
        return Origin(dataset_of(values), values["heldout_per_class"])

    @property
    def told(self) -> str:
        """ "50 a class", "20 % of each class"."""
        return amount(self.heldout_per_class, "class")


def set_dense(path: Path, dense: Mapping[str, Any]) -> None:
    """The one dense model of all runs of a data set with that many samples held out."""
    _set(path, "dense", dense, lambda entry: astuple(Origin.of(entry)))


def dense_of(document: Document, origin: Origin) -> Mapping[str, Any] | None:
    return next((model for model in document.get("dense", []) if Origin.of(model) == origin), None)


def set_folds(path: Path, models: Mapping[str, Any]) -> None:
    """The dense models of all cross-fitted runs of a data set, with that many held-out samples and folds."""
    _set(path, "folds", models, lambda entry: (*astuple(Origin.of(entry)), entry["folds"]))


def folds_of(document: Document, origin: Origin, count: int) -> Mapping[str, Any] | None:
    held = document.get("folds", [])
    return next((e for e in held if (Origin.of(e), e["folds"]) == (origin, count)), None)


def _set(path: Path, part: str, new: Mapping[str, Any], key: Callable[[Mapping[str, Any]], Any]) -> None:
    """Put an entry into a part of the results file, in the place of the one with its key."""

    def edit(document: Document) -> None:
        others = [entry for entry in document.get(part, []) if key(entry) != key(new)]
        document[part] = sorted([*others, new], key=key)

    results_file.change(path, edit, check=problems, order=order)


# --- right and wrong ---


def correct_path(results: Path) -> Path:
    return results.with_name(f"{results.stem}_correct.json")


def correct_problems(document: Any) -> list[str]:
    if not isinstance(document, dict) or not isinstance(document.get("runs"), list):
        return ['it must be {"runs": [ … ], … }']
    told = [
        run for run in document["runs"] if not (isinstance(run, dict) and isinstance(run.get("correct"), str))
    ]
    if told:
        return [f"{len(told)} runs have no answers"]
    known = datasets_in(document)
    if not isinstance(known, dict) or not all(_described(own) for own in known.values()):
        return ["a data set must be described by samples, groups and dense"]
    unknown = Counter(dataset_of(run) for run in document["runs"] if dataset_of(run) not in known)
    return [f"{n} runs are of {name}, which is not described" for name, n in unknown.items()]


def _described(own: Any) -> bool:
    kinds = {"samples": int, "groups": dict, "dense": list}
    return isinstance(own, dict) and all(isinstance(own.get(name), kind) for name, kind in kinds.items())


def datasets_in(document: Document) -> dict[str, Any]:
    """By data set, its number of audit samples, their groups, and where its dense models are right."""
    old = {name: document[name] for name in ("samples", "groups", "dense") if name in document}
    return document.get("datasets", {DATASET: old} if old else {})  # type: ignore[no-any-return]  # checked


def add_correct(path: Path, start: Start, answers: Mapping[Cell, Any], *, dataset: str, groups: str) -> None:
    """Which audit samples each cell got right (`answers`: by cell, [N] bool), beside the dense model's."""
    dense = packed(start.answers["audit"].correct)
    ids = start.data.evaluate["audit"].groups.numpy().astype(np.uint8)
    text = base64.b64encode(ids.tobytes()).decode()

    def edit(document: Document) -> None:
        document["datasets"] = datasets_in(document)
        for name in ("samples", "groups", "dense"):  # of a file of before
            document.pop(name, None)
        own = document["datasets"].setdefault(dataset, {"samples": ids.size, "groups": {}, "dense": []})
        if own["samples"] != ids.size or own["groups"].setdefault(groups, text) != text:
            raise InputProblems([f"{path} is of other audit samples; give --results another file"])
        if dense not in own["dense"]:
            own["dense"].append(dense)
        place = own["dense"].index(dense)
        new = [{**asdict(cell), "dense": place, "correct": packed(right)} for cell, right in answers.items()]
        again = {key_of(run) for run in new}  # of a training whose rows were not written before a kill
        document["runs"] = [run for run in document["runs"] if key_of(run) not in again] + new

    results_file.change(path, edit, check=correct_problems, order=order)


def read_correct(path: Path) -> Document:
    return results_file.read(path, correct_problems)


def answers_in(document: Document) -> dict[tuple[Any, ...], tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
    """By cell: where the dense model is right and where the run is."""
    held = datasets_in(document)
    dense = {
        name: [unpacked(text, own["samples"]) for text in own.get("dense", [])] for name, own in held.items()
    }
    found = {}
    for run in document["runs"]:
        name = dataset_of(run)
        right = unpacked(run["correct"], held[name]["samples"])
        found[key_of(run)] = (dense[name][run["dense"]], right)
    return found


def groups_in(document: Document, name: str, dataset: str | None = None) -> IntArray:
    """The groups of the audit samples, by what they are called; `dataset` where several have such groups."""
    texts = [
        own["groups"][name]
        for data, own in datasets_in(document).items()
        if name in own["groups"] and dataset in (None, data)
    ]
    return np.frombuffer(base64.b64decode(texts[0]), dtype=np.uint8).astype(np.int64)
