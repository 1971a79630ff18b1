"""CIFAR-100 (100 classes, each a group; CifarResNet-56): the paper's tables, run anew.

    python paper/cifar100.py dense       the dense model, from scratch
    python paper/cifar100.py table       three sparsities × six methods × five seeds
    python paper/cifar100.py buffers     CEAG at 95 % with rings of 0 to 80, and with the table
    python paper/cifar100.py dynamics    multipliers step by step, and the run that constrains Ψ_PW
    python paper/cifar100.py timing      wall-clock of runs by themselves
    python paper/cifar100.py list        what is finished

Any of them can be killed and started again. README.md says more.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.optim import SGD

if __package__ in (None, ""):  # run as a file: its neighbours are found from the folder above
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from evenprune import atomic
from evenprune.augment import Both, Crop, Flip
from evenprune.checkpoint import CheckpointError
from evenprune.data import cifar100
from evenprune.models import cifar_resnet56
from evenprune.recipe import PAPER_SGD, Recipe, steps_down
from evenprune.tally import InputProblems
from evenprune.training import NotFinite
from paper import dense_model, multipliers, results_file, runner
from paper.cells import KINDS, TABLE_METHODS, Cell, Task, cell_of, seeds_in, table_cells
from paper.runner import ROOT, Start, Where

TASK = Task("cifar100", "class", "class")
SPARSITIES = (0.925, 0.95, 0.9)  # the paper's main table first
BUFFERS = (20, 40, 60, 80)  # without any: the method "CEAG (no RB)"
BUFFER_SPARSITY = 0.95
PW_SPARSITY, PW_TOLERANCE = 0.95, 0.10  # of the paper's figure; dual step and rings as CEAG's there
METHODS = [name for name in KINDS if name != "PW"]  # PW has one cell, that of `dynamics`
DYNAMICS_SPARSITY = 0.9
STRIDE = 5  # every fifth step of a trace is kept
RECIPE = Recipe(
    epochs=60,
    pruning_epochs=15,  # the last pruning is that of epoch 14
    batch_size=128,
    optimizer=PAPER_SGD,
    scheduler=steps_down,
    weight_decay=1e-4,
    decay_everything=True,
    only_at_end=("train",),
)


def dense_recipe(*, epochs: int, lr: float, batch: int) -> Recipe:
    """Crop and flip, Nesterov, cosine to zero: to 72 to 73 % on the test images in 200 epochs."""
    return Recipe(
        epochs=epochs,
        pruning_epochs=0,
        batch_size=batch,
        optimizer=partial(SGD, lr=lr, momentum=0.9, nesterov=True),
        scheduler=dense_model.cosine,
        weight_decay=5e-4,
        decay_everything=True,
        augment=Both(Crop(4), Flip()),
        only_at_end=("train",),
    )


def buffer_cells(seeds: Sequence[int]) -> list[Cell]:
    """k = 0 and k = 40 are cells of the table."""
    ends = ("CEAG (no RB)", "CEAG (table)")
    without, table = (
        table_cells(TASK, sparsities=[BUFFER_SPARSITY], methods=[name], seeds=seeds) for name in ends
    )
    rings = table_cells(TASK, sparsities=[BUFFER_SPARSITY], methods=["CEAG"], seeds=seeds)
    return without + [replace(cell, buffer=k) for k in BUFFERS for cell in rings] + table


def pairwise_cell(seed: int) -> Cell:
    return replace(cell_of(TASK, "PW", sparsity=PW_SPARSITY, seed=seed), tolerance=PW_TOLERANCE)


def dynamics_cells(seed: int) -> list[Cell]:
    """CEAG with and without rings, and the single constraint on Ψ_PW."""
    names = ("CEAG", "CEAG (no RB)")
    pair = table_cells(TASK, sparsities=[DYNAMICS_SPARSITY], methods=names, seeds=[seed])
    return [*pair, pairwise_cell(seed)]


def every_cell(seeds: Sequence[int]) -> list[Cell]:
    table = table_cells(TASK, sparsities=SPARSITIES, methods=TABLE_METHODS, seeds=seeds)
    return list(dict.fromkeys([*table, *buffer_cells(seeds), pairwise_cell(0)]))


def splits_in(folder: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    data = cifar100.load(folder)
    parts = {"train": data.train, "test": data.test}
    return {name: cifar100.split(images, "class") for name, images in parts.items()}, data.classes


def start_from(flags: argparse.Namespace, where: Where) -> Start:
    """The dense model and the data, checked against the results file before anything is trained."""
    model = dense_model.load_weights(flags.weights, cifar_resnet56())
    dense_model.refuse_other_weights(results_file.read(where.results), flags.weights, where.results)
    splits, names = splits_in(flags.data)
    return runner.measure(model, splits, names, recipe=RECIPE, where=where)


def dense(flags: argparse.Namespace, where: Where) -> None:
    held = results_file.read(where.results)
    if "dense" in held and flags.weights.exists():
        dense_model.refuse_other_weights(held, flags.weights, where.results)
        where.say(f"The dense model is trained: {flags.weights}. Remove that file to train it again.")
        return
    if held["runs"]:
        other = f"{where.results} has {len(held['runs'])} runs of a dense model whose weights are not"
        raise InputProblems([f"{other} {flags.weights}; put them back, or give --results another file"])
    settings = {"epochs": flags.epochs, "lr": flags.lr, "batch": flags.batch}
    torch.manual_seed(flags.seed)
    splits, names = splits_in(flags.data)
    recipe = replace(dense_recipe(**settings), checkpoint_epochs=flags.save_every)
    untrained = runner.measure(cifar_resnet56(), splits, names, recipe=recipe, where=where)
    trained = dense_model.train_dense(untrained, recipe, where, seed=flags.seed)
    dense_model.write_weights(flags.weights, trained.fitted[0].model)
    start = runner.measure(trained.fitted[0].model, splits, names, recipe=RECIPE, where=where)
    told = settings | {"seed": flags.seed, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}
    told |= {"decay_everything": True, "schedule": "cosine to 0, per epoch", "augment": "crop 4, flip"}
    document = dense_model.dense_document(start, trained, flags.weights, told, where)
    results_file.set_dense(where.results, document)
    where.say(
        f"Dense model: {document['train']['accuracy']:.2%} train, {document['test']['accuracy']:.2%} test, "
        f"{trained.seconds:.0f} s; {flags.weights}"
    )


def recipe_for(flags: argparse.Namespace) -> Recipe:
    """How often is saved is no part of the experiment: a resumed one may change it."""
    return replace(RECIPE, checkpoint_epochs=flags.save_every)


def table(flags: argparse.Namespace, where: Where) -> None:
    cells = table_cells(TASK, sparsities=flags.sparsity, methods=flags.methods, seeds=flags.seeds)
    runner.fill(start_from(flags, where), cells, recipe_for(flags), where)


def buffers(flags: argparse.Namespace, where: Where) -> None:
    runner.fill(start_from(flags, where), buffer_cells(flags.seeds), recipe_for(flags), where)


def dynamics(flags: argparse.Namespace, where: Where) -> None:
    if flags.multipliers.exists():
        where.say(f"Finished: {flags.multipliers}. Remove it to run again.")
        return
    trace(start_from(flags, where), dynamics_cells(0), recipe_for(flags), where, flags.multipliers)


def trace(start: Start, cells: Sequence[Cell], recipe: Recipe, where: Where, path: Path) -> None:
    """One fleet, the training split evaluated after every epoch; its runs also go to the results."""
    followed = replace(recipe, trace=True, only_at_end=())
    trained = runner.train(start, cells, followed, where)
    buffered = next(fit for cell, fit in zip(cells, trained.fitted, strict=True) if cell.method == "CEAG")
    places = multipliers.steady_and_resting(multipliers.traced(buffered))
    traces = [
        entry
        for cell, fitted in zip(cells, trained.fitted, strict=True)
        for entry in multipliers.traces_of(start, cell, fitted, recipe, places=places, stride=STRIDE)
    ]
    results_file.add_runs(where.results, runner.rows_of(start, cells, trained, where))
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_text(path, results_file.to_text({"traces": traces}))
    where.say(f"{len(traces)} traces of {', '.join(start.names[p] for p in places)} and Ψ_PW; {path}")


def timing(flags: argparse.Namespace, where: Where) -> None:
    start, recipe = start_from(flags, where), runner.shortened(RECIPE, flags.epochs)
    for method in flags.methods:
        seeds = range(flags.fleet)
        cells = table_cells(TASK, sparsities=flags.sparsity, methods=[method], seeds=seeds)
        entry = runner.time_fleet(start, cells, recipe, where)
        results_file.add_timing(where.results, entry)
        where.say(f"{method}: {entry['seconds']:.1f} s a run of {flags.epochs} epochs, {flags.fleet} at once")


def show(flags: argparse.Namespace, where: Where) -> None:
    """What is finished: one line a method, one column a sparsity, the seeds that are there and missing."""
    held = results_file.read(where.results)
    left = set(results_file.missing(held, every_cell(flags.seeds)))
    lines: dict[tuple[str, float], list[str]] = {}
    for cell in every_cell(flags.seeds):
        ring = "" if cell.buffer in (None, 0, 40) else f", k = {cell.buffer}"
        words = lines.setdefault((cell.method + ring, cell.sparsity), [])
        words.append("·" if cell in left else str(cell.seed))
    where.say(f"{'method':<16}{'sparsity':>9}  seeds finished (·: missing)")
    for (method, sparsity), words in lines.items():
        where.say(f"{method:<16}{sparsity:>9.1%}  {' '.join(words)}")
    where.say(f"dense model: {'finished' if 'dense' in held else 'missing'}")
    where.say(f"multipliers: {'finished' if flags.multipliers.exists() else 'missing'}")
    where.say(f"timings: {len(held.get('timings', []))}")


COMMANDS: dict[str, Callable[[argparse.Namespace, Where], None]] = {
    "dense": dense,
    "table": table,
    "buffers": buffers,
    "dynamics": dynamics,
    "timing": timing,
    "list": show,
}


def parser() -> argparse.ArgumentParser:
    told = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = told.add_subparsers(dest="command", required=True)
    parts = {name: commands.add_parser(name) for name in COMMANDS}
    for part in parts.values():
        add_places(part)
    for name in ("table", "buffers", "list"):
        parts[name].add_argument("--seeds", type=seeds_in, default="0-4", help="0-4, or 0,1,2")
    for name, fleet in (("table", 45), ("buffers", 45), ("timing", 1)):
        parts[name].add_argument("--fleet", type=int, default=fleet, help="runs at once, at the most")
    parts["table"].add_argument("--sparsity", type=float, nargs="+", default=list(SPARSITIES))
    parts["timing"].add_argument("--sparsity", type=float, nargs=1, default=[0.95])
    for name in ("table", "timing"):
        parts[name].add_argument("--methods", nargs="+", default=list(TABLE_METHODS), choices=METHODS)
    parts["timing"].add_argument("--epochs", type=int, default=RECIPE.epochs)
    for flag, default in (("--epochs", 200), ("--seed", 0), ("--lr", 0.1), ("--batch", 256)):
        parts["dense"].add_argument(flag, type=type(default), default=default)
    return told


def add_places(part: argparse.ArgumentParser) -> None:
    paper = ROOT / "paper"
    data = os.environ.get("EVENPRUNE_CIFAR100") or ROOT.parent / "shared" / "data" / "cifar100"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    part.add_argument("--data", type=Path, default=Path(data), help="folder of CIFAR-100 (%(default)s)")
    part.add_argument("--results", type=Path, default=paper / "results" / "cifar100.json")
    part.add_argument("--multipliers", type=Path, default=paper / "results" / "cifar100_multipliers.json")
    part.add_argument("--weights", type=Path, default=paper / "weights" / "cifar100_resnet56.safetensors")
    part.add_argument("--work", type=Path, default=ROOT / "runs" / "cifar100", help="checkpoints")
    part.add_argument("--save-every", type=int, default=10, help="epochs from one checkpoint to the next")
    part.add_argument("--device", type=torch.device, default=torch.device(device))
    part.add_argument("--commit", help="written into the results (that of this checkout)")


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        flags = parser().parse_args(arguments)
        where = Where(
            results=flags.results,
            work=flags.work,
            device=flags.device,
            fleet=getattr(flags, "fleet", 1),
            commit=flags.commit or runner.commit_here(),
            hooks=runner.progress(),
            say=partial(print, flush=True),
        )
        COMMANDS[flags.command](flags, where)
    except (InputProblems, NotFinite, CheckpointError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
