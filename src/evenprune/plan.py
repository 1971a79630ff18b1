"""What is constrained, as values: a `Method` per run, and the `Plan` of a fleet of runs as tensors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from evenprune.reference import DenseReference

MOST_GROUPS_FOR_PAIRS = 1000  # a million multipliers per run
FOLDS = "folds"  # as multipliers_on: the training samples, each answered by models that never saw it


@dataclass(frozen=True, kw_only=True)
class Method:
    """What is constrained, how it is estimated, how the multipliers move. `methods` has one for each name."""

    name: str
    measure: Literal["accuracy", "loss"] = "accuracy"
    against_dense: bool = True
    rows: Literal["none", "mean", "extremes", "pairs", "dro"] = "mean"
    kind: Literal["at_most", "equal", "absolute", "two_sided"] = "at_most"
    estimator: Literal["none", "batch", "ring", "table", "pass"] = "ring"
    tolerance: float = 0.0
    dual_lr: float = 0.0
    k: int = 40
    overall: Literal["micro", "macro"] = "micro"
    negative: Literal["clip", "keep"] = "clip"
    mean: Literal["lagrangian", "detached"] = "lagrangian"
    side: Literal["estimate", "batch"] = "estimate"  # of kind="absolute": whose sign the primal takes
    dual: Literal["sgd", "nupi"] = "sgd"
    kp: float = 0.0
    ki: float = 1.0
    nu: float = 0.0
    # A split that neither model trains on, or "folds" (see folds.py); None: the training batches.
    multipliers_on: str | None = None
    refresh: int = 0  # of estimator="pass": steps between full passes over that split
    caution: float = 0.0  # standard errors by which a gap must be off before its multiplier moves
    distill: float = 0.0  # share of the dense model's soft labels in the loss
    temperature: float = 4.0  # of those soft labels
    focus: float = 0.0  # power of 1 - p, p the dense model's probability of the right answer, as a weight
    floor: float = 0.0  # added to that weight
    sampling: Literal["uniform", "balanced"] = "uniform"  # balanced: every group as often as any other
    keep: Literal["last", "best", "feasible"] = "last"
    keep_on: str | None = None
    importance: Literal["magnitude", "fairgrape", "fairgrape_fast"] = "magnitude"  # which weights go last

    def __post_init__(self) -> None:
        wrong = _wrong_words(self) + _wrong_numbers(self)
        if wrong:
            raise ValueError(f"Method {self.name!r}: " + "; ".join(wrong) + ".")
        none = self.rows == "none"
        rules = (
            (
                self.tolerance >= 0,
                f"tolerance is {self.tolerance}; a fraction (0.01: one point), not negative",
            ),
            (self.dual_lr >= 0, f"dual_lr is {self.dual_lr}; it must not be negative"),
            (self.k >= 1, f"k is {self.k!r}; a whole number of at least 1"),
            (0 <= self.nu < 1, f"nu is {self.nu}; it must lie in [0, 1)"),
            (none == (self.estimator == "none"), f"rows={self.rows!r} with estimator={self.estimator!r}"),
            (
                self.kind != "equal" or self.tolerance == 0,
                f"an equality has no tolerance, got {self.tolerance}",
            ),
            (
                self.kind == "at_most" or self.rows in ("mean", "none"),
                f"kind={self.kind!r} needs rows='mean'; rows={self.rows!r} takes kind='at_most'",
            ),
            (
                self.dual == "nupi" or (self.kp, self.ki, self.nu) == (0, 1, 0),
                "kp, ki and nu belong to dual='nupi'",
            ),
            (
                self.side == "estimate"
                or (self.kind, self.measure, self.against_dense) == ("absolute", "loss", False),
                "side='batch' belongs to kind='absolute', measure='loss', against_dense=False",
            ),
            (
                (self.keep != "last") == (self.keep_on is not None),
                f"keep={self.keep!r} needs keep_on, the name of a split; keep='last' takes none",
            ),
            (
                self.keep != "feasible"
                or (self.rows, self.kind, self.measure) == ("mean", "at_most", "accuracy"),
                "keep='feasible' judges by ψ ≤ tolerance: rows='mean', kind='at_most', measure='accuracy'",
            ),
            *self._primal_rules(),
            *self._heldout_rules(),
        )
        broken = [problem for holds, problem in rules if not holds]
        if broken:
            raise ValueError(f"Method {self.name!r}: " + "; ".join(broken) + ".")

    def _primal_rules(self) -> tuple[tuple[bool, str], ...]:
        return (
            (0 <= self.distill <= 1, f"distill is {self.distill}; it must lie in [0, 1]"),
            (self.temperature > 0, f"temperature is {self.temperature}; it must be positive"),
            (self.focus >= 0, f"focus is {self.focus}; it must not be negative"),
            (self.floor >= 0, f"floor is {self.floor}; it must not be negative"),
            (self.floor == 0 or self.focus > 0, "floor belongs to focus"),
            (self.rows != "dro" or self.estimator == "batch", "rows='dro' takes estimator='batch'"),
        )

    def _heldout_rules(self) -> tuple[tuple[bool, str], ...]:
        apart, constrained = self.multipliers_on is not None, self.rows not in ("none", "dro")
        return (
            (not apart or constrained, f"multipliers_on needs multipliers; rows={self.rows!r} has none"),
            (self.refresh >= 0, f"refresh is {self.refresh}; it must not be negative"),
            (
                (self.estimator == "pass") == (self.refresh > 0),
                f"estimator={self.estimator!r} with refresh={self.refresh}: full passes need the steps "
                "from one to the next, other estimators take none",
            ),
            (self.estimator != "pass" or apart, "estimator='pass' needs multipliers_on, the name of a split"),
            (self.caution >= 0, f"caution is {self.caution}; it must not be negative"),
            (
                self.caution == 0 or (self.estimator, self.measure) == ("pass", "accuracy"),
                "caution needs estimator='pass' and measure='accuracy'",
            ),
            (
                self.caution == 0 or (self.rows, self.kind, self.overall) == ("mean", "at_most", "micro"),
                "caution belongs to rows='mean' with kind='at_most' and overall='micro'",
            ),
            (
                not self.cross_fitted or self.estimator == "pass",
                f"multipliers_on={FOLDS!r} needs estimator='pass' and refresh, the steps between passes",
            ),
            (
                not self.cross_fitted or self.importance == "magnitude",
                f"multipliers_on={FOLDS!r} with importance={self.importance!r}, which looks at all samples; "
                "take 'magnitude'",
            ),
        )

    @property
    def cross_fitted(self) -> bool:
        """Whether its multipliers follow the training samples, each answered by a companion run."""
        return self.multipliers_on == FOLDS

    @property
    def needs_teacher(self) -> bool:
        """Whether it takes the dense model's answers to every training sample."""
        return self.distill > 0 or self.focus > 0


def _wrong_words(method: Method) -> list[str]:
    """Choices that do not exist: a misspelt one would otherwise mean another method."""
    hints = get_type_hints(Method).items()
    words = {name: get_args(hint) for name, hint in hints if get_origin(hint) is Literal}
    return [
        f"{name} is {getattr(method, name)!r}; choose {' or '.join(map(repr, allowed))}"
        for name, allowed in words.items()
        if getattr(method, name) not in allowed
    ]


def _wrong_numbers(method: Method) -> list[str]:
    names = ("tolerance", "dual_lr", "kp", "ki", "nu", "caution", "distill", "temperature", "focus", "floor")
    floats = {name: getattr(method, name) for name in names}
    wrong = [
        f"{name} is {value!r}; give a finite number"
        for name, value in floats.items()
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)
    ]
    if isinstance(method.k, bool) or not isinstance(method.k, int):
        wrong.append(f"k is {method.k!r}; a whole number of at least 1")
    if isinstance(method.refresh, bool) or not isinstance(method.refresh, int):
        wrong.append(f"refresh is {method.refresh!r}; a whole number of steps")
    return wrong


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
    distilled: Switch
    focused: Switch

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
            distilled=Switch.of([m.distill > 0 for m in methods]),
            focused=Switch.of([m.focus > 0 for m in methods]),
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
    cautious: bool
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
            cautious=any(method.caution > 0 for method in methods),
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
        counts = zip(own.names, own.samples.tolist(), strict=True)
        empty = [group for group, number in counts if number == 0]
        if empty:
            where = "training samples" if name is None else f'samples in split "{name}"'
            problems.append(
                f"{_listed(empty)} no {where}, so no constraint on it can ever be estimated. "
                "Merge groups, or drop it from the names"
            )
    if problems:
        raise ValueError("; ".join(problems) + ".")


def _listed(names: Sequence[str]) -> str:
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
        f"after about {k / number:.0f} epochs. Merge groups, lower k, or use the table estimator."
        for name, number in zip(reference.names, reference.samples.tolist(), strict=True)
        if 0 < number < k
    ]
