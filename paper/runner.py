"""Runs cells of a table in fleets, skips finished ones, resumes killed ones: what every data set shares.

Needs torch, numpy and safetensors only; rich, where it is there, shows a progress bar.
"""

import hashlib
import itertools
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import evenprune
from evenprune import run_figures, trackers
from evenprune.predict import Predictions, predict, scores
from evenprune.recipe import PAPER_SGD, Data, Recipe, Run, Split, steps_down
from evenprune.tally import InputProblems
from evenprune.trackers import Hook
from evenprune.training import Fitted, fit, identify
from paper import results_file
from paper.cells import Cell, label, method_of
from paper.results_file import MEASURES, SPLITS, problems

__all__ = ["Start", "Trained", "Where", "fill", "measure", "problems", "rows_of", "train"]
ROOT = Path(__file__).resolve().parent.parent
LINE_EVERY = 10  # epochs
C = TypeVar("C")
RECIPE = Recipe(  # the paper's, for CIFAR-100 and, with flips, for UTKFace
    epochs=60,
    pruning_epochs=15,  # the last pruning is that of epoch 14
    batch_size=128,
    optimizer=PAPER_SGD,
    scheduler=steps_down,
    weight_decay=1e-4,
    decay_everything=True,
    only_at_end=("train",),
)


@dataclass(frozen=True)
class Where:
    """Where the runs are trained and what is written."""

    results: Path
    work: Path  # checkpoints: a killed training goes on from there
    device: torch.device
    fleet: int = 45  # runs in one widened network at the most
    commit: str | None = None
    compile: bool | None = None  # as the command line switched it; None: it did not
    hooks: tuple[Hook, ...] = ()
    say: Callable[[str], None] = print


@dataclass(frozen=True)
class Start:
    """The dense model, and what it answers on the splits: where every run begins."""

    model: nn.Module
    data: Data
    answers: Mapping[str, Predictions]  # of the dense model, by split
    facts: Mapping[str, Any] = field(default_factory=dict)  # of the data, for every row: {"image_size": 128}

    @property
    def names(self) -> tuple[str, ...]:
        return self.data.reference.names


@dataclass(frozen=True)
class Trained:
    """One fleet that has been trained."""

    fitted: list[Fitted]
    seconds: float  # a run: wall-clock of the fleet by its runs
    resumed: bool  # then only the epochs are in the seconds, without compilation and the last evaluation
    together: int = 1  # runs in one network


def measure(
    model: nn.Module,
    splits: Mapping[str, Split],
    names: Sequence[str],
    *,
    recipe: Recipe,
    where: Where,
    facts: Mapping[str, Any] | None = None,
) -> Start:
    """The dense model on every split, "train" among them: clean images, in the precision of the runs."""
    answers = answers_of(model, splits, recipe, where)
    model.cpu()
    data = Data(train=splits["train"], evaluate=splits, reference=answers["train"].reference(names))
    return Start(model, data, answers, facts or {})


def answers_of(
    model: nn.Module, splits: Mapping[str, Split], recipe: Recipe, where: Where
) -> dict[str, Predictions]:
    told, place = recipe.on(where.device), where.device
    return {
        name: predict(model, split, device=place, batch_size=told.evaluate_batch, precision=told.precision)
        for name, split in splits.items()
    }


def is_finished(cells: Sequence[Cell], where: Where) -> bool:
    """Whether there is nothing to train, which is then told: no need to measure the dense model."""
    finished = not results_file.missing(results_file.read(where.results), cells)
    if finished:
        where.say(f"All {len(cells)} runs are finished.")
    return finished


def fill(start: Start, cells: Sequence[Cell], recipe: Recipe, where: Where) -> None:
    """Train the cells that the results lack; the file grows after each fleet."""
    missing = results_file.missing(results_file.read(where.results), cells)
    parts = fleets(list(dict.fromkeys(trained_as(cell, missing) for cell in missing)), where.fleet)
    where.say(f"{len(cells) - len(missing)} of {len(cells)} runs are finished, {len(missing)} to do.")
    for number, part in enumerate(parts, 1):
        trained = train(start, part, recipe, where)
        served = [cell for cell in missing if trained_as(cell, missing) in part]
        results_file.add_runs(where.results, rows_of(start, part, trained, where, served=served))
        where.say(
            f"Fleet {number} of {len(parts)}: {len(part)} runs, {trained.seconds:.1f} s each"
            f"{' (resumed)' if trained.resumed else ''}; written to {where.results}"
        )


def fleets(cells: Sequence[C], most: int) -> list[list[C]]:
    """In order, as few fleets as possible, of even size: what is left after a kill makes the same fleets."""
    if most < 1:
        raise InputProblems([f"fleets of {most} runs: give at least 1"])
    count = -(-len(cells) // most)
    size, larger = divmod(len(cells), count) if count else (0, 0)
    ends = [i * size + min(i, larger) for i in range(count + 1)]
    return [list(cells[a:b]) for a, b in itertools.pairwise(ends)]


def trained_as(cell: Cell, cells: Container[Cell]) -> Cell:
    """The run that serves a cell: NFT + ES is NFT that keeps an earlier iterate, so one run serves both."""
    other = replace(cell, method="NFT + ES")
    return other if cell.method == "NFT" and other in cells else cell


def runs_of(cells: Sequence[Cell]) -> list[Run]:
    return [Run(method=method_of(cell), sparsity=cell.sparsity, seed=cell.seed) for cell in cells]


def train(start: Start, cells: Sequence[Cell], recipe: Recipe, where: Where) -> Trained:
    """All cells as one fleet, saved in a folder of its own that only the very same fleet can find again."""
    return fit_fleet(start, runs_of(cells), recipe, where, kind="fleet")


def fit_fleet(start: Start, runs: Sequence[Run], recipe: Recipe, where: Where, *, kind: str) -> Trained:
    whole = json.dumps(identify(start.model, start.data, runs=runs, recipe=recipe.on(where.device)))
    folder = where.work / f"{kind}-{hashlib.sha256(whole.encode()).hexdigest()[:16]}"
    resumed = any(folder.rglob("checkpoint.safetensors"))
    began = time.perf_counter()
    fitted = fit(
        start.model,
        start.data,
        runs=runs,
        recipe=recipe,
        folder=folder,
        device=where.device,
        hooks=where.hooks,
    )
    seconds = time.perf_counter() - began
    if resumed:
        seconds = run_figures.seconds(fitted)
    together = min(len(runs), recipe.fleet_size or len(runs))
    return Trained(fitted, seconds / len(runs), resumed, together)


def rows_of(
    start: Start,
    cells: Sequence[Cell],
    trained: Trained,
    where: Where,
    *,
    served: Sequence[Cell] | None = None,
) -> list[dict[str, Any]]:
    """The entries of the results file: of the cells that were trained, or of those that they serve."""
    by_cell = dict(zip(cells, trained.fitted, strict=True))
    shared = {
        "seconds": round(trained.seconds, 3),
        "resumed": trained.resumed,
        "fleet": trained.together,
        "versions": versions(where.device, where.compile),
        "commit": where.commit,
    }
    return [
        cell.row() | dict(start.facts) | _found(start, by_cell[trained_as(cell, by_cell)], cell) | shared
        for cell in served or cells
    ]


def _found(start: Start, fitted: Fitted, cell: Cell) -> dict[str, Any]:
    early = cell.method == "NFT + ES"
    return {
        **figures(start, fitted.predictions if early else fitted.last),
        "kept_epoch": fitted.kept_epoch if early else len(fitted.history) - 1,
        "negative_weights": sum(row["negative_weights"] for row in fitted.history),
        "multiplier_sum": fitted.history[-1]["multiplier_sum"],
        **run_figures.if_diverged(fitted),
    }


def figures(start: Start, answers: Mapping[str, Predictions]) -> dict[str, Any]:
    """What a row says of the answers of a run: its measures, accuracies and changes by split."""
    measured = {split: scores_of(start, answers[split], split) for split in SPLITS}
    return {
        **{split: {name: measured[split][name] for name in MEASURES} for split in SPLITS},
        "group_accuracy": {split: measured[split]["group_accuracy"] for split in SPLITS},
        "changes": {split: changes(start, answers[split], split) for split in SPLITS},
    }


def scores_of(start: Start, answers: Predictions, split: str) -> dict[str, Any]:
    """Accuracy, max ψ, Ψ_PW and the accuracy of every group, as plain numbers."""
    dense = start.answers[split].reference(start.names)
    told = scores(
        start.data.evaluate[split], answers.predictions.unsqueeze(0), answers.losses.unsqueeze(0), dense
    )
    return {name: plain(values[0]) for name, values in told.items()}


def changes(start: Start, answers: Predictions, split: str) -> dict[str, list[int]]:
    """Samples per group, and how many the pruning broke (dense right, sparse wrong) and fixed."""
    before, after, groups = start.answers[split].correct, answers.correct, answers.groups
    picked = {"samples": torch.ones_like(before), "broke": before & ~after, "fixed": ~before & after}
    known = groups >= 0
    return {
        name: torch.bincount(groups[known & mask], minlength=len(start.names)).tolist()
        for name, mask in picked.items()
    }


def plain(values: Tensor) -> Any:
    """A number, or a list of them; None for what is not finite."""
    if values.ndim:
        return [plain(value) for value in values]
    return float(values) if bool(values.isfinite()) else None


def timing_facts(start: Start, cells: Sequence[Cell], recipe: Recipe, where: Where) -> dict[str, Any]:
    """What a timing is of: all of its entry but the seconds."""
    return {
        **vars(cells[0].task),
        **start.facts,
        "method": cells[0].method,
        "sparsity": cells[0].sparsity,
        "fleet": len(cells),
        "epochs": recipe.epochs,
        "compiled": "warm",
        "versions": versions(where.device, where.compile),
        "commit": where.commit,
    }


def warm_up(start: Start, runs: Sequence[Run], recipe: Recipe, where: Where) -> None:
    """One epoch of a fleet of the same shapes: afterwards kernels are compiled, and the device is awake."""
    fit(start.model, start.data, runs=runs, recipe=shortened(recipe, 1), device=where.device)


def seconds_of(start: Start, runs: Sequence[Run], recipe: Recipe, where: Where) -> dict[str, float]:
    """Wall-clock of a fleet from nothing to its answers, by run, what is left of compilation included.

    Nothing is saved. Of 60 epochs where there were fewer: what begins and ends a training, and steps that are
    captured anew, count once; each epoch that is missing counts as the median one of its kind, pruning or
    not. The first epoch, which prunes nothing yet and may compile, stands for no other.
    """
    began = time.perf_counter()
    fitted = fit(start.model, start.data, runs=runs, recipe=recipe, device=where.device, hooks=where.hooks)
    whole = time.perf_counter() - began
    spent = [row["seconds"] for row in fitted[0].history]
    first, wanted = recipe.pruning_epochs, RECIPE.pruning_epochs
    rest = spent[max(first, 1) :] or spent
    kinds = ((wanted - first, spent[1:first] or rest), (RECIPE.epochs - wanted - len(spent[first:]), rest))
    missing = sum(count * statistics.median(own) for count, own in kinds)
    seconds = {"seconds": whole, "seconds_per_60_epochs": whole + missing}
    return {name: round(value / len(runs), 3) for name, value in seconds.items()}


def shortened(recipe: Recipe, epochs: int) -> Recipe:
    """The same recipe with fewer epochs, the same share of them for pruning."""
    pruning = round(recipe.pruning_epochs * epochs / recipe.epochs)
    return replace(recipe, epochs=epochs, pruning_epochs=pruning)


def versions(device: torch.device, compile: bool | None = None) -> dict[str, Any]:
    """What a row was made with; whether it was compiled only where the command line said so."""
    on_gpu = device.type == "cuda"
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "evenprune": evenprune.__version__,
        "device": torch.cuda.get_device_name(device) if on_gpu else device.type,
        **({} if compile is None else {"compile": compile}),
    }


def finished_lines(document: results_file.Document, cells: Sequence[Cell]) -> list[str]:
    """One line a setting: the seeds that are there, and a dot for each that is missing."""
    left = set(results_file.missing(document, cells))
    tasks = {cell.task for cell in cells}
    found: dict[tuple[str, float], list[str]] = {}
    for cell in dict.fromkeys(cells):
        named = f"{cell.target}/{cell.group}: {label(cell)}" if len(tasks) > 1 else label(cell)
        words = found.setdefault((named, cell.sparsity), [])
        words.append("·" if cell in left else str(cell.seed))
    wide = max(16, *(len(name) for name, _ in found))
    lines = [
        f"{name:<{wide}}{sparsity:>9.1%}  {' '.join(words)}" for (name, sparsity), words in found.items()
    ]
    return [f"{'method':<{wide}}{'sparsity':>9}  seeds finished (·: missing)", *lines]


def commit_here(root: Path = ROOT) -> str | None:
    """The commit of this checkout; None where there is none. "-dirty": with other changes than results."""
    results = [f":(exclude){name}" for name in ("paper/results", "benchmarks/results")]
    commit = _git(root, "describe", "--always", "--exclude", "*")
    changed = commit and _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", *results)
    return f"{commit}-dirty" if changed else commit or None


def _git(root: Path, *words: str) -> str:
    """What git says; nothing where there is no git, or no checkout."""
    try:
        found = subprocess.run(["git", *words], capture_output=True, text=True, check=False, cwd=root)
    except OSError:
        return ""
    return found.stdout.strip()


def progress() -> tuple[Hook, ...]:
    """A bar on a terminal that rich can draw on; else a line now and then."""
    if not sys.stderr.isatty():
        return (EpochLines(),)
    try:
        return (trackers.ProgressBar(),)
    except ImportError:
        return (EpochLines(),)


class EpochLines:
    """One line every few epochs, for logs."""

    def __init__(self, say: Callable[[str], None] | None = None) -> None:
        self.say = say or (lambda text: print(text, file=sys.stderr, flush=True))
        self.began = time.monotonic()

    def start(self, runs: Sequence[Run], epochs: int, past: Sequence[Sequence[trackers.Row]]) -> None:
        self.began = time.monotonic()
        label = f"{len(runs)} runs" if len(runs) > 1 else str(runs[0])
        self.say(f"{label}, {epochs} epochs" + (f", from epoch {len(past) + 1}" if past else ""))

    def epoch(self, rows: Sequence[trackers.Row]) -> None:
        if (rows[0]["epoch"] + 1) % LINE_EVERY == 0:
            self.say(f"{trackers.news(rows)} · {time.monotonic() - self.began:.0f} s")

    def finish(self) -> None:
        pass
