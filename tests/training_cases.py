"""A tiny problem to train on: images of four classes, three groups of unequal size, some labels missing."""

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD

from evenprune.predict import predict
from evenprune.recipe import Data, Recipe, Split

torch.set_num_threads(1)  # for tensors as small as these, threads cost more than they give
NAMES = ("young", "old", "unknown age")


def images(
    samples: int = 120, *, seed: int = 0, missing: bool = True, dtype: torch.dtype = torch.float32
) -> Split:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (samples,), generator=generator)
    groups = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), samples, replacement=True, generator=generator)
    patterns = torch.randn(4, 1, 6, 6, generator=torch.Generator().manual_seed(99), dtype=dtype)
    noise = torch.randn(samples, 1, 6, 6, generator=generator, dtype=dtype)
    noise = noise * torch.tensor([2.0, 3.0, 6.0], dtype=dtype)[groups].view(-1, 1, 1, 1)
    if missing:
        groups[::17] = -1
    return Split(patterns[labels] + noise, labels, groups)


def precisely() -> tuple[nn.Module, Split]:
    """A dense model and its training data in float64: runs that differ by rounding alone stay the same.

    In float32 a sample may fall on the other side by it, and a multiplier with it.
    """
    split = images(dtype=torch.float64)
    return trained(network(dtype=torch.float64), split), split


def network(*, dropout: float = 0.0, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(3)
    layers = [
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(96, 8),
        nn.ReLU(),
        nn.Linear(8, 4),
    ]
    return nn.Sequential(*layers).to(dtype)


class Branching(nn.Module):
    """Cannot be widened: it looks at values."""

    def __init__(self, layers: nn.Module | None = None) -> None:
        super().__init__()
        self.layers = layers or network()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs if inputs.sum() > 0 else inputs * 0.5)


def trained(model: nn.Module, split: Split, *, epochs: int = 5) -> nn.Module:
    """A dense model that knows something."""
    model = copy.deepcopy(model).train()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(epochs):
        for batch in torch.arange(len(split)).split(20):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(split.inputs[batch]), split.labels[batch]).backward()
            optimizer.step()
    return model


def data_for(model: nn.Module, train: Split, /, **evaluate: Split) -> Data:
    return Data(train=train, evaluate=evaluate, reference=predict(model, train).reference(NAMES))


def recipe(**changes: Any) -> Recipe:
    """Five epochs of five steps, two of them for pruning."""
    few: dict[str, Any] = {"epochs": 5, "pruning_epochs": 2, "batch_size": 24}
    return Recipe(**(few | {"optimizer": partial(SGD, lr=0.05, momentum=0.9)} | changes))


class Stops:
    """A hook that breaks the training off after an epoch, as Ctrl-C would."""

    def __init__(self, after: int) -> None:
        self.after = after

    def start(self, *_: Any) -> None: ...
    def finish(self) -> None: ...
    def epoch(self, told: list[dict[str, Any]]) -> None:
        if told[0]["epoch"] == self.after:
            raise KeyboardInterrupt
