"""The dense models of the folds: trained once, as one fleet, each without its fold. For cross-fitting.

Folds share out every class evenly, and follow the images, not their order, as the held-out ones do.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evenprune import folds, methods
from evenprune.folds import Folds
from evenprune.predict import Predictions
from evenprune.recipe import Recipe, Run, Split
from evenprune.tally import InputProblems
from evenprune.training import NotFinite
from paper import beyond_dense, beyond_results, beyond_splits, dense_model, runner
from paper.beyond_results import Origin
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


def is_trained(weights: Sequence[Path], where: Where, *, origin: Origin) -> bool:
    """Whether weights and results are there; refused where the results have runs of weights that are not."""
    held = beyond_results.read(where.results)
    entry = beyond_results.folds_of(held, origin, len(weights))
    if entry is not None and all(path.exists() for path in weights):
        return True
    runs = [run for run in held["runs"] if (Origin.of(run), run.get("folds")) == (origin, len(weights))]
    if runs:
        absent = ", ".join(str(path) for path in weights if not path.exists()) or "described there"
        other = f"{where.results} has {len(runs)} cross-fitted runs of dense models that are not {absent}"
        raise InputProblems([f"{other}; put them back, or give --results another file"])
    return False


def train(
    untrained: Start,
    weights: Sequence[Path],
    recipe: Recipe,
    where: Where,
    *,
    origin: Origin,
    settings: Mapping[str, Any],
    half: bool = False,
) -> dict[str, Any]:
    """Train, write the weights, and say in the results file which images each has not seen.

    half: each in half precision, if its accuracies stay.
    """
    of = fold_of(untrained.data.train, len(weights))
    start = with_folds(untrained, Folds(of))
    seed = settings["seed"]
    runs = [Run(method=methods.nft(), sparsity=0.0, seed=seed, without=fold) for fold in range(len(weights))]
    trained = runner.fit_fleet(start, runs, recipe, where, kind="dense-folds")
    if any(one.diverged is not None for one in trained.fitted):
        raise NotFinite("A dense model of a fold diverged. Lower the learning rate (--lr).")
    stored = [
        beyond_dense.store(path, replace(trained, fitted=[one]), untrained, recipe, where, half=half)
        for path, one in zip(weights, trained.fitted, strict=True)
    ]
    document = {
        **asdict(origin),
        "folds": len(weights),
        "weights": [path.name for path in weights],
        "sha256": [dense_model.digest(path) for path in weights],
        "fold_images": images_of(untrained.data.train, of),
        **untrained.facts,
        "accuracy": accuracies([one.answers for one in stored], of),
        "recipe": {**settings, "stored": [dense_model.precision_of(path) for path in weights]},
        "seconds": round(trained.seconds * len(weights), 3),
        "versions": runner.versions(where.device),
        "commit": where.commit,
    }
    beyond_results.set_folds(where.results, document)
    return document


def accuracies(models: Sequence[Mapping[str, Predictions]], of: Tensor) -> dict[str, float]:
    """Means over the models: on the training images that each has seen, on its fold, and on other splits."""
    found: dict[str, list[float]] = {}
    for fold, one in enumerate(models):
        right = {split: answers.correct.double() for split, answers in one.items()}
        inside = of == fold
        found.setdefault("rest", []).append(float(right["train"][~inside].mean()))
        found.setdefault("fold", []).append(float(right["train"][inside].mean()))
        for split in ("heldout", "audit"):
            found.setdefault(split, []).append(float(right[split].mean()))
    return {name: sum(values) / len(values) for name, values in found.items()}


def load(
    weights: Sequence[Path], make: Callable[[], nn.Module], train: Split, results: Path, *, origin: Origin
) -> Folds:
    """Folds and models, checked against the results file: no model may have seen an image of its fold."""
    held = beyond_results.folds_of(beyond_results.read(results), origin, len(weights))
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
