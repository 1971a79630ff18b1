"""Every constrained method longhand: dictionaries, loops over groups, the Lagrangian for autograd."""

from __future__ import annotations

import torch
from torch import Tensor

from evenprune.constraint import Method
from evenprune.reference import DenseReference
from tests.twins.ring import Batch, Rings, Table


class Longhand:
    """One run. `loss` moves the multipliers and returns the Lagrangian of the batch, differentiable."""

    def __init__(self, method: Method, reference: DenseReference) -> None:
        self.method = method
        self.groups = len(reference.names)
        sums = {
            g: (float(reference.samples[g]), float(reference.correct[g]), float(reference.loss_sum[g]))
            for g in range(self.groups)
        }
        everything = (reference.all_samples, reference.all_correct, reference.all_loss_sum)
        sums[-1] = tuple(  # type: ignore[assignment]
            everything[i] - sum(sums[g][i] for g in range(self.groups)) for i in range(3)
        )
        column = 2 if method.measure == "loss" else 1
        self.samples_of = {g: values[0] for g, values in sums.items()}
        self.dense = {
            g: values[column] / max(values[0], 1) if method.against_dense else 0.0
            for g, values in sums.items()
        }
        self.dense_overall = everything[column] / everything[0] if method.against_dense else 0.0
        self.rings = Rings(self.groups, method.k)
        self.table = Table({g: int(n) for g, n in self.samples_of.items()})
        self.batch = Batch()
        self.multiplier: dict[object, float] = {}
        self.error: dict[object, float] = {}
        self.psi: dict[int, float] = {}

    def means(self, losses: Tensor, correct: Tensor, groups: list[int], index: list[int]) -> dict[int, float]:
        outcomes = (losses if self.method.measure == "loss" else correct.double()).tolist()
        if self.method.estimator == "none":
            return {}
        self.batch.push(outcomes, groups)
        if self.method.estimator == "batch":
            return self.batch.means()
        if self.method.estimator == "table":
            self.table.push(outcomes, groups, index)
            return self.table.means()
        self.rings.push(outcomes, groups)
        return self.rings.means()

    def excess_gaps(self, means: dict[int, float]) -> dict[int, float]:
        if self.method.overall == "macro":
            weight = dict.fromkeys(means, 1.0)
        elif self.method.estimator == "batch":
            weight = {g: float(len(self.batch.held[g])) for g in means}
        else:
            weight = {g: self.samples_of[g] for g in means}
        total = sum(weight.values())
        if total == 0:
            return {}
        sparse = sum(weight[g] * means[g] for g in means) / total
        dense = sum(weight[g] * self.dense[g] for g in means) / total
        if self.method.overall == "macro":
            dense = self.dense_overall
        sign = 1 if self.method.measure == "loss" else -1
        return {g: sign * ((means[g] - self.dense[g]) - (sparse - dense)) for g in means if g >= 0}

    def rows(self) -> dict[object, float]:
        """The left side of every constraint that can be evaluated now."""
        psi, kind = self.psi, self.method.kind
        if self.method.rows == "extremes":
            return {"spread": max(psi.values()) - min(psi.values())} if psi else {}
        if self.method.rows == "pairs":
            return {(i, j): psi[i] - psi[j] for i in psi for j in psi if i != j}
        if self.method.rows == "none":
            return {}
        if kind == "two_sided":
            return {**{(g, +1): psi[g] for g in psi}, **{(g, -1): -psi[g] for g in psi}}
        return {(g, 0): abs(psi[g]) if kind == "absolute" else psi[g] for g in psi}

    def move(self) -> None:
        m = self.method
        for row, value in self.rows().items():
            violation = value - m.tolerance
            if violation > 0:
                violation = max(violation - m.dead_zone, 0.0)
            else:
                violation = min(violation + m.dead_zone, 0.0)
            xi_before = self.error.get(row, 0.0)
            xi = m.nu * xi_before + (1 - m.nu) * violation
            self.error[row] = xi
            raised = self.multiplier.get(row, 0.0) + m.dual_lr * (m.ki * violation + m.kp * (xi - xi_before))
            self.multiplier[row] = raised if m.kind == "equal" else max(raised, 0.0)

    def surrogate(self, row: object, group_loss: dict[int, Tensor], mean: Tensor) -> Tensor | None:
        """The differentiable side of a row, None if it names a group that is not in the batch."""
        if self.method.mean == "detached":
            mean = mean.detach()
        if row == "spread":
            pair = (max(self.psi, key=self.psi.__getitem__), min(self.psi, key=self.psi.__getitem__))
        elif self.method.rows == "pairs":
            pair = row  # type: ignore[assignment]
        else:
            group, side = row  # type: ignore[misc]
            if group not in group_loss:
                return None
            excess = group_loss[group] - mean
            if self.method.kind == "absolute":
                if self.method.side == "batch":
                    return excess.abs()
                return excess if self.psi[group] > 0 else -excess if self.psi[group] < 0 else 0 * excess
            return -excess if side == -1 else excess
        if pair[0] not in group_loss or pair[1] not in group_loss:
            return None
        return group_loss[pair[0]] - group_loss[pair[1]]

    def loss(self, losses: Tensor, correct: Tensor, groups: Tensor, index: Tensor) -> Tensor:
        ids = groups.tolist()
        self.psi = self.excess_gaps(self.means(losses.detach(), correct, ids, index.tolist()))
        self.move()
        group_loss = {g: losses[groups == g].mean() for g in set(ids) if g >= 0}
        lagrangian = losses.mean()
        for row, multiplier in self.multiplier.items():
            surrogate = self.surrogate(row, group_loss, losses.mean())
            if surrogate is not None:
                lagrangian = lagrangian + multiplier * surrogate
        return lagrangian


def gradient(run: Longhand, losses: Tensor, correct: Tensor, groups: Tensor, index: Tensor) -> Tensor:
    """d Lagrangian / d losses: what the sample weights have to be."""
    leaf = losses.clone().requires_grad_()
    (weights,) = torch.autograd.grad(run.loss(leaf, correct, groups, index), leaf)
    return weights
