"""What a reader of a result should know and no table says: idle multipliers, few samples and the like."""

import math
import statistics
from collections.abc import Mapping, Sequence

from torch import Tensor

from evenprune.iterates import is_within
from evenprune.limits import sample_size
from evenprune.method import Method
from evenprune.plan import groups_have
from evenprune.reference import DenseReference
from evenprune.wording import quoted

IDLE = 0.1  # a sum of multipliers below it hardly weighs anything
WANTED = 0.5  # the sum that a proposed dual step aims at
OTHERWISE = 0.1  # accuracy on the training samples that evaluation may lose against training mode
WHERE = {
    **dict.fromkeys((None, "train", "folds"), "on the training data"),
    "heldout": "on the held-out data",
}


def constrains_gaps(method: Method) -> bool:
    """Whether it promises a bound on gaps of accuracy."""
    return (
        method.rows in ("mean", "extremes", "pairs")
        and method.measure == "accuracy"
        and method.kind != "equal"
    )


def idle_multipliers(
    title: str, method: Method, *, gaps: Sequence[float], sums: Sequence[float], steps: int
) -> list[str]:
    """That a method broke its bound while its multipliers hardly moved, and a dual step to try.

    gaps: what it bounds (max ψ or Ψ_PW), a number per run, on the samples that the multipliers follow; of
    multipliers that move on limits, the lower limit of max ψ. None where held-out samples do not show the
    bound to be broken: to follow noise more closely would do harm.
    sums: Σ|λ| at the end of each run. steps: that the multipliers had.
    """
    if method.rows != "none" and sums and not steps:
        return [
            f"{title} never acted: multipliers move after pruning, which lasted to the last epoch. Train "
            "longer, or lower recipe.pruning_epochs."
        ]
    if not constrains_gaps(method) or not gaps or not sums:
        return []
    gap, reached = statistics.fmean(gaps), statistics.fmean(sums)
    if gap <= method.tolerance + method.dead_zone + 1e-9 or reached >= IDLE:
        return []
    better = dual_step(method, gap=gap, reached=reached, steps=steps)
    what = "Ψ_PW" if method.rows != "mean" else "max ψ by its lower limit" if method.caution else "max ψ"
    return [
        f"{title} hardly acted: its multipliers sum to {reached:.2g} at the end, while {what} is "
        f"{_points(gap)} points {WHERE[method.multipliers_on]} against ε = {_points(method.tolerance)}. A "
        f"violation raises a multiplier by about dual_lr × violation × steps, and there were {steps:,} "
        f"steps: dual_lr={better:g} instead of {method.dual_lr:g} would have brought the sum towards "
        f"{WANTED:g}."
    ]


def dual_step(method: Method, *, gap: float, reached: float, steps: int) -> float:
    """The dual step that would have brought Σλ to WANTED, had the gaps stayed as they were; one digit.

    Σλ ≈ dual_lr · Σ_t v_t. The violations v_t add up to Σλ / dual_lr, or to what the last one, v · steps,
    amounts to where that is more: then the multipliers had begun late. A violation below the tolerance counts
    as that: to close a small gap takes no large step, which would do harm.
    """
    past = reached / method.dual_lr if method.dual_lr else 0.0
    violation = max(gap - method.tolerance - method.dead_zone, method.tolerance)
    violations = max(past, violation * steps)
    return float(f"{WANTED / violations:.1g}")


def none_feasible(title: str, method: Method, *, gaps: Mapping[int, float], runs: int) -> list[str]:
    """That a run which keeps its best feasible epoch had none; nothing if all had.

    gaps: by seed, max ψ of the epoch that was kept, on the samples that it was kept by.
    """
    beyond = [seed for seed, gap in sorted(gaps.items()) if not is_within(gap, method.tolerance)]
    if not beyond:
        return []
    seeds = "" if runs == 1 else f" with seed{'s' * (len(beyond) > 1)} {', '.join(map(str, beyond))}"
    return [
        f"{title}: no epoch{seeds} kept every group within ε = {_points(method.tolerance)} "
        f"{WHERE[method.keep_on]}. Kept is the most accurate one that is not shown there to be beyond it, "
        "or, if all are, the one with the smallest max ψ."
    ]


def negative_weights(title: str, method: Method, *, counts: Sequence[int], weights: int) -> list[str]:
    """How many of a run's sample weights were negative, and what became of them; nothing if none was."""
    many = statistics.fmean(counts) if counts else 0
    if not many:
        return []
    mean = f", mean of {len(counts)} seeds" if len(counts) > 1 else ""
    done = "clipped at zero" if method.negative == "clip" else "kept, as in the paper"
    return [
        f"{title}: its multipliers grew so large that sample weights were negative ({many:,.0f} of "
        f"{weights:,} in a run{mean}); they were {done}."
    ]


def diverged(title: str, epochs: Mapping[int, int]) -> list[str]:
    """Which runs, by seed, did not stay finite, and which weights they keep; nothing if all did."""
    if not epochs:
        return []
    runs = ", ".join(f"seed {seed} in epoch {epoch + 1}" for seed, epoch in sorted(epochs.items()))
    return [
        f"{title} diverged ({runs}): its loss or its weights were not finite, and it keeps the weights of an "
        "epoch before. Lower the learning rate or the dual step, or set recipe.clip_norm."
    ]


def otherwise_in_evaluation(title: str, accuracies: Mapping[int, tuple[float, float]]) -> list[str]:
    """Which runs, by seed, answer the training samples worse than while they were trained; nothing if none.

    accuracies: in the epoch whose weights a run keeps, while they were trained, and evaluated afterwards.
    """
    worse = {seed: both for seed, both in sorted(accuracies.items()) if both[1] < both[0] - OTHERWISE}
    if not worse:
        return []
    runs = ", ".join(
        f"seed {seed}: {after:.0%} instead of {before:.0%}" for seed, (before, after) in worse.items()
    )
    return [
        f"{title} answers fewer training samples right in evaluation than while it was trained ({runs}). "
        "Either its weights still moved much in the last steps: let the learning rate fall to the end. Or "
        "its batch norms take other means than those of a batch: channels that pruning left as constants are "
        "the usual cause; they are removed where torch.fx can trace the model (no branches on values)."
    ]


def chosen_on_its_own(title: str, *, others: bool) -> list[str]:
    """That a setting was fitted to the very samples that chose it. others: some settings were not."""
    told = f"{title} was fitted to the held-out data, which also chose it: there it looks better than it is"
    if others:
        return [
            f"{told}, and than settings that did not see these samples. The audits on the test data compare "
            "them fairly."
        ]
    return [
        f"{told}, as do all settings here, and the one with the largest step most of all. Choose among them "
        "by samples that nothing follows: give these as audit=…, and audit the chosen one on others again."
    ]


def unmeasured(heldout: DenseReference) -> list[str]:
    """Which groups have no held-out samples: no choice that is made there knows of them; nothing if none."""
    empty = [name for name, n in zip(heldout.names, heldout.samples.tolist(), strict=True) if not n]
    if not empty or len(empty) == len(heldout.names):  # of the latter the choice itself speaks
        return []
    return [
        f"{groups_have(empty)} no held-out samples: what is chosen, kept or fitted there does not know what "
        "pruning takes there, and a bound that is kept is one of the others. Hold out samples of every group."
    ]


def too_few(heldout: DenseReference, *, tolerance: float, who: str) -> list[str]:
    """That the gaps of the held-out split are noise on the scale of the tolerance; nothing if not."""
    errors, sizes = standard_errors(heldout), heldout.samples
    known = [group for group in range(len(heldout.names)) if sizes[group] > 0]
    worst = max(known, key=lambda group: float(errors[group]), default=None)
    if not tolerance or worst is None or float(errors[worst]) <= tolerance:
        return []
    disagreement = float(_disagreement(heldout)[worst])
    needed = math.ceil(disagreement / tolerance**2)
    told_apart = sample_size(groups=max(len(known), 2), tolerance=tolerance, disagreement=disagreement)
    return [
        f"{heldout.all_samples:,.0f} held-out samples in {len(known)} groups are few for ε = "
        f"{_points(tolerance)}: the standard error of ψ is about {_points(float(errors[worst]))} points for "
        f"{quoted(heldout.names[worst])} ({int(sizes[worst]):,} samples), so {who} will follow noise. Some "
        f"{needed:,} samples a group bring it to ε; to tell ε from nothing takes {told_apart:,}. Hold out "
        "more, merge groups, or take a larger tolerance."
    ]


def standard_errors(heldout: DenseReference) -> Tensor:
    """Of ψ_g [groups], from the sizes and the dense accuracy alone: no pruned model is known yet.

    s_g² = (1 − 2π_g) v_g + Σ_k π_k² v_k    v_g = q_g / n_g    q_g = 2 a_g (1 − a_g)

    q_g is the disagreement with a model that is as accurate and errs independently, a_g the dense accuracy as
    (right + 1)/(n + 2).
    """
    v = _disagreement(heldout) / heldout.samples.clamp_min(1)
    share = heldout.samples / heldout.all_samples
    return ((1 - 2 * share) * v + (share**2 * v).sum()).clamp_min(0).sqrt()


def _disagreement(heldout: DenseReference) -> Tensor:
    accuracy = (heldout.correct + 1) / (heldout.samples + 2)
    return 2 * accuracy * (1 - accuracy)


def _points(value: float) -> str:
    return f"{float(f'{100 * value:.2g}'):g}"
