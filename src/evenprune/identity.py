"""What makes an experiment this one and no other."""

import hashlib
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from torch import nn

from evenprune import checkpoint
from evenprune.method import Method
from evenprune.recipe import Data, Recipe, Run

# What does not change the result: a resumed training may set these anew.
FREE_TO_CHANGE = (
    *("checkpoint_epochs", "checkpoint_steps", "evaluate_batch"),
    *("compile", "graph", "data_on_device", "share_pruning"),
)
# Choices of a method that were not there from the beginning; MEANT changed what `caution` and `focus` mean.
MEANT, ADDED = ("moves_on", "dead_zone", "targets"), ("while_pruning",)
DEFAULTS = {f.name: f.default for f in fields(Method) if f.name in (*MEANT, *ADDED)}


def identify(model: nn.Module, data: Data, *, runs: Sequence[Run], recipe: Recipe) -> dict[str, Any]:
    """Everything that makes an experiment this one and no other, as plain JSON."""
    settings = {f.name: getattr(recipe, f.name) for f in fields(recipe) if f.name not in FREE_TO_CHANGE}
    if not recipe.decay_only:  # as it was told before there was such a choice: old folders can be resumed
        del settings["decay_only"]
    weights = model.state_dict()
    return {
        "runs": [_described(run) for run in runs],
        "recipe": checkpoint.describe(settings),
        "model": {name: [str(t.dtype), list(t.shape)] for name, t in weights.items()},
        "structure": checkpoint.structure(model),
        "norms": "pruned with filters and features that read nothing",  # in folders of before, they were not
        "dense weights": _weights_digest(model),
        "groups": list(data.reference.names),
        "training data": checkpoint.describe(data.train),
        "evaluated": {name: checkpoint.describe(split) for name, split in data.evaluate.items()},
        **_described_folds(data, runs),
    }


def _described(run: Run) -> dict[str, Any]:
    """A run without folds and later choices is told as before there were any: its folder can be resumed.

    But `caution` and `focus` came to mean something else with the later choices: old folders of these are
    other experiments.
    """
    told: dict[str, Any] = checkpoint.describe(run)
    same = run.method.caution == 0 and run.method.focus == 0
    known = {name: DEFAULTS[name] for name in (*ADDED, *(MEANT if same else ()))}
    told["method"] = {n: v for n, v in told["method"].items() if (n, v) not in known.items()}
    if run.method.keep == "feasible":  # in folders of before, the one with the smallest max ψ
        told["method"]["feasible"] = (
            "if none is, the most accurate that is not shown to be beyond the tolerance"
        )
    if run.method.sampling == "balanced":  # in folders of before, drawn with replacement
        told["method"]["balanced"] = "every sample as often as its group asks for, rounded up or down"
    return {name: value for name, value in told.items() if (name, value) != ("without", None)}


def _described_folds(data: Data, runs: Sequence[Run]) -> dict[str, Any]:
    """Nothing where no run looks at them."""
    if data.folds is None or not any(run.method.cross_fitted or run.without is not None for run in runs):
        return {}
    models = [_weights_digest(model) for model in data.folds.models]
    return {"folds": checkpoint.fingerprint(data.folds.of), "dense weights of folds": models}


def _weights_digest(model: nn.Module) -> str:
    everything = " ".join(checkpoint.fingerprint(t.reshape(-1)) for t in model.state_dict().values())
    return hashlib.sha256(everything.encode()).hexdigest()[:16]
