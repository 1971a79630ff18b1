"""What the command lines of all data sets share: places, flags, and errors as text."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from evenprune.checkpoint import CheckpointError
from evenprune.paper_results import Task
from evenprune.recipe import Recipe
from evenprune.tally import InputProblems
from evenprune.training import NoRoom, NotFinite
from paper import flag_values, results_file, runner
from paper.cells import seeds_in, table_cells
from paper.runner import ROOT, Start, Where

PAPER = ROOT / "paper"
Commands = Mapping[str, Callable[[argparse.Namespace, Where], None]]
Parts = Mapping[str, argparse.ArgumentParser]


def parser(told: str | None, commands: Iterable[str]) -> tuple[argparse.ArgumentParser, Parts]:
    """The whole, and its part for each command."""
    whole = argparse.ArgumentParser(description=told, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = whole.add_subparsers(dest="command", required=True)
    return whole, {name: parts.add_parser(name) for name in commands}


def images_of(dataset: str, root: Path = ROOT) -> Path:
    """Where its variable says; else where `evenprune data get` puts them, if they are there; else shared."""
    told, own = os.environ.get(f"EVENPRUNE_{dataset.upper()}"), root / "data" / dataset
    if told:
        return Path(told)
    return own if own.exists() else root.parent / "shared" / "data" / dataset


def add_places(parts: Parts, dataset: str) -> None:
    """Where the images are, and where everything is written; the same for every command."""
    data = images_of(dataset)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for part in parts.values():
        part.add_argument("--data", type=Path, default=data, help="folder of the images (%(default)s)")
        part.add_argument("--results", type=Path, default=PAPER / "results" / f"{dataset}.json")
        part.add_argument("--work", type=Path, default=ROOT / "runs" / dataset, help="checkpoints")
        part.add_argument("--save-every", type=int, default=10, help="epochs from one checkpoint to the next")
        part.add_argument("--device", type=torch.device, default=torch.device(device))
        part.add_argument("--commit", help="written into the results (that of this checkout)")


def add_seeds(part: argparse.ArgumentParser) -> None:
    part.add_argument("--seeds", type=_seeds, default="0-4", help="0-4, or 0,1,2")


def _seeds(text: str) -> list[int]:
    try:
        return seeds_in(text)
    except InputProblems as error:  # argparse would drop the words of any other error
        raise argparse.ArgumentTypeError(str(error)) from error


def add_methods(part: argparse.ArgumentParser, usual: Sequence[str], known: Sequence[str]) -> None:
    """As the paper spells them, blanks left out or not: "NFT + ES", NFT+ES."""
    spelled = {"".join(name.split()).casefold(): name for name in known}
    part.add_argument(
        "--methods",
        nargs="+",
        type=lambda text: spelled.get("".join(text.split()).casefold(), text),
        default=list(usual),
        choices=list(known),
    )


def add_compile(parts: Parts, names: Sequence[str]) -> None:
    """A switch for commands that train; where it is given, their rows say so."""
    for name in names:
        parts[name].add_argument(
            "--compile",
            action=argparse.BooleanOptionalAction,
            help="forward and backward through torch.compile, or not (as Recipe.compile has it)",
        )


def add_fleet(part: argparse.ArgumentParser, most: int) -> None:
    part.add_argument("--fleet", type=int, default=most, help="runs at once, at the most")


def add_dense_settings(part: argparse.ArgumentParser, *, epochs: int, lr: float, batch: int) -> None:
    for flag, default in (("--epochs", epochs), ("--seed", 0), ("--lr", lr), ("--batch", batch)):
        part.add_argument(flag, type=type(default), default=default)


def recipe_for(flags: argparse.Namespace, recipe: Recipe) -> Recipe:
    """How often is saved is no part of the experiment: a resumed one may change it."""
    compile = getattr(flags, "compile", None)
    told = {} if compile is None else {"compile": compile}
    return replace(recipe, checkpoint_epochs=flags.save_every, **told)


def add_timing(part: argparse.ArgumentParser, *, sparsity: float, epochs: int) -> None:
    part.add_argument("--sparsity", type=float, nargs=1, default=[sparsity])
    part.add_argument("--epochs", type=int, default=epochs)
    part.add_argument("--again", action="store_true", help="also what this commit has been timed with")


def time_methods(start: Start, task: Task, flags: argparse.Namespace, recipe: Recipe, where: Where) -> None:
    """Each method in a fleet of its own, at one sparsity; skips what is in the results already.

    One short fit goes first and is not timed: whatever came first would pay for the start of the device and
    for kernels that are then in the caches. It is of the last method: CEAG has all parts, NFT few of them.
    """
    recipe = runner.shortened(recipe_for(flags, recipe), flags.epochs)
    fleets = [
        table_cells(task, sparsities=flags.sparsity, methods=[method], seeds=range(flags.fleet))
        for method in flags.methods
    ]
    held = results_file.read(where.results)
    facts = [runner.timing_facts(start, cells, recipe, where) for cells in fleets]
    left = [
        cells
        for cells, told in zip(fleets, facts, strict=True)
        if flags.again or where.commit is None or not results_file.is_timed(held, told)
    ]
    where.say(f"{len(fleets) - len(left)} of {len(fleets)} methods are timed (--again repeats them).")
    if left:
        runner.warm_up(start, runner.runs_of(left[-1]), recipe, where)
    for cells in left:
        entry = runner.timing_facts(start, cells, recipe, where)
        entry |= runner.seconds_of(start, runner.runs_of(cells), recipe, where)
        results_file.add_timing(where.results, entry)
        where.say(
            f"{entry['method']}: {entry['seconds']:.1f} s a run of {flags.epochs} epochs, "
            f"{flags.fleet} at once; written to {where.results}"
        )


def run(
    whole: argparse.ArgumentParser,
    commands: Commands,
    arguments: Sequence[str] | None,
    *,
    refuse: Callable[[argparse.Namespace], None] = flag_values.refuse,
) -> int:
    """One command, from its words to its exit code.

    refuse: raises InputProblems of flags that are wrong, before the command starts.
    """

    def work() -> None:
        flags = whole.parse_args(arguments)
        refuse(flags)
        where = Where(
            results=flags.results,
            work=flags.work,
            device=flags.device,
            fleet=getattr(flags, "fleet", 1),
            commit=flags.commit or runner.commit_here(),
            compile=getattr(flags, "compile", None),
            hooks=runner.progress(),
            say=partial(print, flush=True),
        )
        commands[flags.command](flags, where)

    return ended(work)


def ended(work: Callable[[], None]) -> int:
    """The exit code of some work; what a user can mend is one plain message."""
    try:
        work()
    except (InputProblems, NoRoom, NotFinite, CheckpointError) as error:
        print(str(error).replace("recipe.fleet_size =", "--fleet"), file=sys.stderr)
        return 2
    except BrokenPipeError:  # its reader has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0
