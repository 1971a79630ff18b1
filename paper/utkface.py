"""UTKFace (race or gender of faces, groups by race or race × gender; MobileNetV2): the paper's tables.

    python paper/utkface.py dense            the dense models, from scratch: race, gender, race without Others
    python paper/utkface.py required         the tables that matter most, one after another, in their order
    python paper/utkface.py all              these, and then the rest
    python paper/utkface.py table            three tasks × three sparsities × four methods × five seeds
    python paper/utkface.py sensitivity      CEAG at 92.5 % under tolerances of 0 to 1.5 %
    python paper/utkface.py without-others   NFT at 90 % with and without the people of race Others
    python paper/utkface.py overall          CEAG at 92.5 %: overall accuracy by frequency and group by group
    python paper/utkface.py variant          some cells under another recipe: what makes a difference
    python paper/utkface.py timing           wall-clock of fleets by themselves
    python paper/utkface.py list             what is finished

Images of 128 pixels; the paper used 200. Any of them can be killed and started again, and each table that is
complete is skipped. README.md says more.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

if __package__ in (None, ""):  # run as a file: its neighbours are found from the folder above
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from evenprune.augment import Flip
from evenprune.data import utkface
from evenprune.data.faces import Faces, Group, Target
from evenprune.models import mobilenet_v2
from evenprune.paper_printed import (
    FACES,
    FACES_SPARSITY,
    IMAGE_SIZES,
    OTHERS_SPARSITY,
    WITHOUT_OTHERS,
    printed,
)
from evenprune.paper_results import Task
from evenprune.recipe import PAPER_SGD, Recipe
from evenprune.tally import InputProblems
from paper import command_line, dense_model, results_file, runner, variants
from paper.cells import KINDS, Cell, table_cells
from paper.command_line import PAPER, Commands, recipe_for
from paper.runner import Start, Where

CROSSED = Task("utkface", "race", "race x gender")
GENDER = Task("utkface", "gender", "race")
TASKS = {f"{task.target}/{task.group}": task for task in (FACES, CROSSED, GENDER)}  # in this order
MODELS = {  # dense models, and the tasks that start from them
    "race": (FACES, CROSSED),
    "gender": (GENDER,),
    "race_without_others": (WITHOUT_OTHERS,),
}
SPARSITIES = (0.925, 0.9, 0.85)
TABLE_METHODS = ("NFT", "NFT + ES", "EL + RB", "CEAG")
METHODS = [name for name in KINDS if name != "PW"]
IMAGE_SIZE = 128
RECIPE = replace(runner.RECIPE, augment=Flip(), evaluate_batch=256)


def dense_recipe(*, epochs: int, lr: float, batch: int) -> Recipe:
    """The paper's: as the runs, with nothing pruned, for 50 epochs."""
    optimizer = partial(PAPER_SGD, lr=lr)
    return replace(RECIPE, epochs=epochs, pruning_epochs=0, batch_size=batch, optimizer=optimizer)


# --- cells ---


def sensitivity_cells(seeds: Sequence[int]) -> list[Cell]:
    """CEAG under the paper's tolerances, one of which is that of the table."""
    cells = table_cells(FACES, sparsities=[FACES_SPARSITY], methods=["CEAG"], seeds=seeds)
    return [replace(cell, tolerance=limit) for limit in sorted(printed().tolerances) for cell in cells]


def overall_cells(seeds: Sequence[int]) -> list[Cell]:
    """By frequency, as in the table; and as the published code has it, which averages the groups alike."""
    cells = table_cells(FACES, sparsities=[FACES_SPARSITY], methods=["CEAG"], seeds=seeds)
    return cells + [replace(cell, overall="macro") for cell in cells]


def others_cells(task: Task, seeds: Sequence[int]) -> list[Cell]:
    return table_cells(task, sparsities=[OTHERS_SPARSITY], methods=["NFT"], seeds=seeds)


def every_cell(seeds: Sequence[int]) -> list[Cell]:
    table = [
        cell
        for task in TASKS.values()
        for cell in table_cells(task, sparsities=SPARSITIES, methods=TABLE_METHODS, seeds=seeds)
    ]
    more = [*sensitivity_cells(seeds), *overall_cells(seeds), *others_cells(WITHOUT_OTHERS, seeds)]
    return list(dict.fromkeys([*table, *more]))


@dataclass(frozen=True)
class Stage:
    """One table of the order that `required` and `all` go through."""

    title: str
    cells: tuple[Cell, ...]


def stages(seeds: Sequence[int], *, required: bool) -> list[Stage]:
    """What matters most comes first; a table is complete before the next one begins."""

    def tables(task: Task, *sparsities: float) -> list[Stage]:
        return [
            Stage(
                f"{task.target}/{task.group} at {sparsity:.1%}",
                tuple(table_cells(task, sparsities=[sparsity], methods=TABLE_METHODS, seeds=seeds)),
            )
            for sparsity in sparsities
        ]

    first = [*tables(FACES, *SPARSITIES), *tables(CROSSED, SPARSITIES[0])]
    both = tuple(dict.fromkeys([*first[0].cells, *overall_cells(seeds)]))  # they share the start of a fleet
    first[0] = Stage(f"{first[0].title}, and CEAG by overall accuracy", both)
    others = [cell for task in (FACES, WITHOUT_OTHERS) for cell in others_cells(task, seeds)]
    then = [
        Stage("CEAG by tolerance", tuple(sensitivity_cells(seeds))),
        Stage("without Others", tuple(others)),
    ]
    then += [*tables(CROSSED, *SPARSITIES[1:]), *tables(GENDER, *SPARSITIES)]
    return first if required else first + then


# --- where a task begins ---


def faces_of(task: Task, flags: argparse.Namespace) -> Faces:
    others = task != WITHOUT_OTHERS
    return utkface.load(
        flags.data,
        target=cast(Target, task.target),
        group=cast(Group, task.group if others else FACES.group),
        others=others,
        image_size=flags.image_size,
        cache=flags.work / "images",  # of the original jpgs
    )


def network(task: Task) -> nn.Module:
    """Untrained, with a class for every value of what is predicted."""
    races = len(utkface.RACES) - (task == WITHOUT_OTHERS)
    return mobilenet_v2({"race": races, "gender": len(utkface.GENDERS)}[task.target])


def measured(model: nn.Module, faces: Faces, where: Where, recipe: Recipe = RECIPE) -> Start:
    """The dense model on the faces; every row says how large they were."""
    splits = {name: faces.split(name) for name in faces}
    facts = {"image_size": int(splits["train"].inputs.shape[-1])}
    return runner.measure(model, splits, faces.groups, recipe=recipe, where=where, facts=facts)


def weights_of(task: Task, flags: argparse.Namespace) -> Path:
    name = next(name for name, tasks in MODELS.items() if task in tasks)
    return Path(flags.weights / f"utkface_{name}.safetensors")


def start_from(task: Task, flags: argparse.Namespace, where: Where, recipe: Recipe = RECIPE) -> Start:
    """The stored dense model and the data, checked against the results file before anything is trained."""
    weights, held = weights_of(task, flags), results_file.read(where.results)
    model = dense_model.load_weights(weights, network(task))
    dense_model.refuse_other_weights(held, task, weights, where.results)
    refuse_other_size(results_file.dense_of(held, task), flags.image_size, where.results)
    return measured(model, faces_of(task, flags), where, recipe)


def refuse_other_size(dense: Mapping[str, Any] | None, size: int, results: Path) -> None:
    """What the results file says of the dense model must be of images of this size."""
    if dense is not None and dense.get("image_size", size) != size:
        raise InputProblems(
            [
                f"the dense model in {results} saw images of {dense['image_size']} pixels, and --image-size "
                f"is {size}; give that size, or train another one with other --results and --weights"
            ]
        )


# --- commands ---


def dense(flags: argparse.Namespace, where: Where) -> None:
    for name in flags.models:
        train_dense(MODELS[name], flags, where)


def train_dense(tasks: Sequence[Task], flags: argparse.Namespace, where: Where) -> None:
    """Train, store, load what was stored, and describe that: for every task that starts there."""
    weights = weights_of(tasks[0], flags)
    if dense_model.is_trained(weights, tasks, where):
        return
    settings = {"epochs": flags.epochs, "lr": flags.lr, "batch": flags.batch}
    recipe = recipe_for(flags, dense_recipe(**settings))
    torch.manual_seed(flags.seed)
    faces = faces_of(tasks[0], flags)
    untrained = measured(network(tasks[0]), faces, where)
    trained = dense_model.train_dense(untrained, recipe, where, seed=flags.seed)

    def stored(faces: Faces) -> Start:
        return measured(dense_model.load_weights(weights, network(tasks[0])), faces, where)

    starts = [dense_model.write_half(weights, trained, lambda: stored(faces), where)]
    starts += [stored(faces_of(task, flags)) for task in tasks[1:]]
    told = settings | {"seed": flags.seed, "momentum": 0.9, "weight_decay": 1e-4, "decay_everything": True}
    told |= {"schedule": "× 0.1 at 60, 80 and 90 %", "augment": "flip"}
    told |= {"stored": dense_model.precision_of(weights)}
    models = [
        vars(task) | dense_model.dense_document(start, trained, weights, told, where)
        for task, start in zip(tasks, starts, strict=True)
    ]
    results_file.add_dense(where.results, models)
    where.say(dense_model.sentence(models[0], weights))


def fill(
    cells: Sequence[Cell], flags: argparse.Namespace, where: Where, begun: dict[Task, Start] | None = None
) -> None:
    """Task by task, in the order given; data is read only where something is missing.

    `begun` holds the task that was begun last, so that the next call need not read its images again.
    """
    held = {} if begun is None else begun
    for task in dict.fromkeys(cell.task for cell in cells):
        own = [cell for cell in cells if cell.task == task]
        where.say(f"{task.target}/{task.group}:")
        if runner.is_finished(own, where):
            continue
        if task not in held:
            held.clear()  # the images of one task are in memory at a time
            held[task] = start_from(task, flags, where)
        runner.fill(held[task], own, recipe_for(flags, RECIPE), where)


def in_order(flags: argparse.Namespace, where: Where, *, required: bool) -> None:
    """Stage by stage; weights that one of them will need are asked for before the first."""
    order, begun = stages(flags.seeds, required=required), dict[Task, Start]()
    refuse_missing_weights([cell for stage in order for cell in stage.cells], flags, where)
    for number, stage in enumerate(order, 1):
        where.say(f"{number} of {len(order)}: {stage.title}")
        fill(stage.cells, flags, where, begun)


def refuse_missing_weights(cells: Sequence[Cell], flags: argparse.Namespace, where: Where) -> None:
    tasks = dict.fromkeys(c.task for c in results_file.missing(results_file.read(where.results), cells))
    absent = dict.fromkeys(path for path in (weights_of(task, flags) for task in tasks) if not path.exists())
    if absent:
        names = " ".join(path.stem.removeprefix("utkface_") for path in absent)
        told = f"train them first, with `dense --models {names}`"
        raise InputProblems([f"there are no dense weights in {', '.join(map(str, absent))}; {told}"])


def table(flags: argparse.Namespace, where: Where) -> None:
    chosen = {"sparsities": flags.sparsity, "methods": flags.methods, "seeds": flags.seeds}
    fill([cell for name in flags.tasks for cell in table_cells(TASKS[name], **chosen)], flags, where)


def sensitivity(flags: argparse.Namespace, where: Where) -> None:
    fill(sensitivity_cells(flags.seeds), flags, where)


def overall(flags: argparse.Namespace, where: Where) -> None:
    fill(overall_cells(flags.seeds), flags, where)


def without_others(flags: argparse.Namespace, where: Where) -> None:
    fill([cell for task in (FACES, WITHOUT_OTHERS) for cell in others_cells(task, flags.seeds)], flags, where)


def variant(flags: argparse.Namespace, where: Where) -> None:
    task = TASKS[flags.task]
    cells = table_cells(task, sparsities=flags.sparsity, methods=flags.methods, seeds=flags.seeds)
    begin = partial(start_from, task, flags, where)
    variants.run(flags, where, cells, RECIPE, network=network(task), start_from=begin)


def timing(flags: argparse.Namespace, where: Where) -> None:
    task = TASKS[flags.task]
    command_line.time_methods(start_from(task, flags, where), task, flags, RECIPE, where)


def show(flags: argparse.Namespace, where: Where) -> None:
    """What is finished."""
    held = results_file.read(where.results)
    for line in runner.finished_lines(held, every_cell(flags.seeds)):
        where.say(line)
    for name, tasks in MODELS.items():
        dense = results_file.dense_of(held, tasks[0]) or {}
        side = f"at {dense.get('image_size')} pixels (the paper used {IMAGE_SIZES[FACES.dataset]})"
        where.say(f"dense model {name}: {f'finished, {side}' if dense else 'missing'}")
    where.say(f"timings: {len(held.get('timings', []))}")


COMMANDS: Commands = {
    "dense": dense,
    "required": partial(in_order, required=True),
    "all": partial(in_order, required=False),
    "table": table,
    "sensitivity": sensitivity,
    "without-others": without_others,
    "overall": overall,
    "variant": variant,
    "timing": timing,
    "list": show,
}


def parser() -> argparse.ArgumentParser:
    told, parts = command_line.parser(__doc__, COMMANDS)
    command_line.add_places(parts, "utkface")
    for part in parts.values():
        part.add_argument("--weights", type=Path, default=PAPER / "weights", help="folder (%(default)s)")
        part.add_argument("--image-size", type=int, default=IMAGE_SIZE, help="side in pixels (%(default)s)")
    tables = ("required", "all", "table", "sensitivity", "without-others", "overall", "variant")
    for name in (*tables, "list"):
        command_line.add_seeds(parts[name])
    for name in tables:
        command_line.add_fleet(parts[name], 10)
    command_line.add_fleet(parts["timing"], 1)
    command_line.add_compile(parts, (*tables, "timing"))
    parts["table"].add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parts["table"].add_argument("--sparsity", type=float, nargs="+", default=list(SPARSITIES))
    for name in ("timing", "variant"):
        parts[name].add_argument("--task", default="race/race", choices=TASKS)
    variants.add_flags(parts["variant"], sparsity=FACES_SPARSITY, epochs=RECIPE.epochs)
    command_line.add_timing(parts["timing"], sparsity=FACES_SPARSITY, epochs=RECIPE.epochs)
    for name in ("table", "timing", "variant"):
        command_line.add_methods(parts[name], TABLE_METHODS, METHODS)
    parts["dense"].add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    command_line.add_dense_settings(parts["dense"], epochs=50, lr=0.01, batch=128)
    return told


def main(arguments: Sequence[str] | None = None) -> int:
    return command_line.run(parser(), COMMANDS, arguments)


if __name__ == "__main__":
    sys.exit(main())
