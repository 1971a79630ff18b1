"""The runs of the study on unseen data, as values; what one training serves; which dual step counts."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from typing import Any

import torch

from evenprune.gap_limits import PairedCounts, least_maximum
from evenprune.iterates import merit
from evenprune.method import Method
from evenprune.paper_printed import FACES, FACES_SPARSITY
from evenprune.paper_results import Task
from evenprune.recipe import Run
from evenprune.tally import InputProblems
from paper.beyond_methods import ALL_PAIRS, BIAS, FEASIBLE, KINDS, PASSES, grouped, is_formulation, made
from paper.cells import ceag_settings

DATASET = "cifar100"
SMALL = "small_faces"  # gender predicted, groups by age
# To choose from, the usual one first.
GROUPINGS = {"cifar100": ("superclass", "class"), "utkface": ("race",), SMALL: ("age",)}
AGES = {  # ranges of age, and where they begin
    "under 5": 0,
    "5–14": 5,
    "15–24": 15,
    "25–34": 25,
    "35–44": 35,
    "45–59": 45,
    "60–74": 60,
    "75 and over": 75,
}
NO_LABELS = ("age",)  # groups that are neither labels nor unions of them: no class bias is for them
SPARSITY = {"cifar100": 0.95, "utkface": FACES_SPARSITY, SMALL: 0.95}  # that the study is about
TOLERANCE = 0.01  # where the paper has none
PAIR_TOLERANCE = 0.02  # of Ψ_PW and of all pairs: |ψ| ≤ 1 % for all groups bounds Δ_i − Δ_j by 2 %
LOSS_TOLERANCE = 0.05  # of CELG, in nats
BUFFER, REFRESH = 40, 88  # samples of a ring; steps from one pass to the next, four passes an epoch
# Dual steps to choose from, each per batch.
EL_STEPS, STEPS, DRO_STEPS = (1e-5, 3e-5, 1e-4), (0.0005, 0.002, 0.01), (0.001, 0.01)
FOLDS = 4  # of cross-fitting
IMPORTANCE_BATCHES = 50  # of FairGRAPE's scores at each pruning
NEAR = 1e-9  # 0.01 is not above 0.01


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run; what makes it that one and no other."""

    dataset: str = DATASET
    method: str
    groups: str  # "superclass" or "class"; "race"
    sparsity: float
    seed: int
    augment: bool = False  # flips, and crops of CIFAR-100, in fine-tuning
    tolerance: float | None = None  # fractions; None where the method has none
    dual_lr: float | None = None
    buffer: int | None = None  # length of the rings
    refresh: int | None = None  # steps between passes over the held-out samples
    # Samples of a class that the dense model was not trained on, and of these, samples of a group that are
    # looked at; below 1, a share of them. None: all, as for methods that do not look.
    heldout_per_class: float = 50
    heldout_used: float | None = None
    epochs: int = 60
    folds: int | None = None  # of cross-fitting: as many companions
    importance_batches: int | None = None  # that FairGRAPE's scores are summed over


IDENTITY = tuple(field.name for field in fields(Cell))
SETTING = tuple(
    name for name in IDENTITY if name not in ("seed", "dual_lr")
)  # one dual step is chosen in each


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The settings that all cells of a call share."""

    dataset: str = DATASET
    groups: str
    sparsity: float = SPARSITY[DATASET]
    tolerance: float = TOLERANCE
    pair_tolerance: float = PAIR_TOLERANCE
    loss_tolerance: float = LOSS_TOLERANCE
    steps: Sequence[float] = STEPS
    el_steps: Sequence[float] = EL_STEPS
    dro_steps: Sequence[float] = DRO_STEPS
    buffer: int = BUFFER
    refresh: int = REFRESH
    heldout_per_class: float = 50
    heldout_used: float | None = None
    epochs: int = 60
    folds: int = FOLDS
    importance_batches: int = IMPORTANCE_BATCHES
    # By groups: numbers of held-out samples that class biases are fitted to as well, at no further training.
    sizes: Mapping[str, Sequence[float]] = field(default_factory=dict)
    tolerances: Mapping[str, float] = field(default_factory=dict)  # of class biases, by groups


def cells_of(grid: Grid, *, names: Sequence[str], seeds: Sequence[int], augment: bool) -> list[Cell]:
    """Method by method, dual step by dual step, seed by seed."""
    problems = [
        f"there is no method {name!r}; there are {', '.join(KINDS)}" for name in names if name not in KINDS
    ]
    if ALL_PAIRS in names and grid.groups == "class":
        problems.append("all pairs are for superclasses: 100 classes would be 9,900 constraints")
    if BIAS in names and grid.groups in NO_LABELS:
        problems.append(f"{BIAS} is for groups that are labels, or unions of them, not for {grid.groups}")
    if problems:
        raise InputProblems(problems)
    by_kind: dict[str, Sequence[float | None]] = {
        "none": (None,),
        "usual": grid.steps,
        "el": grid.el_steps,
        "dro": grid.dro_steps,
    }
    return [
        replace(_cell(grid, name, augment), dual_lr=step, seed=seed)
        for name in names
        for step in by_kind[KINDS[name].steps]
        for seed in seeds
    ]


def _cell(grid: Grid, name: str, augment: bool) -> Cell:
    """Without dual step and seed."""
    kind = KINDS[name]
    tolerances = {"pairs": grid.pair_tolerance, "loss": grid.loss_tolerance, "none": None}
    return Cell(
        dataset=grid.dataset,
        method=name,
        groups=grid.groups,
        sparsity=grid.sparsity,
        seed=0,
        augment=augment,
        tolerance=tolerances.get(kind.tolerance, grid.tolerance),
        buffer=grid.buffer if kind.rings else None,
        refresh=grid.refresh if kind.passes else None,
        heldout_per_class=grid.heldout_per_class,
        heldout_used=grid.heldout_used if kind.sees_heldout else None,
        epochs=grid.epochs,
        folds=grid.folds if kind.crossed else None,
        importance_batches=grid.importance_batches if kind.scored else None,
    )


def method_of(cell: Cell) -> Method:
    constrained = KINDS[cell.method].tolerance not in ("none", "after")
    tolerance = cell.tolerance if constrained else None
    return made(cell.method, tolerance=tolerance, dual_lr=cell.dual_lr, k=cell.buffer, refresh=cell.refresh)


def runs_of(cells: Iterable[Cell]) -> list[Run]:
    return [Run(method=method_of(cell), sparsity=cell.sparsity, seed=cell.seed) for cell in cells]


# --- tolerances: the paper's where it has such groups ---


TASKS = {"race": FACES, "class": Task("cifar100", "class", "class")}  # superclasses are not the paper's


def paper_settings(groups: str, sparsity: float) -> tuple[float, float]:
    """Tolerance and dual step of CEAG."""
    try:
        return ceag_settings(TASKS[groups], sparsity)
    except InputProblems as error:
        told = [f"{problem}; give --tolerance and --dual-lr" for problem in error.problems]
        raise InputProblems(told) from None


def tolerance_of(groups: str, sparsity: float) -> float:
    return paper_settings(groups, sparsity)[0] if groups in TASKS else TOLERANCE


# --- what one training serves ---


def trained_as(cell: Cell) -> Cell:
    """The run that has to be trained: one with its best iterate kept has a last one too, a class bias is
    fitted to one of NFT, and not all look at groups."""
    if cell.method == PASSES:
        return replace(cell, method=FEASIBLE)
    if cell.method == BIAS:
        cell = replace(cell, method="NFT", tolerance=None, heldout_used=None)
    return cell if grouped(cell.method) else replace(cell, groups=GROUPINGS[cell.dataset][0])


def riders(cell: Cell, grid: Grid) -> list[Cell]:
    """The cells that a training serves: other iterates, other groups, and class biases by their sizes."""
    if cell.method == FEASIBLE:
        return [cell, replace(cell, method=PASSES)]
    if grouped(cell.method):
        return [cell]
    found = [replace(cell, groups=groups) for groups in GROUPINGS[cell.dataset]]
    if cell.method != "NFT":
        return found
    return found + [
        replace(
            own,
            method=BIAS,
            tolerance=grid.tolerances.get(own.groups, grid.tolerance),
            heldout_used=used,
        )
        for own in found
        if own.groups not in NO_LABELS
        for used in (None, *grid.sizes.get(own.groups, ()))
    ]


def company(cell: Cell) -> tuple[Any, ...]:
    """Cells that can share a fleet: of one data; and FairGRAPE's scores would be made for all of its runs."""
    data = (cell.dataset, cell.groups, cell.augment, cell.heldout_used, cell.epochs, cell.folds)
    return (*data, method_of(cell).importance, cell.importance_batches)


def cost(cell: Cell) -> tuple[Any, ...]:
    """Cells that cost the same: only if these alone share a fleet, the seconds of a run are its own."""
    method = method_of(cell)
    by_batch = method.multipliers_on is not None and method.estimator != "pass"
    return method.needs_teacher, by_batch, method.estimator == "pass"


def members(cell: Cell) -> int:
    """How many train for a cell: the run itself, and its companions."""
    return 1 + (cell.folds or 0)


def amount(value: float, of: str) -> str:
    """A number of samples, or below 1 a share: "50 a class", "20 % of each class"."""
    return f"{100 * value:g} % of each {of}" if 0 < value < 1 else f"{value:g} a {of}"


def key_of(values: Mapping[str, Any], names: Sequence[str] = IDENTITY) -> tuple[Any, ...]:
    """What tells one cell from another, or by other names what several have in common."""
    return tuple(values.get(name) for name in names)


def missing(rows: Iterable[Mapping[str, Any]], cells: Iterable[Cell]) -> list[Cell]:
    """The cells without a row; each once, in the order given."""
    held = {key_of(row) for row in rows}
    return [cell for cell in dict.fromkeys(cells) if key_of(asdict(cell)) not in held]


# --- the choice of a dual step ---


def chosen(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of every setting, the rows of one dual step, picked on the choice split and on nothing else.

    Of the steps whose mean max ψ there is within the tolerance, the one with the best mean accuracy there; if
    there is none, of those that are not shown to be beyond it, by the mean of the lower limits; else the one
    with the smallest mean max ψ. Means over the seeds that all steps have; the tolerance is the one that the
    method aims at, or the usual one where it is of something else. Of another formulation the question is
    whether its own constraints can be met: there it is these, on training data, where nothing is open.
    """
    return [row for steps in by_step(rows).values() for row in steps[best_step(steps)]]


Steps = Mapping[Any, Sequence[Mapping[str, Any]]]  # dual step -> rows


def by_step(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[Any, ...], Steps]:
    """By setting, the rows of each of its dual steps."""
    found: dict[tuple[Any, ...], dict[Any, list[Mapping[str, Any]]]] = {}
    for row in rows:
        found.setdefault(key_of(row, SETTING), {}).setdefault(row["dual_lr"], []).append(row)
    return dict(found)


def common_seeds(steps: Steps) -> set[int]:
    return set.intersection(*({row["seed"] for row in rows} for rows in steps.values()))


def best_step(steps: Steps) -> Any:
    common = common_seeds(steps)

    def score(step: Any) -> float:
        own = [row for row in steps[step] if row["seed"] in common] or steps[step]
        excess, least = (statistics.fmean(map(of, own)) for of in (excess_of, least_excess_of))
        accuracy = statistics.fmean(row["choice"]["accuracy"] for row in own)
        return merit(accuracy, gap=excess, least=least, tolerance=0)

    return max(sorted(steps, key=lambda step: step or 0), key=score)  # of equals the smallest step


def excess_of(row: Mapping[str, Any]) -> float:
    """How far a run is above what its method aims at."""
    if is_formulation(row["method"]):
        return float(row["constraint"]["value"]["train"] - row["constraint"]["allowed"])
    return float(row["choice"]["max_excess_gap"]) - aim(row)


def least_excess_of(row: Mapping[str, Any]) -> float:
    """How far it is above that at least, by the lower limit; of training data nothing is open."""
    if is_formulation(row["method"]):
        return excess_of(row)
    return _least_gap(*(tuple(row["changes"]["choice"][name]) for name in PairedCounts._fields)) - aim(row)


@cache
def _least_gap(*counts: tuple[int, ...]) -> float:
    """Of max ψ, by samples that a group has, that broke and that were fixed."""
    return float(least_maximum(PairedCounts(*(torch.tensor(own, dtype=torch.float64) for own in counts))))


def aim(row: Mapping[str, Any]) -> float:
    """The bound of max ψ that a method aims at; of one that has none, the usual one of its groups."""
    if KINDS[row["method"]].tolerance in ("usual", "after"):
        return float(row["tolerance"])
    try:
        return tolerance_of(row["groups"], row["sparsity"])
    except InputProblems:  # of a sparsity that the paper has not
        return TOLERANCE


# --- tuning on some seeds ---


def tuning(cells: Sequence[Cell], seeds: Sequence[int]) -> list[Cell]:
    """What is trained first: every dual step with these seeds; with all seeds what has no step to choose."""
    steps = _steps_of(cells)
    return [c for c in cells if c.seed in seeds or len(steps[key_of(asdict(c), SETTING)]) == 1]


def tuned(rows: Sequence[Mapping[str, Any]], cells: Sequence[Cell], seeds: Sequence[int]) -> list[Cell]:
    """What is trained next: the other seeds, with the one dual step that these seeds chose.

    Of a setting that has no rows of these seeds yet, the first step stands for the one to be chosen.
    """
    steps, first = _steps_of(cells), set(tuning(cells, seeds))
    own = by_step(row for row in rows if row["seed"] in seeds)
    picked = {
        setting: best_step(there) if (there := _only(own.get(setting, {}), known)) else known[0]
        for setting, known in steps.items()
    }
    return [c for c in cells if c not in first and c.dual_lr == picked[key_of(asdict(c), SETTING)]]


def planned(rows: Sequence[Mapping[str, Any]], cells: Sequence[Cell], seeds: Sequence[int]) -> list[Cell]:
    """Of all cells, in their order, those that are trained in the end."""
    kept = {*tuning(cells, seeds), *tuned(rows, cells, seeds)}
    return [cell for cell in cells if cell in kept]


def _steps_of(cells: Iterable[Cell]) -> dict[tuple[Any, ...], list[Any]]:
    """By setting, its dual steps."""
    found: dict[tuple[Any, ...], dict[Any, None]] = {}
    for cell in cells:
        found.setdefault(key_of(asdict(cell), SETTING), {})[cell.dual_lr] = None
    return {setting: list(steps) for setting, steps in found.items()}


def _only(steps: Steps, known: Sequence[Any]) -> Steps:
    return {step: rows for step, rows in steps.items() if step in known}
