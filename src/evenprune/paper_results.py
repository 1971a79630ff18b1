"""Results files of the paper's experiments: read, checked, all problems at once. Fractions throughout.

A file holds {"runs": [...], "dense": {...}, "timings": [...]}, or {"traces": [...]}: multipliers by step.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evenprune.paper_fields import (
    LISTS,
    MEASURES,
    SPLITS,
    Json,
    at,
    document_problems,
    listed,
)
from evenprune.paper_files import kind_of, of_another_study
from evenprune.tally import InputProblems
from evenprune.wording import visible

EPOCHS = 60  # of every run in the paper's tables
PLAIN = (
    "tolerance", "dual_lr", "buffer", "seconds", "fleet", "negative_weights", "multiplier_sum", "commit",
    "image_size", "recipe", "epochs", "diverged",
)  # fields of a run that stay as they are  # fmt: skip
MOST_PROBLEMS = 40  # lines of one error
COUNTED_AS = {"NFT + ES": "NFT"}  # an earlier iterate of the same training


@dataclass(frozen=True)
class Task:
    """What is predicted, and for whom the accuracy is watched."""

    dataset: str
    target: str
    group: str


@dataclass(frozen=True)
class Changes:
    """Per group: samples, those that broke (dense right, sparse wrong) and those that were fixed."""

    samples: tuple[int, ...]
    broke: tuple[int, ...]
    fixed: tuple[int, ...]

    def excess_gaps(self) -> list[float | None]:
        """ψ_g = (b_g − c_g)/n_g − Σ(b − c)/Σn; None of a group without samples."""
        overall = (sum(self.broke) - sum(self.fixed)) / sum(self.samples)
        counts = zip(self.samples, self.broke, self.fixed, strict=True)
        return [(b - c) / n - overall if n else None for n, b, c in counts]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One sparse model: its settings, its figures on both splits, and what it took."""

    task: Task
    method: str
    sparsity: float
    seed: int
    tolerance: float | None = None
    dual_lr: float | None = None
    buffer: int | None = None
    overall: str = "micro"  # groups by their frequency; "macro": all alike, as the paper's published code
    image_size: int | None = None  # side in pixels
    recipe: str | None = None  # None: that of the tables
    epochs: int | None = None
    figures: Mapping[str, Mapping[str, float]]  # split -> measure -> fraction
    group_accuracy: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    changes: Mapping[str, Changes] = field(default_factory=dict)
    seconds: float | None = None
    fleet: int | None = None
    negative_weights: int | None = None
    multiplier_sum: float | None = None
    diverged: int | None = None  # the epoch whose loss was not finite: the run is of those before it
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str | None = None

    @property
    def cell(self) -> tuple[Any, ...]:
        """All that was chosen but the seed and the recipe."""
        chosen = (self.tolerance, self.buffer, self.dual_lr, self.overall)
        return (self.task, self.sparsity, self.method, *chosen)

    @property
    def length(self) -> int:
        return int(self.epochs or EPOCHS)

    @property
    def varied(self) -> bool:
        """Whether it is trained in another way than the runs of the tables."""
        return self.recipe is not None or self.length != EPOCHS

    @property
    def settings(self) -> tuple[Any, ...]:
        """All that was chosen but the seed."""
        return (*self.cell, self.recipe, self.length)

    @property
    def alone(self) -> bool:
        return self.fleet == 1

    @property
    def name(self) -> str:
        tolerance = "" if self.tolerance is None else f", tolerance {100 * self.tolerance:g}"
        ring = "" if self.buffer is None else f", buffer {self.buffer}"
        step = "" if self.dual_lr is None else f", dual step {self.dual_lr:g}"
        share = f"{100 * self.sparsity:g} %"
        whole = "" if self.overall == "micro" else f", overall {self.overall}"
        way = "" if self.recipe is None else f", recipe {visible(self.recipe)}"
        way += "" if self.length == EPOCHS else f", {self.length} epochs"
        told = f"{tolerance}{ring}{step}{whole}{way}"
        return f"{self.task.dataset} {self.method}, {share}, seed {self.seed}{told}"


@dataclass(frozen=True, kw_only=True)
class Dense:
    """The dense model that the runs of a task start from."""

    task: Task
    accuracy: Mapping[str, float]  # by split
    group_accuracy: Mapping[str, tuple[float | None, ...]]
    groups: tuple[str, ...]
    weights: str | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    image_size: int | None = None  # side in pixels


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One run's multiplier over time, and its disparities by epoch where they were measured."""

    method: str
    sparsity: float
    seed: int
    buffer: int | None
    tolerance: float | None
    group: str | None
    multiplier: tuple[float, ...]
    stride: int  # training steps from one number to the next
    steps_per_epoch: int
    first_epoch: int
    pairwise_disparity: tuple[float | None, ...] = ()
    max_excess_gap: tuple[float | None, ...] = ()
    diverged: int | None = None


@dataclass(frozen=True)
class Timed:
    """Wall-clock of one run; of a fleet, its time over its runs."""

    task: Task
    method: str
    sparsity: float
    fleet: int
    seconds: float
    device: str
    by_itself: bool = False  # run for its time alone
    mixed: bool | None = False  # whether other methods were in its fleet; None: not known
    epochs: int = EPOCHS  # what was run; the seconds are those of 60
    warm: bool = False  # its kernels were compiled before
    compiled: str | None = None  # by torch.compile: "True", "False", or as usual


@dataclass(frozen=True)
class Results:
    runs: tuple[Run, ...] = ()
    variants: tuple[Run, ...] = ()  # of another recipe than the tables
    timed: tuple[Timed, ...] = ()  # what was run for its time alone
    dense: tuple[Dense, ...] = ()
    traces: tuple[Trace, ...] = ()
    notes: tuple[str, ...] = ()  # what the files say of themselves
    files: tuple[str, ...] = ()


# --- from JSON to values ---


def _spelled(text: str) -> str:
    """One spelling: "NFT+ES" is "NFT + ES", "race×gender" is "race x gender"."""
    return re.sub(r"\s*×\s*", " x ", re.sub(r"\s*\+\s*", " + ", visible(text))).strip()


def _task(document: Json) -> Task:
    return Task(*(_spelled(document[key]) for key in ("dataset", "target", "group")))


def _per_split(document: Json, name: str, make: Callable[[Any], Any]) -> dict[str, Any]:
    found = {split: at(document, f"{name}.{split}") for split in SPLITS}
    return {split: make(value) for split, value in found.items() if value is not None}


def _floats(values: Iterable[float | None]) -> tuple[Any, ...]:
    return tuple(None if value is None else float(value) for value in values)


def _ints(values: Iterable[float]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _changes(value: Json) -> Changes:
    return Changes(*(_ints(value[what]) for what in ("samples", "broke", "fixed")))


def _versions(document: Json) -> dict[str, str]:
    given = document.get("versions") or {}
    return {key: visible(value) for key, value in given.items() if value not in (None, "")}


def _run(document: Json) -> Run:
    return Run(
        task=_task(document),
        method=_spelled(document["method"]),
        sparsity=round(document["sparsity"], 6),
        seed=int(document["seed"]),
        overall=document.get("overall") or "micro",
        figures={s: {m: float(document[s][m]) for m in MEASURES} for s in SPLITS},
        group_accuracy=_per_split(document, "group_accuracy", _floats),
        changes=_per_split(document, "changes", _changes),
        versions=_versions(document),
        **{key: document.get(key) for key in PLAIN},
    )


def _dense(document: Json, task: Task) -> Dense:
    return Dense(
        task=task,
        accuracy={split: float(document[split]["accuracy"]) for split in SPLITS},
        group_accuracy=_per_split(document, "group_accuracy", _floats),
        groups=tuple(document.get("groups") or ()),
        weights=document.get("weights"),
        recipe=document.get("recipe") or {},
        seconds=document.get("seconds"),
        image_size=document.get("image_size"),
    )


def _trace(document: Json) -> Trace:
    values: dict[str, Any] = {key: document.get(key) for key in ("buffer", "tolerance", "group", "diverged")}
    for key in ("seed", "stride", "steps_per_epoch", "first_epoch"):
        values[key] = int(document[key])
    for key in ("multiplier", "pairwise_disparity", "max_excess_gap"):
        values[key] = _floats(document.get(key) or ())
    return Trace(method=_spelled(document["method"]), sparsity=round(document["sparsity"], 6), **values)


def _timed(document: Json, task: Task) -> Timed:
    """A run for its time alone; a shorter one says what 60 epochs would take."""
    seconds = document.get("seconds_per_60_epochs") or document["seconds"]
    versions = _versions(document)
    return Timed(
        task,
        _spelled(document["method"]),
        round(document["sparsity"], 6),
        int(document["fleet"]),
        float(seconds),
        versions.get("device", "?"),
        by_itself=True,
        epochs=int(document.get("epochs") or EPOCHS),
        warm=document.get("compiled") == "warm",
        compiled=versions.get("compile"),
    )


def _served(document: Json, runs: Sequence[Run]) -> list[Task]:
    """The tasks that a dense model or a timing speaks of: the one that it names, or else all of its file."""
    named = all(document.get(key) for key in ("dataset", "target", "group"))
    return [_task(document)] if named else list(dict.fromkeys(run.task for run in runs))


# --- files ---


def read(files: Sequence[Path]) -> Results:
    """All runs of all files, in an order that does not hang on theirs; refuses whatever is wrong at once."""
    parts, problems = [], list[str]()
    for path in files:
        part, found = _read_file(path)
        parts.append(part)
        problems += found
    runs = sorted((run for part in parts for run in part.runs), key=order)
    if not problems:
        problems = _duplicates(parts)
        if not runs:
            names = ", ".join(map(str, files)) or "nothing was given"
            problems.append(f"there are no runs to report ({names})")
    if problems:
        raise InputProblems(_few(problems))
    return Results(
        runs=tuple(run for run in runs if not run.varied),
        variants=tuple(run for run in runs if run.varied),
        timed=tuple(timed for part in parts for timed in part.timed),
        dense=tuple(dense for part in parts for dense in part.dense),
        traces=tuple(trace for part in parts for trace in part.traces),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
        files=tuple(file for part in parts for file in part.files),
    )


def _few(problems: list[str]) -> list[str]:
    more = len(problems) - MOST_PROBLEMS
    return problems if more <= 0 else [*problems[:MOST_PROBLEMS], f"… and {more:,} more problems like these"]


def _read_file(path: Path) -> tuple[Results, list[str]]:
    nothing, said = Results(files=(str(path),)), visible(path)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        return nothing, [f"{said} cannot be read: {error.strerror or error}"]
    except (ValueError, RecursionError) as error:
        return nothing, [f"{said} is no JSON: {error}"]
    if kind_of(document) is None:
        return nothing, [f'{said} is no results file: it has no list named "runs", nor one named "traces"']
    if of_another_study(listed(document.get("runs"))):
        return nothing, [
            f"{said} is of no table of the paper: none of its runs names a target. The study beyond the "
            "paper has a page of its own (python paper/beyond.py page)"
        ]
    return _checked(document, path)


def _checked(document: Json, path: Path) -> tuple[Results, list[str]]:
    nothing, problems = Results(files=(str(path),)), document_problems(document)
    if problems:
        return nothing, [f"{visible(path)}: {problem}" for problem in problems]
    runs, traces, dense, timings = (listed(document.get(key)) for key in LISTS)
    made = tuple(map(_run, runs))
    usual = [run for run in made if not run.varied]
    of_tables = [timing for timing in timings if timing.get("recipe") is None]
    return Results(
        runs=made,
        timed=tuple(_timed(timing, task) for timing in of_tables for task in _served(timing, usual)[:1]),
        dense=tuple(_dense(model, task) for model in dense for task in _served(model, made)),
        traces=tuple(map(_trace, traces)),
        notes=(document["note"],) if document.get("note") else (),
        files=(str(path),),
    ), []


def order(run: Run) -> tuple[Any, ...]:
    """To sort runs by, whatever file they come from."""
    task = (run.task.dataset, run.task.target, run.task.group)
    numbers = [
        (value is not None, value or 0) for value in (run.tolerance, run.buffer, run.dual_lr, run.fleet)
    ]
    return (*task, run.sparsity, run.method, run.seed, *numbers, run.overall, run.recipe or "", run.length)


def _duplicates(parts: Iterable[Results]) -> list[str]:
    """The same settings and seed twice; one run alone and one in a fleet are two measurements of time."""
    places: dict[tuple[Any, ...], list[tuple[Run, str]]] = {}
    for part in parts:
        for i, run in enumerate(part.runs, start=1):
            key = (*run.settings, run.seed, run.alone)
            places.setdefault(key, []).append((run, f"{part.files[0]}: run {i}"))
    return [
        f"the same run occurs {len(same)} times ({same[0][0].name}): "
        f"{'; '.join(visible(place) for _, place in same)}. Keep one, or name the files to report"
        for same in places.values()
        if len(same) > 1
    ]
