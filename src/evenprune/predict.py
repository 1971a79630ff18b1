"""Model and data to labels, predictions, groups and losses; and people's data sets to a Split.

A network here maps inputs [runs, batch, …] to logits [runs, batch, classes]: a fleet, or a fleet of one.
All runs are evaluated in one pass.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from evenprune import fleet
from evenprune.gap_limits import largest
from evenprune.recipe import Recipe, Split
from evenprune.reference import DenseReference
from evenprune.replay import Replay

Precision = Literal["float32", "bfloat16"] | None


@dataclass(frozen=True)
class Predictions:
    """One entry per sample of a split, on the CPU."""

    labels: Tensor  # [N] int64
    predictions: Tensor  # [N] int64
    groups: Tensor  # [N] int64; −1 where the group is not known
    losses: Tensor  # [N]

    @property
    def correct(self) -> Tensor:
        return self.predictions == self.labels

    def reference(self, names: Sequence[str]) -> DenseReference:
        """The same, summed per group: of a dense model, what the constraints compare with."""
        return DenseReference.from_outcomes(
            correct=self.correct, losses=self.losses, groups=self.groups, names=tuple(names)
        )


def predict(
    model: nn.Module,
    split: Split,
    *,
    device: torch.device | str | None = None,
    batch_size: int = 512,
    precision: Precision = "float32",
) -> Predictions:
    """What one plain model answers on a split. The model's mode is put back afterwards."""
    place = _device_of(model) if device is None else torch.device(device)
    network = fleet.single(model.to(place))
    with evaluating(model):
        there = split.to(place, inputs=False)  # inputs follow batch by batch: they may not fit
        predicted, losses = outcomes(network, there, batch_size=batch_size, precision=precision)
    return Predictions(split.labels.cpu(), predicted[0].cpu(), split.groups.cpu(), losses[0].cpu())


def outcomes(
    network: fleet.Fleet | fleet.Single, split: Split, *, batch_size: int, precision: Precision = "float32"
) -> tuple[Tensor, Tensor]:
    """Predicted classes [runs, N] and cross-entropies [runs, N] of every run, on the split's own device."""
    recipe = Recipe(evaluate_batch=batch_size, precision=precision, graph=False)
    return Answers(network, split, recipe)()


class Answers:
    """The answers of a network to a split, again and again; all runs in one pass over the samples.

    Full batches are captured as a CUDA graph, if the recipe says so and the data is on the device.
    """

    def __init__(self, network: fleet.Fleet | fleet.Single, split: Split, recipe: Recipe) -> None:
        device, size = split.labels.device, (network.runs, len(split))
        self.network, self.split, self.precision = network, split, recipe.precision
        self.batch = min(recipe.evaluate_batch, len(split))
        self.predicted = torch.zeros(size, dtype=torch.int64, device=device)
        double = any(p.dtype == torch.float64 for p in network.parameters())
        self.losses = torch.zeros(size, dtype=torch.float64 if double else torch.float32, device=device)
        self.place = torch.zeros((), dtype=torch.int64, device=device)
        within = split.inputs.device == device
        self.full = Replay(self._full_batch, device=device, graph=bool(recipe.graph) and within)

    @torch.no_grad()
    def __call__(self) -> tuple[Tensor, Tensor]:
        """Predicted classes and cross-entropies [runs, N] of the network as it is now."""
        self.place.zero_()
        whole = len(self.split) // self.batch if self.batch else 0
        with evaluating(self.network):
            for _ in range(whole):
                self.full()
            rest = torch.arange(whole * self.batch, len(self.split), device=self.place.device)
            if len(rest):
                self._answer(rest)
        return self.predicted.clone(), self.losses.clone()

    def _full_batch(self) -> None:
        self._answer(self.place * self.batch + torch.arange(self.batch, device=self.place.device))
        self.place.add_(1)

    @torch.no_grad()
    def _answer(self, index: Tensor) -> None:
        inputs, runs = self.split.at(index), self.network.runs
        with autocast(inputs.device, self.precision):
            logits = self.network(inputs.expand(runs, *inputs.shape))  # [runs, batch, classes]
        losses = cross_entropies(logits, self.split.labels[index].expand(runs, -1))
        self.predicted.index_copy_(1, index, logits.argmax(-1))
        self.losses.index_copy_(1, index, losses)


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """One per sample, in float32 at least. [runs, batch, classes] and [runs, batch] -> [runs, batch]"""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return functional.cross_entropy(wide.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16")


@contextlib.contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Evaluation mode within the block; every module's own mode afterwards."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        yield
    finally:
        network.train(modes[network])  # also reaches what a fleet of one wraps
        for module, mode in modes.items():
            module.training = mode


def scores(split: Split, predicted: Tensor, losses: Tensor, dense: DenseReference) -> dict[str, Tensor]:
    """The numbers of one split for every run, on the CPU; `dense` is the dense model on the same split.

    A group without samples has the accuracy NaN and takes no part in the largest gaps.
    """
    groups = len(dense.names)
    correct = predicted == split.labels  # [runs, N]
    line = torch.where(split.groups < 0, groups, split.groups)  # unknown groups: one line more, then dropped
    counts = torch.zeros(len(predicted), groups + 1, dtype=torch.int64, device=predicted.device)
    counts = counts.index_add(1, line, correct.long())[:, :groups].cpu()  # [runs, groups]
    accuracy = correct.sum(1).cpu().double() / len(split)  # [runs]
    group_accuracy = counts.double() / dense.samples
    gaps = dense.accuracy - group_accuracy  # Δ_g
    excess = gaps - (dense.overall_accuracy - accuracy).unsqueeze(1)  # ψ_g = Δ_g − Δ
    return {
        "accuracy": accuracy,
        "loss": losses.mean(1).cpu().double(),
        "max_excess_gap": largest(excess),
        "pairwise_disparity": largest(gaps) + largest(-gaps),
        "group_accuracy": group_accuracy,
    }


def look_at_outputs(
    model: nn.Module, split: Split, called: str, *, dtype: torch.dtype | None = None
) -> tuple[int, list[str]]:
    """How many classes the model tells apart, and whether it fits the data at all.

    called: what the inputs are to be called. dtype: that they are given as; None: as they are.
    """
    first = next(model.parameters(), torch.empty(0))
    inputs = split.at(torch.arange(min(2, len(split))))
    inputs = inputs.to(first.device, inputs.dtype if dtype is None else dtype)
    what = f"{str(inputs.dtype).removeprefix('torch.')} of shape {list(inputs.shape)}"
    try:
        with torch.no_grad(), evaluating(model):
            logits = model(inputs)
    except Exception as error:  # whatever a user's model raises
        reason = str(error).strip().split("\n")[0]
        return 10**9, [f"the model does not take {called} ({what}): {type(error).__name__}: {reason}"]
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(inputs):
        got = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        return 10**9, [f"the model must give logits [batch, classes]; for inputs {what} it gives {got}"]
    return int(logits.shape[1]), []


def as_split(
    data: Any,
    *,
    groups: Any = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Split:
    """A Split of tensors (x, y, g), or of a map-style data set whose items are (x, y, g).

    `groups` (group ids, one per sample) takes the place of g, which the data then need not have. Every item
    is read once: a data set that augments at random gives one fixed variant of each (see Recipe.augment).
    """
    columns = _columns(data)
    if groups is not None:
        columns = (*columns[:2], groups)
    if len(columns) != 3:
        raise ValueError(
            f"Each sample must be (input, label, group); this data has {len(columns)} parts. "
            "Give the group ids in `groups` if the data has none."
        )
    inputs, labels, ids = columns
    scale = (None if values is None else torch.tensor(values, dtype=torch.float32) for values in (mean, std))
    return Split(torch.as_tensor(inputs), _ids(labels, "labels"), _ids(ids, "groups"), *scale)


def _columns(data: Any) -> tuple[Any, ...]:
    """Tensors by column, from tensors or from items."""
    if isinstance(data, Split):
        return data.inputs, data.labels, data.groups
    if isinstance(data, Mapping) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise TypeError(
            f"{type(data).__name__} is neither a tuple of tensors (x, y, g) nor a map-style data set "
            "(with __len__ and __getitem__). Of a DataLoader, pass its .dataset."
        )
    if not len(data):
        raise ValueError("The data set is empty.")
    if isinstance(data, tuple | list) and all(hasattr(part, "shape") for part in data):
        return tuple(data)
    tensors = getattr(data, "tensors", None)  # torch.utils.data.TensorDataset
    if tensors is not None:
        return tuple(tensors)
    return tuple(_stack(part) for part in zip(*(data[i] for i in range(len(data))), strict=True))


def _stack(values: Sequence[Any]) -> Tensor:
    first = torch.as_tensor(values[0])
    return torch.stack([torch.as_tensor(value) for value in values]) if first.ndim else torch.tensor(values)


def _ids(values: Any, name: str) -> Tensor:
    ids = torch.as_tensor(values)
    if ids.is_floating_point() or ids.is_complex():
        raise ValueError(f"{name} are {ids.dtype}; give whole numbers, as groups.encode does.")
    return ids.reshape(-1).long()


def _device_of(model: nn.Module) -> torch.device:
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device
