"""The numbers that the paper prints, as data; here and nowhere else percents become fractions."""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from evenprune.paper_fields import SPLITS
from evenprune.paper_results import Task

SEEDS = 5  # of every number in the paper's tables
ROUNDING = 0.001 / 12**0.5  # means are printed to 0.1 points: an error uniform in ±0.05 points
RING = 40  # length of the paper's replay buffer
EL_STEP = 1e-5  # dual step of the equalized loss, but for one task
EL_STEPS = {(Task("utkface", "gender", "race"), 0.85): 1e-4}
CIFAR, FACES = Task("cifar100", "class", "class"), Task("utkface", "race", "race")
FACES_SPARSITY = 0.925  # of the table of tolerances
WITHOUT_OTHERS = Task("utkface", "race", "race without Others")  # neither class nor group Others
OTHERS_SPARSITY = 0.9  # of the table that compares it with FACES
IMAGE_SIZES = {"utkface": 200, "fairface": 224}  # side in pixels
HARDEST = 0.95  # the sparsity of the tables of runtimes and buffers
NAMES = {"psi_pw": "pairwise_disparity", "max_psi": "max_excess_gap", "accuracy": "accuracy"}
Place = tuple[Task, float]  # a task and a sparsity


@dataclass(frozen=True)
class Number:
    """A printed mean; its standard deviation over seeds where it is printed too."""

    mean: float
    sd: float | None = None


Split = Mapping[str, Number]  # measure -> number


@dataclass(frozen=True)
class Cell:
    method: str
    figures: Mapping[str, Split]  # split -> measure -> number
    feasible: bool | None  # whether the paper says that the tolerance was met


@dataclass(frozen=True)
class Setting:
    """CEAG's hyper-parameters at one place."""

    tolerance: float
    dual_lr: float


@dataclass(frozen=True)
class Runtime:
    """Seconds per run on an A100."""

    low: float
    median: float
    high: float


@dataclass(frozen=True)
class Printed:
    cells: Mapping[Place, tuple[Cell, ...]]  # in the paper's order
    settings: Mapping[Place, Setting]
    group_accuracy: Mapping[tuple[Task, float, str, str], Mapping[str, Number]]  # …, split, method -> group
    runtime: Mapping[str, Runtime]  # CIFAR-100 at 95 %
    buffers: Mapping[int, Mapping[str, Split]]  # CIFAR-100 at 95 %, tolerance 5 points
    tolerances: Mapping[float, Split]  # UTKFace race/race at 92.5 %, training data
    others: Mapping[Task, Mapping[str, Split]]  # NFT on UTKFace at 90 %, with and without race Others


def _fraction(percent: float) -> float:
    return round(percent / 100, 9)  # 92.5 / 100 and 0.925 must be one number


def _number(value: Any) -> Number:
    if isinstance(value, dict):
        return Number(_fraction(value["mean"]), _fraction(value["std"]) if "std" in value else None)
    return Number(_fraction(value))


def _split(values: Mapping[str, Any]) -> dict[str, Number]:
    """What is not printed is left out."""
    return {NAMES[key]: _number(value) for key, value in values.items() if key in NAMES and value is not None}


def _place(row: Mapping[str, Any]) -> Place:
    return Task(row["dataset"], row["target"], row["group"]), _fraction(row["sparsity"])


def _cell(row: Mapping[str, Any]) -> Cell:
    return Cell(row["method"], {s: _split(row[s]) for s in SPLITS}, row.get("feasible_in_paper"))


@functools.cache
def printed() -> Printed:
    """Everything the paper prints, in fractions."""
    text = resources.files("evenprune").joinpath("paper_tables.json").read_text(encoding="utf-8")
    tables = json.loads(text)
    cells: dict[Place, tuple[Cell, ...]] = {}
    for row in tables["results"]:
        cells[_place(row)] = (*cells.get(_place(row), ()), _cell(row))
    return Printed(
        cells=cells,
        settings={
            _place(row): Setting(_fraction(row["tolerance"]), row["dual_lr"])
            for row in tables["hyperparameters"]["ceag"]
        },
        group_accuracy={
            (*_place(row), row["split"], row["method"]): {g: _number(v) for g, v in row["accuracy"].items()}
            for row in tables["group_accuracy"]
        },
        runtime={
            method: Runtime(row["min_s"], row["median_s"], row["max_s"])
            for method, row in tables["runtime_cifar100_95_a100"].items()
        },
        buffers={
            row["k"]: {s: _split(row[s]) for s in SPLITS}
            for row in tables["buffer_size_ablation_cifar100_95_tol5"]
        },
        tolerances={
            _fraction(row["tolerance"]): _split(row)
            for row in tables["tolerance_sensitivity_utkface_race_race_92.5"]
        },
        others={
            task: {s: _split(tables["without_others_utkface_race_race_90_nft"][key][s]) for s in SPLITS}
            for task, key in ((FACES, "full"), (WITHOUT_OTHERS, "without Others"))
        },
    )
