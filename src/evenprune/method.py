"""A `Method`: what is constrained and how, as one value that refuses what does not go together."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

FOLDS = "folds"  # as multipliers_on: the training samples, each answered by models that never saw it
T = TypeVar("T")


def no_such(what: str, unknown: Sequence[str], there: Sequence[str]) -> str:
    """That names are none of those that there are, and which may be meant; what: "kd has no setting"."""
    near = [difflib.get_close_matches(name, there, n=1) for name in unknown]
    return " ".join(
        f"{what} {name}; "
        + (f"did you mean {close[0]}?" if close else f"it takes {', '.join(there) or 'none'}.")
        for name, close in zip(unknown, near, strict=True)
    )


def naming_options(**elsewhere: str) -> Callable[[type[T]], type[T]]:
    """A dataclass whose constructor says which option it does not have, of a method by its name.

    elsewhere: where people find what they may look for here, by its name.
    """

    def naming(cls: type[T]) -> type[T]:
        init, there = cls.__init__, [f.name for f in fields(cls) if f.name != "name"]  # type: ignore[arg-type]  # a dataclass

        @wraps(init)
        def checked(self: T, **given: Any) -> None:
            unknown = [name for name in given if name not in ("name", *there)]
            what = f"{given.get('name', cls.__name__)} has no option"
            told = [f"{what} {name}: {elsewhere[name]}." for name in unknown if name in elsewhere]
            others = [name for name in unknown if name not in elsewhere]
            if unknown:
                raise TypeError(" ".join([*told, *([no_such(what, others, there)] if others else [])]))
            init(self, **given)

        cls.__init__ = checked  # type: ignore[assignment]
        return cls

    return naming


@naming_options()
@dataclass(frozen=True, kw_only=True)
class Method:
    """What is constrained, how it is estimated, how the multipliers move. `methods` has one for each name.

    methods.py explains the choices that a person makes.
    """

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
    moves_on: Literal["estimate", "lower"] = "estimate"  # of ψ: what the tolerance is taken from
    caution: float = 0.0  # normal deviate of the limits of ψ: 1.645 is 95 % on each side
    dead_zone: float = 0.0  # in units of the measure: so small a violation moves no multiplier
    distill: float = 0.0  # share of the dense model's soft labels in the loss
    temperature: float = 4.0  # of those soft labels
    focus: float = 0.0  # power of 1 - p, p the dense model's probability of the right answer, as a weight
    floor: float = 0.0  # the least weight of a sample, where 1 is the largest
    targets: Literal["labels", "corrected"] = (
        "labels"  # corrected: soft labels where the dense model is right
    )
    sampling: Literal["uniform", "balanced"] = "uniform"  # balanced: every group as often as any other
    keep: Literal["last", "best", "feasible"] = "last"
    keep_on: str | None = None
    importance: Literal["magnitude", "fairgrape", "fairgrape_fast"] = "magnitude"  # which weights go last
    while_pruning: bool = False  # constraints act from the first epoch on, not from the end of pruning

    def __post_init__(self) -> None:
        wrong = _wrong_words(self) + _wrong_values(self)
        if wrong:
            raise ValueError(f"Method {self.name!r}: " + "; ".join(wrong) + ".")
        none, unlike = self.rows == "none", [*_other_bound(self), *_other_measure(self)]
        ways = "keep='best'" if unlike else "keep='best' or keep='feasible'"
        rules = (
            (
                self.tolerance >= 0 and (self.measure == "loss" or self.tolerance < 1),
                f"tolerance is {self.tolerance}; give a fraction from 0 to 1 (0.01: one point)",
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
                self.keep == "last" or self.keep_on is not None,
                f"keep={self.keep!r} needs keep_on, the name of a split",
            ),
            (
                self.keep != "last" or self.keep_on is None,
                f"keep_on={self.keep_on!r} does nothing with keep='last': add {ways}, or leave keep_on out",
            ),
            (
                self.keep != "feasible" or not unlike,
                "keep='feasible' is for ceag and ceag_no_rb, which bound how much more accuracy than the "
                f"average each group loses: this {self.name} {' and '.join(unlike)}; take keep='best'",
            ),
            (
                not self.while_pruning or self.rows != "none",
                "while_pruning=True needs constraints; rows='none' has none",
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
            (0 <= self.floor <= 1, f"floor is {self.floor}; it must lie in [0, 1]"),
            (
                self.floor <= 0 or self.focus != 0,
                f"focus is {self.focus:g}, so floor={self.floor:g} has nothing to act on: give a focus above "
                "0, or floor=0 for no weights",
            ),
            (self.rows != "dro" or self.estimator == "batch", "rows='dro' takes estimator='batch'"),
        )

    def _heldout_rules(self) -> tuple[tuple[bool, str], ...]:
        apart, constrained = self.multipliers_on is not None, self.rows not in ("none", "dro")
        return (
            (not apart or constrained, f"multipliers_on needs multipliers; rows={self.rows!r} has none"),
            (self.refresh >= 0, f"refresh is {self.refresh}; it must not be negative"),
            (
                self.estimator != "pass" or self.refresh > 0,
                "estimator='pass' needs refresh, the steps from one full pass to the next",
            ),
            (
                self.estimator == "pass" or self.refresh <= 0,
                f"refresh={self.refresh} is of full passes, and estimator={self.estimator!r} makes none: "
                "leave refresh out, or take estimator='pass'",
            ),
            (self.estimator != "pass" or apart, "estimator='pass' needs multipliers_on, the name of a split"),
            (
                not apart or self.negative == "clip",
                "negative='keep' with multipliers_on: under held-out multipliers no sample weight is ever "
                "negative, as that would reward a loss without bound; take negative='clip'",
            ),
            (
                not (apart and self.while_pruning),
                "while_pruning=True with multipliers_on: multipliers follow other samples from the end of "
                "pruning on; take while_pruning=False",
            ),
            *self._caution_rules(),
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

    def _caution_rules(self) -> tuple[tuple[bool, str], ...]:
        constrained, caution = self.rows not in ("none", "dro"), self.caution
        unlike = [*_other_bound(self), *(["has overall='macro'"] if self.overall == "macro" else [])]
        return (
            (caution >= 0, f"caution is {caution}; it must not be negative"),
            (
                self.dead_zone >= 0 and (self.measure == "loss" or self.dead_zone < 1),
                f"dead_zone is {self.dead_zone}; give a fraction from 0 to 1 (0.01: one point)",
            ),
            (
                self.dead_zone == 0 or constrained,
                f"dead_zone needs multipliers; rows={self.rows!r} has none that it could rest",
            ),
            (
                self.moves_on == "estimate" or caution > 0,
                "moves_on='lower' needs caution, how many standard errors below ψ the limit lies: "
                "1.645 is a limit of 95 %",
            ),
            (
                caution == 0
                or (self.estimator, self.measure, self.against_dense) == ("pass", "accuracy", True),
                f"caution with estimator={self.estimator!r} and measure={self.measure!r}: limits of ψ need "
                "the samples that pruning broke and fixed, which full passes alone count: take "
                "estimator='pass' and measure='accuracy', or a dead_zone",
            ),
            (
                caution == 0 or not unlike,
                "caution is for ceag with overall='micro', whose gaps have limits: "
                f"this {self.name} {' and '.join(unlike)}; take a dead_zone",
            ),
        )

    @property
    def cross_fitted(self) -> bool:
        """Whether its multipliers follow the training samples, each answered by a companion run."""
        return self.multipliers_on == FOLDS

    @property
    def needs_groups(self) -> bool:
        """Whether it looks at the groups of the training samples."""
        return self.rows != "none" or self.sampling == "balanced" or self.importance != "magnitude"

    @property
    def needs_teacher(self) -> bool:
        """Whether it takes the dense model's answers to every training sample."""
        return self.distill > 0 or self.focus > 0 or self.targets == "corrected"


def _other_bound(method: Method) -> list[str]:
    """What a method bounds other than the excess gap of each group from above; nothing if that is it."""
    pairs = "bounds differences of two groups"
    rows = {"none": "has no constraints", "extremes": pairs, "pairs": pairs, "dro": "weighs groups only"}
    kinds = {"equal": "wants equal gaps", "absolute": "bounds both sides", "two_sided": "bounds both sides"}
    return [words[choice] for words, choice in ((rows, method.rows), (kinds, method.kind)) if choice in words]


def _other_measure(method: Method) -> list[str]:
    return [] if method.measure == "accuracy" else ["measures losses"]


def _wrong_words(method: Method) -> list[str]:
    """Choices that do not exist: a misspelt one would otherwise mean another method."""
    hints = get_type_hints(Method).items()
    words = {name: get_args(hint) for name, hint in hints if get_origin(hint) is Literal}
    return [
        f"{name} is {getattr(method, name)!r}; choose {' or '.join(map(repr, allowed))}"
        for name, allowed in words.items()
        if getattr(method, name) not in allowed
    ]


def _wrong_values(method: Method) -> list[str]:
    names = (
        "tolerance",
        "dual_lr",
        "kp",
        "ki",
        "nu",
        "caution",
        "dead_zone",
        "distill",
        "temperature",
        "focus",
        "floor",
    )
    floats = {name: getattr(method, name) for name in names}
    wrong = [
        f"{name} is {value!r}; give a finite number"
        for name, value in floats.items()
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)
    ]
    wrong += [
        f"{name} is {value!r}; give the name of one split, such as 'heldout'"
        for name in ("multipliers_on", "keep_on")
        if not isinstance(value := getattr(method, name), str | None)
    ]
    if isinstance(method.k, bool) or not isinstance(method.k, int):
        wrong.append(f"k is {method.k!r}; a whole number of at least 1")
    if not isinstance(method.while_pruning, bool):
        wrong.append(f"while_pruning is {method.while_pruning!r}; True or False")
    if isinstance(method.refresh, bool) or not isinstance(method.refresh, int):
        wrong.append(f"refresh is {method.refresh!r}; a whole number of steps")
    return wrong
