"""GapConstraint: the constraint step as one object for a training loop of your own."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from evenprune import constraint
from evenprune.constraint import Method, Plan
from evenprune.method import FOLDS
from evenprune.reference import DenseReference


class GapConstraint(nn.Module):
    """Cross-entropy, weighed so that no group loses more than the method allows.

        constraint = GapConstraint(reference, methods.ceag(tolerance=0.01)).to(device)
        loss = constraint(model(images), labels, groups)

    Set `constraint.active = False` while the network is still being pruned: the loss is then the plain mean
    and nothing is remembered. The same holds in evaluation mode (`.eval()`). In training mode every call
    pushes outcomes and moves the multipliers, unless these follow held-out samples.

    Gradient accumulation: each micro-batch is one call. Over m micro-batches, divide the loss by m as usual,
    and the method's dual_lr too (the multipliers move at every call, so m small steps make one):

        constraint = GapConstraint(reference, methods.ceag(tolerance=0.01, dual_lr=0.002 / m))
        for micro_batch in ...: (constraint(model(x), y, g) / m).backward()

    Rows that name a group absent from the micro-batch are left out of its loss, so shuffle before you split.

    Multipliers that follow samples which neither model trains on: measure the dense model on these as well,
    and let the constraint follow the network's answers to all of them, every `refresh` steps:

        method = methods.ceag(tolerance=0.01, multipliers_on="heldout", estimator="pass", refresh=100)
        heldout = DenseReference.measure(dense_model, heldout_loader, names=reference.names)
        constraint = GapConstraint(reference, method, heldout=heldout).to(device)
        if step % method.refresh == 0:  # logits of the network in evaluation mode
            constraint.follow(logits, heldout_labels, heldout_groups)

    Checks: shapes, dtypes and devices at every call. Values (labels outside the classes, ids outside the
    groups) at every call on the CPU; elsewhere reading them would wait for the device, so only the first call
    does, and none inside torch.compile or a CUDA graph: call `validate` once on your whole data set.
    """

    def __init__(
        self,
        reference: DenseReference,
        method: Method,
        *,
        samples: int | None = None,
        heldout: DenseReference | None = None,
    ) -> None:
        super().__init__()
        _raise([*_settings_of_fit(method), *_heldout_problems(reference, method, heldout)])
        self.reference, self.method, self.active, self.heldout = reference, method, True, heldout
        self.samples = int(reference.all_samples) if samples is None else samples
        self.plan = self._plan(torch.float32)
        self._checked: set[str] = set()
        self._waited = 0  # steps since the multipliers last followed held-out samples
        self._state_names: tuple[str, ...] = ()
        self._set_state(constraint.init(self.plan))
        for sentence in _shortened(constraint.slow_rings([method], reference)):
            warnings.warn(sentence, stacklevel=2)

    def forward(self, logits: Tensor, labels: Tensor, groups: Tensor, index: Tensor | None = None) -> Tensor:
        """logits [batch, classes], labels, groups (and index) [batch] -> the loss to minimise."""
        given = {"logits": logits, "labels": labels, "groups": groups, "index": index}
        _raise(_form_problems(given, dimensions=2, device=self.plan.device))
        self._check_values(labels, groups, logits.shape[1], index)
        losses = functional.cross_entropy(logits.to(_wide(logits.dtype)), labels, reduction="none")  # [batch]
        weights = self._weigh(losses, logits.argmax(1) == labels, groups, index)
        return (weights * losses).sum()

    def weights(self, losses: Tensor, correct: Tensor, groups: Tensor, index: Tensor | None = None) -> Tensor:
        """For a loss of your own: [batch] weights, float32 or float64; minimise (weights * losses).sum()."""
        given = {"losses": losses, "correct": correct, "groups": groups, "index": index}
        _raise(_form_problems(given, dimensions=1, device=self.plan.device))
        self._check_values(None, groups, None, index)
        return self._weigh(losses, correct, groups, index)

    @torch.no_grad()
    def follow(
        self, logits: Tensor, labels: Tensor, groups: Tensor, *, dense_correct: Tensor | None = None
    ) -> None:
        """A full pass over the held-out samples moves the multipliers as far as `refresh` steps would.

        It does so whenever the constraint is active, in evaluation mode too.
        logits [samples, classes] of the network as it is now, in evaluation mode; labels, groups [samples].
        dense_correct: whether the dense model is right, [samples] bool; for methods with `caution`.
        """
        if self.heldout is None:
            raise ValueError("GapConstraint: follow() is for methods with multipliers_on, and heldout=.")
        given = {"logits": logits, "labels": labels, "groups": groups, "dense_correct": dense_correct}
        problems = _form_problems(given, dimensions=2, device=self.plan.device)
        if self.method.caution > 0 and dense_correct is None:
            problems.append("caution needs dense_correct: whether the dense model is right about each sample")
        _raise(problems)
        if self._looks_at_values("held out", groups):
            problems = value_problems(labels, groups, classes=logits.shape[1], names=self.reference.names)
            _raise(problems or _other_samples(self.heldout, groups, dense_correct))
            self._checked.add("held out")
        self._waited = 0
        if not self.active:
            return
        correct = logits.argmax(1) == labels
        losses = functional.cross_entropy(logits.to(_wide(logits.dtype)), labels, reduction="none")
        self._keep_up_with(losses)
        constraint.follow_pass_(
            self.plan,
            self._state(),
            losses.unsqueeze(0),
            correct.unsqueeze(0),
            groups,
            dense_correct=correct if dense_correct is None else dense_correct,
            due=torch.ones(1, dtype=torch.bool, device=losses.device),
        )

    @torch.no_grad()
    def _weigh(self, losses: Tensor, correct: Tensor, groups: Tensor, index: Tensor | None) -> Tensor:
        if not (self.active and self.training):
            return torch.full_like(losses, 1 / len(losses), dtype=_wide(losses.dtype))
        self._wait_for_a_pass()
        self._keep_up_with(losses)
        return constraint.step_(
            self.plan,
            self._state(),
            losses.unsqueeze(0),
            correct.unsqueeze(0),
            groups.unsqueeze(0),
            index=None if index is None else index.unsqueeze(0),
            active=torch.ones((), dtype=torch.bool, device=losses.device),
        ).squeeze(0)

    def _wait_for_a_pass(self) -> None:
        """A warning where follow() is forgotten. Compiled, a count would be a new program at every step."""
        if self.heldout is None or torch.compiler.is_compiling():
            return
        self._waited += 1
        if self._waited == 2 * self.method.refresh + 1:
            warnings.warn(
                f"GapConstraint: {self._waited} steps without follow(), so that the multipliers stand still: "
                f"call it every {self.method.refresh} steps (refresh), with the network's answers to all "
                "held-out samples.",
                stacklevel=_users_level(),
            )

    @property
    def multipliers(self) -> Tensor:
        """[rows]: for most methods one per group. A copy: it does not change with later steps."""
        return constraint.multipliers(self.plan, self._state())[0].clone()

    @property
    def excess_gaps(self) -> Tensor:
        """[groups]: the current estimate of ψ_g, in units of the method's measure; 0 while unknown."""
        return self._state()["psi"][0].clone()

    @property
    def counted(self) -> Tensor:
        """[groups] bool: which groups have an estimate (their ring is full, or a pass has been followed)."""
        return self._state()["counted"][0].clone()

    @property
    def negative_weights(self) -> Tensor:
        """How many sample weights have come out negative so far (before clipping)."""
        return self._state()["negative_weights"][0].clone()

    def validate(self, labels: Tensor, groups: Tensor, classes: int) -> None:
        """Check the values of a whole data set (waits for the device). Raises with all that is wrong."""
        _raise(value_problems(labels, groups, classes=classes, names=self.reference.names))
        self._checked.add("trained on")

    def _check_values(
        self, labels: Tensor | None, groups: Tensor, classes: int | None, index: Tensor | None
    ) -> None:
        if not self._looks_at_values("trained on", groups):
            return
        problems = value_problems(labels, groups, classes=classes, names=self.reference.names)
        if (
            index is not None
            and index.numel()
            and not (0 <= int(index.min()) <= int(index.max()) < self.samples)
        ):
            problems.append(
                f"index reaches from {int(index.min())} to {int(index.max())}, outside 0…{self.samples - 1}"
            )
        if index is None and self.method.estimator == "table":
            problems.append("the table estimator needs index, the id of each sample in the training set")
        _raise(problems)
        self._checked.add("trained on")

    def _looks_at_values(self, samples: str, groups: Tensor) -> bool:
        """Always on the CPU; elsewhere once, of the samples held out and of those trained on."""
        if torch.compiler.is_compiling() or (groups.is_cuda and torch.cuda.is_current_stream_capturing()):
            return False
        return groups.device.type == "cpu" or samples not in self._checked

    def _state(self) -> constraint.State:
        return {name: self.get_buffer(f"state_{name}") for name in self._state_names}

    def _set_state(self, state: constraint.State) -> None:
        self._state_names = tuple(state)
        for name, value in state.items():
            self.register_buffer(f"state_{name}", value)

    def _plan(self, dtype: torch.dtype) -> Plan:
        return Plan.of([self.method], self.reference, samples=self.samples, heldout=self.heldout, dtype=dtype)

    def _keep_up_with(self, losses: Tensor) -> None:
        if losses.dtype == torch.float64 and self.plan.dtype != torch.float64:
            self._become_double()

    def _become_double(self) -> None:
        """Float64 losses: keep multipliers and estimates in float64 as well, without losing what is known."""
        old, device = self._state(), self.plan.device
        self.plan = self._plan(torch.float64).to(device)
        new = constraint.init(self.plan)
        self._set_state({name: old[name].to(value.dtype) for name, value in new.items()})

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Follow the model to another device, but not to half precision: multipliers move in tiny steps."""
        before = self._state()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, old in before.items():
            moved = self.get_buffer(f"state_{name}")
            if moved.dtype != old.dtype:
                self.register_buffer(f"state_{name}", old.to(moved.device))
        self.plan = self.plan.to(self.get_buffer("state_psi").device)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        if state_dict.get(f"{prefix}state_psi", self.get_buffer("state_psi")).dtype == torch.float64:
            self._become_double()
        for name in ("max_psi", "violation"):  # once a part of the state, now computed from it
            state_dict.pop(f"{prefix}state_{name}", None)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _users_level() -> int:
    """The stacklevel, in a function that warns, of the first line outside this package and torch."""
    frame, level = sys._getframe(1), 1
    while frame.f_back and frame.f_globals["__name__"].partition(".")[0] in ("evenprune", "torch"):
        frame, level = frame.f_back, level + 1
    return level


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def value_problems(
    labels: Tensor | None, groups: Tensor, *, classes: int | None, names: Sequence[str]
) -> list[str]:
    """What is wrong with the values of labels and group ids, in words. Waits for the device."""
    problems = []
    if labels is not None and classes is not None:
        wrong = (labels < 0) | (labels >= classes)
        problems += _outside("labels", labels, wrong, f"the {classes} classes (0…{classes - 1})")
    wrong = (groups < -1) | (groups >= len(names))
    return problems + _outside(
        "group ids", groups, wrong, f"the {len(names)} groups (-1 for missing, 0…{len(names) - 1})"
    )


def _outside(what: str, values: Tensor, wrong: Tensor, allowed: str) -> list[str]:
    number = int(wrong.sum())
    if not number:
        return []
    place = int(wrong.flatten().nonzero()[0])
    first = int(values.flatten()[place])
    return [f"{number} {what} lie outside {allowed}; the first is {first} at sample {place}"]


def _form_problems(given: Mapping[str, Tensor | None], *, dimensions: int, device: torch.device) -> list[str]:
    """Shapes, dtypes and devices of a call; the first tensor sets the batch size, on `dimensions` axes."""
    tensors = {name: value for name, value in given.items() if value is not None}
    first, scores = next(iter(tensors.items()))
    if scores.ndim != dimensions or not scores.is_floating_point() or not scores.numel():
        form = "[batch, classes]" if dimensions == 2 else "[batch]"
        return [f"{first} are {scores.dtype} of shape {tuple(scores.shape)}, expected floats {form}"]
    problems = []
    for name, value in tensors.items():
        if value.device != device:
            problems.append(f"{name} on {value.device}, the constraint on {device}: call constraint.to(...)")
        if value.shape[:1] != scores.shape[:1] or (name != first and value.ndim != 1):
            problems.append(f"{name} has shape {tuple(value.shape)}, expected {tuple(scores.shape[:1])}")
        if name in ("labels", "groups", "index") and value.dtype != torch.int64:
            problems.append(f"{name} is {value.dtype}, expected torch.int64")
        if name in ("correct", "dense_correct") and value.dtype != torch.bool:
            problems.append(f"{name} is {value.dtype}, expected torch.bool: was the prediction right?")
    return problems


def _shortened(sentences: Sequence[str], most: int = 5) -> list[str]:
    """The first few, and how many more."""
    more = [f"{len(sentences) - most} more groups have fewer training samples than k."]
    return [*sentences[:most], *(more if len(sentences) > most else [])]


def _raise(problems: Sequence[str]) -> None:
    if problems:
        raise ValueError("GapConstraint: " + "; ".join(problems) + ".")


def _settings_of_fit(method: Method) -> list[str]:
    """What a method asks of the whole training, which a single loss cannot do."""
    usual = {item.name: item.default for item in dataclasses.fields(Method)}
    names = ["distill", "focus", "targets", "sampling", "keep", "importance", "while_pruning"]
    if method.multipliers_on == FOLDS:
        names.insert(0, "multipliers_on")
    instead = {"while_pruning": ": constraint.active says whether it acts"}
    return [
        f"{name}={getattr(method, name)!r} is what fit() and prune() do; in a loop of your own leave it out"
        f"{instead.get(name, '')}"
        for name in names
        if getattr(method, name) != usual[name]
    ]


def _heldout_problems(reference: DenseReference, method: Method, heldout: DenseReference | None) -> list[str]:
    name = method.multipliers_on
    if name == FOLDS:
        return []
    if name is None:
        told = (
            "heldout is given, but the multipliers follow training batches: set the method's multipliers_on"
        )
        return [] if heldout is None else [told]
    problems = []
    if method.estimator != "pass":
        problems.append(
            f"multipliers_on={name!r} with estimator={method.estimator!r}: in a loop of your own they follow "
            'full passes; add estimator="pass" and refresh, the steps from one to the next'
        )
    if not isinstance(heldout, DenseReference):
        problems.append(
            f"multipliers_on={name!r} needs heldout=DenseReference.measure(dense_model, heldout_loader, "
            "names=reference.names)"
        )
    elif heldout.to_dict() == reference.to_dict():
        problems.append(
            "heldout is what the dense model was measured to do on the training samples: hold out samples "
            "that neither model trains on, and measure it on these"
        )
    elif heldout.names != reference.names:
        problems.append(
            f"{len(heldout.names)} groups are held out and {len(reference.names)} trained on, or their names "
            "differ: measure with names=reference.names"
        )
    return problems


def _other_samples(heldout: DenseReference, groups: Tensor, dense_correct: Tensor | None) -> list[str]:
    """What tells that these are not the held-out samples that the dense model was measured on."""
    if len(groups) != heldout.all_samples:
        return [
            f"follow() takes all {heldout.all_samples:,.0f} held-out samples at once, not {len(groups):,}"
        ]
    known, problems = groups >= 0, []
    counts = torch.bincount(groups[known], minlength=len(heldout.names)).cpu()
    if not torch.equal(counts, heldout.samples.long()):
        first = int((counts != heldout.samples.long()).nonzero()[0])
        problems.append(
            f"group {heldout.names[first]!r} has {int(counts[first])} samples here, and had "
            f"{int(heldout.samples[first])} where the dense model was measured: give the same samples"
        )
    elif dense_correct is not None:
        right = torch.bincount(groups[known & dense_correct], minlength=len(heldout.names)).cpu()
        if not torch.equal(right, heldout.correct.long()):
            problems.append(
                "dense_correct is not what the dense model was measured with: give it in the order of groups"
            )
    return problems
