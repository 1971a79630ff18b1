"""One training step for all runs of a fleet, and everything that such a step reads and writes.

Every tensor has a leading run axis and lives in one place from the first step to the last; a step touches
tensors only and never waits for the device, so it can be captured and replayed. The order of the samples and
the random numbers of the augmentation depend on (seed of the run, epoch) alone: a run in a fleet sees what it
would see by itself.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from evenprune import constraint, fairgrape
from evenprune.compiling import compiled, compiles
from evenprune.constraint import Plan, State
from evenprune.divergence import Rest, nobody
from evenprune.draws import augment_draws, balance_of, heldout_order, leaving_out, sample_order
from evenprune.fleet import Fleet, Single
from evenprune.folds import Folds
from evenprune.heldout import Heldout
from evenprune.importance import MiniBatches, group_importance
from evenprune.iterates import no_best
from evenprune.masks import Masks, schedule
from evenprune.per_run import add_up_, clip_, no_totals
from evenprune.predict import autocast, cross_entropies
from evenprune.prunable import matches
from evenprune.recipe import Recipe, Run, Split
from evenprune.reference import DenseReference
from evenprune.replay import Replay, Unsupported
from evenprune.tally import InputProblems
from evenprune.teacher import Teacher, Teachers, primal_losses

WINDOW_BYTES = 1 << 26  # inputs brought to the device at once, where the host has the data


@dataclass(frozen=True)
class Epoch:
    """What one epoch is made of, drawn before it begins; and what it leaves behind."""

    order: Tensor  # [runs, samples used] sample ids
    uniform: Tensor  # [runs, samples used, draws] random numbers of the augmentation
    place: Tensor  # [] int64: the next step
    active: Tensor  # [runs] bool: the constraints act, as a rule once pruning has ended
    window: Tensor | None  # [runs, steps of a chunk · batch, …] inputs in order, if the host has them
    trace: Tensor | None  # [runs, steps, rows] multipliers after each step


class Batch(NamedTuple):
    """What came of one batch of every run. [runs, batch] each"""

    losses: Tensor  # cross-entropies
    primal: Tensor  # what is minimised: these, or what the method makes of them
    correct: Tensor
    groups: Tensor
    sample: Tensor  # ids


class Parts(NamedTuple):
    """What is not the autograd engine's or the optimizer's in a step: plain or compiled.

    The constraints stay plain: they are small, and a compiled sort of theirs kept ptxas busy for minutes.
    """

    forward: Callable[["Loop"], Batch]
    weigh: Callable[["Loop", Batch], Tensor]
    mask: Callable[["Loop"], None]


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
    train: Split  # on the device of the network; the inputs perhaps not
    state: State  # of the constraints
    totals: dict[str, Tensor]  # of the epoch so far, each [runs]
    now: Epoch
    parts: "Parts"
    rest: Rest  # runs that have diverged
    teacher: Teacher | Teachers | None = None
    heldout: Heldout | None = None
    folds: Folds | None = None  # that some runs leave one out of
    balance: Tensor | None = None  # [samples] on the CPU: how often each is drawn if groups are balanced
    replay: Replay = field(init=False)  # of one step
    best: dict[str, Any] = field(default_factory=dict)  # "score" and "epoch", both [runs], and "network"

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
    teacher: Teacher | Teachers | None = None,
    heldout: Heldout | None = None,
    heldout_reference: DenseReference | None = None,
    folds: Folds | None = None,
) -> Loop:
    """A loop before its first step. Network, masks and samples are on the device already."""
    dtype = torch.float64 if next(network.parameters()).dtype == torch.float64 else torch.float32
    methods = [run.method for run in runs]
    plan = Plan.of(methods, reference, samples=len(train), heldout=heldout_reference, dtype=dtype)
    plan = plan.to(train.labels.device)
    _refuse_unknown(network, recipe.decay_only)
    optimizer = recipe.optimizer(parameter_groups(network, recipe))
    if isinstance(optimizer, LBFGS):
        raise InputProblems(["LBFGS evaluates the loss several times a step, which this loop does not do."])
    if recipe.graph and train.labels.is_cuda:
        for group in optimizer.param_groups:
            group["lr"] = float(group["lr"])  # a changed float is noticed and captured anew, a tensor is not
            if "capturable" in group:
                group["capturable"] = True
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
        totals=no_totals(len(runs), train.labels.device),
        now=_empty_epoch(plan, recipe, train),
        parts=Parts(compiled(forward), weigh, mask)
        if compiles(network, recipe, train.labels.device)
        else Parts(forward, weigh, mask),
        rest=nobody(len(runs), train.labels.device),
        teacher=teacher,
        heldout=heldout,
        folds=folds,
        balance=balance_of(train.groups) if any(m.sampling == "balanced" for m in methods) else None,
    )
    loop.replay = Replay(
        lambda: train_step(loop) if updates_within(loop) else forward_backward(loop),
        device=loop.device,
        graph=bool(recipe.graph),
    )
    if any(method.keep != "last" for method in methods):
        loop.best = no_best(network, len(runs))
    return loop


def parameter_groups(network: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """Weights that are decayed; then biases and norms, which are not, unless the recipe says so."""
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for path, module in network.named_modules():
        norm = "Norm" in type(module).__name__
        for name, parameter in module.named_parameters(prefix=path, recurse=False):
            spared = (norm or name.endswith("bias")) and not recipe.decay_everything
            if recipe.decay_only:
                spared = not matches(name, recipe.decay_only)
            (plain if spared else decayed).append(parameter)
    own = {} if recipe.weight_decay is None else {"weight_decay": recipe.weight_decay}
    groups = [{"params": _trained(decayed), **own}, {"params": _trained(plain), "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _refuse_unknown(network: nn.Module, patterns: Iterable[str]) -> None:
    names = [name for name, _ in network.named_parameters()]
    unknown = [p for p in patterns if not any(matches(name, [p]) for name in names)]
    if unknown:
        some = ", ".join(names[:3])
        raise InputProblems(
            [f"recipe.decay_only has {p!r}, which no parameter matches (such as {some})" for p in unknown]
        )


def _trained(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Without frozen ones, and each once, however many modules share it."""
    return list(dict.fromkeys(p for p in parameters if p.requires_grad))


def _empty_epoch(plan: Plan, recipe: Recipe, train: Split) -> Epoch:
    runs, steps, device = plan.runs, recipe.steps(len(train)), train.labels.device
    draws = 0 if recipe.augment is None else recipe.augment.draws
    rows = constraint.multipliers(plan, constraint.init(plan)).shape[1] if recipe.trace else 0
    return Epoch(
        order=torch.zeros(runs, steps * recipe.batch_size, dtype=torch.int64, device=device),
        uniform=torch.zeros(runs, steps * recipe.batch_size, draws, device=device),
        place=torch.zeros((), dtype=torch.int64, device=device),
        active=torch.zeros(runs, dtype=torch.bool, device=device),
        window=_empty_window(runs, recipe, train) if _stays(train) else None,
        trace=torch.zeros(runs, steps, rows, device=device) if recipe.trace else None,
    )


def _stays(train: Split) -> bool:
    """Whether the inputs are with the host while everything else is on the device."""
    return train.inputs.device != train.labels.device


def _empty_window(runs: int, recipe: Recipe, train: Split) -> Tensor:
    shape = train.inputs.shape[1:]
    one = runs * recipe.batch_size * shape.numel() * train.inputs.element_size()  # bytes of a step
    steps = max(1, min(WINDOW_BYTES // max(one, 1), recipe.steps(len(train))))
    sizes = (runs, steps * recipe.batch_size, *shape)
    return torch.zeros(sizes, dtype=train.inputs.dtype, device=train.labels.device)


def draw_epoch(loop: Loop, epoch: int, step: int) -> None:
    """Fill the buffers that the steps of an epoch read, from `step` on."""
    now, used, draws = loop.now, loop.now.order.shape[1], loop.now.uniform.shape[2]
    for i, run in enumerate(loop.runs):
        balance = loop.balance if run.method.sampling == "balanced" else None
        order = sample_order(run.seed, epoch, len(loop.train), balance)
        if run.without is not None and loop.folds is not None:
            order = leaving_out(order, loop.folds.of.cpu() == run.without, used)
        now.order[i].copy_(order[:used])
        if draws:
            now.uniform[i].copy_(augment_draws(run.seed, epoch, samples=used, draws=draws))
    if loop.heldout is not None:
        count = len(loop.heldout.split)
        loop.heldout.draw(lambda run: heldout_order(run.seed, epoch, count), loop.runs, step)
    now.place.fill_(step)
    now.active.copy_(torch.tensor([epoch >= loop.recipe.acting_from(run.method) for run in loop.runs]))
    fill_window(loop, step)


def begin_epoch(loop: Loop, epoch: int) -> None:
    """Raise the sparsity if the schedule says so, and count from zero."""
    last = max(loop.recipe.pruning_epochs - 1, 0)
    if epoch <= last:
        wanted = [schedule(epoch, final=run.sparsity, last=last) for run in loop.runs]
        scores = weight_scores(loop, wanted)
        loop.masks.prune_(
            loop.network, wanted, scope=loop.recipe.scope, pattern=loop.recipe.pattern, scores=scores
        )
    for name, fresh in no_totals(len(loop.runs), loop.device).items():
        loop.totals[name].copy_(fresh)
    loop.totals["negative_before"].copy_(loop.state["negative_weights"])


def weight_scores(loop: Loop, sparsity: list[float]) -> dict[str, Tensor] | None:
    """What every weight is worth to its run, by the importance that its method names; None: |w| for all."""
    by, recipe = [run.method.importance for run in loop.runs], loop.recipe
    if set(by) == {"magnitude"} or not any(sparsity):
        return None
    batches = MiniBatches(loop.train, size=recipe.batch_size, count=recipe.importance_batches)
    importance = group_importance(
        loop.network, loop.masks, batches, groups=loop.plan.groups, precision=recipe.precision
    )
    return fairgrape.scores(loop.network, loop.masks, importance, sparsity, by=by, scope=recipe.scope)


def fill_window(loop: Loop, step: int) -> None:
    """Bring the inputs of the chunk of steps that `step` belongs to, if the host has them."""
    window, batch = loop.now.window, loop.recipe.batch_size
    if window is None or step >= loop.steps:
        return
    first = step * batch - step * batch % window.shape[1]
    wanted = loop.now.order[:, first : first + window.shape[1]].to(loop.train.inputs.device)
    chunk = loop.train.inputs.index_select(0, wanted.flatten())
    if loop.device.type == "cuda" and not chunk.is_cuda:
        chunk = chunk.pin_memory()
    window[:, : wanted.shape[1]].copy_(chunk.view(*wanted.shape, *chunk.shape[1:]), non_blocking=True)


def advance(loop: Loop, step: int, epoch: int) -> None:
    """One step of every run, by the fastest way the recipe allows."""
    tuning = epoch - loop.recipe.pruning_epochs
    if loop.heldout is not None and tuning >= 0:
        loop.heldout.before_step(loop.plan, loop.state, tuning * loop.steps + step, awake=loop.rest.awake)
    loop.replay(_frozen(loop.optimizer) if updates_within(loop) else ())
    if not updates_within(loop):
        update(loop)
    window = loop.now.window
    if window is not None and (step + 1) * loop.recipe.batch_size % window.shape[1] == 0:
        fill_window(loop, step + 1)


def updates_within(loop: Loop) -> bool:
    """Whether the optimizer's step can be captured: it must take nothing from Python that changes by step."""
    if not loop.replay.graph:
        return True
    capturable = all(group.get("capturable") for group in loop.optimizer.param_groups)
    steady = loop.scheduler is None or loop.recipe.scheduler_steps == "epoch"
    return steady and (type(loop.optimizer) is SGD or capturable)


def _frozen(optimizer: Optimizer) -> tuple[Any, ...]:
    """The optimizer's plain settings, which a captured step cannot see changing."""
    return tuple(
        (name, value)
        for group in optimizer.param_groups
        for name, value in group.items()
        if isinstance(value, int | float | bool | str | tuple | None)
    )


def train_step(loop: Loop) -> None:
    """One step of every run: forward, weigh, backward, update, mask. Tensors only; waits for nothing."""
    forward_backward(loop)
    update(loop)


def forward_backward(loop: Loop) -> None:
    """Gradients of Σ_i w_i ℓ_i over the batches of all runs: the weights are the gradient of the sum."""
    loop.optimizer.zero_grad()
    batch = loop.parts.forward(loop)
    weights = loop.parts.weigh(loop, batch)
    try:
        torch.autograd.backward(batch.primal, weights)
    except RuntimeError as error:
        if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise Unsupported(
                f"The backward pass cannot be compiled ({error}). Train with Recipe(compile=False)."
            ) from error
        raise


def update(loop: Loop) -> None:
    if loop.recipe.clip_norm is not None:
        clip_(loop.network.parameters(), runs=len(loop.runs), norm=loop.recipe.clip_norm)
    loop.optimizer.step()
    loop.parts.mask(loop)


def mask(loop: Loop) -> None:
    loop.masks.apply_(loop.network)


def forward(loop: Loop) -> Batch:
    """The next batch of every run, through the network."""
    index, inputs = next_batch(loop)
    labels = loop.train.labels[index]
    with autocast(loop.device, loop.recipe.precision):
        logits = loop.network(inputs)  # [runs, batch, classes]
    correct = logits.detach().argmax(-1) == labels
    plain = cross_entropies(logits, labels)
    primal = plain
    if loop.teacher is not None:
        primal = primal_losses(
            loop.plan.run, loop.teacher, plain, logits=logits, labels=labels, index=index, inputs=inputs
        )
    return Batch(plain, primal, correct, loop.train.groups[index], index)


@torch.no_grad()
def weigh(loop: Loop, batch: Batch) -> Tensor:
    """The weight of every loss [runs, batch]; moves the multipliers and the counters."""
    losses = batch.losses.detach()
    weights = constraint.step_(
        loop.plan,
        loop.state,
        losses,
        batch.correct,
        batch.groups,
        index=batch.sample,
        active=loop.now.active & loop.rest.awake,
        heldout=None if loop.heldout is None else loop.heldout.batch,
    )
    add_up_(loop.totals, losses=losses, correct=batch.correct, place=loop.now.place)
    if loop.now.trace is not None:
        rows = constraint.multipliers(loop.plan, loop.state)  # [runs, rows]
        loop.now.trace.index_copy_(1, loop.now.place.view(1), rows.unsqueeze(1).to(loop.now.trace.dtype))
    loop.now.place.add_(1)
    return (weights * loop.rest.awake.unsqueeze(1)).to(losses.dtype)


def next_batch(loop: Loop) -> tuple[Tensor, Tensor]:
    """Sample ids [runs, batch] and network inputs [runs, batch, …] of the step at hand."""
    now, batch = loop.now, loop.recipe.batch_size
    step = torch.arange(batch, device=loop.device)
    places = now.place * batch + step
    index = now.order.index_select(1, places)
    if now.window is None:
        raw = loop.train.inputs.index_select(0, index.flatten())  # [runs · batch, …]
    else:
        steps = now.window.shape[1] // batch
        raw = now.window.index_select(1, (now.place % steps) * batch + step).flatten(0, 1)
    inputs = loop.train.as_network_input(raw)
    if loop.recipe.augment is not None:
        inputs = loop.recipe.augment(inputs, now.uniform.index_select(1, places).flatten(0, 1))
    return index, inputs.view(*index.shape, *inputs.shape[1:])
