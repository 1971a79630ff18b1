"""Functions through torch.compile, where that is possible."""

import logging
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

import torch
from torch import nn

from evenprune import fused_norm
from evenprune.recipe import Recipe

log = logging.getLogger("evenprune")


def compiles(network: nn.Module, recipe: Recipe, device: torch.device) -> bool:
    """Whether to: fused norms in 16 bits are faster than torch.compile, which takes a minute besides."""
    if recipe.compile is not None or device.type != "cuda":
        return bool(recipe.compile)
    return recipe.precision != "bfloat16" or not fused_norm.everywhere(network)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function through torch.compile; plain, with a warning, if it cannot be compiled."""
    from torch._dynamo.exc import TorchDynamoException  # seconds to import, needed only here

    # A code object of its own: torch's cache of compilations belongs to it, and holds eight at the most.
    plain = cast(FunctionType, function)
    own = FunctionType(plain.__code__.replace(), plain.__globals__, plain.__name__)
    chosen = [torch.compile(own, dynamic=False)]

    def call(*values: Any) -> Any:
        try:
            return chosen[0](*values)
        except TorchDynamoException as error:
            log.warning(
                "Training without torch.compile, which failed (%s). Recipe(compile=False) spares the try.",
                " ".join(str(error).strip().split("\n")[:2]),
            )
            chosen[0] = function
            return function(*values)

    return call
