"""The methods of the study by name: how each is made, which settings it takes, what its training looks at."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal

from evenprune import methods
from evenprune.method import Method

BIAS = "NFT + class bias"
# One training gives both: its last iterate, and the best one that is feasible on the choice split.
PASSES, FEASIBLE = "CEAG held-out (passes)", "CEAG held-out (best feasible)"
ALL_PAIRS = "all pairs"
KD, BOTH = "NFT + KD", "CEAG held-out + KD"
BASELINES = ("NFT", BIAS, "CEAG")  # what multipliers on unseen samples have to face


@dataclass(frozen=True)
class Kind:
    """How a method is made, and which settings it takes."""

    make: Callable[..., Method]
    tolerance: Literal["none", "usual", "pairs", "loss", "after"] = "none"  # after: used after training
    steps: Literal["none", "usual", "el", "dro"] = "none"
    rings: bool = False
    passes: bool = False
    scored: bool = False  # by FairGRAPE's importances
    sees_heldout: bool = False
    crossed: bool = False  # multipliers follow folds of the training samples

    @property
    def follows_unseen(self) -> bool:
        """Whether it follows samples that the models which answer them have not seen."""
        return self.sees_heldout or self.crossed


TEACHER: dict[str, Any] = {"distill": 0.9, "temperature": 4.0}


def _heldout(**more: Any) -> Kind:
    make = partial(methods.ceag, multipliers_on="heldout", estimator="pass", **more)
    return Kind(make, "usual", "usual", passes=True, sees_heldout=True)


def _ringed(make: Callable[..., Method], tolerance: Literal["none", "usual", "pairs", "loss"]) -> Kind:
    return Kind(make, tolerance, "usual", rings=True)


STUDY: dict[str, Kind] = {  # in every setting
    "NFT": Kind(methods.nft),
    KD: Kind(methods.kd),
    BIAS: Kind(methods.nft, "after", sees_heldout=True),
    "EL + RB": Kind(methods.el_rb, "none", "el", rings=True),
    "CEAG": _ringed(methods.ceag, "usual"),
    "CEAG (table)": Kind(partial(methods.ceag, estimator="table"), "usual", "usual"),
    PASSES: _heldout(),
    FEASIBLE: _heldout(keep="feasible", keep_on="choice"),
    BOTH: _heldout(**TEACHER),
    "FairGRAPE": Kind(methods.fairgrape, scored=True),
}
LOWER = "CEAG held-out (lower limit)"
BALANCED: dict[str, Kind] = {  # plain fine-tuning where groups are of one size
    "Group-balanced sampling": Kind(methods.balanced),
    "Group-balanced sampling + KD": Kind(partial(methods.balanced, **TEACHER)),
}
ONCE: dict[str, Kind] = {  # in one setting
    LOWER: _heldout(moves_on="lower", caution=1.645),  # 95 %, one-sided
    "CEAG cross-fitted (passes)": Kind(
        partial(methods.ceag, multipliers_on="folds", estimator="pass"),
        "usual",
        "usual",
        passes=True,
        crossed=True,
    ),
    "Performance-weighted loss": Kind(methods.performance_weighted),
    "GroupDRO": Kind(methods.group_dro, steps="dro"),
    **BALANCED,
    "CEAG + KD": _ringed(partial(methods.ceag, **TEACHER), "usual"),
}
OF_ONE_SIZE = [name for name in ONCE if name not in BALANCED]  # no plain fine-tuning where groups are
EXTRAS: dict[str, Kind] = {  # only if they are asked for
    "CEAG held-out (ring)": replace(
        _ringed(partial(methods.ceag, multipliers_on="heldout"), "usual"), sees_heldout=True
    ),
    "CEAG held-out (caution 1)": _heldout(caution=1.0),
    "CEAG held-out (dead zone 2 %)": _heldout(dead_zone=0.02),
    "FairGRAPE (fast)": Kind(partial(methods.fairgrape, fast=True), scored=True),
}
FORMULATIONS: dict[str, Kind] = {
    "CEAG": STUDY["CEAG"],
    "CELG": _ringed(methods.celg, "loss"),
    "Ψ_PW": _ringed(methods.pairwise, "pairs"),
    ALL_PAIRS: _ringed(methods.all_pairs, "pairs"),
    "equalized": _ringed(methods.equalized, "none"),
    "approximately equal": _ringed(methods.approximately_equal, "usual"),
    "two-sided": _ringed(methods.two_sided, "usual"),
}
KINDS = STUDY | ONCE | EXTRAS | FORMULATIONS
METHODS = {name: place for place, name in enumerate(KINDS)}  # the order of tables
BY_SIZE = (PASSES, FEASIBLE, LOWER)  # in one setting, with every number of held-out samples
SPARSER = ("NFT", KD, BIAS, "CEAG", *BY_SIZE, BOTH)  # in one that is harmed more


def made(name: str, **told: Any) -> Method:
    """A method from its settings; None: it takes none. Negative sample weights are clipped, as by default."""
    return KINDS[name].make(**{word: value for word, value in told.items() if value is not None})


@cache
def grouped(name: str) -> bool:
    """Whether groups make a difference to its training."""
    kind = KINDS[name]
    told: dict[str, Any] = {"refresh": 1} if kind.passes else {}
    if kind.tolerance not in ("none", "after"):
        told["tolerance"] = 0.0
    plain = made(name, **told)
    return (plain.rows, plain.sampling, plain.importance) != ("none", "uniform", "magnitude")


def constraints_of(name: str, multipliers: int, *, groups: int) -> int:
    """How many constraints so many multipliers are of: one of a group and itself is always zero, no pair's.

    Rows that were written before it was left out count it too.
    """
    return min(multipliers, groups * (groups - 1)) if name == ALL_PAIRS else multipliers


def is_formulation(name: str) -> bool:
    """Whether it is one that the study does not have anyway."""
    return name in FORMULATIONS and name not in STUDY


def baselines_of(name: str) -> tuple[str, ...]:
    """What multipliers that follow unseen samples have to face, whatever else they are compared with."""
    if not KINDS[name].follows_unseen or name == BIAS:
        return ()
    return (*BASELINES, KD) if name == BOTH else BASELINES
