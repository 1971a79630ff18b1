"""The dense model as a teacher: soft labels to learn from, and how sure it is of each training sample."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from evenprune.plan import PerRun
from evenprune.predict import Precision, autocast
from evenprune.recipe import Recipe, Split


@dataclass(frozen=True)
class Teacher:
    """Its answers to all training inputs as they are, or itself, where these are changed at random."""

    logits: Tensor | None  # [samples, classes]
    model: nn.Module | None
    precision: Precision = "float32"

    @torch.no_grad()
    def soft(self, index: Tensor, inputs: Tensor) -> Tensor:
        """Logits for the samples of index [runs, batch], whose inputs are [runs, batch, …]."""
        if self.logits is not None:
            return self.logits[index]
        assert self.model is not None
        with autocast(inputs.device, self.precision):
            logits: Tensor = self.model(inputs.flatten(0, 1))
        return logits.float().view(*index.shape, -1)


@dataclass(frozen=True)
class Teachers:
    """Dense models, each for its own runs: without a fold, one learns from a model without it."""

    each: tuple[Teacher, ...]
    taught: tuple[Tensor, ...]  # by teacher: the places of its runs
    places: Tensor  # [runs]: where a run is when they stand teacher by teacher, those without one at the end

    def soft(self, index: Tensor, inputs: Tensor) -> Tensor:
        """As that of a single teacher; zeros for runs that have none."""
        pairs = zip(self.each, self.taught, strict=True)
        answers = [teacher.soft(index[own], inputs[own]) for teacher, own in pairs]
        return torch.cat([*answers, torch.zeros_like(answers[0][:1])])[self.places]


def teacher_of(models: Sequence[nn.Module | None], train: Split, recipe: Recipe) -> Teacher | Teachers:
    """The answers of the dense models to all training samples, on the split's device.

    models: what each run learns from, None where it does not; at least one does.
    """
    distinct = list({id(model): model for model in models if model is not None}.values())
    each = tuple(_teacher(model, train, recipe) for model in distinct)
    looked_up = each[0].logits is not None  # which costs nothing, whoever needs it
    if len(each) == 1 and (looked_up or None not in models):
        return each[0]
    runs = [[i for i, own in enumerate(models) if own is model] for model in distinct]
    taught = tuple(torch.tensor(own, device=train.labels.device) for own in runs)
    together = torch.cat(taught)
    places = torch.full((len(models),), len(together), device=train.labels.device)
    places[together] = torch.arange(len(together), device=places.device)
    return Teachers(each, taught, places)


@torch.no_grad()
def _teacher(model: nn.Module, train: Split, recipe: Recipe) -> Teacher:
    device = train.labels.device
    model = copy.deepcopy(model).to(device).eval().requires_grad_(False)
    if recipe.augment is not None:
        return Teacher(None, model, recipe.precision)
    with autocast(device, recipe.precision):
        chunks = torch.split(torch.arange(len(train), device=device), recipe.evaluate_batch)
        logits = [model(train.at(index)).float() for index in chunks]
    return Teacher(torch.cat(logits), None)


def primal_losses(
    run: PerRun,
    teacher: Teacher | Teachers,
    plain: Tensor,
    *,
    logits: Tensor,
    labels: Tensor,
    index: Tensor,
    inputs: Tensor,
) -> Tensor:
    """What each run minimises per sample [runs, batch]: plain cross-entropy unless its method says otherwise.

    Corrected targets: -Σ_k t_k log s_k, t the dense model's probabilities where it is right, else the label.
    Distillation: (1 - α) ℓ + α T² KL(dense_T ‖ sparse_T), both softened by the temperature T.
    Performance-weighted: times θ + (1 - θ)(1 - p)^γ, p the dense model's probability of the right answer.
    """
    losses, answers = plain, teacher.soft(index, inputs).to(plain.dtype)  # [runs, batch, classes]
    if run.corrected.some:
        losses = run.corrected.pick(_corrected(answers, plain, logits=logits, labels=labels), losses)
    if run.distilled.some:
        heat = run.temperature.unsqueeze(2)  # [runs, 1, 1]
        wanted = functional.log_softmax(answers / heat, -1)
        given = functional.log_softmax(logits.to(plain.dtype) / heat, -1)
        apart = (wanted.exp() * (wanted - given)).sum(-1) * run.temperature.square()
        losses = torch.lerp(losses, apart, run.distill.to(plain.dtype).expand_as(apart))
    if run.focused.some:
        sure = functional.softmax(answers, -1).gather(2, labels.unsqueeze(2)).squeeze(2)  # p, [runs, batch]
        weight = run.floor + (1 - run.floor) * (1 - sure).clamp_min(0).pow(run.focus)
        losses = run.focused.pick(losses * weight, losses)
    return losses


def _corrected(answers: Tensor, plain: Tensor, *, logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy with the dense model's soft labels where its answer is right; the plain one elsewhere."""
    soft = -(functional.softmax(answers, -1) * functional.log_softmax(logits.to(plain.dtype), -1)).sum(-1)
    return torch.where(answers.argmax(-1) == labels, soft, plain)
