"""Finished runs once more with a class bias, fitted on the held-out split: the baseline without training."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from evenprune import class_bias
from evenprune.comparison_wording import title_of
from evenprune.predict import Predictions, predict
from evenprune.recipe import Recipe, Run, Split
from evenprune.samples import Samples
from evenprune.splits import AUDITED, HELDOUT, name_of
from evenprune.tally import InputProblems
from evenprune.training import Fitted

ENDING = " + class bias"  # of the name of such a method
NO_HELDOUT = "a class bias is fitted on the held-out split, and there is none: give prune(heldout=…)"


def with_class_bias(
    fitted: Sequence[Fitted],
    samples: Samples,
    dense: Mapping[str, Predictions],
    *,
    on: str,
    tolerance: float,
    recipe: Recipe,
    device: torch.device | str,
) -> list[Fitted]:
    """The runs, each with one additive logit per class; or one error that says why there can be none.

    Groups that are unions of labels have one logit per group. The answers on every split are new ones, in the
    precision of the recipe as those of the other runs. Runs that have a bias, or are there with one too, are
    left out.
    """
    wrong = problems(samples, on)
    if wrong:
        raise InputProblems(wrong)
    there = [one.run for one in fitted]
    plain = [one for one in fitted if not is_biased(one.run) and _named(one.run) not in there]
    if not plain:
        return []
    units = _units(samples, _classes(plain, samples))
    return [
        _biased(one, samples, dense, units, tolerance=tolerance, recipe=recipe, device=device)
        for one in plain
    ]


def is_biased(run: Run) -> bool:
    return run.method.name.endswith(ENDING)


def _named(run: Run) -> Run:
    """The run under the name that it has with a bias."""
    return replace(run, method=replace(run.method, name=title_of(run.method.name) + ENDING))


def problems(samples: Samples, on: str = HELDOUT) -> list[str]:
    """Why there can be no class bias, which can be known before the training."""
    found = []
    if name_of(on) != HELDOUT:
        found.append(f"on is {on!r}: fit the class bias on 'heldout', a split that neither trains nor audits")
    elif HELDOUT not in samples.splits:
        found.append(NO_HELDOUT)
    try:
        _units(samples, 1 + max(int(split.labels.max()) for split in _seen(samples)))
    except InputProblems as error:
        own = f"those of {' × '.join(samples.columns['train'])} are not: {error.problems[0]}"
        found.append(f"a class bias needs groups that are labels, or unions of labels; {own}")
    return found


def _classes(fitted: Sequence[Fitted], samples: Samples) -> int:
    """How many classes the models tell apart."""
    inputs = samples.splits["train"].at(torch.arange(1))
    with torch.no_grad():
        return int(fitted[0].model(inputs).shape[1])


def _seen(samples: Samples) -> list[Split]:
    """All splits but the one that is audited: nothing is chosen by that."""
    return [split for name, split in samples.splits.items() if name != AUDITED]


def _units(samples: Samples, classes: int) -> torch.Tensor:
    """[classes]: which of them share a logit."""
    parts = _seen(samples)
    labels, groups = (torch.cat([getattr(part, key).cpu() for part in parts]) for key in ("labels", "groups"))
    return class_bias.units_of(labels, groups, classes=classes)


def _biased(
    one: Fitted,
    samples: Samples,
    dense: Mapping[str, Predictions],
    units: torch.Tensor,
    *,
    tolerance: float,
    recipe: Recipe,
    device: torch.device | str,
) -> Fitted:
    model, held = copy.deepcopy(one.model).to(device), samples.splits[HELDOUT]
    how: Any = {"batch_size": recipe.evaluate_batch, "precision": recipe.precision}
    found = class_bias.fit(
        class_bias.logits_of(model, held, **how),
        held.labels,
        held.groups,
        dense[HELDOUT].correct,
        tolerance=tolerance,
        units=units,
    )
    moved = _carrying(model, found.bias, held)
    answers = one.predictions  # also where it was trained on another device, which rounds otherwise
    if bool(found.bias.any()):
        answers = {name: predict(moved, split, **how) for name, split in samples.splits.items()}
    return replace(
        one,
        run=_named(one.run),
        model=moved.cpu().eval(),
        predictions=answers,
        last=answers,
        history=[],  # it was not trained
    )


def _carrying(model: nn.Module, bias: torch.Tensor, split: Split) -> nn.Module:
    """The model with the bias in its last layer; around it where there is no such layer."""
    few = torch.arange(min(8, len(split)), device=next(model.parameters()).device)
    try:
        class_bias.fold_(model, bias, sample_input=split.at(few))
    except ValueError:
        return class_bias.WithBias(model, bias)
    return model
