"""CEAG in its published form: a deque per group, a Python loop over the groups, a wait at every number."""

from collections import deque

import torch
from torch import Tensor


class Published:
    """`loss` is the Lagrangian of one batch; overall accuracy: macro when sparse, micro when dense."""

    def __init__(
        self, dense: list[float], dense_overall: float, *, tolerance: float, dual_lr: float, k: int
    ) -> None:
        self.dense, self.dense_overall = dense, dense_overall
        self.tolerance, self.dual_lr, self.k = tolerance, dual_lr, k
        self.buffers: list[deque[float]] = [deque(maxlen=k) for _ in dense]
        self.multipliers = torch.zeros(len(dense))

    def excess_gaps(self, correct: Tensor, groups: Tensor) -> dict[int, float]:
        accuracy = {}
        for group, buffer in enumerate(self.buffers):
            mine = correct[groups == group]
            if len(mine):
                buffer.extend(mine.float().tolist())
            if len(buffer) == self.k:
                accuracy[group] = sum(buffer) / self.k
        overall = sum(accuracy.values()) / max(len(accuracy), 1)
        return {
            group: (self.dense[group] - value) - (self.dense_overall - overall)
            for group, value in accuracy.items()
        }

    def loss(self, losses: Tensor, correct: Tensor, groups: Tensor) -> Tensor:
        for group, psi in self.excess_gaps(correct, groups).items():
            raised = self.multipliers[group] + self.dual_lr * (psi - self.tolerance)
            self.multipliers[group] = raised.clamp_min(0)
        mean = losses.mean()
        total = mean
        for group in range(len(self.buffers)):
            mine = groups == group
            if mine.any():
                total = total + self.multipliers[group] * (losses[mine].mean() - mean)
        return total
