"""A multilayer perceptron for flat features."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn


def mlp(inputs: int, hidden: Sequence[int] = (64, 64), num_classes: int = 10) -> nn.Sequential:
    """Linear layers with ReLU between them; `hidden` gives the widths."""
    widths = [inputs, *hidden]
    layers: list[nn.Module] = []
    for narrow, wide in pairwise(widths):
        layers += [nn.Linear(narrow, wide), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))
