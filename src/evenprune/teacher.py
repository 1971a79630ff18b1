"""The dense model as a teacher: soft labels to learn from, and how sure it was of each training sample."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from evenprune.plan import PerRun
from evenprune.predict import Precision, autocast
from evenprune.recipe import Recipe, Split


@dataclass(frozen=True)
class Teacher:
    logits: Tensor  # [samples, classes] of the dense model on the training inputs as they are
    model: nn.Module | None  # the dense model itself, where inputs are changed at random before they are used
    precision: Precision = "float32"

    @torch.no_grad()
    def soft(self, index: Tensor, inputs: Tensor) -> Tensor:
        """Logits for the samples of index [runs, batch], whose inputs are [runs, batch, …]."""
        if self.model is None:
            return self.recalled(index)
        with autocast(inputs.device, self.precision):
            logits: Tensor = self.model(inputs.flatten(0, 1))
        return logits.float().view(*index.shape, -1)

    def recalled(self, index: Tensor) -> Tensor:
        """Logits for the samples of index [runs, batch] with their inputs as they are."""
        return self.logits[index]


@dataclass(frozen=True)
class Teachers:
    """Several dense models, each for its own runs: without a fold, one learns from a model without it."""

    each: tuple[Teacher, ...]
    taught: tuple[Tensor, ...]  # by teacher: the places of its runs
    places: Tensor  # [runs]: where a run is when they stand teacher by teacher

    def soft(self, index: Tensor, inputs: Tensor) -> Tensor:
        """As that of a single teacher."""
        return self._by_run(lambda teacher, own: teacher.soft(index[own], inputs[own]))

    def recalled(self, index: Tensor) -> Tensor:
        """As that of a single teacher."""
        return self._by_run(lambda teacher, own: teacher.recalled(index[own]))

    def _by_run(self, ask: Callable[[Teacher, Tensor], Tensor]) -> Tensor:
        pairs = zip(self.each, self.taught, strict=True)
        return torch.cat([ask(teacher, own) for teacher, own in pairs])[self.places]


def teacher_of(models: Sequence[nn.Module], train: Split, recipe: Recipe) -> Teacher | Teachers:
    """The answers of the dense models, one model per run, to all training samples, on the split's device."""
    distinct = list({id(model): model for model in models}.values())
    each = tuple(_teacher(model, train, recipe) for model in distinct)
    if len(each) == 1:
        return each[0]
    runs = [[i for i, own in enumerate(models) if own is model] for model in distinct]
    taught = tuple(torch.tensor(own, device=train.labels.device) for own in runs)
    return Teachers(each, taught, torch.argsort(torch.cat(taught)))


@torch.no_grad()
def _teacher(model: nn.Module, train: Split, recipe: Recipe) -> Teacher:
    device = train.labels.device
    model = copy.deepcopy(model).to(device).eval().requires_grad_(False)
    with autocast(device, recipe.precision):
        chunks = torch.split(torch.arange(len(train), device=device), recipe.evaluate_batch)
        logits = [model(train.at(index)).float() for index in chunks]
    return Teacher(torch.cat(logits), None if recipe.augment is None else model, recipe.precision)


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

    Distillation: (1 - α) ℓ + α T² KL(dense_T ‖ sparse_T), both softened by the temperature T.
    Performance-weighted: times θ + (1 - p)^γ, p the dense model's probability of the right answer.
    """
    losses = plain
    if run.distilled.some:
        heat = run.temperature.unsqueeze(2)  # [runs, 1, 1]
        wanted = functional.log_softmax(teacher.soft(index, inputs).to(plain.dtype) / heat, -1)
        given = functional.log_softmax(logits.to(plain.dtype) / heat, -1)
        apart = (wanted.exp() * (wanted - given)).sum(-1) * run.temperature.square()
        losses = torch.lerp(losses, apart, run.distill.to(plain.dtype).expand_as(apart))
    if run.focused.some:
        sure = functional.softmax(teacher.recalled(index).to(plain.dtype), -1)
        right = sure.gather(2, labels.unsqueeze(2)).squeeze(2)  # [runs, batch]
        weight = run.floor + (1 - right).clamp_min(0).pow(run.focus)
        losses = run.focused.pick(losses * weight, losses)
    return losses
