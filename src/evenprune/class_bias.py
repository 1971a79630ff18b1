"""One additive logit per class, fitted after training on a held-out split: the baseline to beat.

For groups that are labels, or unions of labels. With b added to the logits of the pruned model, and with

    Δ_g = A_g(dense) − A_g(pruned + b)        Δ = the same over all samples        ψ_g = Δ_g − Δ

the fit looks for the b with the smallest

    F(b) = max_g (ψ_g − ε − chance_g)₊ + Δ

Δ is the price: hurting other groups lowers ψ_g by just what it adds to Δ, so levelling down gains nothing. A
bias moves only to lower the first term, never for accuracy alone. chance_g is the part of ψ_g at b = 0 that
is put down to chance, by the empirical Bayes of the audit:

    chance_g = regularise · (ψ_g(0) − E[ψ_g | held-out split])
             = regularise · ψ_g(0) · s_g²/(τ² + s_g²)   for a normal prior; the audit's is a mixture
    s_g² = (1 − 2π_g) v_g + Σ_k π_k² v_k                v_g = (q_g − Δ_g²)/n_g

With few held-out samples a group (s_g² large) all is put down to chance, and b stays 0; with many, all of ψ_g
counts. Without it (regularise = 0) the fit takes the noise of the held-out split for disparity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from evenprune.bias_search import SMALLEST, Task, search
from evenprune.maximum import posterior_gaps
from evenprune.predict import Precision, autocast, evaluating
from evenprune.recipe import Split
from evenprune.tally import FloatArray, InputProblems, IntArray


@dataclass(frozen=True)
class Outcome:
    """A model on samples of the held-out split."""

    accuracy: float
    max_excess_gap: float
    pairwise_disparity: float


@dataclass(frozen=True, eq=False)
class ClassBias:
    """What to add to the logits, and what that did on the held-out split."""

    bias: Tensor  # [classes] float32 on the CPU, of mean zero: a constant added to all changes nothing
    before: Outcome
    after: Outcome  # on the samples of the fit, so better than unseen ones will be: see cross_check
    excess: Tensor  # [groups] ψ_g before; NaN for a group without samples
    believed: Tensor  # [groups] what of it was not put down to chance, and so was fitted
    moves: int  # of the search

    def predictions(self, logits: Tensor) -> Tensor:
        """Classes [N] for logits [N, classes]."""
        return biased(logits, self.bias).argmax(-1)


@dataclass(frozen=True)
class Check:
    """Without and with the bias, on samples that it was not fitted on."""

    before: Outcome
    after: Outcome


class WithBias(nn.Module):
    """A model, and a bias added to its logits."""

    bias: Tensor

    def __init__(self, model: nn.Module, bias: Tensor) -> None:
        super().__init__()
        self.model = model
        first = next(model.parameters(), bias)
        self.register_buffer("bias", bias.detach().to(first.device, first.dtype).clone())

    def forward(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, self.model(inputs)) + self.bias


def biased(logits: Tensor, bias: Tensor) -> Tensor:
    return logits + bias.to(logits.device, logits.dtype)


@torch.no_grad()
def logits_of(
    model: nn.Module, split: Split, *, batch_size: int = 512, precision: Precision = "float32"
) -> Tensor:
    """[N, classes] of a plain model on a split, on the CPU. The model's mode is put back afterwards."""
    first = next(model.parameters(), None)
    device = torch.device("cpu") if first is None else first.device
    with evaluating(model), autocast(device, precision):
        parts = torch.split(torch.arange(len(split), device=device), batch_size)
        logits = torch.cat([model(split.at(index)).cpu() for index in parts])
    return logits.float() if logits.dtype == torch.bfloat16 else logits  # a bias then adds exactly


# --- the fit ---


def fit(
    logits: Tensor,
    labels: Tensor,
    groups: Tensor,
    dense_correct: Tensor,
    *,
    tolerance: float,
    units: Tensor | None = None,
    regularise: float = 1.0,
) -> ClassBias:
    """The class bias of a pruned model from its logits [N, classes] on a held-out split.

    `groups` are group ids [N] (−1: not known), `dense_correct` [N] says where the dense model is right.
    `units` [classes] names classes that share one bias, as `units_of` does for groups that are unions of
    labels; without it every class has its own. `regularise` from 0 (believe every gap) to 1 says how far
    gaps that chance explains are left alone. On this split the largest excess gap is never larger than
    without the bias.
    """
    held_out = _Samples.checked(logits, labels, groups, dense_correct, units)
    problems = _setting_problems(tolerance, regularise)
    if problems:
        raise InputProblems(problems)
    return _fit(held_out, tolerance, regularise)


def cross_check(
    logits: Tensor,
    labels: Tensor,
    groups: Tensor,
    dense_correct: Tensor,
    *,
    tolerance: float,
    units: Tensor | None = None,
    regularise: float = 1.0,
    folds: int = 5,
) -> Check:
    """Does the bias help on samples it was not fitted on? Each fold in turn is judged by a fit on the others.

    The outcomes are means over the folds, each taken within one fold. Pooled over the folds they would
    promise too much: every fit cancels the noise of the other folds, all of them together that of the whole.
    The samples of a group are dealt to the folds in turn, in their order.
    """
    held_out = _Samples.checked(logits, labels, groups, dense_correct, units)
    problems = _setting_problems(tolerance, regularise)
    most = int(torch.bincount(held_out.groups[held_out.groups >= 0]).max())
    if not 2 <= folds <= most:
        problems.append(f"folds is {folds}: it must be in 2 … {most}, the samples of the largest group")
    if problems:
        raise InputProblems(problems)
    fold = _folds(held_out.groups, folds)
    before, after = [], []
    for number in range(folds):
        bias = _fit(held_out.take(fold != number), tolerance, regularise).bias
        out = held_out.take(fold == number)
        task, _ = _task(out)
        before.append(_outcome(out, task, torch.zeros_like(bias)))
        after.append(_outcome(out, task, bias))
    return Check(_mean(before), _mean(after))


def _mean(outcomes: Sequence[Outcome]) -> Outcome:
    return Outcome(*np.mean([astuple(outcome) for outcome in outcomes], axis=0).tolist())


def units_of(labels: Tensor, groups: Tensor, *, classes: int) -> Tensor:
    """[classes]: classes of one group share a number, for groups that are unions of labels.

    A class that does not occur has a number of its own (and so keeps its bias).
    """
    known = groups >= 0
    labels, groups = labels[known].long(), groups[known].long()
    count = int(groups.max()) + 1 if len(groups) else 0
    pairs = torch.unique(torch.stack([labels, groups]), dim=1)  # [2, pairs]
    times = torch.bincount(pairs[0], minlength=classes)
    mixed = (times > 1).nonzero().flatten().tolist()
    if mixed:
        raise InputProblems(
            [f"classes {mixed[:5]} ({len(mixed)} in all) have samples in several groups: "
             "the groups are no unions of labels, and a bias per group of classes does not exist"]
        )  # fmt: skip
    units = torch.arange(count, count + classes)
    units[pairs[0]] = pairs[1]
    return units


def _setting_problems(tolerance: float, regularise: float) -> list[str]:
    problems = [f"tolerance is {tolerance}: it must be at least 0"] if not tolerance >= 0 else []
    if not 0 <= regularise <= 1:
        problems.append(f"regularise is {regularise}: it must be in [0, 1]")
    return problems


@dataclass(frozen=True)
class _Samples:
    """The held-out split on the CPU, all of one length."""

    logits: Tensor  # [N, classes]
    labels: Tensor  # [N]
    groups: Tensor  # [N]
    dense_correct: Tensor  # [N] bool
    units: Tensor  # [classes] 0 … units − 1

    @staticmethod
    def checked(
        logits: Tensor, labels: Tensor, groups: Tensor, dense_correct: Tensor, units: Tensor | None
    ) -> _Samples:
        problems = _problems(logits, labels, groups, dense_correct, units)
        if problems:
            raise InputProblems(problems)
        classes = logits.shape[1]
        numbered = (
            torch.arange(classes) if units is None else torch.unique(units.cpu(), return_inverse=True)[1]
        )
        return _Samples(
            logits.detach().cpu(),
            labels.cpu().long(),
            groups.cpu().long(),
            dense_correct.cpu().bool(),
            numbered,
        )

    def take(self, rows: Tensor) -> _Samples:
        picked = {name: getattr(self, name)[rows] for name in ("logits", "labels", "groups", "dense_correct")}
        return replace(self, **picked)


def _problems(
    logits: Tensor, labels: Tensor, groups: Tensor, dense_correct: Tensor, units: Tensor | None
) -> list[str]:
    given = {"logits": logits, "labels": labels, "groups": groups, "dense_correct": dense_correct}
    given |= {} if units is None else {"units": units}
    others = {name: value for name, value in given.items() if not isinstance(value, Tensor)}
    if others:
        return [f"{name} are a {type(value).__name__}: give a tensor" for name, value in others.items()]
    if logits.ndim != 2 or not logits.numel():
        return [f"logits have the shape {list(logits.shape)}: give [samples, classes], neither of them 0"]
    samples, classes = logits.shape
    found = [
        f"{name} have the shape {list(values.shape)}: give one per sample, [{samples}]"
        for name, values in (("labels", labels), ("groups", groups), ("dense_correct", dense_correct))
        if values.shape != (samples,)
    ]
    if not bool(logits.isfinite().all()):
        first = int((~logits.isfinite()).any(1).nonzero()[0])
        found.append(f"logits are not finite, the first at sample {first}: check the model")
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        found.append(
            f"labels are {int(labels.min())} … {int(labels.max())}, the logits have {classes} classes"
        )
    if groups.numel() and not -1 <= int(groups.min()) <= int(groups.max()):
        found.append(f"groups are as low as {int(groups.min())}: −1 is a group that is not known")
    elif groups.numel() and int(groups.max()) < 0:
        found.append("no sample has a group")
    if units is not None and units.shape != (classes,):
        found.append(f"units have the shape {list(units.shape)}: give one per class, [{classes}]")
    return found


def _folds(groups: Tensor, folds: int) -> Tensor:
    """[N]: the i-th sample of a group is in fold i mod folds."""
    order = groups.argsort(stable=True)
    starts = torch.unique_consecutive(groups[order], return_counts=True)[1].cumsum(0)
    begin = torch.cat([starts.new_zeros(1), starts[:-1]]).repeat_interleave(
        starts.diff(prepend=starts[:1] * 0)
    )
    fold = torch.empty_like(groups)
    fold[order] = (torch.arange(len(groups)) - begin) % folds
    return fold


def _fit(held_out: _Samples, tolerance: float, regularise: float) -> ClassBias:
    task, present = _task(held_out)
    right = task.answers(task.scores)
    excess = task.excess(task.per_group(right), np.asarray(float(right.sum())))  # ψ_g(0)
    believed = excess + regularise * (_expected(task, right, excess) - excess)
    found = search(task, allowed=tolerance + excess - believed, tolerance=tolerance)
    bias = torch.from_numpy(found.bias)[held_out.units]
    bias = (bias - bias.mean()).float()
    before, after = (_outcome(held_out, task, b) for b in (torch.zeros_like(bias), bias))
    # Rounding to float32 may move a sample that lies on an edge.
    if after.max_excess_gap > before.max_excess_gap + SMALLEST:
        bias, after = torch.zeros_like(bias), before
    groups = int(held_out.groups.max()) + 1
    return ClassBias(
        bias=bias,
        before=before,
        after=after,
        excess=_spread(excess, present, groups),
        believed=_spread(believed, present, groups),
        moves=found.moves,
    )


def _expected(task: Task, right: NDArray[np.bool_], excess: FloatArray) -> FloatArray:
    """E[ψ_g | held-out split] [groups]; variances by Bonett and Price (+1 to each discordant cell, n + 2)."""
    n = task.samples + 2
    change = (task.per_group(right != task.dense_right) + 2) / n  # q_g
    gap = (task.dense - task.per_group(right)) / n  # Δ_g
    v = (change - gap**2) / n
    share = task.samples / len(task.group)
    variance = (1 - 2 * share) * v + (share**2 * v).sum()
    return posterior_gaps(excess, np.maximum(variance, 1e-300)).expected


def _outcome(held_out: _Samples, task: Task, bias: Tensor) -> Outcome:
    """With the arithmetic of the model that carries the bias."""
    right = (biased(held_out.logits, bias).argmax(1) == held_out.labels).numpy()
    excess = task.excess(task.per_group(right), np.asarray(float(right.sum())))
    return Outcome(float(right.mean()), float(excess.max()), float(np.ptp(excess)))


def _spread(values: FloatArray, present: IntArray, groups: int) -> Tensor:
    """[groups] in all, NaN for those that do not occur."""
    whole = torch.full((groups,), math.nan, dtype=torch.float64)
    whole[torch.from_numpy(present)] = torch.from_numpy(values.astype(np.float64))
    return whole


def _task(held_out: _Samples) -> tuple[Task, IntArray]:
    """What the search needs, and the ids of the groups that occur."""
    scores, right = _by_unit(held_out)
    ids = held_out.groups.numpy()
    present = np.unique(ids[ids >= 0])
    task = Task(
        scores=scores,
        right=right,
        movable=np.unique(held_out.units[held_out.labels].numpy()),  # the others have no samples
        group=np.where(ids < 0, present.size, np.searchsorted(present, ids)),
        groups=present.size,
        dense_right=held_out.dense_correct.numpy(),
    )
    return task, present


def _by_unit(held_out: _Samples) -> tuple[FloatArray, NDArray[np.bool_]]:
    """The largest logit of each unit [N, units], and whether its class is the label: no bias changes that."""
    logits, units, labels = held_out.logits.double(), held_out.units, held_out.labels
    members = [(units == unit).nonzero().flatten() for unit in range(int(units.max()) + 1)]
    tops = [logits[:, own].max(1) for own in members]
    chosen = torch.stack([own[top.indices] for own, top in zip(members, tops, strict=True)], dim=1)
    return torch.stack([top.values for top in tops], dim=1).numpy(), (chosen == labels.unsqueeze(1)).numpy()


# --- into the model ---


@torch.no_grad()
def fold_(model: nn.Module, bias: Tensor, *, sample_input: Tensor) -> str:
    """Add the bias to the last linear layer of the model, in place; returns the layer's name.

    The last layer is the one whose output the model returns for `sample_input` [batch, …]. The model is
    tried before and after: where its logits do not move by the bias it is left as it was, with an error.
    """
    with evaluating(model):
        before, name = _last_layer(model, sample_input)
        if before.shape[-1:] != bias.shape:
            raise ValueError(f"The bias has {len(bias)} values, the model {before.shape[-1]} classes.")
        layer = cast(nn.Linear, model.get_submodule(name))
        old: nn.Parameter | None = layer.bias
        added = bias.to(layer.weight.device, layer.weight.dtype)
        trained = layer.weight.requires_grad
        layer.bias = nn.Parameter(added.clone() if old is None else old + added, requires_grad=trained)
        wanted = biased(before, bias)
        error = float((model(sample_input) - wanted).abs().max())
        if not error <= 1e-5 * (1 + float(wanted.abs().max())):
            layer.bias = cast(nn.Parameter, old)
            raise ValueError(
                f"{type(model).__name__}: with the bias in {name!r} the logits are off by {error:.3g}, so "
                "the layer does more than to give the logits. Use WithBias(model, bias)."
            )
    return name


def _last_layer(model: nn.Module, sample_input: Tensor) -> tuple[Tensor, str]:
    """The logits, and the name of the linear layer that gave them."""
    outputs: dict[str, Any] = {}

    def keep(name: str) -> Any:
        return lambda _module, _inputs, output: outputs.__setitem__(name, output)

    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    hooks = [layer.register_forward_hook(keep(name)) for name, layer in layers.items()]
    try:
        logits = model(sample_input)
    finally:
        for hook in hooks:
            hook.remove()
    found = [name for name, output in outputs.items() if output is logits]
    if not found:
        raise ValueError(
            f"{type(model).__name__} does not return the output of a linear layer, so there is no layer to "
            "fold the bias into. Use WithBias(model, bias)."
        )
    return logits, found[-1]
