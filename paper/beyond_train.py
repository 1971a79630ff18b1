"""Trains what the results lack, fleet by fleet; one training writes the rows of all cells that it serves."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from evenprune.predict import Predictions
from evenprune.recipe import Augment, Recipe
from evenprune.tally import InputProblems
from evenprune.training import Fitted
from paper import beyond_answers, beyond_cells, beyond_results, beyond_rows, runner
from paper.beyond_cells import Cell, Grid, riders, trained_as
from paper.beyond_methods import BIAS, PASSES
from paper.beyond_views import Views
from paper.runner import Where


@dataclass(frozen=True)
class Bench:
    """What all runs of a call share."""

    views: Views
    grid: Grid
    recipe: Recipe  # without augmentation
    augment: Augment
    mixed: bool = False  # runs that cost differently may share a fleet

    def recipe_of(self, cell: Cell) -> Recipe:
        recipe = replace(self.recipe, importance_batches=cell.importance_batches)
        return replace(recipe, augment=self.augment) if cell.augment else recipe


def run(bench: Bench, cells: Sequence[Cell], where: Where, *, tune: Sequence[int]) -> None:
    """First every dual step with the seeds to tune on, then the other seeds with the step these chose."""
    first = beyond_cells.tuning(cells, tune)
    fill(bench, first, where)
    rows = beyond_results.read(where.results)["runs"]
    rest = beyond_cells.tuned(rows, cells, tune)
    if rest:
        steps = dict.fromkeys(f"{cell.method}: {cell.dual_lr:g}" for cell in rest)
        told = ", ".join(map(str, tune))
        where.say(f"Dual steps, chosen on the choice split with seeds {told}: {'; '.join(steps)}.")
        fill(bench, rest, where)


def fill(bench: Bench, cells: Sequence[Cell], where: Where) -> None:
    """Train what the results lack; both files grow after each fleet."""
    missing = beyond_cells.missing(beyond_results.read(where.results)["runs"], cells)
    refuse_unscored(missing)
    where.say(f"{len(dict.fromkeys(cells)) - len(missing)} of {len(dict.fromkeys(cells))} runs are finished.")
    parts = fleets(missing, where.fleet, mixed=bench.mixed)
    for number, part in enumerate(parts, 1):
        held = beyond_results.read(where.results)["runs"]
        served = beyond_cells.missing(held, [*missing, *(c for own in part for c in riders(own, bench.grid))])
        rows, answers = train(bench, part, served, where)
        # The answers first: after a kill in between, a row without answers would never get them.
        write_answers(bench, answers, where)
        beyond_results.add_runs(where.results, rows)
        where.say(
            f"Fleet {number} of {len(parts)}: {len(part)} runs, {rows[0]['seconds']:.1f} s each, "
            f"{len(rows)} rows; written to {where.results}"
        )


def refuse_unscored(cells: Iterable[Cell]) -> None:
    """Before hours of training: the exact FairGRAPE needs a package that is not needed elsewhere."""
    if any(beyond_cells.method_of(cell).importance == "fairgrape" for cell in cells):
        try:
            import numba  # noqa: F401  # only whether it is there
        except ImportError as error:
            raise InputProblems(
                [f"FairGRAPE needs {error.name}: pip install 'evenprune[fairgrape]', or leave it out, "
                 'with --without FairGRAPE; "FairGRAPE (fast)" does without']
            ) from None  # fmt: skip


def fleets(cells: Iterable[Cell], most: int, *, mixed: bool = False) -> list[list[Cell]]:
    """The runs to train, in fleets of runs that cost the same; mixed: as few fleets as possible."""
    kinds: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in dict.fromkeys(trained_as(cell) for cell in cells):
        apart = () if mixed else beyond_cells.cost(cell)
        kinds.setdefault((*beyond_cells.company(cell), *apart), []).append(cell)
    return [part for own in kinds.values() for part in runner.fleets(own, _room(own[0], most))]


def _room(cell: Cell, most: int) -> int:
    """How many such runs make a fleet: companions count, but one run at least trains with all of its own."""
    return max(min(most, 1), most // beyond_cells.members(cell))


def train(
    bench: Bench, part: Sequence[Cell], wanted: Sequence[Cell], where: Where
) -> tuple[list[dict[str, Any]], dict[Cell, Tensor]]:
    """Rows, and predicted classes on the audit split, of all wanted cells that a fleet serves."""
    runs = beyond_cells.runs_of(part)
    recipe, start = bench.recipe_of(part[0]), bench.views.of(part[0]).start
    trained = runner.fit_fleet(start, runs, recipe, where, kind="beyond")
    shared = beyond_rows.shared_of(trained, part, where)
    rows, answers = list[dict[str, Any]](), dict[Cell, Tensor]()
    for cell, fitted in zip(part, trained.fitted, strict=True):
        own = [other for other in wanted if trained_as(other) == cell]
        for other, row, found in served(bench, cell, fitted, own, where, shared):
            rows.append(row)
            answers[other] = found["audit"].predictions
    return rows, answers


Served = tuple[Cell, dict[str, Any], dict[str, Predictions]]  # a cell, its row, its answers by split


def served(
    bench: Bench, cell: Cell, fitted: Fitted, wanted: Sequence[Cell], where: Where, shared: dict[str, Any]
) -> list[Served]:
    """Every wanted cell of one training: its own row is not `shared`, all others are."""
    recipe, trained_view = bench.recipe_of(cell), bench.views.of(cell)
    biases = [other for other in wanted if other.method == BIAS]
    splits = trained_view.start.data.evaluate
    logits = beyond_rows.logits_of(fitted.model, splits, recipe, where) if biases else {}
    found = list[Served]()
    for other in wanted:
        view, told = bench.views.of(other), {"shared": other != cell, **shared}
        if other.method == BIAS:
            row, answers = beyond_rows.bias_row(view, other, fitted, logits, told)
        else:
            own = fitted.last if other.method == PASSES else fitted.predictions
            answers = dict(own) if view is trained_view else view.answers(own)
            row = beyond_rows.trained_row(view, other, fitted, answers, recipe, told)
        found.append((other, row, answers))
    return found


def write_answers(bench: Bench, answers: dict[Cell, Tensor], where: Where) -> None:
    path = beyond_answers.path_of(where.results)
    for dataset, groups in dict.fromkeys((cell.dataset, cell.groups) for cell in answers):
        own = {c: classes for c, classes in answers.items() if (c.dataset, c.groups) == (dataset, groups)}
        start = bench.views.of(next(iter(own))).start
        beyond_answers.add(path, start, own, dataset=dataset, groups=groups)
