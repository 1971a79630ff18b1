"""Whether an optimizer moves each weight by itself, so that runs may share one widened network."""

import torch
from torch import Tensor, nn

from evenprune.loop import parameter_groups
from evenprune.recipe import Recipe


def why_steps_mix(recipe: Recipe, device: torch.device) -> str:
    """Why a step on two runs side by side is not a step on each; empty if it is."""
    place = device if device.type == "cuda" else torch.device("cpu")  # where float64 is
    one, two = (_probe(seed, place) for seed in (0, 1))
    try:
        alone = torch.cat([_stepped(recipe, one), _stepped(recipe, two)])
        together = _stepped(recipe, torch.cat([one, two], dim=1))
    except Exception as error:  # whatever people's optimizers raise
        return f"the optimizer could not be tried on two runs at once ({type(error).__name__}: {error})."
    moved = float((alone - torch.cat([one[0], two[0]])).abs().max())
    error_allowed = min(1e-9, 1e-6 * moved) + 1e-13  # small steps are told apart as well
    if bool(((together - alone).abs() <= error_allowed).all()):
        return ""
    return "the optimizer looks at more than one weight at a time, so that runs side by side would mix."


def _probe(seed: int, device: torch.device) -> Tensor:
    """[1 + steps, rows, 4]: weights and bias of a small layer, and a gradient for each of a few steps."""
    numbers = torch.randn(6, 4, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (numbers * 10.0**seed).to(device)  # runs of different size: norms over both would show


def _stepped(recipe: Recipe, probe: Tensor) -> Tensor:
    """The rows [rows, 4] that the recipe's optimizer makes of probe[0] with the gradients probe[1:]."""
    layer = nn.Linear(3, probe.shape[1], dtype=probe.dtype, device=probe.device)
    with torch.no_grad():
        layer.weight.copy_(probe[0, :, :3])
        layer.bias.copy_(probe[0, :, 3])
    optimizer = recipe.optimizer(parameter_groups(layer, recipe))
    for gradient in probe[1:]:
        layer.weight.grad, layer.bias.grad = gradient[:, :3].clone(), gradient[:, 3].clone()
        optimizer.step()
    return torch.cat([layer.weight.detach(), layer.bias.detach().unsqueeze(1)], dim=1)
