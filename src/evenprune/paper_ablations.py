"""Cells with one setting changed: the paper's ablation tables, and runs that it prints nothing about."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evenprune.paper_cells import Cell, cell_of, one_per_seed, ring_of, same
from evenprune.paper_pairs import Contrast, contrast
from evenprune.paper_printed import (
    CIFAR,
    FACES,
    FACES_SPARSITY,
    HARDEST,
    OTHERS_SPARSITY,
    RING,
    WITHOUT_OTHERS,
    Printed,
    Setting,
)
from evenprune.paper_results import Run, Task

TABLE = "CEAG (table)"  # estimates every group's accuracy from all training samples
OVERALL = {  # how the groups make up the overall accuracy: by their frequency, or all alike
    "micro": "micro (ours)",
    "macro": "macro (published)",
}


@dataclass(frozen=True)
class Ablation:
    task: Task
    sparsity: float
    tolerance: float | None
    heading: str  # what was changed
    rows: tuple[tuple[str, Cell], ...]
    method: str = "CEAG"
    contrast: Contrast | None = None  # the second row minus the first, seed by seed


def _is_hardest(run: Run, paper: Printed) -> bool:
    """CIFAR-100 at 95 % with CEAG's tolerance and dual step."""
    place = (CIFAR, HARDEST)
    usual = (run.task, run.sparsity) == place and run.overall == "micro"
    return usual and _is_set(run, paper.settings[place])


def buffer_table(runs: Sequence[Run], paper: Printed) -> Ablation:
    """Ring lengths at 95 %, and the `table` estimator as one more row."""
    tolerance = paper.settings[CIFAR, HARDEST].tolerance
    own = [run for run in runs if _is_hardest(run, paper)]
    rows = []
    for k, numbers in paper.buffers.items():
        cell = cell_of("CEAG", one_per_seed(run for run in own if is_ring(run, k)), tolerance, numbers)
        rows.append((f"k = {k}" if k else "k = 0 (no buffer)", cell))
    table = one_per_seed(run for run in own if run.method == TABLE)
    rows.append(("Table estimator", cell_of(TABLE, table, tolerance, {})))
    return Ablation(CIFAR, HARDEST, tolerance, "buffer size k", tuple(rows))


def is_ring(run: Run, length: int) -> bool:
    return run.method in ("CEAG", "CEAG (no RB)") and ring_of(run) == length


def _is_face(run: Run, paper: Printed) -> bool:
    """CEAG on UTKFace at 92.5 % with its dual step, whatever its tolerance and its overall accuracy."""
    place = (FACES, FACES_SPARSITY)
    fits = (run.task, run.sparsity, run.method) == (*place, "CEAG") and ring_of(run) == RING
    return fits and run.tolerance is not None and same(run.dual_lr, paper.settings[place].dual_lr)


def tolerance_table(runs: Sequence[Run], paper: Printed) -> Ablation:
    """CEAG under several tolerances; met means each row's own tolerance."""
    own = [run for run in runs if _is_face(run, paper) and run.overall == "micro"]
    rows = []
    for tolerance, numbers in sorted(paper.tolerances.items()):
        fitting = one_per_seed(run for run in own if same(run.tolerance, tolerance))
        rows.append(
            (f"tolerance {100 * tolerance:g}", cell_of("CEAG", fitting, tolerance, {"train": numbers}))
        )
    return Ablation(FACES, FACES_SPARSITY, None, "tolerance, in points", tuple(rows))


def overall_table(runs: Sequence[Run], paper: Printed) -> Ablation:
    """CEAG against an overall accuracy of all samples, and against the mean of the groups' accuracies.

    The printed numbers are those of the paper's code, and so stand beside both.
    """
    setting = paper.settings[FACES, FACES_SPARSITY]
    own = [run for run in runs if _is_face(run, paper) and _is_set(run, setting)]
    numbers = next(cell.figures for cell in paper.cells[FACES, FACES_SPARSITY] if cell.method == "CEAG")
    ways = {how: [run for run in own if run.overall == how] for how in OVERALL}
    rows = tuple(
        (name, cell_of("CEAG", one_per_seed(ways[how]), setting.tolerance, numbers))
        for how, name in OVERALL.items()
    )
    both = contrast(ways["micro"], ways["macro"], numbers)
    return Ablation(FACES, FACES_SPARSITY, setting.tolerance, "overall accuracy", rows, contrast=both)


def _is_set(run: Run, setting: Setting) -> bool:
    return same(run.tolerance, setting.tolerance) and same(run.dual_lr, setting.dual_lr)


def others_table(runs: Sequence[Run], paper: Printed) -> Ablation:
    """NFT with and without the people of race Others."""
    tolerance = paper.settings[FACES, OTHERS_SPARSITY].tolerance
    names = {FACES: "All races", WITHOUT_OTHERS: "Without Others"}
    rows = []
    for task, numbers in paper.others.items():
        own = one_per_seed(run for run in runs if _is_plain(run) and run.task == task)
        rows.append((names[task], cell_of("NFT", own, tolerance, numbers)))
    return Ablation(FACES, OTHERS_SPARSITY, tolerance, "who is in the data", tuple(rows), "NFT")


def _is_plain(run: Run) -> bool:
    return (run.sparsity, run.method) == (OTHERS_SPARSITY, "NFT")


@dataclass(frozen=True)
class Further:
    """Runs whose settings the paper prints no number for."""

    task: Task
    sparsity: float
    tolerance: float | None
    buffer: int | None
    dual_lr: float | None
    overall: str
    cell: Cell


def further(runs: Sequence[Run], shown: Iterable[Run], paper: Printed) -> tuple[Further, ...]:
    seen = {id(run) for run in shown}
    groups: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        if id(run) not in seen:
            groups.setdefault(run.settings, []).append(run)
    return tuple(_further(alike, paper) for alike in groups.values())


def _further(runs: Sequence[Run], paper: Printed) -> Further:
    first = runs[0]
    setting = paper.settings.get((first.task, first.sparsity))
    tolerance = first.tolerance if first.tolerance is not None else setting.tolerance if setting else None
    cell = cell_of(first.method, one_per_seed(runs), tolerance, {})
    return Further(first.task, first.sparsity, tolerance, first.buffer, first.dual_lr, first.overall, cell)


def ablated(run: Run, paper: Printed) -> bool:
    """Whether one of the ablation tables shows the run."""
    of_buffers = run.method == TABLE or any(is_ring(run, k) for k in paper.buffers)
    if run.overall == "macro":
        of_faces = _is_set(run, paper.settings[FACES, FACES_SPARSITY])
    else:
        of_faces = any(same(run.tolerance, tolerance) for tolerance in paper.tolerances)
    of_others = run.task == WITHOUT_OTHERS and _is_plain(run)
    return (_is_hardest(run, paper) and of_buffers) or (_is_face(run, paper) and of_faces) or of_others
