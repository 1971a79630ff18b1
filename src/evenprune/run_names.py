"""Runs in words: the method with what tells it from others, and the seed."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

from evenprune.comparison_wording import title_of
from evenprune.method import Method
from evenprune.recipe import Run
from evenprune.wording import percent

SHORT = {"dual_lr": "step", "multipliers_on": "on"}  # settings that are often told, in a word
# Settings that go without saying where another one is told, unless methods that agree in that differ in them.
IMPLIED = {
    "estimator": "multipliers_on",
    "refresh": "multipliers_on",
    "keep_on": "keep",
    "caution": "moves_on",
}
USUAL = {field.name: field.default for field in fields(Method) if field.name not in ("tolerance", "dual_lr")}


def method_labels(runs: Sequence[Run]) -> list[str]:
    """The method of each run in words: its name, and the settings that tell it from another of that name."""
    together = {(run.method, run.sparsity): None for run in runs}
    sparsities = {run.sparsity for run in runs}

    def label(run: Run) -> str:
        others = [method for method, _ in together if method.name == run.method.name]
        words = [title_of(run.method.name), *_distinct_settings(run.method, others)]
        return ", ".join(words + ([f"{percent(run.sparsity)} sparse"] if len(sparsities) > 1 else []))

    return [label(run) for run in runs]


def _distinct_settings(method: Method, others: Iterable[Method]) -> list[str]:
    """Every setting of the method in which another one differs, as name and value, unless it is as usual."""
    own, rest = vars(method), [vars(other) for other in others]

    def differs(name: str, among: Sequence[dict[str, Any]]) -> bool:
        return USUAL.get(name) != own[name] and any(other[name] != own[name] for other in among)

    def told(name: str) -> bool:
        by = IMPLIED.get(name, "")
        alike = [other for other in rest if differs(by, rest) and other[by] == own[by]] if by else []
        return differs(name, alike or rest)

    return [f"{SHORT.get(name, name)} {value}" for name, value in own.items() if told(name)]


def run_labels(runs: Sequence[Run]) -> list[str]:
    """A unique name per run."""
    return [f"{label}, seed {run.seed}" for label, run in zip(method_labels(runs), runs, strict=True)]
