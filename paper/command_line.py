"""What the command lines of all data sets share: places, flags, and errors as text."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from evenprune.checkpoint import CheckpointError
from evenprune.recipe import Recipe
from evenprune.tally import InputProblems
from evenprune.training import NotFinite
from paper import results_file, runner
from paper.cells import Task, seeds_in, table_cells
from paper.runner import ROOT, Start, Where

PAPER = ROOT / "paper"
Commands = Mapping[str, Callable[[argparse.Namespace, Where], None]]
Parts = Mapping[str, argparse.ArgumentParser]


def parser(told: str | None, commands: Commands) -> tuple[argparse.ArgumentParser, Parts]:
    """The whole, and its part for each command."""
    whole = argparse.ArgumentParser(description=told, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = whole.add_subparsers(dest="command", required=True)
    return whole, {name: parts.add_parser(name) for name in commands}


def add_places(parts: Parts, dataset: str) -> None:
    """Where the images are, and where everything is written; the same for every command."""
    data = os.environ.get(f"EVENPRUNE_{dataset.upper()}") or ROOT.parent / "shared" / "data" / dataset
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for part in parts.values():
        part.add_argument("--data", type=Path, default=Path(data), help="folder of the images (%(default)s)")
        part.add_argument("--results", type=Path, default=PAPER / "results" / f"{dataset}.json")
        part.add_argument("--work", type=Path, default=ROOT / "runs" / dataset, help="checkpoints")
        part.add_argument("--save-every", type=int, default=10, help="epochs from one checkpoint to the next")
        part.add_argument("--device", type=torch.device, default=torch.device(device))
        part.add_argument("--commit", help="written into the results (that of this checkout)")


def add_seeds(part: argparse.ArgumentParser) -> None:
    part.add_argument("--seeds", type=seeds_in, default="0-4", help="0-4, or 0,1,2")


def add_fleet(part: argparse.ArgumentParser, most: int) -> None:
    part.add_argument("--fleet", type=int, default=most, help="runs at once, at the most")


def add_dense_settings(part: argparse.ArgumentParser, *, epochs: int, lr: float, batch: int) -> None:
    for flag, default in (("--epochs", epochs), ("--seed", 0), ("--lr", lr), ("--batch", batch)):
        part.add_argument(flag, type=type(default), default=default)


def recipe_for(flags: argparse.Namespace, recipe: Recipe) -> Recipe:
    """How often is saved is no part of the experiment: a resumed one may change it."""
    return replace(recipe, checkpoint_epochs=flags.save_every)


def time_methods(start: Start, task: Task, flags: argparse.Namespace, recipe: Recipe, where: Where) -> None:
    """Each method in a fleet of its own, at one sparsity."""
    for method in flags.methods:
        cells = table_cells(task, sparsities=flags.sparsity, methods=[method], seeds=range(flags.fleet))
        entry = runner.time_fleet(start, cells, runner.shortened(recipe, flags.epochs), where)
        results_file.add_timing(where.results, entry)
        where.say(f"{method}: {entry['seconds']:.1f} s a run of {flags.epochs} epochs, {flags.fleet} at once")


def run(whole: argparse.ArgumentParser, commands: Commands, arguments: Sequence[str] | None) -> int:
    """One command, from its words to its exit code."""
    try:
        flags = whole.parse_args(arguments)
        where = Where(
            results=flags.results,
            work=flags.work,
            device=flags.device,
            fleet=getattr(flags, "fleet", 1),
            commit=flags.commit or runner.commit_here(),
            hooks=runner.progress(),
            say=partial(print, flush=True),
        )
        commands[flags.command](flags, where)
    except (InputProblems, NotFinite, CheckpointError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0
