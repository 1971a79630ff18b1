"""The dense model as a teacher: soft labels to learn from, and how sure it was of each training sample."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from evenprune.plan import PerRun
from evenprune.predict import Precision, autocast


@dataclass(frozen=True)
class Teacher:
    logits: Tensor  # [samples, classes] of the dense model on the training inputs as they are
    model: nn.Module | None  # the dense model itself, where inputs are changed at random before they are used
    precision: Precision = "float32"

    @torch.no_grad()
    def soft(self, index: Tensor, inputs: Tensor) -> Tensor:
        """Logits for the samples of index [runs, batch], whose inputs are [runs, batch, …]."""
        if self.model is None:
            return self.logits[index]
        with autocast(inputs.device, self.precision):
            logits: Tensor = self.model(inputs.flatten(0, 1))
        return logits.float().view(*index.shape, -1)


def primal_losses(
    run: PerRun,
    teacher: Teacher,
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
        sure = functional.softmax(teacher.logits[index].to(plain.dtype), -1)
        right = sure.gather(2, labels.unsqueeze(2)).squeeze(2)  # [runs, batch]
        weight = run.floor + (1 - right).clamp_min(0).pow(run.focus)
        losses = run.focused.pick(losses * weight, losses)
    return losses
