"""Random changes of images [samples, channels, height, width], as pure functions of random numbers."""

from dataclasses import dataclass

import torch
from torch import Tensor

from evenprune.recipe import Augment


@dataclass(frozen=True)
class Flip:
    """Mirror half of the images left to right."""

    draws: int = 1

    def __call__(self, inputs: Tensor, uniform: Tensor) -> Tensor:
        mirrored = (uniform[:, 0] < 0.5).view(-1, 1, 1, 1)
        return torch.where(mirrored, inputs.flip(-1), inputs)


@dataclass(frozen=True)
class Crop:
    """Shift by up to `padding` pixels each way. What comes in is zero: the mean, if inputs are normalised."""

    padding: int = 4
    draws: int = 2

    def __call__(self, inputs: Tensor, uniform: Tensor) -> Tensor:
        height, width = inputs.shape[-2:]
        padded = torch.nn.functional.pad(inputs, [self.padding] * 4)
        corner = (uniform * (2 * self.padding + 1)).long()  # [samples, 2]
        rows = corner[:, :1] + torch.arange(height, device=inputs.device)  # [samples, height]
        columns = corner[:, 1:] + torch.arange(width, device=inputs.device)  # [samples, width]
        sample = torch.arange(len(inputs), device=inputs.device).view(-1, 1, 1)
        return padded.permute(0, 2, 3, 1)[sample, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2)


@dataclass(frozen=True)
class Both:
    """One change after the other."""

    first: Augment
    second: Augment

    @property
    def draws(self) -> int:
        return self.first.draws + self.second.draws

    def __call__(self, inputs: Tensor, uniform: Tensor) -> Tensor:
        changed = self.first(inputs, uniform[:, : self.first.draws])
        return self.second(changed, uniform[:, self.first.draws :])
