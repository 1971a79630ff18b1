"""Cells of the tables under another recipe, in results files of their own: what makes a difference?"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from evenprune.recipe import Recipe
from evenprune.tally import InputProblems
from paper import plain_el, runner
from paper.cells import Cell
from paper.command_line import recipe_for
from paper.plain_el import FORMS, last_layer
from paper.runner import Start, Where

PLAIN = {"precision": "float32", "channels_last": False, "compile": False, "graph": False}
DUAL_STEPS = {f"dual_{times:g}": times for times in (1.25, 1.4, 2, 3, 5)}  # times the paper's
LAST = "decay_last"
DECAY_LAST = (LAST, "while_pruning_decay_last", "ring_1_decay_last")
VARIANTS: dict[str, dict[str, Any]] = {  # what is not as in the recipe of the tables
    "plain": {**PLAIN, "fleet_size": 1},  # one float32 run after another, torch's own operations
    "fast": {},  # to compare the plain one with, where both are shortened
    "float32": {"precision": "float32"},  # nothing is rounded to 16 bits; in fleets and graphs, as the tables
    "tf32": {"precision": "float32"},  # convolutions round their factors to 11 bits, as torch does on an A100
    **{name: {} for name in DUAL_STEPS},
    "ring_1": {},  # "no buffer" as a ring of one: every group moves at every step, by its latest sample
    "while_pruning": {},  # constraints act from the first epoch on, not from the end of pruning
    **{name: {} for name in DECAY_LAST},  # as by the paper's published code: weights of the last layer alone
    "detached": {},  # constraints are differentiated by the groups' own losses, not by the overall one
    "macro": {},  # the overall loss or accuracy of constraints averages groups alike, as the published code
    **{name: {} for name in FORMS},  # EL in a plain loop of its own: plain_el.py
}

IN_THE_METHOD: dict[str, dict[str, Any]] = {
    "ring_1": {"buffer": 1},
    "while_pruning": {"while_pruning": True},
    "while_pruning_decay_last": {"while_pruning": True},
    "ring_1_decay_last": {"buffer": 1},
    "detached": {"mean": "detached"},
    "macro": {"overall": "macro"},
}


def path_of(results: Path, recipe: str, epochs: int) -> Path:
    short = "" if epochs == runner.RECIPE.epochs else f"_{epochs}_epochs"
    return results.parent / "variants" / f"{results.stem}_{recipe}{short}.json"


def varied(cell: Cell, recipe: str) -> Cell:
    """What a variant changes in the method itself, where it has constraints."""
    if cell.dual_lr is None or (recipe.startswith("ring_1") and cell.buffer != 0):
        return cell
    step = float(f"{DUAL_STEPS.get(recipe, 1) * cell.dual_lr:.6g}")
    return replace(cell, dual_lr=step, **IN_THE_METHOD.get(recipe, {}))


def run(
    flags: argparse.Namespace,
    where: Where,
    cells: Sequence[Cell],
    recipe: Recipe,
    *,
    network: nn.Module,
    start_from: Callable[[Recipe], Start],
) -> None:
    """The cells, of one task. recipe: that of the tables; network: what is trained, with any weights."""
    apart = replace(where, results=path_of(where.results, flags.recipe, flags.epochs))
    last = {"decay_only": (last_layer(network),)}
    changes = last if flags.recipe in DECAY_LAST else VARIANTS[flags.recipe]
    recipe = recipe_for(flags, replace(runner.shortened(recipe, flags.epochs), **changes))
    if flags.recipe in {*DUAL_STEPS, *IN_THE_METHOD}:  # nothing else differs: the others are in the tables
        cells = [cell for cell in cells if varied(cell, flags.recipe) != cell]
    if flags.recipe in FORMS:
        plain_el.refuse(recipe)
        cells = [cell for cell in cells if cell.method == plain_el.METHOD]
        if not cells:
            raise InputProblems(
                [f"{flags.recipe} is of {plain_el.METHOD} alone: --methods {plain_el.METHOD}"]
            )
    if not cells:
        told = ", ".join(flags.methods)
        raise InputProblems([f"{flags.recipe} changes nothing in {told}: name other --methods"])
    cells = [varied(cell, flags.recipe) for cell in cells]
    if runner.is_finished(cells, apart):
        return
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=flags.recipe not in ("plain", "float32")):
        start = start_from(recipe)  # the dense model in the precision of the runs
        facts = {**start.facts, "recipe": flags.recipe, "epochs": flags.epochs}
        start = replace(start, facts=facts)
        if flags.recipe in FORMS:
            plain_el.fill(start, cells, FORMS[flags.recipe], recipe, apart)
        else:
            runner.fill(start, cells, recipe, apart)


def add_flags(part: argparse.ArgumentParser, *, sparsity: float, epochs: int) -> None:
    part.add_argument("recipe", choices=VARIANTS)
    part.add_argument("--sparsity", type=float, nargs="+", default=[sparsity])
    part.add_argument("--epochs", type=int, default=epochs)
