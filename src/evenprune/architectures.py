"""The architectures of this package by name, built for the data at hand; their weights come from a file."""

from collections.abc import Callable

from torch import nn

from evenprune import models
from evenprune.tally import InputProblems

Shape = tuple[int, ...]  # of one input


def build(name: str, shape: Shape, classes: int) -> nn.Module:
    """An untrained network for inputs of this shape."""
    needed, fits = {
        "mlp": ("one row of features", len(shape) == 1),
        "small_cnn": ("images [channels, height, width]", len(shape) == 3),
    }.get(name, ("images [3, height, width]", len(shape) == 3 and shape[0] == 3))
    if not fits:
        raise InputProblems([f"{name} takes {needed}; the inputs have shape {list(shape)}"])
    return BUILDERS[name](shape, classes)


BUILDERS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "cifar_resnet56": lambda shape, classes: models.cifar_resnet56(classes),
    "mobilenet_v2": lambda shape, classes: models.mobilenet_v2(classes),
    "resnet34": lambda shape, classes: models.resnet34(classes),
    "small_cnn": lambda shape, classes: models.small_cnn(num_classes=classes, in_channels=shape[0]),
    "mlp": lambda shape, classes: models.mlp(shape[0], num_classes=classes),
}
