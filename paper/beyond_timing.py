"""What the methods of the study cost: each in a fleet of its own, a few epochs, on the same device."""

from collections.abc import Sequence
from typing import Any

from evenprune.recipe import Recipe
from evenprune.tally import InputProblems
from paper import beyond_results, results_file, runner
from paper.beyond_cells import Cell, Grid, cells_of, runs_of, trained_as
from paper.beyond_methods import KINDS
from paper.beyond_train import Bench
from paper.runner import Where


def refuse(recipe: Recipe, names: Sequence[str]) -> None:
    """The first epoch prunes nothing yet and stands for no other, so that scores take two that prune."""
    found = [f"{name} trains companions as well, and is not timed" for name in names if KINDS[name].crossed]
    if recipe.pruning_epochs < 2:
        found += [
            f"--epochs is {recipe.epochs}: {name} has its cost where weights are pruned, which the first "
            "epoch does not; give 8 or more, or other --methods"
            for name in names
            if KINDS[name].scored
        ]
    if found:
        raise InputProblems(found)


def fleets(grid: Grid, runs: int, names: Sequence[str]) -> list[list[Cell]]:
    """One a training, with its middle dual step: a class bias and a last iterate come with others'."""

    def cells(name: str) -> list[Cell]:
        return cells_of(grid, names=[name], seeds=range(runs), augment=False)

    found = []
    for name in dict.fromkeys(trained_as(cells(name)[0]).method for name in names):
        steps = list(dict.fromkeys(cell.dual_lr for cell in cells(name)))
        found.append([cell for cell in cells(name) if cell.dual_lr == steps[len(steps) // 2]])
    return found


def time_methods(bench: Bench, runs: int, where: Where, *, names: Sequence[str], again: bool) -> None:
    """Skips what this commit has been timed with, unless told; one fleet goes first and is not timed."""
    held, every = beyond_results.read(where.results), fleets(bench.grid, runs, names)
    known = [where.commit is not None and results_file.is_timed(held, facts(own, where)) for own in every]
    left = [own for own, timed in zip(every, known, strict=True) if again or not timed]
    for place, own in enumerate(left):
        start = bench.views.of(own[0]).start
        some, recipe = runs_of(own), bench.recipe_of(own[0])
        if place == 0:
            runner.warm_up(start, some, recipe, where)
        entry = facts(own, where) | runner.seconds_of(start, some, recipe, where)
        kind = {"check": beyond_results.problems, "order": beyond_results.order}
        results_file.add_timing(where.results, entry, **kind)
        where.say(
            f"{own[0].method}: {entry['seconds_per_60_epochs']:.1f} s a run of 60 epochs, {runs} at once"
        )
    where.say(f"{len(left)} methods timed; written to {where.results}")


def facts(cells: Sequence[Cell], where: Where) -> dict[str, Any]:
    """What a timing is of: all of its entry but the seconds."""
    names = ("dataset", "groups", "sparsity", "method", "epochs", "importance_batches")
    return {
        **{name: getattr(cells[0], name) for name in names},
        "fleet": len(cells),
        "versions": runner.versions(where.device, where.compile),
        "commit": where.commit,
    }
