"""Every method by name: a few lines each, returning one `Method` value. All arguments are keyword-only.

Tolerances are fractions (0.01 is one point of accuracy; for `celg` a difference of losses). `dual_lr` is the
step of the multipliers per batch. The default of 0.002 is the paper's most common choice (its tasks take
0.00001 to 0.003, with 10,000 to 20,000 steps). With far fewer steps take a larger one: a violation v raises a
multiplier by about dual_lr · v · steps, and it should be able to reach 0.1 to 1.

`Options` lists what else can be changed: `ceag(tolerance=0.01, estimator="table", negative="keep")`.
Constraints act once pruning has ended; with `while_pruning=True` from the first epoch on.

Held-out multipliers: `multipliers_on="heldout"` names a split that neither model trains on, and the
multipliers follow ψ there: batch by batch, or with `estimator="pass", refresh=100` in a full pass every 100
steps. Sample weights are then never negative. ψ of few samples is mostly noise, and what a multiplier does
about that has three words:

    moves_on    "estimate": λ <- [λ + η (ψ_g - ε)]₊. "lower": λ <- [λ + η (lower limit of ψ_g - ε)]₊, so that
                it rises only while the group is surely beyond the tolerance, and falls otherwise
    caution     the normal deviate of these limits, which are the audit's (limits.py): 1.645 is 95 % on each
                side. With moves_on="estimate" it is a dead zone as wide as the noise: λ rests while the
                tolerance lies between the limits, and beyond moves by the limit that is nearer
    dead_zone   a dead zone in points (0.01 is one): of a violation only what exceeds it moves λ

`caution` needs estimator="pass", where the samples that pruning broke and fixed are counted; `dead_zone` goes
with every estimator and every constraint, and with the other two.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypedDict, Unpack, get_args, get_type_hints

from evenprune.method import Method

DUAL_LR = 0.002
EL_DUAL_LR = 1e-5  # |violation| only ever raises a multiplier, hence the small step


class Primal(TypedDict, total=False):
    """Choices every constrained method has."""

    overall: Literal["micro", "macro"]
    negative: Literal["clip", "keep"]
    mean: Literal["lagrangian", "detached"]
    side: Literal["estimate", "batch"]
    dual: Literal["sgd", "nupi"]
    kp: float
    ki: float
    nu: float
    distill: float
    temperature: float
    focus: float
    floor: float
    targets: Literal["labels", "corrected"]
    sampling: Literal["uniform", "balanced"]
    multipliers_on: str | None
    refresh: int
    moves_on: Literal["estimate", "lower"]
    caution: float
    dead_zone: float
    keep: Literal["last", "best", "feasible"]
    keep_on: str | None
    importance: Literal["magnitude", "fairgrape", "fairgrape_fast"]
    while_pruning: bool


class Options(Primal, total=False):
    """Choices of the methods that remember outcomes."""

    estimator: Literal["batch", "ring", "table", "pass"]


def nft() -> Method:
    """Naive fine-tuning: no constraints, the last iterate."""
    return Method(name="nft", rows="none", estimator="none")


def nft_es(*, on: str) -> Method:
    """Naive fine-tuning, keeping the iterate that is best on the split named `on`."""
    return Method(name="nft_es", rows="none", estimator="none", keep="best", keep_on=on)


def fairgrape(*, fast: bool = False) -> Method:
    """Naive fine-tuning of a mask by FairGRAPE (Lin et al.); `fast`: by its one-line rule, without numba."""
    by: Literal["fairgrape", "fairgrape_fast"] = "fairgrape_fast" if fast else "fairgrape"
    return replace(nft(), name=by, importance=by)


def el(*, dual_lr: float = EL_DUAL_LR, **more: Unpack[Primal]) -> Method:
    """Equalized loss (Tran et al.): every group's loss equals the overall loss; estimated on the batch."""
    return replace(el_rb(dual_lr=dual_lr, **more), name="el", estimator="batch")


def el_rb(*, dual_lr: float = EL_DUAL_LR, k: int = 40, **more: Unpack[Options]) -> Method:
    """Equalized loss with replay buffers, which move the multipliers.

    The primal differentiates |L_g - L| of the batch, as in the paper; `side="estimate"` takes the sign of the
    buffers' difference instead.
    """
    values = Method(name="el_rb", measure="loss", against_dense=False, kind="absolute", side="batch")
    return replace(values, dual_lr=dual_lr, k=k, **more)


def ceag(*, tolerance: float, dual_lr: float = DUAL_LR, k: int = 40, **more: Unpack[Options]) -> Method:
    """Constrained excess accuracy gaps: ψ_g ≤ tolerance for every group."""
    return Method(name="ceag", tolerance=tolerance, dual_lr=dual_lr, k=k, **more)


def ceag_no_rb(*, tolerance: float, dual_lr: float = DUAL_LR, **more: Unpack[Primal]) -> Method:
    """CEAG estimated on the batch alone: the paper's ablation without replay buffers."""
    return Method(name="ceag_no_rb", tolerance=tolerance, dual_lr=dual_lr, estimator="batch", **more)


def celg(*, tolerance: float, dual_lr: float = DUAL_LR, k: int = 40, **more: Unpack[Options]) -> Method:
    """Constrained excess loss gaps: as CEAG, with the loss in place of the accuracy."""
    return Method(name="celg", measure="loss", tolerance=tolerance, dual_lr=dual_lr, k=k, **more)


def pairwise(*, tolerance: float, dual_lr: float = DUAL_LR, k: int = 40, **more: Unpack[Options]) -> Method:
    """Ψ_PW ≤ tolerance: one constraint, on the most and the least degraded group of the moment."""
    return Method(name="pairwise", rows="extremes", tolerance=tolerance, dual_lr=dual_lr, k=k, **more)


def all_pairs(*, tolerance: float, dual_lr: float = DUAL_LR, k: int = 40, **more: Unpack[Options]) -> Method:
    """Δ_i - Δ_j ≤ tolerance for all pairs: as many constraints as the square of the groups."""
    return Method(name="all_pairs", rows="pairs", tolerance=tolerance, dual_lr=dual_lr, k=k, **more)


def equalized(*, dual_lr: float = DUAL_LR, k: int = 40, **more: Unpack[Options]) -> Method:
    """ψ_g = 0 for every group; the multipliers may be negative."""
    return Method(name="equalized", kind="equal", dual_lr=dual_lr, k=k, **more)


def approximately_equal(
    *, tolerance: float, dual_lr: float = DUAL_LR, k: int = 40, **more: Unpack[Options]
) -> Method:
    """|ψ_g| ≤ tolerance for every group, as one constraint each."""
    name = "approximately_equal"
    return Method(name=name, kind="absolute", tolerance=tolerance, dual_lr=dual_lr, k=k, **more)


def two_sided(*, tolerance: float, dual_lr: float = DUAL_LR, k: int = 40, **more: Unpack[Options]) -> Method:
    """-tolerance ≤ ψ_g ≤ tolerance for every group, as two constraints each."""
    return Method(name="two_sided", kind="two_sided", tolerance=tolerance, dual_lr=dual_lr, k=k, **more)


def kd(*, distill: float = 0.9, temperature: float = 4.0) -> Method:
    """Plain fine-tuning that learns from the dense model's soft labels as well (knowledge distillation).

    Any constrained method takes `distill` and `temperature` too: `ceag(tolerance=0.01, distill=0.9)`.
    """
    return Method(name="kd", rows="none", estimator="none", distill=distill, temperature=temperature)


def performance_weighted(
    *, focus: float = 1.0, floor: float = 0.5, targets: Literal["labels", "corrected"] = "corrected"
) -> Method:
    """Samples of which the dense model is unsure weigh more (Meyer & Wong 2022); needs no groups.

    A sample weighs θ + (1 - θ)(1 - p)^γ: p the dense model's probability of the right answer, γ `focus`, θ
    `floor` (the defaults are the authors' for CIFAR-10). As in their code the targets are corrected soft
    labels: the dense model's probabilities where its answer is right, the label where it is wrong;
    `targets="labels"` takes the labels throughout.
    """
    values = Method(name="performance_weighted", rows="none", estimator="none")
    return replace(values, focus=focus, floor=floor, targets=targets)


def group_dro(*, dual_lr: float = 0.01) -> Method:
    """Group DRO (Sagawa et al. 2020): the worst group's loss, by weights that grow with each group's loss."""
    return Method(
        name="group_dro", measure="loss", against_dense=False, rows="dro", estimator="batch", dual_lr=dual_lr
    )


def balanced(*, distill: float = 0.0, temperature: float = 4.0) -> Method:
    """Plain fine-tuning on batches in which every group is as frequent as any other.

    With `distill`, from the dense model's soft labels as well: see `kd`.
    """
    return replace(kd(distill=distill, temperature=temperature), name="balanced", sampling="balanced")


TABLE: dict[str, Callable[..., Method]] = {
    "nft": nft,
    "nft-es": nft_es,
    "fairgrape": fairgrape,
    "el": el,
    "el-rb": el_rb,
    "ceag": ceag,
    "ceag-no-rb": ceag_no_rb,
    "celg": celg,
    "pairwise": pairwise,
    "all-pairs": all_pairs,
    "equalized": equalized,
    "approximately-equal": approximately_equal,
    "two-sided": two_sided,
    "kd": kd,
    "performance-weighted": performance_weighted,
    "group-dro": group_dro,
    "balanced": balanced,
}


def settings_of(make: Callable[..., Method]) -> list[str]:
    """What a method of TABLE takes, by name."""
    parameters = inspect.signature(make).parameters.values()
    more = get_type_hints(make).get("more")  # Unpack[Options] or Unpack[Primal]
    named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    return named if more is None else [*named, *get_type_hints(get_args(more)[0])]
