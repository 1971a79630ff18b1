"""The training loop as one would write it on a blackboard: one run, Python loops, lists and deques."""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass
class Plain:
    """Cross-entropy, or CEAG with replay buffers; magnitude pruning by a sort; SGD written out."""

    model: nn.Module
    inputs: Tensor
    labels: Tensor
    groups: Tensor
    prunable: list[str]
    sparsity: float
    epochs: int
    pruning_epochs: int
    batch: int
    lr: float
    momentum: float
    weight_decay: float
    clip: float
    constrained: bool
    tolerance: float
    dual_lr: float
    k: int

    def __post_init__(self) -> None:
        names = range(int(self.groups.max()) + 1)
        self.rings: dict[int, deque[float]] = {g: deque(maxlen=self.k) for g in names}
        self.multipliers = dict.fromkeys(names, 0.0)
        self.share = {g: (self.groups == g).double().mean().item() for g in names}
        self.model.eval()
        right = (self.model(self.inputs).argmax(1) == self.labels).double()
        self.dense = {g: right[self.groups == g].mean().item() for g in names}
        self.velocity = {name: torch.zeros_like(p) for name, p in self.model.named_parameters()}
        self.mask = {name: torch.ones_like(self.model.get_parameter(name)) for name in self.prunable}

    def train(self, orders: list[Tensor]) -> Iterator[nn.Module]:
        """The model after every step; orders[epoch] is the order of the samples."""
        last = max(self.pruning_epochs - 1, 0)
        for epoch in range(self.epochs):
            if epoch <= last:
                done = 1.0 if last == 0 else epoch / last
                self.prune(self.sparsity - self.sparsity * (1 - done) ** 3)
            for start in range(0, len(self.labels) - self.batch + 1, self.batch):
                self.step(orders[epoch][start : start + self.batch], active=epoch >= self.pruning_epochs)
                yield self.model

    def prune(self, sparsity: float) -> None:
        for name in self.prunable:
            parameter = self.model.get_parameter(name)
            flat = (parameter.detach() * self.mask[name]).abs().flatten().tolist()
            ranked = sorted(range(len(flat)), key=lambda i: (flat[i], i))
            for i in ranked[: math.ceil(round(sparsity * len(flat), 9))]:
                self.mask[name].view(-1)[i] = 0
        self.apply_masks()

    def apply_masks(self) -> None:
        with torch.no_grad():
            for name, mask in self.mask.items():
                self.model.get_parameter(name).mul_(mask)

    def step(self, chosen: Tensor, *, active: bool) -> None:
        self.model.train()
        logits = self.model(self.inputs[chosen])
        labels, groups = self.labels[chosen], self.groups[chosen].tolist()
        losses = functional.cross_entropy(logits, labels, reduction="none")
        loss = losses.mean()
        if active and self.constrained:
            self.ascend((logits.argmax(1) == labels).tolist(), groups)
            for group in set(groups):
                own = torch.stack([losses[i] for i in range(len(groups)) if groups[i] == group]).mean()
                loss = loss + self.multipliers[group] * (own - losses.mean())
        self.model.zero_grad()
        loss.backward()
        self.descend()
        self.apply_masks()

    def ascend(self, correct: list[bool], groups: list[int]) -> None:
        for right, group in zip(correct, groups, strict=True):
            self.rings[group].append(float(right))
        full = [g for g, ring in self.rings.items() if len(ring) == self.k]
        total = sum(self.share[g] for g in full)
        accuracy = {g: sum(self.rings[g]) / self.k for g in full}
        overall_gap = sum(self.share[g] / total * (self.dense[g] - accuracy[g]) for g in full)
        for g in full:
            excess = (self.dense[g] - accuracy[g]) - overall_gap
            self.multipliers[g] = max(0.0, self.multipliers[g] + self.dual_lr * (excess - self.tolerance))

    def descend(self) -> None:
        squares = sum(float((p.grad**2).sum()) for p in self.model.parameters())
        shrink = min(1.0, self.clip / (math.sqrt(squares) + 1e-6))
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                decay = self.weight_decay if parameter.ndim > 1 else 0.0
                gradient = parameter.grad * shrink + decay * parameter
                self.velocity[name] = self.momentum * self.velocity[name] + gradient
                parameter -= self.lr * self.velocity[name]
