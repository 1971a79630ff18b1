"""The dense model of the study: trained without the held-out images, and refused where it has seen them."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from evenprune.recipe import Recipe, Split
from evenprune.tally import InputProblems
from paper import beyond_results, beyond_splits, dense_model, runner
from paper.beyond_results import Origin
from paper.runner import Start, Trained, Where

CHOSEN_ON = ("train", "choice")  # nothing is chosen on the audit split, not even how weights are stored


def train(
    untrained: Start,
    weights: Path,
    recipe: Recipe,
    where: Where,
    *,
    origin: Origin,
    settings: Mapping[str, Any],
    half: bool = False,
) -> dict[str, Any]:
    """Train, write the weights, and say in the results file which images they have seen.

    half: in half precision, if the accuracies stay.
    """
    trained = dense_model.train_dense(untrained, recipe, where, seed=settings["seed"])
    start = store(weights, trained, untrained, recipe, where, half=half)
    document = {
        **asdict(origin),
        "weights": weights.name,
        "sha256": dense_model.digest(weights),
        "training_images": beyond_splits.identity(untrained.data.evaluate),
        **untrained.facts,
        "accuracy": {s: float(answers.correct.double().mean()) for s, answers in start.answers.items()},
        "recipe": {**settings, "stored": dense_model.precision_of(weights)},
        "seconds": round(trained.seconds, 3),
        "versions": runner.versions(where.device),
        "commit": where.commit,
    }
    beyond_results.set_dense(where.results, document)
    return document


def store(
    path: Path, trained: Trained, untrained: Start, recipe: Recipe, where: Where, *, half: bool
) -> Start:
    """Write the weights of the one model that was trained; returns what is measured of them as stored."""

    def stored() -> Start:
        model = dense_model.load_weights(path, copy.deepcopy(untrained.model))
        splits, names = untrained.data.evaluate, untrained.names
        return runner.measure(model, splits, names, recipe=recipe, where=where, facts=untrained.facts)

    if half:
        return dense_model.write_half(path, trained, stored, where, splits=CHOSEN_ON)
    dense_model.write_weights(path, trained.fitted[0].model)
    return stored()


def is_trained(weights: Path, where: Where, *, origin: Origin) -> bool:
    """Whether weights and results are there; refused where the results have runs of weights that are not."""
    held = beyond_results.read(where.results)
    if weights.exists() and beyond_results.dense_of(held, origin) is not None:
        return True
    runs = [run for run in held["runs"] if Origin.of(run) == origin]
    if runs:
        other = f"{where.results} has {len(runs)} runs of a dense model whose weights are not {weights}"
        raise InputProblems([f"{other}; put them back, or give --results another file"])
    return False


def refuse_other(results: Path, weights: Path, *, origin: Origin, images: str) -> None:
    """The held-out images must be those that this very dense model has not seen."""
    held = beyond_results.dense_of(beyond_results.read(results), origin)
    if held is None:
        raise InputProblems(
            [f"{results} does not say which images {weights} was trained on; train it first, with `dense`"]
        )
    if held["sha256"] != dense_model.digest(weights):
        raise InputProblems([f"{results} is of another dense model than {weights}"])
    if held["training_images"] != images:
        raise InputProblems(
            [f"{weights} was trained on other images than these with {origin.told} held out: its held-out "
             "images would not be unseen. Are the pixels those of the official files?"]
        )  # fmt: skip


def sizes(split: Split, names: Sequence[str]) -> str:
    """How many samples of each group, in words."""
    counts = torch.bincount(split.groups, minlength=len(names)).tolist()
    if len(set(counts)) == 1:
        return f"{counts[0]:,} of each of {len(names)} groups"
    return ", ".join(f"{count:,} {name}" for name, count in zip(names, counts, strict=True))


def sentence(document: Mapping[str, Any]) -> str:
    told = ", ".join(f"{value:.2%} {split}" for split, value in document["accuracy"].items())
    return f"Dense model: {told}, {document['seconds']:.0f} s"
