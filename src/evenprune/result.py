"""What prune() returns: models, masks, audits and history of every run, and the comparison of them."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from evenprune import atomic, comparison_page, comparison_text, report
from evenprune.audit import audit
from evenprune.comparison_wording import title_of
from evenprune.masks import Masks
from evenprune.plan import Method
from evenprune.predict import Predictions
from evenprune.recipe import Recipe, Run
from evenprune.samples import Samples
from evenprune.training import Fitted
from evenprune.verdict import STRICTNESS, Audit, Word
from evenprune.wording import percent

SCHEMA = "evenprune.comparison/1"
# Settings shown where they are set.
SPECIAL = (
    *("dual", "kp", "ki", "nu", "mean", "negative", "overall", "multipliers_on", "refresh", "caution"),
    *("distill", "temperature", "focus", "floor", "sampling", "keep", "keep_on", "importance"),
)


@dataclass(frozen=True, eq=False)
class Result:
    """Finished runs. Prints as a table of the methods; `audit` prints as the audit of the first run.

    `audits`, `models`, `masks` and `history` have an entry per run under its name, such as "CEAG, seed 0".
    """

    model_name: str
    samples: Samples
    dense: Mapping[str, Predictions]  # the dense model on "train", "test" (and "validation")
    fitted: tuple[Fitted, ...]
    recipe: Recipe
    tolerance: float  # of the audits
    confidence: float
    title: str = ""
    select: str | None = None  # the split on which one of the runs is chosen

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(one.run for one in self.fitted)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """One per run, unique."""
        return tuple(run_labels(self.runs))

    @cached_property
    def audits(self) -> dict[str, dict[str, Audit]]:
        """By run and split: result.audits["CEAG, seed 0"]["test"]."""
        return {
            name: {split: self._audit(name, one, split) for split in self.dense}
            for name, one in zip(self.names, self.fitted, strict=True)
        }

    def _audit(self, name: str, one: Fitted, split: str) -> Audit:
        answers = one.predictions[split]
        return audit(
            labels=answers.labels,
            dense=self.dense[split].predictions,
            pruned={name: answers.predictions},
            groups=self.samples.columns[split],
            tolerance=self.tolerance,
            confidence=self.confidence,
        )

    @property
    def selected(self) -> str:
        """The run that is chosen on the split `select`, never on the test data; without one, the first.

        Of the runs whose largest excess gap there is within the tolerance the most accurate one; if there is
        none, the run with the smallest.
        """
        if self.select is None:
            return self.names[0]
        found = [_split(self, one, self.select) for one in self.fitted]
        scores = [
            (1.0, run["accuracy"]) if (gap := run["max_excess_gap"] or 0.0) <= self.tolerance else (0.0, -gap)
            for run in found
        ]
        return self.names[scores.index(max(scores))]

    @property
    def audit(self) -> Audit:
        """Of the selected run (without a split to select on: the first one), on the test data."""
        return self.audits[self.selected]["test"]

    @property
    def worst(self) -> Audit:
        """The strictest of all audits on the test data; of equals, the one with the largest excess gap."""
        audits = [by_split["test"] for by_split in self.audits.values()]
        return max(audits, key=lambda a: (STRICTNESS[a.verdict], a.max_excess_gap.estimate))

    @property
    def verdict(self) -> Word:
        """Of the selected run on the test data; without a split to select on, the strictest of all runs: then
        "pass" means that every one of them passed."""
        return self.worst.verdict if self.select is None else self.audit.verdict

    @property
    def models(self) -> dict[str, nn.Module]:
        """The pruned models, pruned weights at zero, in evaluation mode."""
        return {name: one.model for name, one in zip(self.names, self.fitted, strict=True)}

    @property
    def masks(self) -> dict[str, Masks]:
        return {name: one.masks for name, one in zip(self.names, self.fitted, strict=True)}

    @property
    def history(self) -> dict[str, list[dict[str, Any]]]:
        """One row per epoch of each run, plain numbers."""
        return {name: one.history for name, one in zip(self.names, self.fitted, strict=True)}

    def document(self) -> dict[str, Any]:
        """Everything as plain values for JSON: the methods, their runs, their history and their audits."""
        return document_of(self)

    def table(self) -> str:
        """One line a method: accuracy, max ψ and Ψ_PW on train and test, mean ± sd, verdicts."""
        return comparison_text.to_text(self.document())

    def __str__(self) -> str:
        return self.table()

    def save(self, path: str | Path) -> Path:
        """Write the comparison as one self-contained page (.html), as data (.json) or as text (.txt)."""
        writers: dict[str, Callable[[dict[str, Any]], str]] = {
            ".html": comparison_page.to_html,
            ".json": report.to_json,
            ".txt": lambda document: comparison_text.to_text(document) + "\n",
        }
        write = writers.get(Path(path).suffix.lower())
        if write is None:
            raise ValueError(f"Cannot save as {path}: the name must end in one of {', '.join(writers)}.")
        atomic.write_text(path, write(self.document()))
        return Path(path)


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
    """Every setting of the method in which another one differs, as name and value."""
    values, rest = vars(method), [vars(other) for other in others]
    return [f"{name} {value}" for name, value in values.items() if any(o[name] != value for o in rest)]


def run_labels(runs: Sequence[Run]) -> list[str]:
    """A unique name per run."""
    return [f"{label}, seed {run.seed}" for label, run in zip(method_labels(runs), runs, strict=True)]


def document_of(result: Result) -> dict[str, Any]:
    """Everything that a page or a table shows, as plain values; fractions, not percent."""
    recipe, first = result.recipe, result.fitted[0]
    left = first.masks.summary()
    sparsities = sorted({run.sparsity for run in result.runs})
    return {
        "schema": SCHEMA,
        "title": result.title or f"{result.model_name}, {', '.join(map(percent, sparsities))} sparse",
        "model": result.model_name,
        "sparsity": sparsities[0] if len(sparsities) == 1 else None,
        "tolerance": result.tolerance,
        "confidence": result.confidence,
        "groups": list(result.samples.names),
        "samples": {name: _group_sizes(result, answers) for name, answers in result.dense.items()},
        "dense": {name: _level(result, answers) for name, answers in result.dense.items()},
        "epochs": recipe.epochs,
        "pruning_epochs": recipe.pruning_epochs,
        "seconds": _seconds(result.fitted),
        "parameters": {"all": left.prunable + left.unprunable, "left": left.left[0]},
        "methods": _methods(result),
    } | ({} if result.select is None else {"selected": result.selected, "selected_on": result.select})


def _seconds(fitted: Sequence[Fitted]) -> float:
    """Of the training in all; runs of one fleet share its time, to the last digit."""
    return sum({sum(row["seconds"] for row in one.history) for one in fitted})


def _group_sizes(result: Result, answers: Predictions) -> list[int]:
    return [int(n) for n in answers.reference(result.samples.names).samples.tolist()]


def _level(result: Result, answers: Predictions) -> dict[str, Any]:
    measured = answers.reference(result.samples.names)
    return {"accuracy": measured.overall_accuracy, "group_accuracy": _numbers(measured.accuracy.tolist())}


def _methods(result: Result) -> list[dict[str, Any]]:
    labels, found = method_labels(result.runs), dict[str, dict[str, Any]]()
    for label, run, name in zip(labels, result.fitted, result.names, strict=True):
        entry = found.setdefault(label, {"name": label, "settings": _settings(run.run.method), "runs": []})
        entry["runs"].append(_run(result, run, name))
    return list(found.values())


def _settings(method: Method) -> dict[str, Any]:
    """What a reader needs to repeat it: the main settings, and others where they are not the usual ones."""
    ring = {"k": method.k} if method.estimator == "ring" else {}
    usual = {f.name: f.default for f in fields(Method)}
    special = {name: getattr(method, name) for name in SPECIAL if getattr(method, name) != usual[name]}
    if method.rows == "none":
        return special
    main = {"tolerance": method.tolerance, "dual_lr": method.dual_lr, "estimator": method.estimator}
    return main | ring | special


def _run(result: Result, fitted: Fitted, name: str) -> dict[str, Any]:
    audits = result.audits[name]
    splits = {s: _split(result, fitted, s) | {"verdict": audits[s].verdict} for s in result.dense}
    return {
        "seed": fitted.run.seed,
        "sparsity": float(fitted.masks.sparsity[0]),
        **splits,
        "history": [_epoch(row, fitted.run.method, len(result.samples.names)) for row in fitted.history],
        "audits": {split: audit.to_dict() for split, audit in audits.items()},
    }


def _split(result: Result, fitted: Fitted, split: str) -> dict[str, Any]:
    """Gaps as the constraints know them: samples without a group count in the mean and are no group."""
    dense = result.dense[split].reference(result.samples.names)
    pruned = fitted.predictions[split].reference(result.samples.names)
    gaps = (dense.accuracy - pruned.accuracy).tolist()  # Δ_g
    gap = dense.overall_accuracy - pruned.overall_accuracy  # Δ
    known = [g for g in gaps if math.isfinite(g)]
    return {
        "accuracy": pruned.overall_accuracy,
        "max_excess_gap": max(known) - gap if known else None,
        "pairwise_disparity": max(known) - min(known) if known else None,
        "group_accuracy": _numbers(pruned.accuracy.tolist()),
        "excess_gaps": _numbers([g - gap for g in gaps]),  # ψ_g = Δ_g − Δ
    }


def _epoch(row: Mapping[str, Any], method: Method, groups: int) -> dict[str, Any]:
    train, test = (row["splits"].get(split, {}) for split in ("train", "test"))
    return {
        "epoch": row["epoch"],
        "sparsity": row["sparsity"],
        "accuracy": train.get("accuracy", row["accuracy"]),
        "max_excess_gap": train.get("max_excess_gap"),
        "test_max_excess_gap": test.get("max_excess_gap"),
        "multipliers": row["multipliers"][:groups] if method.rows == "mean" else [],
    }


def _numbers(values: Iterable[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]
