"""The `Plan` of a fleet: the methods of all runs as tensors, and what a fleet of methods asks of the data."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evenprune.method import Method
from evenprune.reference import DenseReference

MOST_GROUPS_FOR_PAIRS = 1000  # a million multipliers per run
State = dict[str, Tensor]  # of the constraints; every tensor has the run axis first


@dataclass(frozen=True)
class Switch:
    """A yes or no per run. What all runs agree on is decided here, in Python, and costs no operation."""

    on: Tensor  # [runs, 1] bool
    some: bool
    all: bool

    @classmethod
    def of(cls, values: Sequence[bool]) -> Switch:
        return cls(torch.tensor(values).unsqueeze(1), any(values), all(values))

    def pick(self, yes: Tensor, no: Tensor) -> Tensor:
        """Run by run; both [runs, n]."""
        if not self.some:
            return no
        return yes if self.all else torch.where(self.on, yes, no)

    def limit(self, known: Tensor) -> Tensor:
        """known [runs, n] bool, False in the runs where the switch is off."""
        return known if self.all else known & self.on

    def to(self, device: torch.device | str) -> Switch:
        return dataclasses.replace(self, on=self.on.to(device))


@dataclass(frozen=True)
class PerRun:
    """Parameters [runs, 1] and switches of each run: this is how different methods share one step."""

    tolerance: Tensor
    dual_lr: Tensor
    kp: Tensor
    ki: Tensor
    nu: Tensor
    k: Tensor
    caution: Tensor
    dead_zone: Tensor
    refresh: Tensor
    distill: Tensor
    temperature: Tensor
    focus: Tensor
    floor: Tensor
    sign: Tensor  # +1 or -1, so that a gap is positive where the sparse model is worse
    loss: Switch  # the measure is the loss, not the accuracy
    macro: Switch
    clip: Switch
    detached: Switch
    ring: Switch
    batch: Switch
    table: Switch
    mean_rows: Switch
    two_sided: Switch
    extremes: Switch
    pairs: Switch
    absolute: Switch
    by_batch: Switch
    equal: Switch
    dro: Switch
    balanced: Switch
    heldout: Switch  # the multipliers follow another split
    passes: Switch  # … from full passes over it
    cautious: Switch  # limits of ψ move them, not the estimate
    lower: Switch  # … always the lower one
    resting: Switch  # there is a dead zone
    distilled: Switch
    focused: Switch
    corrected: Switch  # soft labels of the dense model where it is right

    @classmethod
    def of(cls, methods: Sequence[Method], dtype: torch.dtype) -> PerRun:
        def column(values: Sequence[float], kind: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=kind).unsqueeze(1)

        return cls(
            tolerance=column([m.tolerance for m in methods], dtype),
            dual_lr=column([m.dual_lr for m in methods], dtype),
            kp=column([m.kp for m in methods], dtype),
            ki=column([m.ki for m in methods], dtype),
            nu=column([m.nu for m in methods], dtype),
            k=column([m.k for m in methods], torch.int64),
            caution=column([m.caution for m in methods], dtype),
            dead_zone=column([m.dead_zone for m in methods], dtype),
            refresh=column([float(max(m.refresh, 1)) for m in methods], dtype),
            distill=column([m.distill for m in methods], dtype),
            temperature=column([m.temperature for m in methods], dtype),
            focus=column([m.focus for m in methods], dtype),
            floor=column([m.floor for m in methods], dtype),
            sign=column([1.0 if m.measure == "loss" else -1.0 for m in methods], dtype),
            loss=Switch.of([m.measure == "loss" for m in methods]),
            macro=Switch.of([m.overall == "macro" for m in methods]),
            clip=Switch.of([m.negative == "clip" for m in methods]),
            detached=Switch.of([m.mean == "detached" for m in methods]),
            ring=Switch.of([m.estimator == "ring" for m in methods]),
            batch=Switch.of([m.estimator == "batch" for m in methods]),
            table=Switch.of([m.estimator == "table" for m in methods]),
            mean_rows=Switch.of([m.rows == "mean" for m in methods]),
            two_sided=Switch.of([m.rows == "mean" and m.kind == "two_sided" for m in methods]),
            extremes=Switch.of([m.rows == "extremes" for m in methods]),
            pairs=Switch.of([m.rows == "pairs" for m in methods]),
            absolute=Switch.of([m.kind == "absolute" for m in methods]),
            by_batch=Switch.of([m.side == "batch" for m in methods]),
            equal=Switch.of([m.kind == "equal" for m in methods]),
            dro=Switch.of([m.rows == "dro" for m in methods]),
            balanced=Switch.of([m.sampling == "balanced" for m in methods]),
            heldout=Switch.of([m.multipliers_on is not None for m in methods]),
            passes=Switch.of([m.estimator == "pass" for m in methods]),
            cautious=Switch.of([m.caution > 0 for m in methods]),
            lower=Switch.of([m.moves_on == "lower" for m in methods]),
            resting=Switch.of([m.dead_zone > 0 for m in methods]),
            distilled=Switch.of([m.distill > 0 for m in methods]),
            focused=Switch.of([m.focus > 0 for m in methods]),
            corrected=Switch.of([m.targets == "corrected" for m in methods]),
        )


@dataclass(frozen=True)
class Plan:
    """Everything about a fleet's methods that does not change in training. Build it with `Plan.of`."""

    runs: int
    groups: int
    samples: int  # cells of the table: training samples
    slots: int  # the longest ring
    dtype: torch.dtype
    estimators: frozenset[str]  # which code paths this fleet needs at all
    families: frozenset[str]
    outcome_dtype: torch.dtype  # int8 if every method looks at accuracy
    nupi: bool
    dense: Tensor  # [runs, groups + 1] dense accuracy or loss; the last column: samples without a label
    dense_overall: Tensor  # [runs, 1]
    group_samples: Tensor  # [runs, groups + 1] of the samples that the multipliers follow
    share: Tensor  # [runs, groups + 1]
    run: PerRun

    @classmethod
    def of(
        cls,
        methods: Sequence[Method],
        reference: DenseReference,
        *,
        samples: int,
        heldout: DenseReference | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Plan:
        """One method per run; `samples`: the number of training samples (the table estimator needs it).

        `heldout` is the dense model on the split that the multipliers of some methods follow.
        """
        followed = [reference if m.multipliers_on is None or heldout is None else heldout for m in methods]
        _check_fleet(methods, followed, samples)
        sums = [_with_missing(own) for own in followed]  # counts, accuracy, loss
        dense = [
            own[2 if m.measure == "loss" else 1] * float(m.against_dense)
            for m, own in zip(methods, sums, strict=True)
        ]
        overall = [
            (own.overall_loss if m.measure == "loss" else own.overall_accuracy) * float(m.against_dense)
            for m, own in zip(methods, followed, strict=True)
        ]
        reads_loss = any(method.measure == "loss" for method in methods if method.rows != "none")
        counts = torch.stack([own[0] for own in sums])
        return cls(
            runs=len(methods),
            groups=len(reference.names),
            samples=max(samples, int(heldout.all_samples) if heldout else 0),
            slots=max((method.k for method in methods if method.estimator == "ring"), default=0),
            dtype=dtype,
            estimators=frozenset(method.estimator for method in methods),
            families=frozenset(family for method in methods for family in families_of(method)),
            outcome_dtype=dtype if reads_loss else torch.int8,
            nupi=any(method.dual == "nupi" for method in methods),
            dense=torch.stack(dense).to(dtype),
            dense_overall=torch.tensor(overall, dtype=dtype).unsqueeze(1),
            group_samples=counts,
            share=(counts / torch.tensor([[own.all_samples] for own in followed])).to(dtype),
            run=PerRun.of(methods, dtype),
        )

    def to(self, device: torch.device | str) -> Plan:
        """The same plan on another device."""
        return dataclasses.replace(
            self, **_moved(self, device), run=dataclasses.replace(self.run, **_moved(self.run, device))
        )

    @property
    def device(self) -> torch.device:
        return self.dense.device


def _moved(values: Plan | PerRun, device: torch.device | str) -> dict[str, Any]:
    named = {item.name: getattr(values, item.name) for item in dataclasses.fields(values)}
    return {name: value.to(device) for name, value in named.items() if isinstance(value, (Tensor, Switch))}


def families_of(method: Method) -> tuple[str, ...]:
    """The state tensors that hold a method's multipliers."""
    if method.rows == "mean":
        return ("multiplier", "multiplier_down") if method.kind == "two_sided" else ("multiplier",)
    families = {"extremes": "multiplier_extreme", "pairs": "multiplier_pair", "dro": "group_share"}
    return () if method.rows == "none" else (families[method.rows],)


def _with_missing(reference: DenseReference) -> tuple[Tensor, Tensor, Tensor]:
    """Samples, accuracy and loss of every group and, as the last entry, of the samples without a label."""

    def extended(groups: Tensor, everything: float) -> Tensor:
        rest = torch.tensor([everything], dtype=torch.float64) - groups.cpu().sum()
        return torch.cat([groups.cpu(), rest])

    counts = extended(reference.samples, reference.all_samples)
    at_least_one = counts.clamp_min(1)
    accuracy = extended(reference.correct, reference.all_correct) / at_least_one
    return counts, accuracy, extended(reference.loss_sum, reference.all_loss_sum) / at_least_one


def _check_fleet(methods: Sequence[Method], followed: Sequence[DenseReference], samples: int) -> None:
    """`followed`: for each method, the dense model on the samples that its multipliers follow."""
    groups, problems = len(followed[0].names) if followed else 0, []
    if not methods:
        problems.append("no methods: give one per run")
    if not groups and any(m.rows != "none" for m in methods):
        problems.append(
            "no sample has a group label, so there is nothing to constrain: give group ids from 0"
        )
    if any(m.rows == "pairs" for m in methods) and groups > MOST_GROUPS_FOR_PAIRS:
        problems.append(
            f"all pairs of {groups:,} groups are {groups * (groups - 1):,} constraints per run; the limit is "
            f"{MOST_GROUPS_FOR_PAIRS:,} groups. Merge groups, or use ceag, whose rows grow with the groups"
        )
    if any(m.estimator == "table" for m in methods) and samples < 1:
        problems.append(
            f"the table estimator remembers every training sample; samples={samples}: give their number"
        )
    for name in dict.fromkeys(m.multipliers_on for m in methods if m.rows != "none"):
        own = next(r for m, r in zip(methods, followed, strict=True) if m.multipliers_on == name)
        problems += empty_groups(own.names, own.samples.tolist(), split=name)
    if problems:
        raise ValueError("; ".join(problems) + ".")


def empty_groups(names: Sequence[str], samples: Sequence[float], *, split: str | None) -> list[str]:
    """That constraints on some groups could never be estimated; nothing if all have samples.

    split: the name of the one that the multipliers follow; None: the training samples.
    """
    empty = [name for name, number in zip(names, samples, strict=True) if number == 0]
    if not empty:
        return []
    where = "training samples" if split is None else f'samples in split "{split}"'
    more = "drop it from the names" if split is None else "put samples of it there"
    return [
        f"{groups_have(empty)} no {where}, so no constraint on it can ever be estimated. Merge groups, or "
        f"{more}"
    ]


def groups_have(names: Sequence[str]) -> str:
    """The beginning of a sentence on some groups, the first few by name."""
    shown = ", ".join(f'"{name}"' for name in names[:5])
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"Group {shown} has" if len(names) == 1 else f"Groups {shown}{more} have"


def longest_training_ring(methods: Sequence[Method]) -> int:
    """k of the longest ring that the training samples fill as they come; 0 if there is none."""
    frequencies_known = [m for m in methods if m.multipliers_on is None and m.sampling == "uniform"]
    rings = [m.k for m in frequencies_known if m.estimator == "ring"]
    return max(rings, default=0)


def slow_rings(methods: Sequence[Method], reference: DenseReference) -> list[str]:
    """A warning per group whose ring needs more than one epoch to fill; empty if all is well."""
    k = longest_training_ring(methods)
    return [
        f'Group "{name}" has {int(number)} training sample{"s" * (number != 1)}; a ring of {k} fills only '
        f"after {f'about {k / number:.0f} epochs' if k >= 1.5 * number else 'more than one epoch'}. Merge "
        "groups, lower k, or use the table estimator."
        for name, number in zip(reference.names, reference.samples.tolist(), strict=True)
        if 0 < number < k
    ]
