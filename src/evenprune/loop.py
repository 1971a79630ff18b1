"""One training step for all runs of a fleet, and everything that such a step reads and writes.

Every tensor has a leading run axis and lives in one place from the first step to the last; a step touches
tensors only and never waits for the device, so it can be captured and replayed. The order of the samples and
the random numbers of the augmentation depend on (seed of the run, epoch) alone: a run in a fleet sees what it
would see by itself.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from evenprune import constraint
from evenprune.constraint import Plan, State
from evenprune.fleet import Fleet, Single
from evenprune.masks import Masks, schedule
from evenprune.predict import autocast, cross_entropies
from evenprune.recipe import Recipe, Run, Split
from evenprune.reference import DenseReference
from evenprune.tally import InputProblems
from evenprune.wide_layers import part


@dataclass(frozen=True)
class Epoch:
    """What one epoch is made of, drawn before it begins."""

    order: Tensor  # [runs, samples used] sample ids
    uniform: Tensor  # [runs, samples used, draws] random numbers of the augmentation
    place: Tensor  # [] int64: the next step
    active: Tensor  # [] bool: pruning has ended, the constraints act


@dataclass
class Loop:
    """All that the training of one fleet holds."""

    runs: tuple[Run, ...]
    recipe: Recipe
    network: Fleet | Single  # [runs, batch, …] -> [runs, batch, classes]
    masks: Masks
    plan: Plan
    optimizer: Optimizer
    scheduler: LRScheduler | None
    train: Split  # on the device of the network
    state: State  # of the constraints
    totals: dict[str, Tensor]  # of the epoch so far, each [runs]
    now: Epoch
    best: dict[str, Any] = field(default_factory=dict)  # "accuracy" and "epoch", both [runs], and "network"

    @property
    def steps(self) -> int:
        return self.recipe.steps(len(self.train))

    @property
    def device(self) -> torch.device:
        return self.train.labels.device


def build(
    network: Fleet | Single,
    *,
    runs: Sequence[Run],
    recipe: Recipe,
    train: Split,
    reference: DenseReference,
    masks: Masks,
) -> Loop:
    """A loop before its first step. Network, masks and samples are on the device already."""
    dtype = torch.float64 if next(network.parameters()).dtype == torch.float64 else torch.float32
    methods = [run.method for run in runs]
    plan = Plan.of(methods, reference, samples=len(train), dtype=dtype).to(train.labels.device)
    optimizer = recipe.optimizer(parameter_groups(network, recipe))
    if isinstance(optimizer, LBFGS):
        raise InputProblems(["LBFGS evaluates the loss several times a step, which this loop does not do."])
    steps = recipe.epochs * (recipe.steps(len(train)) if recipe.scheduler_steps == "batch" else 1)
    loop = Loop(
        runs=tuple(runs),
        recipe=recipe,
        network=network,
        masks=masks,
        plan=plan,
        optimizer=optimizer,
        scheduler=None if recipe.scheduler is None else recipe.scheduler(optimizer, steps),
        train=train,
        state=constraint.init(plan),
        totals=_no_totals(len(runs), train.labels.device),
        now=_empty_epoch(len(runs), recipe, train),
    )
    if any(method.keep == "best" for method in methods):
        loop.best = _no_best(loop)
    return loop


def parameter_groups(network: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """Weights that are decayed; then biases and norms, which are not, unless the recipe says so."""
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for module in network.modules():
        norm = "Norm" in type(module).__name__
        for name, parameter in module.named_parameters(recurse=False):
            spared = norm or name.endswith("bias")
            (plain if spared and not recipe.decay_everything else decayed).append(parameter)
    own = {} if recipe.weight_decay is None else {"weight_decay": recipe.weight_decay}
    groups = [{"params": _trained(decayed), **own}, {"params": _trained(plain), "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _trained(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Without frozen ones, and each once, however many modules share it."""
    return list(dict.fromkeys(p for p in parameters if p.requires_grad))


def _no_totals(runs: int, device: torch.device) -> dict[str, Tensor]:
    def zeros(dtype: torch.dtype) -> Tensor:
        return torch.zeros(runs, dtype=dtype, device=device)

    return {
        "loss": zeros(torch.float32),
        "correct": zeros(torch.int64),
        "broken_at": zeros(torch.int64) - 1,  # the first step whose loss was not finite
        "negative_before": zeros(torch.int64),  # negative weights counted before this epoch
    }


def _empty_epoch(runs: int, recipe: Recipe, train: Split) -> Epoch:
    used, device = recipe.steps(len(train)) * recipe.batch_size, train.labels.device
    draws = 0 if recipe.augment is None else recipe.augment.draws
    return Epoch(
        order=torch.zeros(runs, used, dtype=torch.int64, device=device),
        uniform=torch.zeros(runs, used, draws, device=device),
        place=torch.zeros((), dtype=torch.int64, device=device),
        active=torch.zeros((), dtype=torch.bool, device=device),
    )


def seed_of(*parts: int | str) -> int:
    """One seed of many numbers and words; unlike sums and products of seeds, it does not collide."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # manual_seed takes 63 bits everywhere


def sample_order(seed: int, epoch: int, samples: int) -> Tensor:
    """The order in which one run sees the training samples in one epoch. [samples]"""
    return torch.randperm(samples, generator=torch.Generator().manual_seed(seed_of("order", seed, epoch)))


def augment_draws(seed: int, epoch: int, *, samples: int, draws: int) -> Tensor:
    """The random numbers of the augmentation of one run in one epoch. [samples, draws]"""
    generator = torch.Generator().manual_seed(seed_of("augment", seed, epoch))
    return torch.rand(samples, draws, generator=generator)


def draw_epoch(loop: Loop, epoch: int, step: int) -> None:
    """Fill the buffers that the steps of an epoch read, from `step` on."""
    now, used, draws = loop.now, loop.now.order.shape[1], loop.now.uniform.shape[2]
    for i, run in enumerate(loop.runs):
        now.order[i].copy_(sample_order(run.seed, epoch, len(loop.train))[:used])
        if draws:
            now.uniform[i].copy_(augment_draws(run.seed, epoch, samples=used, draws=draws))
    now.place.fill_(step)
    now.active.fill_(epoch >= loop.recipe.pruning_epochs)


def begin_epoch(loop: Loop, epoch: int) -> None:
    """Raise the sparsity if the schedule says so, and count from zero."""
    last = max(loop.recipe.pruning_epochs - 1, 0)
    if epoch <= last:
        wanted = [schedule(epoch, final=run.sparsity, last=last) for run in loop.runs]
        loop.masks.prune_(loop.network, wanted, scope=loop.recipe.scope, pattern=loop.recipe.pattern)
    for name, fresh in _no_totals(len(loop.runs), loop.device).items():
        loop.totals[name].copy_(fresh)
    loop.totals["negative_before"].copy_(loop.state["negative_weights"])


def train_step(loop: Loop) -> None:
    """One step of every run: forward, weigh, backward, update, mask. Tensors only; waits for nothing."""
    index, inputs = next_batch(loop)
    labels, groups = loop.train.labels[index], loop.train.groups[index]  # [runs, batch]
    with autocast(loop.device, loop.recipe.precision):
        logits = loop.network(inputs)  # [runs, batch, classes]
    losses = cross_entropies(logits, labels)  # [runs, batch]
    correct = logits.detach().argmax(-1) == labels
    weights = constraint.step_(
        loop.plan, loop.state, losses.detach(), correct, groups, index=index, active=loop.now.active
    )
    loop.optimizer.zero_grad()
    torch.autograd.backward((weights * losses).sum())
    if loop.recipe.clip_norm is not None:
        clip_(loop.network.parameters(), runs=len(loop.runs), norm=loop.recipe.clip_norm)
    loop.optimizer.step()
    loop.masks.apply_(loop.network)
    add_up_(loop.totals, losses=losses.detach(), correct=correct, place=loop.now.place)
    loop.now.place.add_(1)


def next_batch(loop: Loop) -> tuple[Tensor, Tensor]:
    """Sample ids [runs, batch] and network inputs [runs, batch, …] of the step at hand."""
    now, batch = loop.now, loop.recipe.batch_size
    places = now.place * batch + torch.arange(batch, device=loop.device)
    index = now.order.index_select(1, places)
    inputs = loop.train.at(index.flatten())  # [runs · batch, …]
    if loop.recipe.augment is not None:
        inputs = loop.recipe.augment(inputs, now.uniform.index_select(1, places).flatten(0, 1))
    return index, inputs.view(*index.shape, *inputs.shape[1:])


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
def broken(loop: Loop) -> list[tuple[int, int]]:
    """(run, step of this epoch) of the runs whose loss or weights are no longer finite."""
    runs = len(loop.runs)
    finite = torch.stack(
        [by_run(t, runs).reshape(runs, -1).isfinite().all(1) for t in loop.network.parameters()]
    ).all(0)
    first = torch.where(loop.totals["broken_at"] >= 0, loop.totals["broken_at"], loop.now.place - 1)
    bad = ~finite | (loop.totals["broken_at"] >= 0)
    return [(run, int(first[run])) for run in bad.nonzero().flatten().tolist()]


def _no_best(loop: Loop) -> dict[str, Any]:
    return {
        "accuracy": torch.full((len(loop.runs),), -torch.inf, dtype=torch.float64),
        "epoch": torch.full((len(loop.runs),), -1),
        "network": {name: t.detach().clone() for name, t in loop.network.state_dict().items()},
    }


def keep_best(loop: Loop, epoch: int, scores: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Remember the weights of runs that were never better on their named split; of equals, the earliest."""
    for i, run in enumerate(loop.runs):
        if run.method.keep != "best" or run.method.keep_on is None:
            continue
        accuracy = scores[run.method.keep_on]["accuracy"][i]
        if accuracy > loop.best["accuracy"][i]:
            loop.best["accuracy"][i], loop.best["epoch"][i] = accuracy, epoch
            copy_run(loop.best["network"], loop.network.state_dict(), run=i, runs=len(loop.runs))


def put_back_best(loop: Loop) -> None:
    """Runs that keep their best iterate get it back; those that have none keep the last."""
    if loop.best:
        for i in (loop.best["epoch"] >= 0).nonzero().flatten().tolist():
            copy_run(loop.network.state_dict(), loop.best["network"], run=i, runs=len(loop.runs))


@torch.no_grad()
def copy_run(target: Mapping[str, Tensor], source: Mapping[str, Tensor], *, run: int, runs: int) -> None:
    """Copy one run's part of every tensor of a network."""
    for name, tensor in target.items():
        part(tensor, run, runs).copy_(part(source[name], run, runs))
