"""CIFAR-100 (100 classes, each a group; CifarResNet-56): the paper's tables, run anew.

    python paper/cifar100.py dense       the dense model, from scratch
    python paper/cifar100.py table       three sparsities × six methods × five seeds
    python paper/cifar100.py buffers     CEAG at 95 % with rings of 0 to 80, and with the table
    python paper/cifar100.py dynamics    multipliers step by step, and the run that constrains Ψ_PW
    python paper/cifar100.py timing      wall-clock of runs by themselves
    python paper/cifar100.py variant     some cells under another recipe: what makes a difference
    python paper/cifar100.py list        what is finished

Any of them can be killed and started again. README.md says more.
"""

import argparse
import sys
from collections.abc import Sequence
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
from evenprune.data import cifar100
from evenprune.models import cifar_resnet56
from evenprune.paper_results import Task
from evenprune.recipe import Recipe
from paper import command_line, dense_model, multipliers, results_file, runner, variants
from paper.cells import KINDS, TABLE_METHODS, Cell, cell_of, table_cells
from paper.command_line import PAPER, Commands, recipe_for
from paper.runner import Start, Where

TASK = Task("cifar100", "class", "class")
SPARSITIES = (0.925, 0.95, 0.9)  # the paper's main table first
BUFFERS = (20, 40, 60, 80)  # of 0: the method "CEAG (no RB)"
EVERY_SAMPLE = "table"  # instead of a ring: the method "CEAG (table)"
BUFFER_SPARSITY = 0.95
PW_SPARSITY, PW_TOLERANCE = 0.95, 0.10  # of the paper's figure; dual step and rings as CEAG's there
METHODS = [name for name in KINDS if name != "PW"]  # PW has one cell, that of `dynamics`
DYNAMICS_SPARSITY = 0.9
STRIDE = 5  # every fifth step of a trace is kept
RECIPE = runner.RECIPE


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


def buffer_cells(seeds: Sequence[int], rings: Sequence[int | str] | None = None) -> list[Cell]:
    """By length of the rings, all of them unless told; those of 0 and 40 are cells of the table."""
    found = []
    for k in (0, *BUFFERS, EVERY_SAMPLE) if rings is None else rings:
        name = "CEAG (no RB)" if k == 0 else "CEAG (table)" if isinstance(k, str) else "CEAG"
        cells = table_cells(TASK, sparsities=[BUFFER_SPARSITY], methods=[name], seeds=seeds)
        found += [replace(cell, buffer=k) for cell in cells] if isinstance(k, int) and k else cells
    return found


def ring_in(text: str) -> int | str:
    if text != EVERY_SAMPLE and not text.isdecimal():
        raise argparse.ArgumentTypeError(
            f"{text!r} is no length of rings: write 0, 20, 40, or {EVERY_SAMPLE}"
        )
    return text if text == EVERY_SAMPLE else int(text)


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


def start_from(flags: argparse.Namespace, where: Where, recipe: Recipe = RECIPE) -> Start:
    """The dense model and the data, checked against the results file before anything is trained."""
    model = dense_model.load_weights(flags.weights, cifar_resnet56())
    dense_model.refuse_other_weights(results_file.read(where.results), TASK, flags.weights, where.results)
    splits, names = splits_in(flags.data)
    return runner.measure(model, splits, names, recipe=recipe, where=where)


def dense(flags: argparse.Namespace, where: Where) -> None:
    if dense_model.is_trained(flags.weights, [TASK], where):
        return
    settings = {"epochs": flags.epochs, "lr": flags.lr, "batch": flags.batch}
    torch.manual_seed(flags.seed)
    splits, names = splits_in(flags.data)
    recipe = recipe_for(flags, dense_recipe(**settings))
    untrained = runner.measure(cifar_resnet56(), splits, names, recipe=recipe, where=where)
    trained = dense_model.train_dense(untrained, recipe, where, seed=flags.seed)
    dense_model.write_weights(flags.weights, trained.fitted[0].model)
    start = runner.measure(trained.fitted[0].model, splits, names, recipe=RECIPE, where=where)
    told = settings | {"seed": flags.seed, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}
    told |= {"decay_everything": True, "schedule": "cosine to 0, per epoch", "augment": "crop 4, flip"}
    document = dense_model.dense_document(start, trained, flags.weights, told, where)
    results_file.set_dense(where.results, document)
    where.say(dense_model.sentence(document, flags.weights))


def fill(cells: Sequence[Cell], flags: argparse.Namespace, where: Where) -> None:
    if not runner.is_finished(cells, where):
        runner.fill(start_from(flags, where), cells, recipe_for(flags, RECIPE), where)


def table(flags: argparse.Namespace, where: Where) -> None:
    cells = table_cells(TASK, sparsities=flags.sparsity, methods=flags.methods, seeds=flags.seeds)
    fill(cells, flags, where)


def buffers(flags: argparse.Namespace, where: Where) -> None:
    fill(buffer_cells(flags.seeds, flags.k), flags, where)


def multipliers_of(flags: argparse.Namespace) -> Path:
    """Where --multipliers says; else beside the results, by their name."""
    path: Path = flags.multipliers or flags.results.with_name(f"{flags.results.stem}_multipliers.json")
    return path


def dynamics(flags: argparse.Namespace, where: Where) -> None:
    path = multipliers_of(flags)
    if path.exists():
        where.say(f"Finished: {path}. Remove it to run again.")
        return
    trace(start_from(flags, where), dynamics_cells(0), recipe_for(flags, RECIPE), where, path)


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
    command_line.time_methods(start_from(flags, where), TASK, flags, RECIPE, where)


def variant(flags: argparse.Namespace, where: Where) -> None:
    cells = table_cells(TASK, sparsities=flags.sparsity, methods=flags.methods, seeds=flags.seeds)
    begin = partial(start_from, flags, where)
    variants.run(flags, where, cells, RECIPE, network=cifar_resnet56(), start_from=begin)


def show(flags: argparse.Namespace, where: Where) -> None:
    """What is finished."""
    held = results_file.read(where.results)
    for line in runner.finished_lines(held, every_cell(flags.seeds)):
        where.say(line)
    where.say(f"dense model: {'finished' if 'dense' in held else 'missing'}")
    where.say(f"multipliers: {'finished' if multipliers_of(flags).exists() else 'missing'}")
    where.say(f"timings: {len(held.get('timings', []))}")


COMMANDS: Commands = {
    "dense": dense,
    "table": table,
    "buffers": buffers,
    "dynamics": dynamics,
    "timing": timing,
    "variant": variant,
    "list": show,
}


def parser() -> argparse.ArgumentParser:
    told, parts = command_line.parser(__doc__, COMMANDS)
    command_line.add_places(parts, "cifar100")
    for part in parts.values():
        part.add_argument("--multipliers", type=Path, help="(beside --results: <its name>_multipliers.json)")
        part.add_argument("--weights", type=Path, default=PAPER / "weights" / "cifar100_resnet56.safetensors")
    for name in ("table", "buffers", "variant", "list"):
        command_line.add_seeds(parts[name])
    for name, fleet in (("table", 45), ("buffers", 45), ("timing", 1), ("variant", 45)):
        command_line.add_fleet(parts[name], fleet)
    parts["table"].add_argument("--sparsity", type=float, nargs="+", default=list(SPARSITIES))
    parts["buffers"].add_argument("--k", type=ring_in, nargs="+", metavar="K", help="0, 20, 40, …, table")
    command_line.add_timing(parts["timing"], sparsity=0.95, epochs=RECIPE.epochs)
    variants.add_flags(parts["variant"], sparsity=0.95, epochs=RECIPE.epochs)
    for name in ("table", "timing", "variant"):
        command_line.add_methods(parts[name], TABLE_METHODS, METHODS)
    command_line.add_compile(parts, ("table", "buffers", "dynamics", "timing", "variant"))
    command_line.add_dense_settings(parts["dense"], epochs=200, lr=0.1, batch=256)
    return told


def main(arguments: Sequence[str] | None = None) -> int:
    return command_line.run(parser(), COMMANDS, arguments)


if __name__ == "__main__":
    sys.exit(main())
