"""The cells of the paper's tables as data: which method, at which sparsity, with which hyper-parameters.

Tolerances and dual steps are read from the paper's own tables (paper_tables.json), never typed again.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from importlib.resources import files
from typing import Any, Literal

from evenprune import methods
from evenprune.method import Method
from evenprune.paper_results import Task
from evenprune.tally import InputProblems

TABLE_METHODS = ("NFT", "NFT + ES", "EL", "EL + RB", "CEAG (no RB)", "CEAG")
EL_SENTENCE = re.compile(r"(\S+) everywhere, except (\w+) (.+)/(.+) at ([\d.]+)%: (\S+)")


UNUSUAL = ("overall", "mean", "while_pruning")  # settings that a row tells only where they are set


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a table; what makes it that one and no other."""

    dataset: str
    target: str
    group: str
    method: str  # as the paper spells it
    sparsity: float
    seed: int
    tolerance: float | None = None  # fractions; None where the method has none
    dual_lr: float | None = None
    buffer: int | None = None  # length of the rings; 0: estimated on the batch; None: neither
    overall: Literal["macro"] | None = None  # as the paper's published code; None: by frequency, micro
    mean: Literal["detached"] | None = None  # no gradient through the overall mean; None: as Lagrangian
    while_pruning: Literal[True] | None = None  # constraints act from epoch 0; None: once pruning has ended

    @property
    def task(self) -> Task:
        return Task(self.dataset, self.target, self.group)

    def row(self) -> dict[str, Any]:
        """Its part of a row of the results; what is `UNUSUAL` only where it is told."""
        told = vars(self).items()
        return {name: value for name, value in told if name not in UNUSUAL or value is not None}


IDENTITY = tuple(field.name for field in fields(Cell))


@dataclass(frozen=True)
class Kind:
    """How a method of the paper is made, and where its hyper-parameters stand."""

    make: Callable[..., Method]
    tuned_as: Literal["ceag", "el", "none"] = "none"
    buffer: Literal["rings", "batch", "none"] = "none"


KINDS = {
    "NFT": Kind(methods.nft),
    "NFT + ES": Kind(partial(methods.nft_es, on="test")),  # as the paper's published code picks
    "EL": Kind(methods.el, "el", "batch"),
    "EL + RB": Kind(methods.el_rb, "el", "rings"),
    "CEAG (no RB)": Kind(methods.ceag_no_rb, "ceag", "batch"),
    "CEAG": Kind(methods.ceag, "ceag", "rings"),
    "CEAG (table)": Kind(partial(methods.ceag, estimator="table"), "ceag", "none"),
    "PW": Kind(methods.pairwise, "ceag", "rings"),
}


def method_of(cell: Cell) -> Method:
    """The method in the paper's form: sample weights may become negative."""
    kind = KINDS[cell.method]
    if kind.tuned_as == "none":
        return kind.make()
    told: dict[str, Any] = {"tolerance": cell.tolerance, "dual_lr": cell.dual_lr, "k": cell.buffer or None}
    told |= {name: getattr(cell, name) for name in UNUSUAL}
    made = kind.make(**{name: value for name, value in told.items() if value is not None}, negative="keep")
    return replace(made, estimator="ring") if kind.buffer == "batch" and cell.buffer else made


def cell_of(task: Task, method: str, *, sparsity: float, seed: int) -> Cell:
    """A cell with the paper's hyper-parameters."""
    kind = KINDS[method]
    tolerance, dual_lr = None, None
    if kind.tuned_as == "ceag":
        tolerance, dual_lr = ceag_settings(task, sparsity)
    elif kind.tuned_as == "el":
        dual_lr = el_dual_lr(task, sparsity)
    return Cell(
        **vars(task),
        method=method,
        sparsity=sparsity,
        seed=seed,
        tolerance=tolerance,
        dual_lr=dual_lr,
        buffer={"rings": hyperparameters()["buffer_size"], "batch": 0, "none": None}[kind.buffer],
    )


def label(cell: Cell) -> str:
    """The method, and what is not as in the paper's table: "CEAG, k = 20", "CEAG, ε = 0.5 %"."""
    usual = cell_of(cell.task, cell.method, sparsity=cell.sparsity, seed=cell.seed)
    parts = [cell.method]
    parts += [f"k = {cell.buffer}"] if cell.buffer != usual.buffer else []
    parts += [f"ε = {100 * (cell.tolerance or 0):g} %"] if cell.tolerance != usual.tolerance else []
    parts += [told for told in (cell.overall, cell.mean) if told is not None]
    parts += ["while pruning"] if cell.while_pruning else []
    return ", ".join(parts)


def table_cells(
    task: Task, *, sparsities: Iterable[float], methods: Sequence[str], seeds: Sequence[int]
) -> list[Cell]:
    """Sparsity by sparsity, method by method, seed by seed."""
    problems = [
        f"there is no method {name!r}; there are {', '.join(KINDS)}" for name in methods if name not in KINDS
    ]
    if problems:
        raise InputProblems(problems)
    return [
        cell_of(task, method, sparsity=sparsity, seed=seed)
        for sparsity in sparsities
        for method in methods
        for seed in seeds
    ]


@cache
def hyperparameters() -> dict[str, Any]:
    """As the paper prints them: tolerances and sparsities in percent."""
    text = files("evenprune").joinpath("paper_tables.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)["hyperparameters"]
    return found


def ceag_settings(task: Task, sparsity: float) -> tuple[float, float]:
    """Tolerance (a fraction) and dual step of CEAG."""
    own = [entry for entry in hyperparameters()["ceag"] if vars(task).items() <= entry.items()]
    for entry in own:
        if _same(entry["sparsity"], sparsity):
            return entry["tolerance"] / 100, entry["dual_lr"]
    known = ", ".join(f"{entry['sparsity'] / 100:g}" for entry in own) or "none"
    raise InputProblems(
        [f"the paper has no tolerance for sparsity {sparsity:g} of {task.dataset}; it has {known}"]
    )


def el_dual_lr(task: Task, sparsity: float) -> float:
    """The paper states these in words: one step everywhere, and one exception."""
    found = EL_SENTENCE.fullmatch(hyperparameters()["el"])
    if found is None:
        raise InputProblems(
            [f"paper_tables.json: cannot read the dual step of EL: {hyperparameters()['el']}"]
        )
    everywhere, dataset, target, group, percent, there = found.groups()
    exception = task == Task(dataset, target, group) and _same(float(percent), sparsity)
    return float(there if exception else everywhere)


def _same(percent: float, fraction: float) -> bool:
    return abs(percent / 100 - fraction) < 1e-9


def seeds_in(text: str) -> list[int]:
    """Seeds as people write them: 0-4, or 0,2,5-7; each once, in that order."""
    found: list[int] = []
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if ends is None or (ends[2] is not None and int(ends[2]) < int(ends[1])):
            raise InputProblems([f"seeds are {text!r}: write 0-4 or 0,1,2"])
        found += range(int(ends[1]), int(ends[2] or ends[1]) + 1)
    return list(dict.fromkeys(found))
