"""The results file: read, checked, merged and replaced whole. It holds plain JSON, fractions, not percent.

{"runs": [one entry per cell], "dense": …, "timings": [wall-clock of runs by themselves]}

"dense" is the dense model; or a list of them, where each names the task (dataset, target, group) it is for.
"""

import contextlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evenprune import atomic
from evenprune.paper_results import Task
from evenprune.tally import InputProblems
from paper.cells import IDENTITY, KINDS, Cell

try:
    import fcntl
except ImportError:  # Windows: then one process at a time
    fcntl = None  # type: ignore[assignment]

Document = dict[str, Any]
Check = Callable[[Any], list[str]]  # everything that is wrong with a document
Rule = tuple[str, Callable[[Any], bool]]  # what a value must be, in words and as a test
TASK = ("dataset", "target", "group")
SPLITS = ("train", "test")
MEASURES = ("accuracy", "max_excess_gap", "pairwise_disparity")
COUNTS = ("samples", "broke", "fixed")
CLOSE = 1e-6
MOST_TOLD = 20  # problems of one file


def read(path: Path, check: Check | None = None) -> Document:
    """What the file holds, or one error that lists all that is wrong with it; nothing yet if it is absent."""
    if not path.exists():
        return {"runs": []}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputProblems(
            [f"{path} is not JSON ({error}); put back a good copy, or move it away"]
        ) from error
    _refuse(path, (check or problems)(document))
    return document  # type: ignore[no-any-return]  # checked above


def change(
    path: Path,
    edit: Callable[[Document], None],
    *,
    check: Check | None = None,
    order: Callable[[Mapping[str, Any]], Any] | None = None,
) -> None:
    """Read the file anew, edit, check, replace: what others wrote in the meantime stays.

    `check` and `order` are those of another kind of file of runs.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path.parent):
        document = read(path, check)
        edit(document)
        document["runs"].sort(key=order or _order)
        _refuse(path, (check or problems)(document))
        atomic.write_text(path, to_text(document))


def add_runs(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Rows of cells that the file does not have yet; a cell that it has stays as it was."""

    def edit(document: Document) -> None:
        held = {key_of(run) for run in document["runs"]}
        document["runs"] += [row for row in rows if key_of(row) not in held]

    change(path, edit)


def set_dense(path: Path, dense: Mapping[str, Any]) -> None:
    """The one dense model of all runs in the file."""
    change(path, lambda document: document.update(dense=dense))


def add_dense(path: Path, models: Sequence[Mapping[str, Any]]) -> None:
    """Dense models of some tasks, which they name; those of other tasks stay."""

    def edit(document: Document) -> None:
        new = {task_of(model) for model in models}
        kept = [model for model in dense_models(document) if task_of(model) not in new]
        document["dense"] = sorted([*kept, *models], key=lambda model: _task_order(task_of(model)))

    change(path, edit)


def dense_models(document: Document) -> list[Mapping[str, Any]]:
    held = document.get("dense", [])
    return held if isinstance(held, list) else [held]


def dense_of(document: Document, task: Task) -> Mapping[str, Any] | None:
    """The dense model that the runs of a task start from: it names the task, or serves all."""
    return next((model for model in dense_models(document) if task_of(model) in (task, None)), None)


def task_of(values: Mapping[str, Any]) -> Task | None:
    """The task that a part of the file names; None if it names none, and so serves all."""
    named = [values.get(name) for name in TASK]
    return Task(*map(str, named)) if all(named) else None


def _task_order(task: Task | None) -> tuple[str, ...]:
    return () if task is None else tuple(vars(task).values())


def add_timing(path: Path, timing: Mapping[str, Any], **kind: Any) -> None:
    """kind: `check` and `order` of another kind of file."""
    change(path, lambda document: document.setdefault("timings", []).append(timing), **kind)


def is_timed(document: Document, facts: Mapping[str, Any]) -> bool:
    """Whether the file has a timing of the same: see runner.timing_facts."""
    return any(facts.items() <= timing.items() for timing in document.get("timings", []))


def missing(document: Document, cells: Iterable[Cell]) -> list[Cell]:
    """The cells that the file has no run of; each once, in the order given."""
    held = {key_of(run) for run in document["runs"]}
    return [cell for cell in dict.fromkeys(cells) if key_of(vars(cell)) not in held]


def key_of(values: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells one cell from another."""
    return tuple(values.get(name) for name in IDENTITY)


def to_text(document: Document) -> str:
    """JSON with one run a line: whoever compares two versions sees which runs are new."""
    parts = [f"{json.dumps(name)}: {_part(value)}" for name, value in document.items()]
    return "{" + ",\n".join(parts) + "}\n"


def _part(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return json.dumps(value, allow_nan=False)
    return "[\n" + ",\n".join(json.dumps(entry, allow_nan=False) for entry in value) + "\n]"


def _order(run: Mapping[str, Any]) -> tuple[Any, ...]:
    methods = {name: place for place, name in enumerate(KINDS)}
    settings = (run.get(name) or 0 for name in ("sparsity", "buffer", "tolerance", "dual_lr", "seed"))
    sparsity, buffer, *rest = settings
    method, overall = methods.get(run.get("method", ""), len(methods)), run.get("overall") or ""
    return (*_task_order(task_of(run)), sparsity, method, overall, buffer, *rest)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One writer at a time; the lock goes with the process, however it ends, and leaves no file behind."""
    handle = os.open(folder, os.O_RDONLY) if fcntl else None
    try:
        if handle is not None:
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _refuse(path: Path, found: Sequence[str]) -> None:
    if found:
        told = [f"{path}: {problem}" for problem in found[:MOST_TOLD]]
        more = len(found) - len(told)
        raise InputProblems([*told, f"{path}: {more:,} more; is it of another kind?"] if more else told)


def problems(document: Any) -> list[str]:
    """Everything that keeps a document from being a results file."""
    if not isinstance(document, dict) or not isinstance(document.get("runs"), list):
        return ['it must be {"runs": [ … ], … }']
    found = []
    for place, run in enumerate(document["runs"]):
        found += [f"runs[{place}]: {problem}" for problem in _run_problems(run)]
    if not found:
        times = Counter(key_of(run) for run in document["runs"])
        found += [f"there are {n} runs of {key}" for key, n in times.items() if n > 1]
    for model in dense_models(document):
        found += [f"dense: {problem}" for problem in _dense_problems(model)]
    if isinstance(document.get("dense"), list):
        found += _task_problems(document["dense"])
    for place, timing in enumerate(document.get("timings", [])):
        broken = broken_rules(timing, TIMING_RULES, TIMING_EXTRAS)
        found += [f"timings[{place}]: {problem}" for problem in broken]
    return found


def broken_rules(
    values: Any, rules: Mapping[str, Rule], extras: Mapping[str, Rule] | None = None
) -> list[str]:
    """One line per named value that is absent or not what it must be; extras may be absent."""
    if not isinstance(values, Mapping):
        return ["it must be an object"]
    absent = [f"{name} is missing" for name in rules if name not in values]
    return absent + [
        f"{name} is {str(values[name])[:60]}; it must be {words}"
        for name, (words, holds) in {**rules, **(extras or {})}.items()
        if name in values and not holds(values[name])
    ]


def _number(low: float, high: float = math.inf) -> Rule:
    def holds(value: Any) -> bool:
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        return plain and math.isfinite(value) and low <= value <= high

    return (f"a number from {low:g} to {high:g}", holds)


def _or_null(rule: Rule) -> Rule:
    return (f"{rule[0]}, or null", lambda value: value is None or rule[1](value))


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _list_of(rule: Rule) -> Rule:
    return (
        f"a list with {rule[0]} in each place",
        lambda value: isinstance(value, list) and len(value) > 0 and all(rule[1](entry) for entry in value),
    )


def _object_of(rules: Mapping[str, Rule]) -> Rule:
    words = "an object of " + ", ".join(f"{name} ({text})" for name, (text, _) in rules.items())
    return (words, lambda value: not broken_rules(value, rules))


def _by_split(rule: Rule) -> Rule:
    return _object_of(dict.fromkeys(SPLITS, rule))


TEXT: Rule = ("a text", lambda value: isinstance(value, str) and value != "")
WHOLE: Rule = ("a whole number of at least 0", _whole)
SHARE = _number(0, 1)
VERSIONS = _object_of(dict.fromkeys(("python", "torch", "evenprune", "device"), TEXT))
# A gap lies between −1 and 1; ψ, a gap less that of all samples, between −2 and 2.
MEASURED = _object_of(
    {"accuracy": SHARE, "max_excess_gap": _number(-2, 2), "pairwise_disparity": _number(0, 2)}
)
GROUP_ACCURACY = _by_split(_list_of(_or_null(SHARE)))  # null: no sample of that group

IMAGE_SIZE = {"image_size": WHOLE}  # the side of the images in pixels, where it was chosen
TASK_RULES = dict.fromkeys(TASK, TEXT)
RUN_RULES: dict[str, Rule] = {
    **TASK_RULES,
    "method": (f"one of {', '.join(KINDS)}", lambda value: value in KINDS),
    "sparsity": SHARE,
    "seed": WHOLE,
    "tolerance": _or_null(SHARE),
    "dual_lr": _or_null(_number(0)),
    "buffer": _or_null(WHOLE),
    "train": MEASURED,
    "test": MEASURED,
    "group_accuracy": GROUP_ACCURACY,
    "changes": _by_split(_object_of(dict.fromkeys(COUNTS, _list_of(WHOLE)))),
    "kept_epoch": WHOLE,
    "seconds": _number(0),
    "fleet": WHOLE,
    "negative_weights": WHOLE,
    "multiplier_sum": _or_null(_number(-math.inf)),
    "versions": VERSIONS,
    "commit": _or_null(TEXT),
}
RUN_EXTRAS = {
    "overall": ('"macro", or absent', lambda value: value == "macro"),
    "mean": ('"detached", or absent', lambda value: value == "detached"),
    "while_pruning": ("true, or absent", lambda value: value is True),
    "diverged": WHOLE,
    **IMAGE_SIZE,
}
DENSE_RULES: dict[str, Rule] = {
    "weights": TEXT,
    "sha256": TEXT,  # of the file of weights: what the runs started from
    **dict.fromkeys(SPLITS, _object_of({"accuracy": SHARE})),
    "group_accuracy": GROUP_ACCURACY,
    "groups": _list_of(TEXT),
    "recipe": ("an object", lambda value: isinstance(value, dict)),
    "seconds": _number(0),
    "versions": VERSIONS,
    "commit": _or_null(TEXT),
}
DENSE_EXTRAS = {**TASK_RULES, **IMAGE_SIZE}
TIMING_RULES: dict[str, Rule] = {
    "method": RUN_RULES["method"],
    "sparsity": SHARE,
    "fleet": WHOLE,
    "epochs": WHOLE,
    "seconds": _number(0),
    "seconds_per_60_epochs": _number(0),
    "versions": VERSIONS,
    "commit": _or_null(TEXT),
}
TIMING_EXTRAS = {
    **TASK_RULES,
    **IMAGE_SIZE,
    "compiled": ('"warm" (another fit went before), or absent', lambda value: value == "warm"),
}


def _run_problems(run: Any) -> list[str]:
    found = broken_rules(run, RUN_RULES, RUN_EXTRAS)
    return found or [
        f"{split}: {problem}" for split in SPLITS for problem in _arithmetic_problems(run, split)
    ]


def _arithmetic_problems(run: Mapping[str, Any], split: str) -> list[str]:
    """The numbers of a split follow from its counts per group; every sample has a group."""
    told, shares, counts = run[split], run["group_accuracy"][split], run["changes"][split]
    if len({len(shares), *(len(counts[name]) for name in COUNTS)}) > 1:
        return ["group_accuracy and changes differ in length"]
    rows = [row for row in zip(shares, *(counts[name] for name in COUNTS), strict=True) if row[1]]
    if not rows:
        return ["no group has samples"]
    if any(share is None or broke + fixed > n for share, n, broke, fixed in rows):
        return ["a group has more changes than samples, or samples and no accuracy"]
    total = sum(n for _, n, _, _ in rows)
    gaps = [(broke - fixed) / n for _, n, broke, fixed in rows]  # Δ_g
    gap = sum(broke - fixed for _, _, broke, fixed in rows) / total  # Δ
    expected = {
        "accuracy": sum(share * n for share, n, _, _ in rows) / total,
        "max_excess_gap": max(gaps) - gap,  # ψ_g = Δ_g − Δ
        "pairwise_disparity": max(gaps) - min(gaps),
    }
    return [
        f"{name} is {told[name]:.6f}, but the groups give {value:.6f}"
        for name, value in expected.items()
        if abs(told[name] - value) > CLOSE
    ]


def _dense_problems(dense: Any) -> list[str]:
    found = broken_rules(dense, DENSE_RULES, DENSE_EXTRAS)
    if not found:
        sizes = {len(dense["groups"]), *(len(dense["group_accuracy"][split]) for split in SPLITS)}
        found += ["groups and group_accuracy differ in length"] if len(sizes) > 1 else []
    return found


def _task_problems(models: Sequence[Any]) -> list[str]:
    """Of several dense models, each is for a task of its own."""
    tasks = [task_of(model) if isinstance(model, Mapping) else None for model in models]
    nameless = [f"dense[{place}]: it names no task" for place, task in enumerate(tasks) if task is None]
    return nameless + [
        f"there are {n} dense models of {task}" for task, n in Counter(tasks).items() if task and n > 1
    ]
