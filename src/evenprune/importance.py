"""What every weight means to every group: I_g(w) = Σ over mini-batches of (|w| · |∂L_g/∂w|)².

L_g is the mean cross-entropy of the group's samples in the mini-batch (Lin et al. 2022); a mini-batch without
them adds nothing to I_g, and samples without a group (−1) are left out.

The model is in evaluation mode, where the samples of a batch do not see each other. So each sample goes
forward once and backward once, however many groups there are: the cost of about one training step a batch,
against one forward and G backwards otherwise. On a GPU the batch stays whole (group_gradients.py); elsewhere,
and where that does not know the network or its weights, it is cut by group. Nothing of the model is changed,
its statistics included.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from evenprune import fleet, group_gradients
from evenprune.masks import Masks
from evenprune.predict import Precision, autocast, cross_entropies, evaluating
from evenprune.recipe import Split
from evenprune.reference import three_tensors

Batch = tuple[Tensor, Tensor, Tensor]  # network inputs [batch, …], labels [batch], group ids [batch]
Importance = dict[str, Tensor]  # by parameter name: [runs, groups, *shape in one run], float64


@dataclass(frozen=True)
class MiniBatches:
    """Mini-batches of a split in a fixed shuffled order: the same at every pass, and for every run.

    All samples are in one of them: the batches are of one size, or one apart, none larger than `size`.
    `count` cuts the pass short.
    """

    split: Split
    size: int
    count: int | None = None

    def __len__(self) -> int:
        return self._whole if self.count is None else min(self._whole, self.count)

    def __iter__(self) -> Iterator[Batch]:
        for index in self._places():
            yield self.split.at(index), self.split.labels[index], self.split.groups[index]

    def left_out(self) -> list[int]:
        """Groups of the split of which these batches have no sample."""
        there = torch.cat([self.split.groups[index] for index in self._places()])
        return sorted({*self.split.groups.tolist()} - {*there.tolist(), -1})

    def _places(self) -> tuple[Tensor, ...]:
        order = torch.randperm(len(self.split), generator=torch.Generator().manual_seed(0))
        return torch.tensor_split(order.to(self.split.labels.device), max(self._whole, 1))[: len(self)]

    @property
    def _whole(self) -> int:
        """Batches of a pass over all samples."""
        return -(-len(self.split) // self.size)


def group_importance(
    model: nn.Module,
    masks: Masks,
    batches: Iterable[Batch],
    *,
    groups: int,
    precision: Precision = "float32",
) -> Importance:
    """I_g(w) of every prunable weight, for a plain model or for all runs of a fleet at once.

    `masks` says what is prunable. Pruned weights are zero, and so is their importance.
    """
    network = model if isinstance(model, fleet.Fleet | fleet.Single) else fleet.single(model)
    weights = _weights(network, masks, called=type(model).__name__)
    importance = {
        layer.name: weight.new_zeros((network.runs, groups, *layer.shape), dtype=torch.float64)
        for layer, weight in zip(masks.layers, weights, strict=True)
    }
    seen, together, device = 0, None, weights[0].device
    with evaluating(network), torch.enable_grad():
        for inputs, labels, ids in map(three_tensors, batches):
            _refuse_unknown(ids, groups)
            if not seen and device.type == "cuda":
                together = group_gradients.network_of(network, list(importance), inputs.to(device)[:1])
            seen += 1
            batch = (inputs.to(device), labels.to(device), ids.to(device))
            if together is None:
                with _changing_shapes():
                    _one_by_one(importance, network, weights, batch, precision)
            else:
                all_at_once(importance, together, batch, precision)
    if not seen:
        raise ValueError("There are no batches: importance cannot be measured on an empty data set.")
    _refuse_infinite(importance)
    return importance


@contextlib.contextmanager
def _changing_shapes() -> Iterator[None]:
    """Groups are of any size, so cuDNN shall not try all its algorithms for each."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _weights(network: nn.Module, masks: Masks, *, called: str) -> list[Tensor]:
    parameters = dict(network.named_parameters())
    names = [layer.name for layer in masks.layers]
    absent = [name for name in names if name not in parameters]
    frozen = [name for name in names if name in parameters and not parameters[name].requires_grad]
    problems = [f"there are no parameters {absent[:3]} ({len(absent)} in all)"] if absent else []
    problems += [f"{frozen[:3]} ({len(frozen)} in all) are frozen: no gradient"] if frozen else []
    if problems:
        raise ValueError(
            f"{called}: {'; '.join(problems)}. Pass the model that the masks were made for, "
            "without a wrapper around it; leave frozen layers out with Masks.of(…, exclude=…)."
        )
    return [parameters[name] for name in names]


def _one_by_one(
    importance: Importance,
    network: fleet.Fleet | fleet.Single,
    weights: Sequence[Tensor],
    batch: Batch,
    precision: Precision,
) -> None:
    inputs, labels, ids = batch
    for group in torch.unique(ids[ids >= 0]):
        own = ids == group
        x, y = (values[own].expand(network.runs, *values[own].shape) for values in (inputs, labels))
        with autocast(x.device, precision):
            logits = network(x)  # [runs, samples, classes]
        losses = cross_entropies(logits, y).mean(1)  # L_g of each run; no weight is in that of another
        gradients = _gradients(losses.sum(), weights)
        for name, weight, gradient in zip(importance, weights, gradients, strict=True):
            _add_squares(importance[name], weight, gradient, group.view(1))


def all_at_once(importance: Importance, network: fleet.Fleet, batch: Batch, precision: Precision) -> None:
    """All samples of a known group in one pass."""
    known = batch[2] >= 0
    if not known.any():
        return
    inputs, labels, ids = batch if known.all() else (values[known] for values in batch)
    groups = torch.unique(ids)
    x, y = (values.expand(network.runs, *values.shape) for values in (inputs, labels))
    with group_gradients.watched(network, list(importance)) as calls:
        with autocast(x.device, precision):
            logits = network(x)  # [runs, samples, classes]
        loss = cross_entropies(logits, y).sum()  # no sample is in the loss of another
    signals = iter(_gradients(loss, [seen.probe for own in calls.values() for seen in own]))
    share = group_gradients.shares(ids, groups)
    for name, own in calls.items():
        found = [group_gradients.of_weight(network, name, seen, next(signals), share) for seen in own]
        _add_squares(importance[name], network.get_parameter(name), torch.stack(found).sum(0), groups)


def _gradients(loss: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)


@torch.no_grad()
def _add_squares(importance: Tensor, weight: Tensor, gradient: Tensor, groups: Tensor) -> None:
    """I_g += (|w| · |∂L_g/∂w|)², in float64: the square of a float32 may vanish in float32.

    importance [runs, all groups, *shape], of one weight; its gradient [runs, groups, …], flat or not.
    """
    runs, _, *shape = importance.shape
    product = weight.reshape(runs, 1, -1) * gradient.reshape(runs, len(groups), -1)
    importance.index_add_(1, groups, product.double().square().view(runs, len(groups), *shape))


def _refuse_unknown(ids: Tensor, groups: int) -> None:
    outside = torch.unique(ids[(ids < -1) | (ids >= groups)]).tolist()
    if outside:
        raise ValueError(f"Group ids {outside[:5]} are outside −1 … {groups - 1} ({groups} groups).")


def _refuse_infinite(importance: Importance) -> None:
    broken = [name for name, values in importance.items() if not bool(values.isfinite().all())]
    if broken:
        raise ValueError(
            f"The importances of {broken[:3]} ({len(broken)} in all) are not finite: the model has diverged, "
            "or an input is not a number. Check the loss of the model on these batches."
        )
