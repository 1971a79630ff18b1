"""FairGRAPE (Lin et al. 2022): keep the weights that leave every group its share of the importance.

exact   the greedy selection. The target of a group is its share of the total importance. The group with the
        largest deficit (target − its share of what has been kept so far) takes its next-best weight that is
        not kept yet, which is credited to all groups; again, until as many are kept as shall be.
fast    the one-line rule: keep the highest max_g I_g(w) / Σ_w I_g(w).

Ties: of equal deficits the first group's, of equal importances the first weight; a share of nothing is 0.
The selection is nested: what is kept with a smaller budget is also kept with a larger one.
Both are done within each layer, or (scope="global") over all layers at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from numbers import Integral
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from evenprune.importance import Batch, Importance, group_importance
from evenprune.masks import Masks, Scope, Sparsity, pruned_count, sparsity_per_run

Criterion = Literal["magnitude", "fairgrape", "fairgrape_fast"]
Floats = NDArray[np.float64]
Places = NDArray[np.int64]


def select(importance: Tensor, alive: Tensor, keep: int) -> Tensor:
    """Which weights stay, by the exact greedy rule. Importance [groups, n]; alive and result [n]."""
    if importance.ndim != 2 or importance.shape[1:] != alive.shape:
        raise ValueError(
            f"Importance has the shape {list(importance.shape)} and alive {list(alive.shape)}: give "
            "[groups, weights] and [weights]."
        )
    living = alive.cpu().numpy()
    count = int(np.count_nonzero(living))
    if not 0 <= keep <= count:
        raise ValueError(f"keep = {keep} of {count} living weights: give 0 … {count}.")
    stay = living.copy() if keep else np.zeros_like(living)
    if 0 < keep < count:
        values = importance.detach().double().cpu().numpy()
        stay[living] = _selected(values if count == len(living) else values[:, living], keep)
    return torch.from_numpy(stay).to(alive.device)


def _selected(values: Floats, keep: int) -> NDArray[np.bool_]:
    """The same for weights that all live: [groups, n] -> [n]"""
    if not (values.min() >= 0 and np.isfinite(values.sum())):
        raise ValueError("Importances must not be negative, and their sum must be finite.")
    best = np.stack([_best(row, keep) for row in values])  # [groups, keep]
    return _compiled_greedy()(np.ascontiguousarray(values.T), best)


def _best(values: Floats, count: int) -> Places:
    """The places of the `count` highest values, from the highest down; of equals, the first place first.

    No group looks further than this: ahead of its next weight are only weights that are kept already.
    """
    last = np.partition(values, len(values) - count)[len(values) - count]
    above = np.flatnonzero(values > last)
    equal = np.flatnonzero(values == last)[: count - len(above)]
    return np.concatenate([above[_descending(values[above])], equal])


def _descending(values: Floats) -> Places:
    """A stable argsort from the highest down: the fast one, with the order of equals put right."""
    order = np.argsort(-values)
    ranked = values[order]
    tied = np.zeros(len(order), dtype=np.bool_)
    tied[1:] = ranked[1:] == ranked[:-1]
    tied[:-1] |= tied[1:]
    equals = order[tied]
    order[tied] = equals[np.lexsort((equals, -ranked[tied]))]
    return order


def _greedy(values: Floats, best: Places) -> NDArray[np.bool_]:
    """The greedy rule: values [n, groups] and best [groups, keep] -> [n]. Sums run from first to last."""
    weights, groups = values.shape
    target, held = np.zeros(groups), np.zeros(groups)
    place = np.zeros(groups, dtype=np.int64)
    kept = np.zeros(weights, dtype=np.bool_)
    everything, total = 0.0, 0.0
    for weight in range(weights):
        for group in range(groups):
            target[group] += values[weight, group]
    for group in range(groups):
        everything += target[group]
    for group in range(groups):
        target[group] = target[group] / everything if everything > 0 else 0.0
    for _ in range(best.shape[1]):
        neediest, largest = 0, -np.inf
        for group in range(groups):
            deficit = target[group] - (held[group] / total if total > 0 else 0.0)
            if deficit > largest:
                neediest, largest = group, deficit
        while kept[best[neediest, place[neediest]]]:
            place[neediest] += 1
        weight = best[neediest, place[neediest]]
        kept[weight] = True
        total = 0.0
        for group in range(groups):
            held[group] += values[weight, group]
            total += held[group]
    return kept


@functools.cache
def _compiled_greedy() -> Callable[[Floats, Places], NDArray[np.bool_]]:
    """Compiled at the first call (about a second); plain IEEE arithmetic, no fused or reordered sums."""
    try:
        import numba
    except ImportError as error:
        raise ImportError(
            f"The exact FairGRAPE selection needs {error.name}: pip install 'evenprune[fairgrape]'. "
            "fairgrape_fast does without."
        ) from error
    compiled: Callable[[Floats, Places], NDArray[np.bool_]] = numba.njit(nogil=True)(_greedy)
    return compiled


def check_numba() -> None:
    """Raise now, not in the middle of a training, if what the exact selection needs is missing."""
    _compiled_greedy()


def fast_scores(importance: Importance, *, scope: Scope = "layer") -> dict[str, Tensor]:
    """max_g I_g(w) / ΣI_g per weight, the sum over its layer or over all layers; for Masks.prune_."""
    sums = {name: values.flatten(2).sum(2) for name, values in importance.items()}  # [runs, groups]
    if scope == "global":
        sums = dict.fromkeys(sums, torch.stack(list(sums.values())).sum(0))
    return {name: _largest_share(values, sums[name]) for name, values in importance.items()}


def _largest_share(values: Tensor, sums: Tensor) -> Tensor:
    """[runs, groups, …] and [runs, groups] -> [runs, …]; a share of nothing is 0."""
    along = sums.view(*sums.shape, *[1] * (values.ndim - 2))
    return torch.where(along > 0, values / along, 0.0).amax(1)


def exact_scores(
    importance: Importance, masks: Masks, sparsity: Sparsity, *, scope: Scope = "layer"
) -> dict[str, Tensor]:
    """1 for what the greedy selection keeps at this sparsity, 0 for all other weights; for Masks.prune_."""
    names = [layer.name for layer in masks.layers]
    units = [names] if scope == "global" else [[name] for name in names]
    wanted = sparsity_per_run(sparsity, masks.runs)
    tasks = [(unit, run) for unit in units for run in range(masks.runs)]

    def one(task: tuple[list[str], int]) -> Tensor:
        unit, run = task
        values = torch.cat([importance[name][run].flatten(1) for name in unit], dim=1)
        alive = torch.cat([_of_run(masks[name], run, masks.runs) for name in unit])
        return select(values, alive, alive.numel() - pruned_count(wanted[run], alive.numel()))

    _compiled_greedy()  # one for all threads
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # sorting and the loop leave the GIL
        chosen = list(pool.map(one, tasks))
    scores = {name: torch.zeros_like(importance[name][:, 0]) for name in names}
    for (unit, run), stay in zip(tasks, chosen, strict=True):
        parts = torch.split(stay, [scores[name][run].numel() for name in unit])
        for name, part in zip(unit, parts, strict=True):
            scores[name][run].copy_(part.view(scores[name][run].shape))
    return scores


def _of_run(mask: Tensor, run: int, runs: int) -> Tensor:
    return mask.reshape(runs, -1)[run]


def _magnitudes(model: nn.Module, masks: Masks) -> dict[str, Tensor]:
    """|w|, as Masks.prune_ has it by itself."""
    return {
        layer.name: model.get_parameter(layer.name).detach().abs().double().reshape(masks.runs, *layer.shape)
        for layer in masks.layers
    }


def scores(
    model: nn.Module,
    masks: Masks,
    importance: Importance,
    sparsity: Sparsity,
    *,
    by: Criterion | Sequence[Criterion],
    scope: Scope = "layer",
) -> dict[str, Tensor]:
    """Scores for Masks.prune_ at this sparsity; one criterion for all runs, or one per run."""
    each = _criteria(by, masks.runs)
    ways: dict[Criterion, Callable[[], dict[str, Tensor]]] = {
        "magnitude": lambda: _magnitudes(model, masks),
        "fairgrape": lambda: exact_scores(importance, masks, sparsity, scope=scope),
        "fairgrape_fast": lambda: fast_scores(importance, scope=scope),
    }
    found = {criterion: ways[criterion]() for criterion in dict.fromkeys(each)}
    return {
        layer.name: torch.stack([found[criterion][layer.name][run] for run, criterion in enumerate(each)])
        for layer in masks.layers
    }


def _criteria(by: Criterion | Sequence[Criterion], runs: int) -> list[Criterion]:
    """One per run."""
    each: list[Criterion] = [by] * runs if isinstance(by, str) else list(by)
    known = get_args(Criterion)
    if len(each) != runs or set(each) - set(known):
        raise ValueError(f"by = {by!r}: give one of {', '.join(known)} for all {runs} runs, or one per run.")
    return each


def prune_in_steps_(
    model: nn.Module,
    masks: Masks,
    batches: Iterable[Batch],
    *,
    groups: int,
    sparsity: Sparsity,
    steps: int,
    by: Criterion | Sequence[Criterion] = "fairgrape",
    scope: Scope = "layer",
    between: Callable[[], object] | None = None,
) -> None:
    """Prune to the final sparsity in steps; each takes the same share of what is left, by fresh scores.

    `batches` are gone through once a step: a list, a DataLoader, MiniBatches. `between` is called after each
    step, the last one included, to fine-tune.
    """
    whole = isinstance(steps, Integral) and steps >= 1
    problems = [] if whole else [f"steps = {steps}: give a whole number of at least 1."]
    if iter(batches) is batches:
        problems.append(
            f"batches is a {type(batches).__name__}, which can be gone through once, not once a step: give a "
            "list, a DataLoader or MiniBatches."
        )
    if problems:
        raise ValueError(" ".join(problems))
    masks.check_reachable(sparsity, scope=scope)
    if "fairgrape" in _criteria(by, masks.runs):
        check_numba()
    final, start = sparsity_per_run(sparsity, masks.runs), masks.sparsity.tolist()
    for step in range(1, steps + 1):
        wanted = [step_sparsity(step, steps, initial=s, final=f) for s, f in zip(start, final, strict=True)]
        importance = group_importance(model, masks, batches, groups=groups)
        chosen = scores(model, masks, importance, wanted, by=by, scope=scope)
        masks.prune_(model, wanted, scope=scope, scores=chosen)
        if between is not None:
            between()


def step_sparsity(step: int, steps: int, *, initial: float, final: float) -> float:
    """1 − (1 − s_0)((1 − s_f)/(1 − s_0))^(i/n): the same share of what is left goes in every step."""
    if step >= steps:
        return final
    left: float = (1 - initial) * ((1 - final) / (1 - initial)) ** (step / steps)
    return 1 - left
