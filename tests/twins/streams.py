"""Every method with strong settings, and random streams of outcomes to drive them with."""

from typing import Any

import torch
from torch import Tensor

from evenprune import methods
from evenprune.constraint import Method
from evenprune.reference import DenseReference

STRONG: dict[str, Any] = {"tolerance": 0.02, "dual_lr": 0.3, "k": 5}
EVERY: dict[str, Method] = {
    "nft": methods.nft(),
    "nft_es": methods.nft_es(on="validation"),
    "el": methods.el(dual_lr=0.1),
    "el_rb": methods.el_rb(dual_lr=0.1, k=5),
    "ceag": methods.ceag(**STRONG),
    "ceag_no_rb": methods.ceag_no_rb(tolerance=0.02, dual_lr=0.3),
    "celg": methods.celg(**STRONG),
    "pairwise": methods.pairwise(**STRONG),
    "all_pairs": methods.all_pairs(**STRONG),
    "equalized": methods.equalized(dual_lr=0.3, k=5),
    "approximately_equal": methods.approximately_equal(**STRONG),
    "two_sided": methods.two_sided(**STRONG),
}
VARIANTS: dict[str, Method] = {
    **EVERY,
    "ceag macro": methods.ceag(**STRONG, overall="macro"),
    "ceag no rb macro": methods.ceag_no_rb(tolerance=0.02, dual_lr=0.3, overall="macro"),
    "ceag table": methods.ceag(**STRONG, estimator="table"),
    "celg table": methods.celg(**STRONG, estimator="table"),
    "ceag detached": methods.ceag(**STRONG, mean="detached"),
    "two_sided detached": methods.two_sided(**STRONG, mean="detached"),
    "ceag nupi": methods.ceag(**STRONG, dual="nupi", kp=2.0, ki=0.5, nu=0.6),
    "equalized nupi": methods.equalized(dual_lr=0.3, k=5, dual="nupi", kp=2.0, nu=0.3),
    "pairs nupi": methods.all_pairs(**STRONG, dual="nupi", kp=1.0, nu=0.3),
    "ceag dead zone": methods.ceag(**STRONG, dead_zone=0.1),
    "equalized dead zone": methods.equalized(dual_lr=0.3, k=5, dead_zone=0.1),
    "ceag k=1": methods.ceag(tolerance=0.02, dual_lr=0.3, k=1),
}


def training_set(groups: int, samples: int, seed: int) -> tuple[Tensor, DenseReference]:
    """Group of every training sample (some missing, some rare), and what a dense model did on them."""
    generator = torch.Generator().manual_seed(seed)
    chances = torch.linspace(3.0, 0.3, groups + 1).roll(-1)
    ids = torch.multinomial(chances, samples, replacement=True, generator=generator)
    ids = torch.where(ids == groups, -1, ids)
    ids[:groups] = torch.arange(groups)
    reference = DenseReference.from_outcomes(
        correct=torch.rand(samples, generator=generator) < 0.9,
        losses=torch.rand(samples, generator=generator),
        groups=ids,
        names=[f"g{g}" for g in range(groups)],
    )
    return ids, reference


def outcomes(ids: Tensor, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One batch: losses (float64), correct, groups, index (now and then twice the same sample)."""
    index = torch.randint(len(ids), (batch,), generator=generator)
    losses = 2 * torch.rand(batch, generator=generator, dtype=torch.float64) + 0.1 * ids[index].clamp_min(0)
    correct = torch.rand(batch, generator=generator) < 0.8 - 0.1 * ids[index].clamp_min(0)
    return losses, correct, ids[index], index
