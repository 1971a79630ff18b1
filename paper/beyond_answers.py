"""The classes that every run predicted for every audit sample: any two runs can be compared sample by sample.

beyond_answers.json: {"runs": [{the cell, "dense": its place in the list, "predicted": text}],
"datasets": {"cifar100": {"labels": text, "groups": {"superclass": text}, "dense": [text]}}}

A text is a byte a sample, compressed, base64. Of a run the bytes are its classes minus those of its dense
model (modulo 256): mostly zeros, so that ten thousand samples take about five kilobytes.
"""

import base64
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenprune.tally import InputProblems, IntArray
from paper import results_file
from paper.beyond_cells import Cell, key_of
from paper.beyond_results import order
from paper.results_file import Document
from paper.runner import Start

Bytes = NDArray[np.uint8]
Bits = NDArray[np.bool_]


def packed(values: ArrayLike) -> str:
    """Whole numbers from 0 to 255 as text."""
    wide = np.asarray(values)
    if wide.size and not 0 <= wide.min() <= wide.max() <= 255:
        raise InputProblems([f"classes or groups up to {wide.max()}: answers are kept of up to 256"])
    return base64.b64encode(zlib.compress(wide.astype(np.uint8).tobytes(), 9)).decode()


def unpacked(text: str) -> Bytes:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8)


@dataclass(frozen=True)
class Answers:
    """Classes of all audit samples: what is right, what the dense model says, and what the run says."""

    labels: Bytes
    dense: Bytes
    predicted: Bytes

    @property
    def dense_right(self) -> Bits:
        return np.asarray(self.dense == self.labels)

    @property
    def right(self) -> Bits:
        return np.asarray(self.predicted == self.labels)


Key = tuple[Any, ...]  # of a cell


# --- the file ---


def path_of(results: Path) -> Path:
    return results.with_name(f"{results.stem}_answers.json")


def problems(document: Any) -> list[str]:
    if not isinstance(document, dict) or not isinstance(document.get("runs"), list):
        return ['it must be {"runs": [ … ], … }']
    runs = document["runs"]
    silent = [r for r in runs if not (isinstance(r, dict) and isinstance(r.get("predicted"), str))]
    if silent:
        return [f"{len(silent)} runs have no answers"]
    known = document.get("datasets", {})
    if not isinstance(known, dict) or not all(_described(own) for own in known.values()):
        return ["a data set must be described by labels, groups and dense"]
    unknown = Counter(run.get("dataset") for run in runs if run.get("dataset") not in known)
    return [f"{n} runs are of {name}, which is not described" for name, n in unknown.items()]


def _described(own: Any) -> bool:
    kinds = {"labels": str, "groups": dict, "dense": list}
    return isinstance(own, dict) and all(isinstance(own.get(name), kind) for name, kind in kinds.items())


def read(path: Path) -> Document:
    return results_file.read(path, problems)


def add(path: Path, start: Start, predicted: Mapping[Cell, ArrayLike], *, dataset: str, groups: str) -> None:
    """What each cell answered to the audit samples ([N] classes), beside the dense model."""
    audit = start.data.evaluate["audit"]
    dense = start.answers["audit"].predictions.numpy()
    labels, ids, told = packed(audit.labels), packed(audit.groups), packed(dense)

    def edit(document: Document) -> None:
        known = document.setdefault("datasets", {})
        own = known.setdefault(dataset, {"labels": labels, "groups": {}, "dense": []})
        if own["labels"] != labels or own["groups"].setdefault(groups, ids) != ids:
            raise InputProblems([f"{path} is of other audit samples; give --results another file"])
        if told not in own["dense"]:
            own["dense"].append(told)
        place = own["dense"].index(told)
        new = [
            {**asdict(cell), "dense": place, "predicted": packed((np.asarray(classes) - dense) % 256)}
            for cell, classes in predicted.items()
        ]
        again = {key_of(run) for run in new}  # of a training whose rows were not written before a kill
        document["runs"] = [run for run in document["runs"] if key_of(run) not in again] + new

    results_file.change(path, edit, check=problems, order=order)


def answers_in(document: Document) -> dict[Key, Answers]:
    """By cell."""
    known = {
        name: (unpacked(own["labels"]), [unpacked(text) for text in own["dense"]])
        for name, own in document.get("datasets", {}).items()
    }
    found = {}
    for run in document["runs"]:
        labels, models = known[run["dataset"]]
        dense = models[run["dense"]]
        found[key_of(run)] = Answers(labels, dense, dense + unpacked(run["predicted"]))
    return found


def groups_in(document: Document, name: str, dataset: str) -> IntArray:
    """The groups of the audit samples of a data set, by what they are called."""
    return unpacked(document["datasets"][dataset]["groups"][name]).astype(np.int64)
