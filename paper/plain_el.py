"""EL without a buffer in a plain loop of its own: as in the tables, and as in the paper's published code.

    min_w max_λ  L + p + Σ_g λ_g |L_g − L|,   p = decay/2 · Σ w²

over the groups that a batch holds, the dual step first. The published code adds p to L in place, so that its
constraints are |L_g − (L + p)| and differentiate p as well: weights are decayed 1 − Σ_g λ_g sign(L_g − L − p)
times as fast, some three to five times where most groups are better than the average. It sums p over the last
layer alone, begins in the epoch of the last pruning, here in the next, and keeps the last batch of an epoch.
"""

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from evenprune.draws import sample_order
from evenprune.masks import pruned_count, schedule
from evenprune.predict import Predictions
from evenprune.prunable import prunable_names
from evenprune.recipe import Recipe, Split
from evenprune.tally import InputProblems
from paper import results_file, runner
from paper.cells import Cell
from paper.runner import Start, Where

METHOD = "EL"


@dataclass(frozen=True)
class Form:
    """What is as in the published code."""

    leaks: bool = False  # the weight penalty is part of L where the constraints use it
    last_only: bool = False  # it is that of the last layer alone
    early: bool = False  # constraints act in the epoch of the last pruning
    whole: bool = False  # the last batch of an epoch, a smaller one, is kept


FORMS = {
    "plain_el": Form(),  # to see that this loop does what the fleets do
    "leaking": Form(leaks=True, early=True, whole=True),  # decay on all layers, as the paper says
    "published": Form(leaks=True, last_only=True, early=True, whole=True),
}


# --- one step ---


@dataclass(frozen=True)
class Step:
    objective: Tensor  # all but the weight penalty
    multipliers: Tensor  # after the dual step
    decay: Tensor  # how many times the weight penalty counts
    negative: Tensor  # samples whose loss is raised


def lagrangian(
    losses: Tensor, groups: Tensor, multipliers: Tensor, *, dual_lr: float, penalty: Tensor | None = None
) -> Step:
    """Of one batch. penalty: p, where it is part of the constraints."""
    counts = torch.zeros_like(multipliers).index_add(0, groups, torch.ones_like(losses))
    sums = torch.zeros_like(multipliers).index_add(0, groups, losses)
    sizes, mean = counts.clamp(min=1), losses.mean()
    apart = sums / sizes - (mean if penalty is None else mean + penalty)  # L_g − L
    apart = torch.where(counts > 0, apart, 0)  # of groups that the batch holds
    after = multipliers + dual_lr * apart.detach().abs()
    pushed = after * apart.detach().sign()
    rest = 1 - pushed.sum()  # how many times L counts, and p where it is part of L
    negative = rest / len(losses) + (pushed / sizes)[groups] < 0
    decay = torch.ones_like(rest) if penalty is None else rest
    return Step(mean + (after * apart.abs()).sum(), after, decay, negative.sum())


# --- the loop ---


@dataclass(frozen=True)
class Trained:
    model: nn.Module
    multiplier_sum: float
    negative: int


class Network:
    """A model that is pruned, and decayed by hand."""

    def __init__(self, model: nn.Module, form: Form, recipe: Recipe, device: torch.device) -> None:
        self.model = copy.deepcopy(model).to(device)
        if recipe.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        parameters: dict[str, Tensor] = dict(self.model.named_parameters())
        last = [name for name, module in self.model.named_modules() if isinstance(module, nn.Linear)][-1]
        self.decayed = [
            p for name, p in parameters.items() if not form.last_only or name.startswith(f"{last}.")
        ]
        names = prunable_names(self.model, keep=("first", "last"), exclude=recipe.exclude, include=())
        self.weights = [parameters[name] for name in names]
        self.masks = [torch.ones_like(weight) for weight in self.weights]
        self.decay = recipe.weight_decay or 0.0
        self.optimizer = recipe.optimizer([{"params": list(self.model.parameters())}])
        self.scheduler = recipe.scheduler and recipe.scheduler(self.optimizer, recipe.epochs)

    @torch.no_grad()
    def penalty(self) -> Tensor:
        """p = decay/2 · Σ w²."""
        return self.decay / 2 * torch.stack(torch._foreach_norm(self.decayed)).square().sum()

    @torch.no_grad()
    def prune(self, sparsity: float) -> None:
        """Layer by layer the smallest go; what is gone is the smallest."""
        for weight, mask in zip(self.weights, self.masks, strict=True):
            order, stays = weight.abs().flatten().argsort(stable=True), mask.flatten().clone()
            stays[order[: pruned_count(sparsity, len(order))]] = 0
            weight.mul_(mask.copy_(stays.view(mask.shape)))

    def descend(self, objective: Tensor, times: Tensor) -> None:
        """The weight penalty counts `times`."""
        self.optimizer.zero_grad()
        objective.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            gradients = [parameter.grad for parameter in self.decayed if parameter.grad is not None]
            torch._foreach_add_(gradients, torch._foreach_mul(self.decayed, self.decay * times))
            self.optimizer.step()
            torch._foreach_mul_(self.weights, self.masks)


def train(
    model: nn.Module, data: Split, cell: Cell, form: Form, recipe: Recipe, device: torch.device
) -> Iterator[Trained]:
    """What there is after each epoch. recipe: with nothing left open; it neither clips nor augments."""
    network, data = Network(model, form, recipe, device), data.to(device)
    losses_of = _losses(network.model, recipe, device)
    once = torch.ones((), device=device)
    multipliers = network.weights[0].new_zeros(int(data.groups.max()) + 1)
    negative = torch.zeros((), dtype=torch.long, device=device)
    last, size = max(recipe.pruning_epochs - 1, 0), recipe.batch_size
    for epoch in range(recipe.epochs):
        if epoch <= last:
            network.prune(schedule(epoch, final=cell.sparsity, last=last))
        network.model.train()
        for index in torch.split(sample_order(cell.seed, epoch, len(data)).to(device), size):
            if len(index) < size and not form.whole:
                continue
            losses = losses_of(data.at(index), data.labels[index])
            if epoch < last + (not form.early):
                network.descend(losses.mean(), once)
                continue
            penalty = network.penalty() if form.leaks else None
            told = lagrangian(
                losses, data.groups[index], multipliers, dual_lr=cell.dual_lr or 0.0, penalty=penalty
            )
            multipliers, negative = told.multipliers, negative + told.negative
            network.descend(told.objective, told.decay)
        if network.scheduler:
            network.scheduler.step()
        yield Trained(network.model, float(multipliers.sum()), int(negative))


def _losses(model: nn.Module, recipe: Recipe, device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        if recipe.channels_last:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16"):
            return functional.cross_entropy(model(inputs), labels, reduction="none")

    if device.type != "cuda":
        return losses
    fast = torch.compile(losses, dynamic=False)  # of whole batches: it takes most of a minute
    return lambda inputs, labels: (fast if len(inputs) == recipe.batch_size else losses)(inputs, labels)


# --- rows of the results ---


def fill(start: Start, cells: Sequence[Cell], form: Form, recipe: Recipe, where: Where) -> None:
    """One run after the other; the file grows after each."""
    told = recipe.on(where.device)
    if told.augment is not None or told.clip_norm is not None:
        raise InputProblems(
            ["the plain loop of EL neither augments nor clips, and this recipe does: name another variant"]
        )
    for cell in results_file.missing(results_file.read(where.results), cells):
        began = time.perf_counter()
        trained = None
        for epoch, trained in enumerate(
            train(start.model, start.data.train, cell, form, told, where.device), 1
        ):
            if epoch % runner.LINE_EVERY == 0:
                where.say(f"epoch {epoch} · Σλ {trained.multiplier_sum:.3g}")
        assert trained is not None
        answers = runner.answers_of(trained.model, start.data.evaluate, recipe, where)
        row = _row(start, cell, trained, answers, recipe, where)
        seconds = time.perf_counter() - began
        results_file.add_runs(where.results, [row | {"seconds": round(seconds, 3)}])
        where.say(f"Sparsity {cell.sparsity:g}, seed {cell.seed}: {seconds:.0f} s; {where.results}")


def _row(
    start: Start, cell: Cell, trained: Trained, answers: dict[str, Predictions], recipe: Recipe, where: Where
) -> dict[str, Any]:
    return {
        **cell.row(),
        **start.facts,
        **runner.figures(start, answers),
        "kept_epoch": recipe.epochs - 1,
        "negative_weights": trained.negative,
        "multiplier_sum": trained.multiplier_sum,
        "resumed": False,
        "fleet": 1,
        "versions": runner.versions(where.device, where.compile),
        "commit": where.commit,
    }
