"""The multipliers moved by Cooper's own multiplier and optimizers, for a given sequence of violations."""

import torch
from cooper.multipliers import DenseMultiplier
from cooper.optim import nuPI
from cooper.optim.torch_optimizers.nupi_optimizer import nuPIInitType
from cooper.utils import ConstraintType
from torch import Tensor

from evenprune.constraint import Method


def trajectory(method: Method, violations: Tensor) -> Tensor:
    """violations [steps, rows] -> multipliers after each step [steps, rows]."""
    multiplier = DenseMultiplier(num_constraints=violations.shape[1], dtype=torch.float64)
    equal = method.kind == "equal"
    multiplier.set_constraint_type(ConstraintType.EQUALITY if equal else ConstraintType.INEQUALITY)
    optimizer: torch.optim.Optimizer
    if method.dual == "sgd":
        optimizer = torch.optim.SGD(multiplier.parameters(), lr=method.dual_lr, maximize=True)
    else:
        gains = {
            name: torch.tensor(gain, dtype=torch.float64)
            for name, gain in (("Kp", method.kp), ("Ki", method.ki))
        }
        optimizer = nuPI(
            multiplier.parameters(),
            lr=method.dual_lr,
            ema_nu=method.nu,
            init_type=nuPIInitType.ZEROS,
            maximize=True,
            **gains,
        )
    seen = []
    for violation in violations:
        optimizer.zero_grad()
        (multiplier() * violation).sum().backward()
        optimizer.step()
        multiplier.post_step_()
        seen.append(multiplier.weight.detach().clone())
    return torch.stack(seen)
