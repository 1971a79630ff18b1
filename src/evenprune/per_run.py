"""What belongs to each run in tensors that hold all runs: its gradient, its totals, whether it is broken."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn


def no_totals(runs: int, device: torch.device) -> dict[str, Tensor]:
    """Of an epoch that has not begun. [runs] each"""

    def zeros(dtype: torch.dtype) -> Tensor:
        return torch.zeros(runs, dtype=dtype, device=device)

    return {
        "loss": zeros(torch.float32),
        "correct": zeros(torch.int64),
        "broken_at": zeros(torch.int64) - 1,  # the first step whose loss was not finite
        "negative_before": zeros(torch.int64),  # negative weights counted before this epoch
    }


@torch.no_grad()
def clip_(parameters: Iterable[nn.Parameter], *, runs: int, norm: float) -> None:
    """Scale down the gradient of each run whose norm over all its parameters is larger than `norm`."""
    gradients = [by_run(p.grad, runs) for p in parameters if p.grad is not None]
    norms = torch.stack([g.reshape(runs, -1).norm(dim=1) for g in gradients]).norm(dim=0)  # [runs]
    scale = (norm / (norms + 1e-6)).clamp(max=1)
    for gradient in gradients:
        gradient.mul_(scale.view(runs, *[1] * (gradient.ndim - 1)))


def by_run(tensor: Tensor, runs: int) -> Tensor:
    """A view [runs, …] of a tensor of a widened network, whatever its memory format."""
    return tensor.unsqueeze(0) if runs == 1 else torch.unflatten(tensor, 0, (runs, -1))


def add_up_(totals: Mapping[str, Tensor], *, losses: Tensor, correct: Tensor, place: Tensor) -> None:
    mean = losses.mean(1)  # [runs]
    totals["loss"].add_(mean)
    totals["correct"].add_(correct.sum(1))
    first = totals["broken_at"]
    first.copy_(torch.where((first < 0) & ~mean.isfinite(), place, first))


@torch.no_grad()
def broken(
    parameters: Iterable[nn.Parameter], totals: Mapping[str, Tensor], place: Tensor
) -> list[tuple[int, int]]:
    """(run, step of this epoch) of the runs whose loss or weights are not finite; `place`: the next step."""
    at, runs = totals["broken_at"], len(totals["broken_at"])
    finite = torch.stack([by_run(t, runs).reshape(runs, -1).isfinite().all(1) for t in parameters]).all(0)
    first = torch.where(at >= 0, at, place - 1)
    bad = ~finite | (at >= 0)
    return [(run, int(first[run])) for run in bad.nonzero().flatten().tolist()]
