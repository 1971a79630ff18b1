"""The runs of the study on unseen data, as values; which dual step of a method counts, by held-out data."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any, Literal

from evenprune import methods
from evenprune.plan import Method
from evenprune.tally import InputProblems

DATASET = "cifar100"  # of rows that name none
TOLERANCE = 0.01
PAIR_TOLERANCE = 0.02  # of Ψ_PW and of all pairs: |ψ| ≤ 1 % for all groups bounds Δ_i − Δ_j by 2 %
LOSS_TOLERANCE = 0.05  # of CELG, in nats
BUFFER, REFRESH = 40, 88  # samples of a ring; steps from one pass to the next, four passes an epoch
EL_STEPS, STEPS = (1e-5, 1e-4), (0.0005, 0.002, 0.01)  # dual steps to choose from, each per batch
FOLDS = 4  # of cross-fitting
BIAS = "NFT + class bias"
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
    # looked at; below 1, a share of them. None: all.
    heldout_per_class: float = 50
    heldout_used: float | None = None
    epochs: int = 60
    folds: int | None = None  # of cross-fitting: as many companions


IDENTITY = tuple(field.name for field in fields(Cell))
SETTING = tuple(
    name for name in IDENTITY if name not in ("seed", "dual_lr")
)  # one dual step is chosen in each


@dataclass(frozen=True)
class Kind:
    """How a method is made, and which settings it takes."""

    make: Callable[..., Method]
    tolerance: Literal["none", "usual", "pairs", "loss", "after"] = "none"  # after: used after training
    steps: Literal["none", "usual", "el"] = "none"
    rings: bool = False
    passes: bool = False
    sees_heldout: bool = False
    crossed: bool = False  # multipliers follow folds of the training samples


def _heldout(**more: Any) -> Kind:
    make = partial(methods.ceag, multipliers_on="heldout", estimator="pass", **more)
    return Kind(make, "usual", "usual", passes=True, sees_heldout=True)


def _ringed(make: Callable[..., Method], tolerance: Literal["none", "usual", "pairs", "loss"]) -> Kind:
    return Kind(make, tolerance, "usual", rings=True)


STUDY: dict[str, Kind] = {
    "NFT": Kind(methods.nft),
    "NFT + KD": Kind(methods.kd),
    BIAS: Kind(methods.nft, "after", sees_heldout=True),
    "EL + RB": Kind(methods.el_rb, "none", "el", rings=True),
    "CEAG": _ringed(methods.ceag, "usual"),
    "CEAG (table)": Kind(partial(methods.ceag, estimator="table"), "usual", "usual"),
    "CEAG held-out (ring)": replace(
        _ringed(partial(methods.ceag, multipliers_on="heldout"), "usual"), sees_heldout=True
    ),
    "CEAG held-out (passes)": _heldout(),
    "CEAG held-out (passes, caution 1)": _heldout(caution=1.0),
    "CEAG held-out + KD": _heldout(distill=0.9, temperature=4.0),
    "FairGRAPE (fast)": Kind(partial(methods.fairgrape, fast=True)),
}
FURTHER: dict[str, Kind] = {  # only if they are asked for
    "CEAG cross-fitted (passes)": Kind(
        partial(methods.ceag, multipliers_on="folds", estimator="pass"),
        "usual",
        "usual",
        passes=True,
        crossed=True,
    ),
    "CEAG held-out (passes, best feasible)": _heldout(keep="feasible", keep_on="heldout"),
}
FORMULATIONS: dict[str, Kind] = {
    "CEAG": STUDY["CEAG"],
    "CELG": _ringed(methods.celg, "loss"),
    "Ψ_PW": _ringed(methods.pairwise, "pairs"),
    "all pairs": _ringed(methods.all_pairs, "pairs"),
    "equalized": _ringed(methods.equalized, "none"),
    "approximately equal": _ringed(methods.approximately_equal, "usual"),
    "two-sided": _ringed(methods.two_sided, "usual"),
}
KINDS = STUDY | FURTHER | FORMULATIONS


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The settings that all cells of a call share."""

    dataset: str = DATASET
    groups: str
    sparsity: float = 0.95
    tolerance: float = TOLERANCE
    pair_tolerance: float = PAIR_TOLERANCE
    loss_tolerance: float = LOSS_TOLERANCE
    steps: Sequence[float] = STEPS
    el_steps: Sequence[float] = EL_STEPS
    buffer: int = BUFFER
    refresh: int = REFRESH
    heldout_per_class: float = 50
    heldout_used: float | None = None
    epochs: int = 60
    folds: int = FOLDS


def cells_of(grid: Grid, *, names: Sequence[str], seeds: Sequence[int], augment: bool) -> list[Cell]:
    """Method by method, dual step by dual step, seed by seed."""
    problems = [
        f"there is no method {name!r}; there are {', '.join(KINDS)}" for name in names if name not in KINDS
    ]
    if "all pairs" in names and grid.groups == "class":
        problems.append("all pairs are for superclasses: 100 classes would be 9,900 constraints")
    if problems:
        raise InputProblems(problems)
    found = []
    for name in names:
        kind = KINDS[name]
        steps: Sequence[float | None] = {"none": (None,), "usual": grid.steps, "el": grid.el_steps}[
            kind.steps
        ]
        tolerances = {"pairs": grid.pair_tolerance, "loss": grid.loss_tolerance, "none": None}
        found += [
            Cell(
                dataset=grid.dataset,
                method=name,
                groups=grid.groups,
                sparsity=grid.sparsity,
                seed=seed,
                augment=augment,
                tolerance=tolerances.get(kind.tolerance, grid.tolerance),
                dual_lr=step,
                buffer=grid.buffer if kind.rings else None,
                refresh=grid.refresh if kind.passes else None,
                heldout_per_class=grid.heldout_per_class,
                heldout_used=grid.heldout_used,
                epochs=grid.epochs,
                folds=grid.folds if kind.crossed else None,
            )
            for step in steps
            for seed in seeds
        ]
    return found


def method_of(cell: Cell) -> Method:
    """Negative sample weights are clipped: the default of every method."""
    kind = KINDS[cell.method]
    told: dict[str, Any] = {"dual_lr": cell.dual_lr, "k": cell.buffer, "refresh": cell.refresh}
    if kind.tolerance not in ("none", "after"):
        told["tolerance"] = cell.tolerance
    return kind.make(**{name: value for name, value in told.items() if value is not None})


def trained_as(cell: Cell) -> Cell:
    """The run that has to be trained: a class bias is fitted to one of NFT."""
    return replace(cell, method="NFT", tolerance=None) if cell.method == BIAS else cell


def cost(cell: Cell) -> tuple[Any, ...]:
    """Cells that cost the same: only these share a fleet, so that the seconds of a run are its own."""
    method = method_of(cell)
    by_batch = method.multipliers_on is not None and method.estimator != "pass"
    return method.importance, method.needs_teacher, by_batch, method.estimator == "pass", cell.folds


def members(cell: Cell) -> int:
    """How many train for a cell: the run itself, and its companions."""
    return 1 + (cell.folds or 0)


def amount(value: float, of: str) -> str:
    """A number of samples, or below 1 a share: "50 a class", "20 % of each class"."""
    return f"{100 * value:g} % of each {of}" if 0 < value < 1 else f"{value:g} a {of}"


def dataset_of(values: Mapping[str, Any]) -> str:
    """Of a row, or of what is said of dense models."""
    return str(values.get("dataset") or DATASET)


def key_of(values: Mapping[str, Any], names: Sequence[str] = IDENTITY) -> tuple[Any, ...]:
    """What tells one cell from another, or by other names what several have in common."""
    return tuple(dataset_of(values) if name == "dataset" else values.get(name) for name in names)


def missing(rows: Iterable[Mapping[str, Any]], cells: Iterable[Cell]) -> list[Cell]:
    """The cells without a row; each once, in the order given."""
    held = {key_of(row) for row in rows}
    return [cell for cell in dict.fromkeys(cells) if key_of(asdict(cell)) not in held]


# --- the choice of a dual step ---


def chosen(rows: Iterable[Mapping[str, Any]], tolerance: float = TOLERANCE) -> list[Mapping[str, Any]]:
    """Of every setting, the rows of one dual step, picked on the held-out split and on nothing else.

    Of the steps whose mean max ψ there is within the tolerance, the one with the best mean accuracy there; if
    there is none, the one with the smallest mean max ψ. Means over the seeds that all steps have.
    """
    settings: dict[tuple[Any, ...], dict[Any, list[Mapping[str, Any]]]] = {}
    for row in rows:
        settings.setdefault(key_of(row, SETTING), {}).setdefault(row["dual_lr"], []).append(row)
    return [row for steps in settings.values() for row in steps[_best(steps, tolerance)]]


def _best(steps: Mapping[Any, Sequence[Mapping[str, Any]]], tolerance: float) -> Any:
    common = set.intersection(*({row["seed"] for row in rows} for rows in steps.values()))

    def score(step: Any) -> tuple[float, float]:
        own = [row for row in steps[step] if row["seed"] in common] or steps[step]
        gap = statistics.fmean(row["heldout"]["max_excess_gap"] for row in own)
        accuracy = statistics.fmean(row["heldout"]["accuracy"] for row in own)
        return (1.0, accuracy) if gap <= tolerance + NEAR else (0.0, -gap)

    return max(sorted(steps, key=lambda step: step or 0), key=score)  # of equals the smallest step
