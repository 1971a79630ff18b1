"""A small network in which pruning leaves channels that stand still, and what it learns from."""

from __future__ import annotations

import copy
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import SGD

from evenprune.recipe import Data, Recipe, Split
from evenprune.reference import DenseReference

WIDE = 16


def layer(kernel: int, *, inputs: int = WIDE, groups: int = 1, act: bool = True) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, WIDE, kernel, padding=kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(WIDE), nn.ReLU6() if act else nn.Identity()]


def narrow() -> nn.Sequential:
    """Bottlenecks without an activation between them, as MobileNetV2 has."""
    torch.manual_seed(0)
    blocks = [[*layer(3, groups=WIDE), *layer(1, act=False), *layer(1)] for _ in range(3)]
    parts = [*layer(3, inputs=1), *(part for block in blocks for part in block)]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDE, 3))


def perceptron(*, norm_first: bool) -> nn.Sequential:
    """Six linear layers with norms between them, before the activations or after them."""
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for inputs in (40, 64, 64, 64, 64, 64):
        norm, act = nn.BatchNorm1d(64), nn.ReLU()
        parts += [nn.Linear(inputs, 64), *((norm, act) if norm_first else (act, norm))]
    return nn.Sequential(*parts, nn.Linear(64, 5))


def data(samples: int = 240) -> Data:
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(samples) % 3
    inputs = torch.randn(samples, 1, 8, 8, generator=random)
    inputs[:, :, :, 3] += labels.view(-1, 1, 1) - 1.0
    return _problem(inputs, labels)


def features(samples: int = 2000) -> Data:
    """Five clouds that overlap."""
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(samples) % 5
    middles = 0.35 * torch.randn(5, 40, generator=random)
    return _problem(torch.randn(samples, 40, generator=random) + middles[labels], labels)


def _problem(inputs: Tensor, labels: Tensor) -> Data:
    split, right = Split(inputs=inputs, labels=labels, groups=labels), torch.ones(len(labels))
    names = tuple("abcde"[: int(labels.max()) + 1])
    dense = DenseReference.from_outcomes(correct=right, losses=right, groups=labels, names=names)
    return Data(train=split, evaluate={"train": split}, reference=dense)


def recipe(lr: float) -> Recipe:
    """In 16 bits, and with weights that move to the end."""
    return Recipe(
        epochs=40, pruning_epochs=5, batch_size=16, precision="bfloat16", compile=False, evaluate_every=40,
        optimizer=partial(SGD, lr=lr, momentum=0.9), scheduler=None,
    )  # fmt: skip


@torch.no_grad()
def in_training(model: nn.Module, split: Split) -> Tensor:
    """What it answers in training mode."""
    answers: Tensor = copy.deepcopy(model).train()(split.inputs)
    return answers.argmax(1)


@torch.no_grad()
def least_motion(model: nn.Sequential, split: Split) -> float:
    """The least variance of a channel that a norm lets through, were there no activations.

    What a ReLU cuts off for every sample stands still as well, by chance and not by pruning.
    """
    least, x = list[Tensor](), split.inputs
    for layer in copy.deepcopy(model).train():
        if isinstance(layer, nn.BatchNorm2d):
            least.append(x.transpose(0, 1).flatten(1).var(1, correction=0)[layer.weight != 0].min())
        if not isinstance(layer, nn.ReLU6):
            x = layer(x)
    return float(torch.stack(least).min())


def blind(model: nn.Module) -> int:
    """Filters of such a network that have weights, but read only channels that are gone."""
    found, gone = 0, torch.zeros(WIDE, dtype=torch.bool)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d) and layer.in_channels > 1:
            weight = layer.weight.detach().flatten(2).any(2)  # [filters, inputs]
            reads = (weight & (~gone[:, None] if layer.groups > 1 else ~gone)).any(1)
            found, gone = found + int((weight.any(1) & ~reads).sum()), ~reads
    return found
