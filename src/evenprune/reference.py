"""The dense model's accuracy and loss, overall and per group: measured once, before anything is pruned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, eq=False)
class DenseReference:
    """Sums of the dense model's outcomes. Samples without a group label (-1) are in the `all_…` sums only."""

    names: tuple[str, ...]
    samples: Tensor  # [groups] float64
    correct: Tensor  # [groups] float64
    loss_sum: Tensor  # [groups] float64
    all_samples: float
    all_correct: float
    all_loss_sum: float

    def __post_init__(self) -> None:
        problems = [
            f"{field} has shape {tuple(value.shape)}, expected ({len(self.names)},): one per group name"
            for field, value in (
                ("samples", self.samples),
                ("correct", self.correct),
                ("loss_sum", self.loss_sum),
            )
            if value.shape != (len(self.names),)
        ]
        if len(set(self.names)) != len(self.names):
            problems.append("group names repeat: give every group its own name")
        if not self.all_samples > 0:
            problems.append(f"all_samples is {self.all_samples}: a reference needs at least one sample")
        if problems:
            raise ValueError("DenseReference: " + "; ".join(problems) + ".")

    @property
    def accuracy(self) -> Tensor:
        """[groups], NaN for a group without samples."""
        return self.correct / self.samples

    @property
    def loss(self) -> Tensor:
        """Mean loss [groups], NaN for a group without samples."""
        return self.loss_sum / self.samples

    @property
    def overall_accuracy(self) -> float:
        """Over all samples (micro), those without a group label included."""
        return self.all_correct / self.all_samples

    @property
    def overall_loss(self) -> float:
        """Mean loss over all samples (micro), those without a group label included."""
        return self.all_loss_sum / self.all_samples

    @property
    def shares(self) -> Tensor:
        """[groups]: what part of all samples each group has. The sum is below 1 if labels are missing."""
        return self.samples / self.all_samples

    @classmethod
    def from_outcomes(
        cls, *, correct: Tensor, losses: Tensor, groups: Tensor, names: Sequence[str]
    ) -> DenseReference:
        """From one outcome per sample: was the dense model right, its loss, the group id (-1: missing)."""
        _check_outcomes(correct, losses, groups, names)
        groups = groups.cpu()
        right, cost = correct.cpu().double(), losses.detach().cpu().double()
        labelled = groups >= 0
        samples, hits, loss_sum = (
            torch.bincount(groups[labelled], weights=weight[labelled], minlength=len(names))
            for weight in (torch.ones_like(right), right, cost)
        )
        totals = float(len(groups)), float(right.sum()), float(cost.sum())
        return cls(tuple(names), samples, hits, loss_sum, *totals)

    @classmethod
    @torch.no_grad()
    def measure(
        cls,
        model: nn.Module,
        loader: Iterable[tuple[Tensor, Tensor, Tensor]],
        *,
        names: Sequence[str] | None = None,
        device: torch.device | str | None = None,
    ) -> DenseReference:
        """Run the dense model once, in evaluation mode, over batches of (inputs, labels, group ids)."""
        device = _device_of(model) if device is None else torch.device(device)
        was_training = {module: module.training for module in model.modules()}
        model.eval()
        try:
            outcomes = [
                _outcome(model(inputs.to(device)), labels.to(device), groups)
                for inputs, labels, groups in map(three_tensors, loader)
            ]
        finally:
            for module, mode in was_training.items():
                module.training = mode
        if not outcomes:
            raise ValueError(
                "The loader gave no batches: the dense model cannot be measured on an empty data set."
            )
        correct, losses, groups = (torch.cat(part) for part in zip(*outcomes, strict=True))
        if names is None:
            names = [str(group) for group in range(int(groups.max()) + 1)]
        return cls.from_outcomes(correct=correct, losses=losses, groups=groups, names=names)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` gives the same reference back."""
        return {
            "names": list(self.names),
            "samples": self.samples.tolist(),
            "correct": self.correct.tolist(),
            "loss_sum": self.loss_sum.tolist(),
            "all_samples": self.all_samples,
            "all_correct": self.all_correct,
            "all_loss_sum": self.all_loss_sum,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DenseReference:
        """The inverse of `to_dict`."""
        samples, correct, loss_sum = (
            torch.tensor(values[key], dtype=torch.float64) for key in ("samples", "correct", "loss_sum")
        )
        totals = (float(values[key]) for key in ("all_samples", "all_correct", "all_loss_sum"))
        return cls(tuple(values["names"]), samples, correct, loss_sum, *totals)


def three_tensors(batch: object) -> tuple[Tensor, Tensor, Tensor]:
    """A batch that a loader gave as inputs, labels and group ids, or an error that says what it must be."""
    parts = batch if isinstance(batch, list | tuple) else None
    if parts is not None and len(parts) == 3 and all(isinstance(part, Tensor) for part in parts):
        return parts[0], parts[1], parts[2]
    kinds = "" if parts is None else f" of {len(parts)}: {', '.join(type(part).__name__ for part in parts)}"
    raise ValueError(
        f"A batch is a {type(batch).__name__}{kinds}; it must be three tensors, (inputs, labels, group ids). "
        "Let the data set give (input, label, group id) for each sample, −1 where the group is not known."
    )


def _device_of(model: nn.Module) -> torch.device:
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def _outcome(logits: Tensor, labels: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    wide = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    losses = functional.cross_entropy(wide, labels, reduction="none")
    return logits.argmax(1) == labels, losses, groups.to(logits.device)


def _check_outcomes(correct: Tensor, losses: Tensor, groups: Tensor, names: Sequence[str]) -> None:
    sizes = {"correct": correct.shape, "losses": losses.shape, "groups": groups.shape}
    if len(set(sizes.values())) > 1 or groups.ndim != 1:
        shapes = ", ".join(f"{name} {tuple(shape)}" for name, shape in sizes.items())
        raise ValueError(f"DenseReference needs one outcome per sample, all of one length; got {shapes}.")
    problems = []
    outside = torch.unique(groups[(groups < -1) | (groups >= len(names))])
    if len(outside):
        problems.append(
            f"group ids {outside[:5].tolist()} are outside -1…{len(names) - 1} ({len(names)} names)"
        )
    broken = int((~torch.isfinite(losses)).sum())
    if broken:
        first = int((~torch.isfinite(losses)).nonzero()[0])
        problems.append(f"{broken} losses are not finite, the first at sample {first}: check the model")
    if problems:
        raise ValueError("DenseReference: " + "; ".join(problems) + ".")
