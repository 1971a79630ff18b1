"""From trained runs to rows of results/beyond.json, and to their answers to each audit sample."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evenprune import class_bias, run_figures
from evenprune.heldout import psi_standard_errors
from evenprune.method import FOLDS, Method
from evenprune.predict import Precision, Predictions, autocast, cross_entropies, evaluating
from evenprune.recipe import Recipe, Split
from evenprune.tally import FloatArray
from evenprune.training import Fitted
from paper import runner
from paper.beyond_cells import NEAR, TOLERANCE, Cell, cost, method_of
from paper.beyond_methods import BIAS, constraints_of
from paper.beyond_views import View
from paper.runner import Start, Trained, Where

SPLITS = ("train", "heldout", "choice", "audit")
COUNTED = ("heldout", "choice", "audit")  # splits whose counts per group are kept
LAST_EPOCHS = 10
Counts = Mapping[str, Sequence[int]]  # samples, broke and fixed, by group


# --- numbers of a split, from counts per group ---


def measures(counts: Counts) -> dict[str, float]:
    """max ψ, Ψ_PW and the largest Δ_g of the groups that have samples."""
    n, broke, fixed = (np.array(counts[name], dtype=float) for name in ("samples", "broke", "fixed"))
    known = n > 0
    found = harms((broke - fixed)[known], n[known])
    return {name: float(value) for name, value in found.items() if name != "gap"}


def harms(lost: FloatArray, n: FloatArray) -> dict[str, FloatArray]:
    """Of samples lost [..., groups] of n: Δ_g = lost/n, Δ of all samples, ψ_g = Δ_g − Δ."""
    gaps, gap = lost / n, lost.sum(-1) / n.sum()
    largest = gaps.max(-1)
    return {
        "gap": gap,
        "max_excess_gap": largest - gap,
        "pairwise_disparity": largest - gaps.min(-1),
        "worst_gap": largest,
    }


def standard_error(counts: Mapping[str, Sequence[float]]) -> float:
    """Of ψ_g, the mean over the groups that have samples."""
    named = (torch.tensor(counts[name], dtype=torch.float64) for name in ("samples", "broke", "fixed"))
    errors = psi_standard_errors(*named)
    return float(errors[errors.isfinite()].mean())


def followed(cell: Cell, method: Method, counts: Mapping[str, Counts]) -> dict[str, Any] | None:
    """The samples whose ψ moves the multipliers (or the class bias), and how well ψ is known from them.

    None where nothing does. Cross-fitted multipliers follow all training samples, as answered by companions;
    these are as many as it says, and change as often as the run itself changes held-out ones.
    """
    split = "heldout" if cell.method == BIAS else method.multipliers_on or "train"
    if method.rows == "none" and cell.method != BIAS:
        return None
    samples = counts["train" if split == FOLDS else split]["samples"]
    own = _as_often(counts["heldout"], samples) if split == FOLDS else counts[split]
    return {"split": split, "samples": list(samples), "standard_error": standard_error(own)}


def _as_often(counts: Counts, samples: Sequence[int]) -> dict[str, Sequence[float]]:
    """Counts of so many samples a group that break and are fixed in the same shares."""
    more = np.array(samples) / np.maximum(counts["samples"], 1)
    scaled = {name: (more * counts[name]).tolist() for name in ("broke", "fixed")}
    return {"samples": samples, **scaled}


# --- what is constrained, and the multipliers ---


def constrained(method: Method, dense: Predictions, sparse: Predictions, groups: int) -> float | None:
    """The left side of the method's worst constraint on a split: to be at most its tolerance."""
    if method.rows in ("none", "dro"):
        return None
    by_loss = method.measure == "loss"
    now, before = (p.losses.double() if by_loss else p.correct.double() for p in (sparse, dense))
    lost = (now - before * float(method.against_dense)) * (1.0 if by_loss else -1.0)
    known = sparse.groups >= 0
    count = torch.bincount(sparse.groups[known], minlength=groups)
    total = torch.bincount(sparse.groups[known], lost[known], minlength=groups)
    excess = (total[count > 0] / count[count > 0]) - lost.mean()  # ψ_g
    if method.rows in ("extremes", "pairs"):
        return float(excess.max() - excess.min())
    return float(excess.max() if method.kind == "at_most" else excess.abs().max())


def constraint_of(method: Method, start: Start, answers: Mapping[str, Predictions]) -> dict[str, Any] | None:
    """Whether the constraints hold on each split; an equality counts as held within the usual tolerance."""
    allowed = TOLERANCE if method.kind == "equal" else method.tolerance
    values = {s: constrained(method, start.answers[s], answers[s], len(start.names)) for s in SPLITS}
    known = {split: value for split, value in values.items() if value is not None}
    if not known:
        return None
    feasible = {split: value <= allowed + NEAR for split, value in known.items()}
    return {"allowed": allowed, "value": known, "feasible": feasible}


def multipliers_of(history: Tensor, first: int, *, rows: int | None = None) -> dict[str, Any] | None:
    """How multipliers [epochs, rows] behave; epochs before `first` prune. None where there are none.

    rows: constraints that they are of, where there are fewer.
    """
    tuned = history[first:].double()
    if not tuned.numel():
        return None
    sums, sizes = tuned.sum(1), tuned.abs().sum(1)
    before = max(len(tuned) - 1 - LAST_EPOCHS, 0)
    return {
        "rows": tuned.shape[1] if rows is None else rows,
        "active": int((tuned[-1] != 0).sum()),
        "largest": float(tuned[-1].abs().max()),
        "sum": float(sums[-1]),
        "size": float(sizes[-1]),  # Σ|λ|
        "sum_change": float(sums[-1] - sums[before]),  # over the last 10 epochs
        "size_change": float(sizes[-1] - sizes[before]),
        "sizes": [round(value, 6) for value in sizes.tolist()],  # after each epoch
    }


# --- rows ---


def row_of(
    start: Start, cell: Cell, answers: Mapping[str, Predictions], method: Method, shared: Mapping[str, Any]
) -> dict[str, Any]:
    """The entry of one cell from its answers to all splits."""
    counts = {split: runner.changes(start, answers[split], split) for split in SPLITS}
    accuracy = {split: float(answers[split].correct.double().mean()) for split in SPLITS}
    return {
        **asdict(cell),
        **start.facts,
        **{split: {"accuracy": accuracy[split], **measures(counts[split])} for split in SPLITS},
        "changes": {split: counts[split] for split in COUNTED},
        "standard_error": {split: standard_error(counts[split]) for split in COUNTED},
        "followed": followed(cell, method, counts),
        **shared,
    }


def trained_row(
    view: View,
    cell: Cell,
    fitted: Fitted,
    answers: Mapping[str, Predictions],
    recipe: Recipe,
    shared: Mapping[str, Any],
) -> dict[str, Any]:
    """Of a run that was trained, by the answers of its kept or last iterate as seen from a view."""
    method, last = method_of(cell), len(fitted.history) - 1
    rows = constraints_of(cell.method, fitted.multipliers.shape[1], groups=len(view.start.names))
    own = {
        "multiplier_sum": fitted.history[-1]["multiplier_sum"],
        "multipliers": multipliers_of(fitted.multipliers, recipe.pruning_epochs, rows=rows),
        "constraint": constraint_of(method, view.start, answers),
        "negative_weights": sum(row["negative_weights"] for row in fitted.history),
        "kept_epoch": last if method.keep == "last" else fitted.kept_epoch,
        **run_figures.if_diverged(fitted),
    }
    return row_of(view.start, cell, answers, method, own | dict(shared))


def bias_row(
    view: View, cell: Cell, fitted: Fitted, logits: Mapping[str, Tensor], shared: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Predictions]]:
    """A class bias fitted on the held-out samples of a view; `logits` of a finished run, of all samples."""
    assert cell.tolerance is not None
    began = time.perf_counter()
    splits = view.start.data.evaluate
    seen = {name: own[view.kept] if name == "heldout" else own for name, own in logits.items()}
    held = splits["heldout"]
    same = all(bool((s.labels == s.groups).all()) for s in splits.values())
    units = None if same else class_bias.units_of(held.labels, held.groups, classes=seen["heldout"].shape[1])
    found = class_bias.fit(
        seen["heldout"],
        held.labels,
        held.groups,
        view.start.answers["heldout"].correct,
        tolerance=cell.tolerance,
        units=units,
    )
    answers = {name: _answers(splits[name], seen[name], found) for name in SPLITS}
    spent = time.perf_counter() - began
    own = {
        **dict.fromkeys(("multiplier_sum", "multipliers", "constraint")),
        "negative_weights": 0,
        "kept_epoch": fitted.kept_epoch,
        **run_figures.if_diverged(fitted),
        **shared,
        "seconds": round(shared["seconds"] + spent, 3),
        "fit_seconds": round(spent, 3),
        "moved_classes": int((found.bias - found.bias.median()).abs().gt(1e-7).sum()),
    }
    return row_of(view.start, cell, answers, fitted.run.method, own), answers


def logits_of(
    model: nn.Module, splits: Mapping[str, Split], recipe: Recipe, where: Where
) -> dict[str, Tensor]:
    """By split, [N, classes] on the CPU, in the precision of the runs."""
    precision, there = recipe.on(where.device).precision, model.to(where.device)
    told = {n: _logits(there, s, where.device, recipe.evaluate_batch, precision) for n, s in splits.items()}
    model.cpu()
    return told


@torch.no_grad()
def _logits(model: nn.Module, split: Split, device: torch.device, batch: int, precision: Precision) -> Tensor:
    there = split.to(device, inputs=False)
    with evaluating(model), autocast(device, precision):
        parts = torch.split(torch.arange(len(split), device=device), batch)
        return torch.cat([model(there.at(index)).float().cpu() for index in parts])


def _answers(split: Split, logits: Tensor, found: class_bias.ClassBias) -> Predictions:
    moved = class_bias.biased(logits, found.bias)
    losses = cross_entropies(moved.unsqueeze(0), split.labels.cpu().unsqueeze(0))[0]
    return Predictions(split.labels.cpu(), moved.argmax(1), split.groups.cpu(), losses)


def shared_of(trained: Trained, cells: Sequence[Cell], where: Where) -> dict[str, Any]:
    return {
        "seconds": round(trained.seconds, 3),
        "resumed": trained.resumed,
        "fleet": len(cells),
        "mixed": len({cost(cell) for cell in cells}) > 1,  # then the seconds are not of the method alone
        "versions": runner.versions(where.device, where.compile),
        "commit": where.commit,
    }
