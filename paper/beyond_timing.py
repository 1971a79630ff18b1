"""What the methods of the study cost: each in a fleet of its own, a few epochs, on the same device."""

from collections.abc import Sequence
from typing import Any

from evenprune.recipe import Run
from paper import beyond_cells, beyond_results, runner
from paper.beyond_cells import Cell, Grid, cells_of, trained_as
from paper.beyond_methods import KINDS, ONCE, STUDY
from paper.beyond_train import Bench
from paper.runner import Where

TIMED = [name for name in {**STUDY, **ONCE} if not KINDS[name].crossed]  # those have companions as well


def fleets(grid: Grid, runs: int) -> list[list[Cell]]:
    """One a training, with its middle dual step: a class bias and a last iterate come with others'."""
    found = []
    for name in TIMED:
        cells = cells_of(grid, names=[name], seeds=range(runs), augment=False)
        steps = list(dict.fromkeys(cell.dual_lr for cell in cells))
        own = [cell for cell in cells if cell.dual_lr == steps[len(steps) // 2]]
        if trained_as(own[0]).method == name:
            found.append(own)
    return found


def time_methods(bench: Bench, runs: int, where: Where, *, again: bool) -> None:
    """Skips what this commit has been timed with, unless told; one fleet goes first and is not timed."""
    held = beyond_results.read(where.results)
    left = [own for own in fleets(bench.grid, runs) if again or not _is_timed(held, facts(bench, own, where))]
    for place, own in enumerate(left):
        start = bench.views.of(own[0]).start
        some, recipe = runs_of(own), bench.recipe_of(own[0])
        if place == 0:
            runner.warm_up(start, some, recipe, where)
        entry = facts(bench, own, where) | runner.seconds_of(start, some, recipe, where)
        beyond_results.add_timing(where.results, entry)
        where.say(
            f"{own[0].method}: {entry['seconds_per_60_epochs']:.1f} s a run of 60 epochs, {runs} at once"
        )
    where.say(f"{len(left)} methods timed; written to {where.results}")


def runs_of(cells: Sequence[Cell]) -> list[Run]:
    return [Run(method=beyond_cells.method_of(c), sparsity=c.sparsity, seed=c.seed) for c in cells]


def facts(bench: Bench, cells: Sequence[Cell], where: Where) -> dict[str, Any]:
    """What a timing is of: all of its entry but the seconds."""
    first = cells[0]
    return {
        **{name: getattr(first, name) for name in ("dataset", "groups", "sparsity", "method", "epochs")},
        "importance_batches": first.importance_batches,
        "fleet": len(cells),
        "versions": runner.versions(where.device, where.compile),
        "commit": where.commit,
    }


def _is_timed(held: Any, wanted: dict[str, Any]) -> bool:
    known = wanted["commit"] is not None
    return known and any(wanted.items() <= timing.items() for timing in held.get("timings", []))
