"""The results file of the study: rows of numbers. The answers to every audit sample are in another one.

{"runs": [one entry per cell], "dense": [one entry per data set and number of held-out samples], "folds": [the
same, and per number of folds], "timings": [seconds of each method in a fleet of its own]}
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from paper import results_file
from paper.beyond_cells import IDENTITY, amount, key_of
from paper.beyond_methods import KINDS, METHODS
from paper.beyond_rows import COUNTED, SPLITS, measures
from paper.results_file import CLOSE, COUNTS, TEXT, VERSIONS, WHOLE, Document, broken_rules
from paper.rules import SAMPLES, SETTINGS, TOLERANCES, or_null

NUMBERS = ("accuracy", "max_excess_gap", "pairwise_disparity", "worst_gap")
SIZE = ("a number", lambda value: isinstance(value, int | float) and not isinstance(value, bool))
EXTRAS: dict[str, results_file.Rule] = {"image_size": WHOLE, "diverged": WHOLE}
RULES: dict[str, results_file.Rule] = {
    **dict.fromkeys(IDENTITY, ("there", lambda value: True)),
    "dataset": TEXT,
    "method": (f"one of {', '.join(KINDS)}", lambda value: value in KINDS),
    "groups": TEXT,
    "seed": WHOLE,
    **SETTINGS,
    **dict.fromkeys(
        SPLITS, (f"an object of {', '.join(NUMBERS)}", lambda value: not _numbers_missing(value, NUMBERS))
    ),
    "changes": (
        f"counts ({', '.join(COUNTS)}) of {', '.join(COUNTED)}",
        lambda value: isinstance(value, Mapping) and all(_counts(value.get(split)) for split in COUNTED),
    ),
    "followed": (
        "null, or a split with its samples and standard error of ψ",
        lambda value: value is None or not _numbers_missing(value, ["standard_error"]),
    ),
    "seconds": or_null(SIZE),  # null where another process took part of the GPU's time
    "versions": VERSIONS,
}
DENSE_RULES: dict[str, results_file.Rule] = {
    "dataset": TEXT,
    "heldout_per_class": SAMPLES,
    "weights": TEXT,
    "sha256": TEXT,
    "training_images": TEXT,
    "accuracy": (f"numbers of {', '.join(SPLITS)}", lambda value: not _numbers_missing(value, SPLITS)),
    "seconds": SIZE,
    "versions": VERSIONS,
}
PARTS = ("runs", "dense", "folds", "timings")
TEXTS = ("a list of texts", lambda value: isinstance(value, list) and all(TEXT[1](one) for one in value))
FOLD_SPLITS = ("rest", "fold", "heldout", "audit")  # of the training images: those it saw, and its fold
FOLD_RULES: dict[str, results_file.Rule] = {
    "dataset": TEXT,
    "heldout_per_class": SAMPLES,
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

TIMING_RULES: dict[str, results_file.Rule] = {
    **dict.fromkeys(("dataset", "groups"), TEXT),
    "method": RULES["method"],
    **dict.fromkeys(("sparsity", "seconds", "seconds_per_60_epochs"), SIZE),
    **dict.fromkeys(("fleet", "epochs"), WHOLE),
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
        found += [f"runs[{place}]: {problem}" for problem in broken or _row_problems(run)]
    if not found:
        times = Counter(key_of(run) for run in document["runs"])
        found += [f"there are {n} runs of {key}" for key, n in times.items() if n > 1]
    for place, model in enumerate(document.get("dense", [])):
        found += [f"dense[{place}]: {problem}" for problem in broken_rules(model, DENSE_RULES, EXTRAS)]
    for place, models in enumerate(document.get("folds", [])):
        found += [f"folds[{place}]: {problem}" for problem in broken_rules(models, FOLD_RULES, EXTRAS)]
    for place, timing in enumerate(document.get("timings", [])):
        found += [f"timings[{place}]: {problem}" for problem in broken_rules(timing, TIMING_RULES, EXTRAS)]
    return found


def _row_problems(run: Mapping[str, Any]) -> list[str]:
    """Of a row that has all it needs: a tolerance that its method cannot have, numbers that disagree."""
    tolerance = {"tolerance": TOLERANCES[KINDS[run["method"]].tolerance]}
    return [*broken_rules(run, tolerance), *_arithmetic_problems(run)]


def _arithmetic_problems(run: Mapping[str, Any]) -> list[str]:
    """The disparities of a split follow from its counts per group."""
    return [
        f"{split}: {name} is {run[split][name]:.6f}, but the groups give {value:.6f}"
        for split in COUNTED
        for name, value in measures(run["changes"][split]).items()
        if abs(run[split][name] - value) > CLOSE
    ]


def order(run: Mapping[str, Any]) -> tuple[Any, ...]:
    def values(*names: str) -> tuple[Any, ...]:
        return tuple(run.get(name) or 0 for name in names)

    settings = values("augment", "heldout_per_class", "heldout_used", "epochs")
    last = values("tolerance", "buffer", "refresh", "folds", "importance_batches", "dual_lr", "seed")
    return (
        run.get("dataset", ""),
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
    parts = {part: document[part] for part in PARTS if part in document and name}
    own = {part: [e for e in entries if e["dataset"] == name] for part, entries in parts.items()}
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
        return Origin(values["dataset"], values["heldout_per_class"])

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
