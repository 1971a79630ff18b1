"""EL without a buffer in a plain loop of its own: as in the tables, and as in the paper's published code.

    min_w max_λ  L + p + Σ_g λ_g |L_g − L|,   p = decay/2 · Σ w²

over the groups that a batch holds, the dual step first. The published code adds p to L in place, so that its
constraints are |L_g − (L + p)| and differentiate p as well: weights are decayed 1 − Σ_g λ_g sign(L_g − L − p)
times as fast, which is more where most groups are better than the average. It sums p over the last
layer alone, begins in the epoch of the last pruning, here in the next, and keeps the last batch of an epoch.

Groups that a batch lacks are left out, there as here. Where they are not (no sample, so a mean of 0), each of
them counts as |0 − L|, which lets all multipliers grow at every step.
"""

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from evenprune.draws import sample_order
from evenprune.masks import Masks, schedule
from evenprune.predict import Predictions
from evenprune.recipe import Recipe, Split, check
from evenprune.replay import Replay
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
    absent: bool = False  # groups that a batch lacks are not left out: their loss is 0


FORMS = {
    "plain_el": Form(),  # to see that this loop does what the fleets do
    "leaking": Form(leaks=True, early=True, whole=True),  # decay on all layers, as the paper says
    "published": Form(leaks=True, last_only=True, early=True, whole=True),
    "absent": Form(absent=True),  # not in the published code; an older one may have had it
    "absent_published": Form(leaks=True, last_only=True, early=True, whole=True, absent=True),
}


# --- one step ---


@dataclass(frozen=True)
class Step:
    objective: Tensor  # all but the weight penalty
    multipliers: Tensor  # after the dual step
    decay: Tensor  # how many times the weight penalty counts
    negative: Tensor  # samples whose loss is raised


def lagrangian(
    losses: Tensor,
    groups: Tensor,
    multipliers: Tensor,
    *,
    dual_lr: float,
    penalty: Tensor | None = None,
    absent: bool = False,
) -> Step:
    """Of one batch. penalty: p, where the constraints have it; absent: they are of all groups."""
    counts = torch.zeros_like(multipliers).index_add(0, groups, torch.ones_like(losses))
    sums = torch.zeros_like(multipliers).index_add(0, groups, losses)
    sizes, mean = counts.clamp(min=1), losses.mean()
    apart = sums / sizes - (mean if penalty is None else mean + penalty)  # L_g − L
    if not absent:
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


def last_layer(network: nn.Module) -> str:
    linear: list[str] = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    return linear[-1]


class Network:
    """A model that is pruned, and decayed by hand."""

    def __init__(self, model: nn.Module, form: Form, recipe: Recipe, device: torch.device) -> None:
        self.model = copy.deepcopy(model).to(device)
        if recipe.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.masks = Masks.of(self.model, exclude=recipe.exclude)
        decayed = dict(self.model.named_parameters())
        if form.last_only:
            decayed = dict(self.model.get_submodule(last_layer(self.model)).named_parameters())
        self.decayed: list[Tensor] = list(decayed.values())
        self.decay = recipe.weight_decay or 0.0
        self.optimizer = recipe.optimizer([{"params": list(self.model.parameters()), "weight_decay": 0.0}])
        self.scheduler = recipe.scheduler and recipe.scheduler(self.optimizer, recipe.epochs)

    @torch.no_grad()
    def penalty(self) -> Tensor:
        """p = decay/2 · Σ w²."""
        return self.decay / 2 * torch.stack(torch._foreach_norm(self.decayed)).square().sum()

    def descend(self, objective: Tensor, times: Tensor) -> None:
        """The weight penalty counts `times`."""
        self.optimizer.zero_grad()
        objective.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            used = [(weight, weight.grad) for weight in self.decayed if weight.grad is not None]
            decays = torch._foreach_mul([weight for weight, _ in used], self.decay * times)
            torch._foreach_add_([gradient for _, gradient in used], decays)
        self.optimizer.step()
        self.masks.apply_(self.model)


class Loop:
    """Steps that take everything from tensors that stay where they are, so that a GPU replays them."""

    def __init__(
        self, model: nn.Module, data: Split, cell: Cell, form: Form, recipe: Recipe, device: torch.device
    ) -> None:
        self.network, self.data, self.form = Network(model, form, recipe, device), data.to(device), form
        self.losses_of = _losses(self.network.model, recipe, device)
        self.dual_lr, self.constrained = cell.dual_lr or 0.0, False
        self.multipliers = self.network.decayed[0].new_zeros(int(data.groups.max()) + 1)
        self.negative = torch.zeros((), dtype=torch.long, device=device)
        self.once = torch.ones((), device=device)
        self.batch = torch.zeros(recipe.batch_size, dtype=torch.long, device=device)  # places of samples
        self.replay = Replay(lambda: self.step(self.batch), device=device, graph=bool(recipe.graph))

    def advance(self, index: Tensor) -> None:
        if len(index) == len(self.batch):
            self.batch.copy_(index)
            settings = [group["lr"] for group in self.network.optimizer.param_groups]
            self.replay((self.constrained, *settings))
        else:
            self.step(index)

    def step(self, index: Tensor) -> None:
        losses = self.losses_of(self.data.at(index), self.data.labels[index])
        if self.constrained:
            self.constrained_step(losses, index)
        else:
            self.network.descend(losses.mean(), self.once)

    def constrained_step(self, losses: Tensor, index: Tensor) -> None:
        told = lagrangian(
            losses,
            self.data.groups[index],
            self.multipliers,
            dual_lr=self.dual_lr,
            penalty=self.network.penalty() if self.form.leaks else None,
            absent=self.form.absent,
        )
        self.network.descend(told.objective, told.decay)
        self.multipliers.copy_(told.multipliers)
        self.negative.add_(told.negative)


def train(
    model: nn.Module, data: Split, cell: Cell, form: Form, recipe: Recipe, device: torch.device
) -> Iterator[Trained]:
    """What there is after each epoch. recipe: with nothing left open, and nothing of what `refuse` names."""
    loop = Loop(model, data, cell, form, recipe, device)
    network, last, size = loop.network, max(recipe.pruning_epochs - 1, 0), recipe.batch_size
    for epoch in range(recipe.epochs):
        if epoch <= last:
            network.masks.prune_(network.model, schedule(epoch, final=cell.sparsity, last=last))
        loop.constrained = epoch >= recipe.pruning_epochs - form.early
        network.model.train()
        for index in torch.split(sample_order(cell.seed, epoch, len(data)).to(device), size):
            if form.whole or len(index) == size:
                loop.advance(index)
        if network.scheduler:
            network.scheduler.step()
        yield Trained(network.model, float(loop.multipliers.sum()), int(loop.negative))


def _losses(model: nn.Module, recipe: Recipe, device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        if recipe.channels_last:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16"):
            return functional.cross_entropy(model(inputs), labels, reduction="none")

    if device.type != "cuda" or recipe.compile is False:
        return losses
    fast = torch.compile(losses, dynamic=False)  # of whole batches: it takes most of a minute
    return lambda inputs, labels: (fast if len(inputs) == recipe.batch_size else losses)(inputs, labels)


# --- rows of the results ---


def refuse(recipe: Recipe) -> None:
    """What a recipe may ask for and this loop does not do."""
    names = ("augment", "clip_norm", "decay_everything", "decay_only", "scheduler_steps", "scope", "pattern")
    found = [
        f"the plain loop of {METHOD} has recipe.{name} = {getattr(runner.RECIPE, name)!r}, not "
        f"{getattr(recipe, name)!r}: name another variant"
        for name in names
        if getattr(recipe, name) != getattr(runner.RECIPE, name)
    ]
    if found:
        raise InputProblems(found)


def fill(start: Start, cells: Sequence[Cell], form: Form, recipe: Recipe, where: Where) -> None:
    """One run after the other; the file grows after each."""
    told, runs = recipe.on(where.device), runner.runs_of(cells)
    check(data=start.data, runs=runs, recipe=told, classes=int(start.data.train.labels.max()) + 1)
    for cell in results_file.missing(results_file.read(where.results), cells):
        began = time.perf_counter()
        trained = _to_its_end(train(start.model, start.data.train, cell, form, told, where.device), where)
        run = f"Sparsity {cell.sparsity:g}, seed {cell.seed}"
        if not math.isfinite(trained.multiplier_sum):
            where.say(f"{run}: the loss was not finite; no row is written")
            continue
        answers = runner.answers_of(trained.model, start.data.evaluate, recipe, where)
        row = _row(start, cell, trained, answers, recipe, where)
        seconds = time.perf_counter() - began
        results_file.add_runs(where.results, [row | {"seconds": round(seconds, 3)}])
        where.say(f"{run}: {seconds:.0f} s; {where.results}")


def _to_its_end(epochs: Iterator[Trained], where: Where) -> Trained:
    for epoch, trained in enumerate(epochs, 1):
        if epoch % runner.LINE_EVERY == 0:
            where.say(f"epoch {epoch} · Σλ {trained.multiplier_sum:.3g}")
        if not math.isfinite(trained.multiplier_sum):
            break
    return trained


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
