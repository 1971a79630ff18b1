"""The recipe, varied: cells that were trained in another way, beside those that they are to be compared with.

The recipe of the tables is called "fast" where it was shortened: bfloat16, graphs, own kernels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from evenprune.paper_cells import is_printed
from evenprune.paper_pairs import Contrast, contrast
from evenprune.paper_printed import Number, Printed
from evenprune.paper_results import EPOCHS, Run, Task

PLAIN, FAST = "plain", "fast"
DUAL = "dual_"  # recipes of this name have another dual step, and nothing else
MACRO = "macro"  # the recipe whose constraints average the groups alike
RING = "ring_1"  # recipes of this name have a ring of one sample a group for no buffer
TABLE = "table"  # the runs of the tables, where no shortened ones are needed


@dataclass(frozen=True)
class Variant:
    """Differences are `second` minus `first`; each is the name of a recipe, or TABLE."""

    task: Task
    sparsity: float
    epochs: int
    first: str
    second: str
    rows: tuple[Contrast, ...]


def variants(varied: Sequence[Run], usual: Sequence[Run], paper: Printed) -> tuple[Variant, ...]:
    """Every recipe beside the usual one: the plain loop first, then in order of their names."""
    found: dict[tuple[Task, float, int, str, str], list[Contrast]] = {}
    groups: dict[tuple[object, ...], list[Run]] = {}
    for run in sorted(varied, key=lambda run: _order(run, paper)):
        groups.setdefault((*run.cell, name_of(run), run.length), []).append(run)
    for runs in groups.values():
        run, name = runs[0], name_of(runs[0])
        other, against = partners(run, varied, usual)
        if name == FAST or not against:
            continue
        first, second = (runs, against) if name == PLAIN else (against, runs)
        made = contrast(first, second, _printed(against[0], paper) if other == TABLE else {})
        if made is not None:
            ways = (name, other) if name == PLAIN else (other, name)
            found.setdefault((run.task, run.sparsity, run.length, *ways), []).append(made)
    return tuple(Variant(*key, tuple(rows)) for key, rows in found.items())


def name_of(run: Run) -> str:
    return run.recipe or FAST


def partners(run: Run, varied: Sequence[Run], usual: Sequence[Run]) -> tuple[str, list[Run]]:
    """The same cell under the usual recipe and as many epochs: shortened, or else that of the tables."""
    short = [
        r for r in varied if (r.cell, name_of(r), r.length) == (run.cell, FAST, run.length) and r is not run
    ]
    if short or run.length != EPOCHS:
        return FAST, short
    return TABLE, [r for r in usual if r.cell == _as_usual(r, run).cell]


def _as_usual(usual: Run, run: Run) -> Run:
    """Where the dual step, the overall mean or the ring is what was varied, the tables have another one."""
    name = name_of(run)
    if name.startswith(DUAL):
        return replace(run, dual_lr=usual.dual_lr)
    if name.startswith(RING) and run.buffer == 1:
        return replace(run, buffer=usual.buffer)
    return replace(run, overall=usual.overall) if name == MACRO else run


def alone(varied: Sequence[Run], usual: Sequence[Run]) -> tuple[str, ...]:
    """Names of the runs that have nothing to be compared with."""
    return tuple(
        run.name
        for run in varied
        if not any(run.seed == other.seed for other in _counterparts(run, varied, usual))
    )


def _counterparts(run: Run, varied: Sequence[Run], usual: Sequence[Run]) -> list[Run]:
    if name_of(run) != FAST:
        return partners(run, varied, usual)[1]
    return [r for r in varied if (r.cell, r.length) == (run.cell, run.length) and name_of(r) != name_of(run)]


def _order(run: Run, paper: Printed) -> tuple[object, ...]:
    methods = [cell.method for cell in paper.cells.get((run.task, run.sparsity), ())]
    place = methods.index(run.method) if run.method in methods else len(methods)
    return (name_of(run) != PLAIN, name_of(run), place, run.seed)


def _printed(run: Run, paper: Printed) -> Mapping[str, Mapping[str, Number]]:
    """The paper's numbers of a cell of the tables; none of other settings than its own."""
    if not is_printed(run, paper):
        return {}
    cells = paper.cells.get((run.task, run.sparsity), ())
    return next((cell.figures for cell in cells if cell.method == run.method), {})
