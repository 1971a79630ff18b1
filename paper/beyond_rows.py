"""From trained runs to rows of results/beyond.json, and to right and wrong answers on each audit sample."""

import base64
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from evenprune import class_bias
from evenprune.plan import Method
from evenprune.predict import Precision, Predictions, autocast, cross_entropies, evaluating
from evenprune.recipe import Recipe, Split
from evenprune.tally import FloatArray
from evenprune.training import Fitted
from paper import runner
from paper.beyond_cells import NEAR, TOLERANCE, Cell
from paper.runner import Start, Trained, Where

SPLITS = ("train", "heldout", "audit")
COUNTED = ("heldout", "audit")  # splits whose counts per group are kept
LAST_EPOCHS = 10


# --- numbers of a split, from counts per group ---


def measures(counts: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """max ψ, Ψ_PW and the largest Δ_g of the groups that have samples."""
    gaps, gap = _gaps(counts)
    return {
        "max_excess_gap": float(gaps.max() - gap),  # ψ_g = Δ_g − Δ
        "pairwise_disparity": float(np.ptp(gaps)),
        "worst_gap": float(gaps.max()),
    }


def _gaps(counts: Mapping[str, Sequence[int]]) -> tuple[FloatArray, float]:
    """Δ_g = (broke − fixed)/n and the same of all samples, Δ."""
    n, broke, fixed = (np.array(counts[name], dtype=float) for name in ("samples", "broke", "fixed"))
    known = n > 0
    return ((broke - fixed)[known] / n[known]), float((broke - fixed).sum() / n.sum())


def standard_error(counts: Mapping[str, Sequence[int]]) -> float | None:
    """Of ψ_g, the mean over groups; None if a group has a single sample. As constraint.standard_errors:

    V_g = (q_g − Δ_g²)/(n_g − 1),  q_g = (broke + fixed)/n_g,  Var ψ_g = (1 − 2π_g) V_g + Σ_h π_h² V_h.
    """
    n, broke, fixed = (np.array(counts[name], dtype=float) for name in ("samples", "broke", "fixed"))
    n, broke, fixed = n[n > 0], broke[n > 0], fixed[n > 0]
    if n.min() < 2:
        return None
    variance = ((broke + fixed) / n - ((broke - fixed) / n) ** 2) / (n - 1)
    share = n / n.sum()
    of_excess = (1 - 2 * share) * variance + (share**2 * variance).sum()
    return float(np.sqrt(np.maximum(of_excess, 0)).mean())


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


def multipliers_of(history: Tensor, first: int) -> dict[str, Any] | None:
    """How multipliers [epochs, rows] behave; epochs before `first` prune. None where there are none."""
    tuned = history[first:].double()
    if not tuned.numel():
        return None
    sums, sizes = tuned.sum(1), tuned.abs().sum(1)
    before = max(len(tuned) - 1 - LAST_EPOCHS, 0)
    return {
        "rows": tuned.shape[1],
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
    start: Start, cell: Cell, answers: Mapping[str, Predictions], shared: Mapping[str, Any]
) -> dict[str, Any]:
    """The entry of one cell from its answers to the three splits."""
    counts = {split: runner.changes(start, answers[split], split) for split in SPLITS}
    accuracy = {split: float(answers[split].correct.double().mean()) for split in SPLITS}
    return {
        **asdict(cell),
        **start.facts,
        **{split: {"accuracy": accuracy[split], **measures(counts[split])} for split in SPLITS},
        "changes": {split: counts[split] for split in COUNTED},
        "standard_error": {split: standard_error(counts[split]) for split in COUNTED},
        **shared,
    }


def trained_row(
    start: Start, cell: Cell, fitted: Fitted, recipe: Recipe, shared: Mapping[str, Any]
) -> dict[str, Any]:
    constraint = constraint_of(fitted.run.method, start, fitted.predictions)
    own = {
        "multiplier_sum": fitted.history[-1]["multiplier_sum"],
        "multipliers": multipliers_of(fitted.multipliers, recipe.pruning_epochs),
        "constraint": constraint,
        "negative_weights": sum(row["negative_weights"] for row in fitted.history),
        "kept_epoch": fitted.kept_epoch,
    }
    return row_of(start, cell, fitted.predictions, own | dict(shared))


def bias_row(
    start: Start, cell: Cell, fitted: Fitted, where: Where, recipe: Recipe, shared: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Predictions]]:
    """A class bias fitted to a finished run on the held-out split; seconds: the run's and the fit's."""
    assert cell.tolerance is not None
    began = time.perf_counter()
    precision = recipe.on(where.device).precision
    splits = start.data.evaluate
    model = fitted.model.to(where.device)
    logits = {
        n: logits_of(model, s, where.device, recipe.evaluate_batch, precision) for n, s in splits.items()
    }
    model.cpu()
    held = splits["heldout"]
    same = all(bool((s.labels == s.groups).all()) for s in splits.values())
    units = (
        None if same else class_bias.units_of(held.labels, held.groups, classes=logits["heldout"].shape[1])
    )
    found = class_bias.fit(
        logits["heldout"],
        held.labels,
        held.groups,
        start.answers["heldout"].correct,
        tolerance=cell.tolerance,
        units=units,
    )
    answers = {name: _answers(splits[name], logits[name], found) for name in SPLITS}
    spent = time.perf_counter() - began
    own = {
        **dict.fromkeys(("multiplier_sum", "multipliers", "constraint")),
        "negative_weights": 0,
        "kept_epoch": fitted.kept_epoch,
        **shared,
        "seconds": round(shared["seconds"] + spent, 3),
        "fit_seconds": round(spent, 3),
        "moved_classes": int((found.bias - found.bias.median()).abs().gt(1e-7).sum()),
    }
    return row_of(start, cell, answers, own), answers


@torch.no_grad()
def logits_of(
    model: nn.Module, split: Split, device: torch.device, batch: int, precision: Precision
) -> Tensor:
    """[N, classes] on the CPU, in the precision of the runs."""
    there = split.to(device, inputs=False)
    with evaluating(model), autocast(device, precision):
        parts = torch.split(torch.arange(len(split), device=device), batch)
        return torch.cat([model(there.at(index)).float().cpu() for index in parts])


def _answers(split: Split, logits: Tensor, found: class_bias.ClassBias) -> Predictions:
    moved = class_bias.biased(logits, found.bias)
    losses = cross_entropies(moved.unsqueeze(0), split.labels.cpu().unsqueeze(0))[0]
    return Predictions(split.labels.cpu(), moved.argmax(1), split.groups.cpu(), losses)


def shared_of(trained: Trained, cells: Sequence[Cell], recipe: Recipe, where: Where) -> dict[str, Any]:
    return {
        "seconds": round(trained.seconds, 3),
        "resumed": trained.resumed,
        "fleet": len(cells),
        "importance_batches": recipe.importance_batches,
        "versions": runner.versions(where.device),
        "commit": where.commit,
    }


# --- right and wrong, a bit a sample ---


def packed(right: Tensor | NDArray[np.bool_]) -> str:
    """Right and wrong answers as text: eight samples a byte, base64."""
    return base64.b64encode(np.packbits(np.asarray(right, dtype=bool)).tobytes()).decode()


def unpacked(text: str, samples: int) -> NDArray[np.bool_]:
    bits = np.unpackbits(np.frombuffer(base64.b64decode(text), dtype=np.uint8), count=samples)
    return bits.astype(bool)
