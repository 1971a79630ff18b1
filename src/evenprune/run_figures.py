"""One finished run in numbers, as plain values for JSON; fractions, not percent."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from evenprune.biased_runs import ENDING
from evenprune.gap_limits import least_excess_gap
from evenprune.method import Method
from evenprune.predict import Predictions
from evenprune.splits import AUDITED, HELDOUT, TRAIN
from evenprune.training import Fitted

# Settings shown where they are set.
SPECIAL = (
    *("dual", "kp", "ki", "nu", "mean", "negative", "overall", "multipliers_on", "refresh", "moves_on"),
    *("caution", "dead_zone", "distill", "temperature", "focus", "floor", "targets", "sampling", "keep"),
    *("keep_on", "importance", "while_pruning"),
)


def settings(method: Method) -> dict[str, Any]:
    """What a reader needs to repeat it: the main settings, and others where they are not the usual ones."""
    ring = {"k": method.k} if method.estimator == "ring" else {}
    usual = {f.name: f.default for f in fields(Method)}
    special = {name: getattr(method, name) for name in SPECIAL if getattr(method, name) != usual[name]}
    if method.name.endswith(ENDING):
        special["class_bias_on"] = HELDOUT
    if method.rows == "none":
        return special
    main = {"tolerance": method.tolerance, "dual_lr": method.dual_lr, "estimator": method.estimator}
    return main | ring | special


def multiplier_sum(fitted: Fitted) -> float | None:
    """Σ|λ| at the end; None for a run without multipliers."""
    last = fitted.history[-1]["multipliers"] if fitted.history else []
    return sum(abs(value or 0.0) for value in last) if last else None


def negative_weights(fitted: Fitted) -> int:
    """How many sample weights were negative in all."""
    return sum(int(row["negative_weights"] or 0) for row in fitted.history)


def seconds(fitted: Iterable[Fitted]) -> float:
    """Of the training in all; runs of one fleet share their epochs, to the last digit."""
    return math.fsum({row["seconds"] for one in fitted for row in one.history})


def if_diverged(fitted: Fitted) -> dict[str, int]:
    """{"diverged": the epoch}; nothing of a run that stayed finite."""
    return {} if fitted.diverged is None else {"diverged": fitted.diverged}


def gaps(dense_answers: Predictions, answers: Predictions, names: Sequence[str]) -> dict[str, Any]:
    """Gaps as the constraints know them: samples without a group count in the mean and are no group."""
    dense, pruned = dense_answers.reference(names), answers.reference(names)
    lost = (dense.accuracy - pruned.accuracy).tolist()  # Δ_g
    gap = dense.overall_accuracy - pruned.overall_accuracy  # Δ
    known = [g for g in lost if math.isfinite(g)]
    return {
        "accuracy": pruned.overall_accuracy,
        "max_excess_gap": max(known) - gap if known else None,
        "pairwise_disparity": max(known) - min(known) if known else None,
        "group_accuracy": numbers(pruned.accuracy.tolist()),
        "excess_gaps": numbers([g - gap for g in lost]),  # ψ_g = Δ_g − Δ
    }


def judged(dense: Predictions, answers: Predictions, names: Sequence[str]) -> dict[str, float]:
    """What a choice is made by: accuracy, max ψ and what that is at least; infinite without any group."""
    own = gaps(dense, answers, names)
    if own["max_excess_gap"] is None:
        return {"accuracy": own["accuracy"], "gap": math.inf, "least": math.inf}
    least = least_excess_gap(dense.correct, answers.correct, answers.groups, count=len(names))
    return {"accuracy": own["accuracy"], "gap": own["max_excess_gap"], "least": float(least)}


def epoch(row: Mapping[str, Any], method: Method, groups: int) -> dict[str, Any]:
    train, test, held = (row["splits"].get(split, {}) for split in (TRAIN, AUDITED, HELDOUT))
    return {
        "epoch": row["epoch"],
        "sparsity": row["sparsity"],
        "accuracy": train.get("accuracy", row["accuracy"]),
        "max_excess_gap": train.get("max_excess_gap"),
        "test_max_excess_gap": test.get("max_excess_gap"),
        **({"heldout_max_excess_gap": held["max_excess_gap"]} if held else {}),
        "multipliers": row["multipliers"][:groups] if method.rows == "mean" else [],
    }


def numbers(values: Iterable[float]) -> list[float | None]:
    return [or_none(value) for value in values]


def or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
