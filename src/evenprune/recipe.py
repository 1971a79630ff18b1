"""What fit() is told: the runs, the data, the recipe; and all that can be wrong with them, found up front."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler, MultiStepLR

from evenprune import folds
from evenprune.constraint import Method, slow_rings
from evenprune.folds import Folds
from evenprune.method import FOLDS, naming_options
from evenprune.plan import empty_groups, longest_training_ring
from evenprune.reference import DenseReference
from evenprune.tally import InputProblems

OptimizerFactory = Callable[[list[dict[str, Any]]], Optimizer]
SchedulerFactory = Callable[[Optimizer, int], LRScheduler]  # the int: how often it will be stepped in all


class Augment(Protocol):
    """A random change of the inputs, as a pure function of random numbers that it is given."""

    @property
    def draws(self) -> int:
        """How many uniform numbers in [0, 1) one sample needs."""

    def __call__(self, inputs: Tensor, uniform: Tensor) -> Tensor:
        """inputs [samples, …] and uniform [samples, draws] to inputs of the same shape."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One pruned model to make: how, how sparse, and with which seed."""

    method: Method
    sparsity: float
    seed: int = 0
    without: int | None = None  # the fold of Data.folds that it does not train on

    def __str__(self) -> str:
        apart = "" if self.without is None else f", without fold {self.without}"
        return f"method {self.method.name}, sparsity {self.sparsity:g}, seed {self.seed}{apart}"


@dataclass(frozen=True)
class Split:
    """Samples held as tensors. uint8 inputs are divided by 255; then (x − mean) / std per channel."""

    inputs: Tensor  # [N, …]
    labels: Tensor  # [N] int64
    groups: Tensor  # [N] int64; −1 where the group is not known
    mean: Tensor | None = None  # [channels] or [1]; channels are the first dimension of a sample
    std: Tensor | None = None

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    def to(self, device: torch.device, *, inputs: bool = True) -> "Split":
        """The samples on a device; without `inputs`, all but these."""
        tensors = {f.name: getattr(self, f.name) for f in fields(self) if inputs or f.name != "inputs"}
        return replace(self, **{name: t.to(device) for name, t in tensors.items() if t is not None})

    def at(self, index: Tensor) -> Tensor:
        """Network inputs of the samples of index [n]: float, normalised, not augmented; where index is."""
        raw = self.inputs.index_select(0, index.to(self.inputs.device))
        return self.as_network_input(raw.to(index.device))

    def as_network_input(self, inputs: Tensor) -> Tensor:
        """Raw inputs [n, …] as the network takes them."""
        if inputs.dtype == torch.uint8:
            inputs = inputs.float() / 255
        if self.mean is None or self.std is None:
            return inputs
        along = (-1, *[1] * (inputs.ndim - 2))
        mean, std = (values.view(along).to(inputs.device) for values in (self.mean, self.std))
        return (inputs - mean) / std


@dataclass(frozen=True, kw_only=True)
class Data:
    """The training samples, the dense model's outcome on them, and the splits to evaluate on."""

    train: Split
    evaluate: Mapping[str, Split] = field(default_factory=dict)  # such as {"train": …, "test": …}
    reference: DenseReference
    folds: Folds | None = None  # for runs that leave one out, and for multipliers_on="folds"


PAPER_SGD = partial(SGD, lr=0.01, momentum=0.9)


def steps_down(
    optimizer: Optimizer, total: int, *, at: Sequence[float] = (0.6, 0.8, 0.9), factor: float = 0.1
) -> MultiStepLR:
    """The learning rate times `factor` at these fractions of the training: the paper's schedule."""
    return MultiStepLR(optimizer, [round(total * fraction) for fraction in at], gamma=factor)


_OF_SGD = "it is the optimizer's, as optimizer=partial(SGD, lr=0.01, momentum=0.9)"


@naming_options(lr=_OF_SGD, learning_rate=_OF_SGD, momentum=_OF_SGD)
@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the runs are trained; one recipe for all runs of a fleet."""

    epochs: int = 60
    pruning_epochs: int = 15  # the sparsity rises at the start of epochs 0 … 14; 1 or 0: at once
    batch_size: int = 128
    optimizer: OptimizerFactory = PAPER_SGD
    scheduler: SchedulerFactory | None = steps_down
    scheduler_steps: Literal["epoch", "batch"] = "epoch"
    weight_decay: float | None = None  # None: as the optimizer factory has it
    decay_everything: bool = False  # False: biases and norms are not decayed
    decay_only: tuple[str, ...] = ()  # names or glob patterns of the parameters that are; (): as above
    clip_norm: float | None = None  # of each run's own gradient
    # What makes a GPU fast. None: on where the training is on one, off elsewhere.
    precision: Literal["float32", "bfloat16"] | None = None  # None: bfloat16 on a GPU
    channels_last: bool | None = None  # images lie pixel by pixel in memory
    # Forward and backward go through torch.compile. None: on a GPU, unless our own kernels fuse the norms.
    compile: bool | None = None
    graph: bool | None = None  # a whole step is captured as a CUDA graph, and replayed
    data_on_device: bool | None = (
        None  # False: the inputs stay with the host and follow in chunks; None: if need be
    )
    augment: Augment | None = None
    scope: Literal["layer", "global"] = "layer"
    pattern: tuple[int, int] | None = None  # (2, 4): two of every four weights stay
    importance_batches: int | None = None  # that FairGRAPE's scores are summed over; None: a whole epoch
    exclude: tuple[str, ...] = ()  # names or glob patterns of weights never pruned
    evaluate_every: int = 1  # epochs; the last epoch is always evaluated
    evaluate_batch: int = 512
    only_at_end: tuple[str, ...] = ()  # splits that are evaluated after the last epoch only
    fleet_size: int | None = None  # runs in one widened network at the most; None: all of them
    checkpoint_epochs: int = 1
    checkpoint_steps: int | None = None  # also within an epoch, every so many steps
    trace: bool = False  # keep the multipliers of every step
    share_pruning: bool = True  # runs that are the same until pruning ends are trained once until then

    def steps(self, samples: int) -> int:
        """Steps of one epoch; an incomplete last batch is left out."""
        return samples // self.batch_size

    def acting_from(self, method: Method) -> int:
        """The epoch in which a method's constraints begin to act: when pruning has ended, unless told."""
        return 0 if method.while_pruning else self.pruning_epochs

    def on(self, device: torch.device) -> "Recipe":
        """The same recipe with nothing left open but, on a GPU, `compile`: there the network decides."""
        gpu = device.type == "cuda"
        return replace(
            self,
            precision=self.precision or ("bfloat16" if gpu else "float32"),
            channels_last=gpu if self.channels_last is None else self.channels_last,
            compile=self.compile if gpu else bool(self.compile),
            graph=gpu if self.graph is None else self.graph,
        )


def check(
    *, data: Data, runs: Sequence[Run], recipe: Recipe, classes: int, model: nn.Module | None = None
) -> None:
    """Raise one error that lists every problem; warn of groups whose ring fills late.

    `model`: that the models of the folds must be like.
    """
    found = [*_recipe_problems(recipe), *_run_problems(runs, data.evaluate, recipe)]
    found += [*_late_problems(recipe, data.evaluate), *_heldout_problems(runs, data, recipe)]
    found += _never_acting(runs, recipe)
    found += _fold_problems(runs, data, recipe, model)
    splits = {"the training data": data.train} | {f'split "{n}"': s for n, s in data.evaluate.items()}
    groups = len(data.reference.names)
    for name, split in splits.items():
        found += [f"{name}: {p}" for p in _split_problems(split, classes=classes, groups=groups)]
    if not found:
        found += _size_problems(data, recipe)
        found += _ring_problems(data, runs, recipe)
    if found:
        raise InputProblems(found)


def _wrong_words(recipe: Recipe) -> Iterator[str]:
    """A misspelt word would otherwise mean something else."""
    words = {
        "precision": ("float32", "bfloat16", None),
        "scheduler_steps": ("epoch", "batch"),
        "scope": ("layer", "global"),
    }
    for name, allowed in words.items():
        if getattr(recipe, name) not in allowed:
            choices = " or ".join(repr(word) for word in allowed)
            yield f"recipe.{name} is {getattr(recipe, name)!r}; choose {choices}."


def _recipe_problems(recipe: Recipe) -> Iterator[str]:
    yield from _wrong_words(recipe)
    at_least = {"epochs": 1, "pruning_epochs": 0, "batch_size": 1, "evaluate_every": 1, "evaluate_batch": 1}
    at_least |= {"fleet_size": 1, "checkpoint_epochs": 1, "checkpoint_steps": 1, "importance_batches": 1}
    for name, least in at_least.items():
        value = getattr(recipe, name)
        if value is not None and value < least:
            yield f"recipe.{name} is {value}; it must be at least {least}."
    if recipe.pruning_epochs > recipe.epochs:
        yield (
            f"recipe.pruning_epochs is {recipe.pruning_epochs}, more than the {recipe.epochs} epochs in all: "
            "the final sparsity would not be reached. Raise epochs or lower pruning_epochs."
        )
    if recipe.weight_decay is not None and recipe.weight_decay < 0:
        yield f"recipe.weight_decay is {recipe.weight_decay:g}; it must not be negative."
    if recipe.clip_norm is not None and not recipe.clip_norm > 0:
        yield f"recipe.clip_norm is {recipe.clip_norm:g}; give a positive norm, or None for no clipping."


def _never_acting(runs: Sequence[Run], recipe: Recipe) -> Iterator[str]:
    """That rings and full passes of some method have no epoch; others have a note on it in their result."""
    never = [run.method for run in runs if recipe.acting_from(run.method) == recipe.epochs > 0]
    if any(method.refresh or longest_training_ring([method]) for method in never):
        yield (
            f"recipe.pruning_epochs is {recipe.pruning_epochs} of {recipe.epochs} epochs: constraints act "
            "after pruning, so never. Lower pruning_epochs or raise epochs."
        )


def _heldout_problems(runs: Sequence[Run], data: Data, recipe: Recipe) -> Iterator[str]:
    """The split that multipliers follow must be evaluated, neither training nor audit data, one for all."""
    names = dict.fromkeys(run.method.multipliers_on for run in runs if run.method.multipliers_on is not None)
    for name in names:
        if name == FOLDS:
            continue  # the training data, but never a sample that the model has seen
        if name not in data.evaluate:
            offered = ", ".join(f'"{free}"' for free in [*_free(data, recipe), FOLDS])
            yield (
                f'multipliers_on names split "{name}", which is not evaluated (there to be followed: '
                f"{offered}). Add the split or name another one."
            )
            continue
        if name in recipe.only_at_end:
            yield (
                f'multipliers_on names split "{name}", which recipe.only_at_end evaluates after the last '
                "epoch only. Take it out of there, or name another split."
            )
        shared = shared_samples(data.evaluate[name].inputs, data.train.inputs)
        if shared:
            whole = ", or leave multipliers_on out: multipliers follow the training batches then"
            yield (
                f'multipliers_on names split "{name}", of which {shared:,} samples are training data: hold '
                f"samples out{whole if shared == len(data.train) else ''}."
            )
        yield from _peeking(f'multipliers_on names split "{name}"', name, data.evaluate, recipe)
        there = set(torch.unique(data.evaluate[name].groups).tolist())
        some = [int(group in there) for group in range(len(data.reference.names))]
        yield from (f"{text}." for text in empty_groups(data.reference.names, some, split=name))
    tuning = (recipe.epochs - recipe.pruning_epochs) * recipe.steps(len(data.train))
    for place, run in _different(runs, "method"):
        if 0 < tuning <= run.method.refresh:
            yield (
                f"run {place} ({run}): a full pass every {run.method.refresh} steps, but there are {tuning} "
                "after pruning: its multipliers would move once. Lower refresh or train longer."
            )
    if len(names) > 1:
        yield (
            f"multipliers_on names {' and '.join(map(repr, names))}; one split for all runs of a call: prune "
            "once for each."
        )


def _free(data: Data, recipe: Recipe) -> Iterator[str]:
    """Splits that multipliers may follow: neither training samples nor those of a split for the end."""
    for name, split in data.evaluate.items():
        late = name in recipe.only_at_end or any(_peeking("", name, data.evaluate, recipe))
        if not late and not shared_samples(split.inputs, data.train.inputs):
            yield name


def _peeking(what: str, name: str, evaluate: Mapping[str, Split], recipe: Recipe) -> Iterator[str]:
    """Splits that are for the end only, under another name."""
    for late in recipe.only_at_end:
        if late != name and late in evaluate:
            shared = shared_samples(evaluate[name].inputs, evaluate[late].inputs)
            if shared:
                yield (
                    f'{what}, which shares {shared:,} samples with "{late}", evaluated after the last epoch '
                    "only (recipe.only_at_end): give it samples of its own."
                )


def shared_samples(one: Tensor, other: Tensor) -> int:
    """How many samples are in both: the same places in memory, as views have. Copies are not noticed."""
    if one.device != other.device or not one.numel() or not other.numel():
        return 0

    def places(inputs: Tensor) -> set[int]:
        step = inputs.stride(0) * inputs.element_size()
        return {inputs.data_ptr() + step * i for i in range(len(inputs))}

    return len(places(one) & places(other))


def _fold_problems(runs: Sequence[Run], data: Data, recipe: Recipe, model: nn.Module | None) -> Iterator[str]:
    """What runs that leave a fold out, or whose multipliers follow all folds, need."""
    crossed = any(run.method.cross_fitted for run in runs)
    if not crossed and all(run.without is None for run in runs):
        return
    if data.folds is None:
        yield "there are no folds: give Data(folds=Folds(of, models)), of from folds.assign."
        return
    wrong = list(folds.problems(data.folds, samples=len(data.train), batch=recipe.batch_size))
    yield from wrong
    if model is not None:
        yield from folds.misfits(data.folds, model)
    if crossed and not data.folds.models:
        yield f"multipliers_on={FOLDS!r} needs a dense model for each fold, trained without it: Folds.models."
    if crossed and FOLDS in data.evaluate:
        yield f"multipliers_on={FOLDS!r} is all training samples; give the split of that name another one."
    for place, run in enumerate(runs if not wrong else ()):
        if run.without is not None and not 0 <= run.without < data.folds.count:
            yield f"run {place} ({run}): there are folds 0 … {data.folds.count - 1}."
        if run.without is not None and run.method.importance != "magnitude":
            yield (
                f"run {place} ({run}): its importances are summed over all training samples, those of fold "
                f"{run.without} too; a run without a fold takes importance='magnitude'."
            )
        if run.without is not None and run.method.cross_fitted:
            yield f"run {place} ({run}): its companions leave the folds out; it trains on all samples."


def _late_problems(recipe: Recipe, evaluate: Mapping[str, Split]) -> Iterator[str]:
    for name in recipe.only_at_end:
        if name not in evaluate:
            yield f'recipe.only_at_end names split "{name}", which is not evaluated at all.'


def _different(runs: Sequence[Run], name: str) -> list[tuple[int, Run]]:
    """Of each value that a field has, the first run and its place: what is wrong with it is told once."""
    first: dict[Any, tuple[int, Run]] = {}
    for place, run in enumerate(runs):
        first.setdefault(getattr(run, name), (place, run))
    return list(first.values())


def _run_problems(runs: Sequence[Run], evaluate: Mapping[str, Split], recipe: Recipe) -> Iterator[str]:
    if not runs:
        yield "There are no runs; give at least one Run."
    twice = {str(run) for run in runs if runs.count(run) > 1}
    if twice:
        yield f"given more than once: {'; '.join(sorted(twice))}. Give each run a seed of its own."
    for place, run in _different(runs, "sparsity"):
        if not 0 <= run.sparsity < 1:
            yield f"run {place} ({run}): the sparsity must be in [0, 1): 0.9 leaves one weight in ten."
    for place, run in _different(runs, "method"):
        if recipe.pattern is not None and run.method.importance == "fairgrape":
            yield (
                f"run {place} ({run}): the exact FairGRAPE knows no pattern; take fairgrape_fast, which is "
                "methods.fairgrape(fast=True) or importance='fairgrape_fast'."
            )
        if run.method.keep != "last" and 0 < recipe.epochs == recipe.pruning_epochs:
            yield (
                f"run {place} ({run}): keep={run.method.keep!r} picks one of the epochs after pruning, and "
                f"recipe.pruning_epochs is {recipe.pruning_epochs} of {recipe.epochs} epochs. Lower "
                "pruning_epochs or raise epochs."
            )
        if run.method.keep != "last" and run.method.keep_on not in evaluate:
            splits = ", ".join(f'"{name}"' for name in evaluate) or "none"
            yield (
                f'run {place} ({run}): its best iterate is to be picked on split "{run.method.keep_on}", '
                f"which is not evaluated (evaluated: {splits}). Add the split or name another one."
            )
        elif run.method.keep_on in recipe.only_at_end:
            yield (
                f'run {place} ({run}): its best iterate is to be picked on split "{run.method.keep_on}", '
                "which recipe.only_at_end evaluates after the last epoch only. Take it out of there."
            )
        elif run.method.keep_on is not None:
            picked = f'run {place} ({run}): its best iterate is to be picked on split "{run.method.keep_on}"'
            yield from _peeking(picked, run.method.keep_on, evaluate, recipe)


def _split_problems(split: Split, *, classes: int, groups: int) -> Iterator[str]:
    sizes = [int(t.shape[0]) for t in (split.inputs, split.labels, split.groups)]
    if len(set(sizes)) > 1:
        yield f"{sizes[0]} inputs, {sizes[1]} labels and {sizes[2]} groups; there must be as many of each."
    if not min(sizes):
        yield "there are no samples."
        return
    for name, ids in (("labels", split.labels), ("groups", split.groups)):
        if ids.dtype != torch.int64 or ids.ndim != 1:
            yield f"{name} must be int64 of shape [N]; they are {ids.dtype} of shape {list(ids.shape)}."
    yield from _outside(split.labels, "labels", lowest=0, count=classes, what="the model has {} classes")
    yield from _outside(split.groups, "group ids", lowest=-1, count=groups, what="there are {} groups")
    for name, values in (("mean", split.mean), ("std", split.std)):
        if values is not None and len(values) not in (1, split.inputs.shape[1]):
            yield f"{name} has {len(values)} values for {split.inputs.shape[1]} channels."
    if (split.mean is None) != (split.std is None):
        yield "give mean and std together."
    if split.std is not None and not bool((split.std > 0).all()):
        yield f"std must be positive; it is {split.std.tolist()}."


def _outside(ids: Tensor, name: str, *, lowest: int, count: int, what: str) -> Iterator[str]:
    wrong = (ids < lowest) | (ids >= count)
    if bool(wrong.any()):
        first = int(wrong.nonzero()[0, 0])
        yield (
            f"{int(wrong.sum())} {name} outside {lowest} … {count - 1} ({what.format(count)}); "
            f"the first is {int(ids[first])} at sample {first}."
        )


def _size_problems(data: Data, recipe: Recipe) -> Iterator[str]:
    if len(data.train) < recipe.batch_size:
        yield (
            f"{len(data.train)} training samples are fewer than one batch of {recipe.batch_size}. "
            f"Lower recipe.batch_size to {len(data.train)} or less."
        )


def _ring_problems(data: Data, runs: Sequence[Run], recipe: Recipe) -> list[str]:
    """A ring that cannot fill before the training ends is a problem; one that fills late, a warning."""
    methods = [run.method for run in runs]
    late = slow_rings(methods, data.reference)
    if late:
        warnings.warn("\n".join(_shortened(late)), stacklevel=4)
    rings = [(longest_training_ring([m]), recipe.epochs - recipe.acting_from(m)) for m in methods]
    k, acting = max(rings, key=lambda ring: ring[0] / max(ring[1], 1), default=(0, 0))  # the last to fill
    return _shortened(
        [
            f'Group "{name}" has {count:.0f} training samples; a ring of {k} cannot fill in the {acting} '
            "epochs in which its constraints act. Train longer, merge groups, lower k, or use the table "
            "estimator."
            for name, count in zip(data.reference.names, data.reference.samples.tolist(), strict=True)
            if count > 0 and count * acting < k
        ]
    )


def _shortened(texts: list[str], most: int = 5) -> list[str]:
    rest = len(texts) - most
    return texts if rest <= 0 else [*texts[:most], f"… and the same of {rest} more groups."]
