"""The dense models of the folds: trained once, as one fleet, each without its fold. For cross-fitting.

Folds share out every class evenly, and follow the images, not their order, as the held-out ones do.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evenprune import folds, methods
from evenprune.folds import Folds
from evenprune.recipe import Recipe, Run, Split
from evenprune.tally import InputProblems
from evenprune.training import Fitted
from paper import beyond_results, beyond_splits, dense_model, runner
from paper.runner import Start, Where


def fold_of(train: Split, count: int) -> Tensor:
    """[N]: the fold of every training image."""
    order = torch.from_numpy(np.argsort(np.array(beyond_splits.digests(train.inputs)), kind="stable"))
    of = torch.empty(len(train), dtype=torch.int64)
    of[order] = folds.assign(train.labels[order], count)
    return of


def images_of(train: Split, of: Tensor) -> list[str]:
    """By fold: the same for the same images."""
    parts = [np.flatnonzero((of == fold).numpy()) for fold in range(int(of.max()) + 1)]
    return [beyond_splits.identity({"train": beyond_splits.take(train, part)}) for part in parts]


def weights_of(dense: Path, count: int) -> list[Path]:
    """Beside those of the dense model, by fold."""
    return [dense.with_name(f"{dense.stem}_fold{fold}of{count}{dense.suffix}") for fold in range(count)]


def is_trained(weights: Sequence[Path], where: Where, *, heldout: int) -> bool:
    """Whether weights and results are there; refused where the results have runs of weights that are not."""
    held = beyond_results.read(where.results)
    entry = beyond_results.folds_of(held, heldout, len(weights))
    if entry is not None and all(path.exists() for path in weights):
        return True
    runs = [r for r in held["runs"] if (r["heldout_per_class"], r.get("folds")) == (heldout, len(weights))]
    if runs:
        absent = ", ".join(str(path) for path in weights if not path.exists()) or "described there"
        other = f"{where.results} has {len(runs)} cross-fitted runs of dense models that are not {absent}"
        raise InputProblems([f"{other}; put them back, or give --results another file"])
    return False


def train(
    model: nn.Module,
    splits: dict[str, Split],
    names: Sequence[str],
    weights: Sequence[Path],
    recipe: Recipe,
    where: Where,
    *,
    heldout: int,
    settings: dict[str, Any],
) -> dict[str, Any]:
    """Train, write the weights, and say in the results file which images each has not seen."""
    of = fold_of(splits["train"], len(weights))
    untrained = runner.measure(model, splits, names, recipe=recipe, where=where)
    start = with_folds(untrained, Folds(of))
    seed = settings["seed"]
    runs = [Run(method=methods.nft(), sparsity=0.0, seed=seed, without=fold) for fold in range(len(weights))]
    trained = runner.fit_fleet(start, runs, recipe, where, kind="dense-folds")
    for path, one in zip(weights, trained.fitted, strict=True):
        dense_model.write_weights(path, one.model)
    document = {
        "heldout_per_class": heldout,
        "folds": len(weights),
        "weights": [path.name for path in weights],
        "sha256": [dense_model.digest(path) for path in weights],
        "fold_images": images_of(splits["train"], of),
        "accuracy": accuracies(trained.fitted, of),
        "recipe": settings,
        "seconds": round(trained.seconds * len(weights), 3),
        "versions": runner.versions(where.device),
        "commit": where.commit,
    }
    beyond_results.set_folds(where.results, document)
    return document


def accuracies(fitted: Sequence[Fitted], of: Tensor) -> dict[str, float]:
    """Means over the models: on the training images that each has seen, on its fold, and on other splits."""
    found: dict[str, list[float]] = {}
    for one in fitted:
        right = {split: answers.correct.double() for split, answers in one.predictions.items()}
        inside = of == one.run.without
        found.setdefault("rest", []).append(float(right["train"][~inside].mean()))
        found.setdefault("fold", []).append(float(right["train"][inside].mean()))
        for split in ("heldout", "audit"):
            found.setdefault(split, []).append(float(right[split].mean()))
    return {name: sum(values) / len(values) for name, values in found.items()}


def load(
    weights: Sequence[Path], make: Callable[[], nn.Module], train: Split, results: Path, *, heldout: int
) -> Folds:
    """Folds and models, checked against the results file: no model may have seen an image of its fold."""
    held = beyond_results.folds_of(beyond_results.read(results), heldout, len(weights))
    again = f"train them first, with `dense --folds {len(weights)}`"
    if held is None:
        raise InputProblems([f"{results} knows no dense models of {len(weights)} folds; {again}"])
    models = [dense_model.load_weights(path, make()) for path in weights]
    other = [str(p) for p, told in zip(weights, held["sha256"], strict=True) if told != dense_model.digest(p)]
    if other:
        raise InputProblems([f"{results} is of other dense models than {', '.join(other)}"])
    of = fold_of(train, len(weights))
    if images_of(train, of) != held["fold_images"]:
        raise InputProblems(
            [f"{', '.join(map(str, weights))} were trained without other images than those of these folds: "
             "each would have seen images of its fold. Are the pixels those of the official files?"]
        )  # fmt: skip
    return Folds(of, tuple(models))


def with_folds(start: Start, held: Folds) -> Start:
    return replace(start, data=replace(start.data, folds=held))


def sentence(document: Mapping[str, Any]) -> str:
    told = ", ".join(f"{value:.2%} {name}" for name, value in document["accuracy"].items())
    return f"Dense models of {document['folds']} folds: {told}, {document['seconds']:.0f} s"
