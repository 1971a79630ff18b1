"""Why pruning may harm a group: Tran et al.'s two diagnostics (2022), of any model on any split.

A Taylor expansion bounds what moving the weights from θ to θ̄ (pruning them) can add to the loss of a group:

    L_g(θ̄) − L_g(θ) ≤ ‖∇L_g(θ)‖ ‖θ̄ − θ‖ + ½ λ(H_g) ‖θ̄ − θ‖² + …

L_g is the mean cross-entropy of the group, H_g its Hessian. λ is the largest eigenvalue *in sign*, as the
bound needs it, not in magnitude: a negative one that is larger in magnitude is passed by. Both are taken over
all weights that can be trained or, with masks, over those of them that are left. The model is in evaluation
mode, so that batch statistics do not move, and is not changed.
"""

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from evenprune.masks import Masks
from evenprune.predict import cross_entropies, evaluating, look_at_outputs
from evenprune.recipe import Split
from evenprune.tally import InputProblems
from evenprune.verdict import Approximate

ASKED, SAME = 512, 0.97  # samples that tell one model from another, by the share that it answers alike
MIXED = 0.1  # a residual, relative to the eigenvalue, that speaks of two eigenvalues of opposite sign


@dataclass(frozen=True)
class Eigenvalue:
    """An estimate from below: no Rayleigh quotient vᵀHv exceeds the largest eigenvalue.

    Some eigenvalue lies within `residual` = ‖Hv − λv‖ of it.
    """

    value: float
    residual: float
    iterations: int  # products with the Hessian
    converged: bool


def measure(
    model: nn.Module,
    split: Split,
    names: Sequence[str],
    *,
    masks: Masks | None = None,
    batch_size: int = 512,
    iterations: int = 100,
    tolerance: float = 1e-3,
    float64: bool = False,
    answered: Tensor | None = None,
) -> dict[str, Tensor]:
    """Gradient norm and largest Hessian eigenvalue of the loss of every group, on the model's device.

    "gradient_norm", "largest_eigenvalue", and how far to trust the latter: "residual", "iterations",
    "converged"; also "samples"; each [groups], NaN (0, False) for a group without samples. The power
    iteration ends when ‖Hv − λv‖ ≤ tolerance · |the eigenvalue largest in magnitude|, or after so many
    iterations (twice as many at most, where that one is negative). Each one costs a pass over the group.
    `answered`: what the model is known to answer, [samples]; one that answers otherwise is refused.
    """
    if not isinstance(model, nn.Module):
        raise InputProblems([f"model is {model!r:.80}, a {type(model).__name__}: give the dense model"])
    problems = [
        f"{name} is {number}: it must be at least 1"
        for name, number in (("batch_size", batch_size), ("iterations", iterations))
        if number < 1
    ]
    problems += [*_problems(model, split, len(names), masks), *_misfits(model, split, answered)]
    if problems:
        raise InputProblems(problems)
    model = copy.deepcopy(model).double() if float64 else model
    groups = split.groups.cpu()
    rows = {"samples": torch.bincount(groups[groups >= 0], minlength=len(names)).tolist()}
    with evaluating(model), _with_gradients():
        found = [
            _measured(_GroupLoss(model, split, group, batch_size, masks), iterations, tolerance)
            if rows["samples"][group]
            else (math.nan, Eigenvalue(math.nan, math.nan, 0, False))
            for group in range(len(names))
        ]
    rows["gradient_norm"] = [norm for norm, _ in found]
    rows["largest_eigenvalue"] = [eigenvalue.value for _, eigenvalue in found]
    for field in ("residual", "iterations", "converged"):
        rows[field] = [getattr(eigenvalue, field) for _, eigenvalue in found]
    whole = {"samples": torch.int64, "iterations": torch.int64, "converged": torch.bool}
    return {name: torch.tensor(row, dtype=whole.get(name, torch.float64)) for name, row in rows.items()}


def columns(measured: dict[str, Tensor], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """What `measure` found, as evenprune.audit(…, columns=…) takes it.

    Eigenvalues that did not converge are marked: the audit shows them with ≈, and says so in a note.
    """
    converged = measured["converged"].tolist()
    eigenvalues = [
        value if done or math.isnan(value) else Approximate(value)
        for value, done in zip(measured["largest_eigenvalue"].tolist(), converged, strict=True)
    ]
    found = {"gradient norm": measured["gradient_norm"].tolist(), "largest Hessian eigenvalue": eigenvalues}
    return {title: dict(zip(names, values, strict=True)) for title, values in found.items()}


def largest_eigenvalue(
    product: Callable[[Tensor], Tensor], start: Tensor, *, iterations: int, tolerance: float
) -> Eigenvalue:
    """Of a symmetric H, given as v ↦ Hv, by power iteration from `start` [n].

    It finds the eigenvalue largest in magnitude. If that is negative, or it seems to be caught between two of
    opposite sign, it runs once more on H + sI with s = ‖Hv‖ ≥ |λ|: of these eigenvalues none is negative, and
    the largest belongs to the largest of H.
    """
    first, norm = _power_iteration(product, start, 0.0, iterations, tolerance)
    caught = not first.converged and first.residual > MIXED * abs(first.value)
    if first.value >= 0 and not caught:
        return first
    second, _ = _power_iteration(product, start, norm, iterations, tolerance)
    best = max(first, second, key=lambda eigenvalue: eigenvalue.value)  # both are estimates from below
    return Eigenvalue(best.value, best.residual, first.iterations + second.iterations, best.converged)


def _power_iteration(
    product: Callable[[Tensor], Tensor], start: Tensor, shift: float, iterations: int, tolerance: float
) -> tuple[Eigenvalue, float]:
    """v ← (H + sI)v / ‖(H + sI)v‖ until the residual is small; also returns the last ‖Hv‖."""
    vector = start / start.norm()
    value = residual = norm = math.nan
    for iteration in range(1, iterations + 1):
        image = product(vector)
        value, norm = float(vector @ image), float(image.norm())
        residual = float((image - value * vector).norm())
        if residual <= tolerance * max(abs(value), shift):
            return Eigenvalue(value, residual, iteration, True), norm
        ahead = image + shift * vector
        vector = ahead / ahead.norm()
    return Eigenvalue(value, residual, iterations, False), norm


def _measured(loss: "_GroupLoss", iterations: int, tolerance: float) -> tuple[float, Eigenvalue]:
    norm = float(loss.gradient().norm())
    if not math.isfinite(norm):
        raise ValueError(
            f"The gradient of group {loss.group} is not finite: the model has diverged, or an input is not a "
            "number. Check the loss of the model on this split."
        )
    found = largest_eigenvalue(loss.product, loss.start(), iterations=iterations, tolerance=tolerance)
    return norm, found


class _GroupLoss:
    """The mean cross-entropy of one group as a function of the weights, seen as one vector [n]."""

    def __init__(
        self, model: nn.Module, split: Split, group: int, batch_size: int, masks: Masks | None
    ) -> None:
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.model, self.split, self.group, self.parameters = model, split, group, list(named.values())
        self.device, self.dtype = self.parameters[0].device, self.parameters[0].dtype
        members = (split.groups == group).nonzero().flatten().to(self.device)
        self.samples, self.batches = len(members), torch.split(members, batch_size)
        kept = {} if masks is None else masks.kept()
        flat = [kept.get(name, torch.ones_like(p)).reshape(-1).to(p) for name, p in named.items()]
        self.kept = torch.cat(flat)  # [n]: 0 where a weight is pruned

    def start(self) -> Tensor:
        """The same on every machine and for every group and precision. [n]"""
        random = torch.Generator().manual_seed(0)
        drawn = torch.randn(len(self.kept), generator=random, dtype=torch.float64)
        return drawn.to(self.kept) * self.kept

    def gradient(self) -> Tensor:
        """∇L_g [n]"""
        return self._sum(_gradients(loss, self.parameters) for loss in self._losses())

    def product(self, vector: Tensor) -> Tensor:
        """H_g v [n] as the gradient of ∇L_g · v."""
        sizes = [p.numel() for p in self.parameters]
        parts = [part.view_as(p) for part, p in zip(torch.split(vector, sizes), self.parameters, strict=True)]
        return self._sum(self._products(parts))

    def _products(self, vector: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
        for loss in self._losses():
            gradient = _gradients(loss, self.parameters, again=True)
            along = torch.stack([(g * v).sum() for g, v in zip(gradient, vector, strict=True)]).sum()
            yield _gradients(along, self.parameters)

    def _losses(self) -> Iterator[Tensor]:
        """The share that each batch has in L_g."""
        labels = self.split.labels.to(self.device)
        for index in self.batches:
            logits = self.model(self.split.at(index).to(self.dtype))
            yield cross_entropies(logits.unsqueeze(0), labels[index].unsqueeze(0)).sum() / self.samples

    def _sum(self, parts: Iterator[tuple[Tensor, ...]]) -> Tensor:
        total = torch.zeros_like(self.kept)
        for part in parts:
            total += torch.cat([value.reshape(-1) for value in part])
        return total * self.kept


def _gradients(value: Tensor, parameters: Sequence[Tensor], *, again: bool = False) -> tuple[Tensor, ...]:
    """Zero for a weight that the value does not depend on; `again`: to be differentiated once more."""
    return torch.autograd.grad(
        value, parameters, create_graph=again, allow_unused=True, materialize_grads=True
    )


@contextlib.contextmanager
def _with_gradients() -> Iterator[None]:
    """Gradients on; and cuDNN shall not try all its algorithms, since groups are of any size."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        with torch.enable_grad():
            yield
    finally:
        torch.backends.cudnn.benchmark = before


def _misfits(model: nn.Module, split: Split, answered: Tensor | None) -> list[str]:
    """That the model is not one of these samples and labels, or not the one that gave these answers."""
    dtype = next((p.dtype for p in model.parameters()), None)
    classes, found = look_at_outputs(model, split, "the inputs of this split", dtype=dtype)
    most = int(split.labels.max()) if len(split) else -1
    found += [f"label {most}, but {type(model).__name__} has {classes} classes"] if most >= classes else []
    if answered is not None and not found:
        found += _other_answers(model, split, answered[:ASKED])
    return [f"{problem}; pass the dense model of these runs" for problem in found]


def _other_answers(model: nn.Module, split: Split, answered: Tensor) -> list[str]:
    inputs = split.at(torch.arange(len(answered))).to(next(model.parameters(), torch.empty(0)))
    with evaluating(model), torch.no_grad():
        same = int((model(inputs).argmax(-1).cpu() == answered).sum())
    if same >= SAME * len(answered):
        return []
    return [f"of the first {len(answered)} samples it answers {same} as the dense model of these runs did"]


def _problems(model: nn.Module, split: Split, groups: int, masks: Masks | None) -> list[str]:
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    found = [] if trained else [f"{type(model).__name__} has no parameter that can be trained"]
    outside = torch.unique(split.groups[(split.groups < -1) | (split.groups >= groups)]).tolist()
    if outside:
        found.append(f"group ids {outside[:5]} are outside −1 … {groups - 1} ({groups} names)")
    if masks is not None and masks.runs != 1:
        found.append(f"the masks are of {masks.runs} runs: take those of one with masks.extract(run)")
    absent = [] if masks is None else [layer.name for layer in masks.layers if layer.name not in trained]
    if trained and absent:
        found.append(
            f"{type(model).__name__} has no trained parameters {absent[:3]} ({len(absent)} in all): pass the "
            "model that the masks were made for, without a wrapper around it"
        )
    return found
