"""What FairGRAPE costs on the CPU: MobileNetV2, 2,188,896 prunable weights, 5 groups.

scores      seconds a mini-batch of 64 images of 128 × 128 pixels, three ways that give the same scores: ours
            (cut by group: every sample goes forward and backward once); one forward with a backward per
            group; a forward and a backward per group, as in the published code. The medians of turns.
selection   the exact greedy rule (sorting, greedy loop), the fast rule, and the plain Python twin on the same
            importances; the twin must choose the same weights, all 2,188,896 of them at once
agreement   of the fast rule with the exact one: of the whole mask (two masks at 92.5 % sparsity that share
            nothing still agree on 85 %), and of the weights that the exact rule keeps

Groups are the labels and as unequal as the races of UTKFace; images are a pattern per label in noise, and the
network has learned from a few batches of them, so that the groups' importances differ. Times are CPU time of
one thread. What the whole procedure costs, training included, is measured by fairgrape_procedure.py.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from evenprune import fairgrape
from evenprune.importance import Batch, Importance, group_importance
from evenprune.masks import Masks, pruned_count
from tests.twins import fairgrape as twin

GROUPS, BATCH, PIXELS = 5, 64, 128
SHARES = (10_078, 4_526, 3_434, 3_975, 1_692)  # UTKFace: images of each race
SCORED, LEARNED, TURNS = 4, 12, 3  # mini-batches that are scored, and learned from; turns of each way
SPARSITIES = (0.85, 0.9, 0.925)


def seconds(action: Callable[[], Any]) -> float:
    """CPU time of this process: what other programs do meanwhile does not count."""
    start = time.process_time()
    action()
    return time.process_time() - start


def middle(action: Callable[[], Any], repeats: int = 3) -> float:
    return statistics.median(seconds(action) for _ in range(repeats))


def batch(size: int, seed: int) -> Batch:
    """Images of one pattern per label, in noise; the group is the label."""
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.randn(GROUPS, 3, 8, 8, generator=torch.Generator().manual_seed(99))
    labels = torch.multinomial(torch.tensor(SHARES).float(), size, replacement=True, generator=generator)
    coarse = functional.interpolate(patterns[labels], PIXELS, mode="nearest")
    images = coarse + 2 * torch.randn(size, 3, PIXELS, PIXELS, generator=generator)
    return images, labels, labels


def learned() -> nn.Module:
    """MobileNetV2 after a few steps, statistics of its norms included."""
    from evenprune.models.mobilenet_v2 import mobilenet_v2

    torch.manual_seed(0)
    model = mobilenet_v2(GROUPS).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(LEARNED):
        images, labels, _ = batch(BATCH // 2, seed=1_000 + step)
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model.eval()


def whole_batch(model: nn.Module, masks: Masks, one: Batch, *, forwards: int) -> list[tuple[Tensor, ...]]:
    """Gradients per group with the batch in one piece: one forward in all, or one forward per group."""
    images, labels, groups = one
    weights = [model.get_parameter(layer.name) for layer in masks.layers]
    found, losses = [], torch.zeros(0)
    for group in range(GROUPS):
        if group == 0 or forwards > 1:
            losses = functional.cross_entropy(model(images), labels, reduction="none")
        mean = losses[groups == group].mean()
        found.append(torch.autograd.grad(mean, weights, retain_graph=forwards == 1))
    return found


def score_seconds(model: nn.Module, masks: Masks) -> dict[str, float]:
    """Seconds a mini-batch, by way of doing it; the ways take turns."""
    one = batch(BATCH, seed=0)
    weights = [model.get_parameter(layer.name) for layer in masks.layers]
    ways: dict[str, Callable[[], object]] = {
        "gradients without groups": lambda: torch.autograd.grad(
            functional.cross_entropy(model(one[0]), one[1]), weights
        ),
        "ours": lambda: group_importance(model, masks, [one], groups=GROUPS),
        "one forward, a backward per group": lambda: whole_batch(model, masks, one, forwards=1),
        "a forward and a backward per group": lambda: whole_batch(model, masks, one, forwards=GROUPS),
    }
    turns = [{way: seconds(action) for way, action in ways.items()} for _ in range(TURNS)]
    return {way: statistics.median(turn[way] for turn in turns) for way in ways}


def selection(importance: Importance, masks: Masks) -> list[dict[str, Any]]:
    """Seconds and agreement for every sparsity and scope."""
    rows = []
    for scope in ("layer", "global"):
        for sparsity in SPARSITIES:
            exact = _masks(masks, fairgrape.exact_scores(importance, masks, sparsity, scope=scope))
            fast = _by_score(masks, fairgrape.fast_scores(importance, scope=scope), sparsity, scope)
            rows.append(
                {
                    "scope": scope,
                    "sparsity": sparsity,
                    "exact_seconds": middle(
                        lambda s=sparsity, c=scope: fairgrape.exact_scores(importance, masks, s, scope=c)
                    ),
                    "fast_seconds": middle(lambda c=scope: fairgrape.fast_scores(importance, scope=c)),
                    "mask_agreement": float((exact == fast).double().mean()),
                    "kept_agreement": float((exact & fast).sum() / exact.sum()),
                }
            )
    return rows


def _masks(masks: Masks, scores: dict[str, Tensor]) -> Tensor:
    return torch.cat([scores[layer.name].flatten() for layer in masks.layers]) > 0


def _by_score(masks: Masks, scores: dict[str, Tensor], sparsity: float, scope: Any) -> Tensor:
    """What Masks.prune_ leaves, as one flat tensor."""
    from evenprune.models.mobilenet_v2 import mobilenet_v2

    model = mobilenet_v2(GROUPS)
    own = Masks.of(model)
    own.prune_(model, sparsity, scope=scope, scores=scores)
    return torch.cat([own[layer.name].flatten() for layer in own.layers])


def parts(importance: Importance, sparsity: float) -> dict[str, Any]:
    """All weights in one selection, part by part; and the plain twin on the same importances."""
    values = torch.cat([tensor[0].flatten(1) for tensor in importance.values()], 1).numpy()
    keep = values.shape[1] - pruned_count(sparsity, values.shape[1])
    alive = torch.ones(values.shape[1], dtype=torch.bool)
    tensor, rows = torch.from_numpy(values), values.tolist()
    best = np.stack([fairgrape._best(row, keep) for row in values])
    by_weight, greedy = np.ascontiguousarray(values.T), fairgrape._compiled_greedy()
    plain: list[list[bool]] = []
    twin_seconds = seconds(lambda: plain.append(twin.kept(rows, [True] * len(alive), keep)))
    ours = fairgrape.select(tensor, alive, keep)
    return {
        "weights": values.shape[1],
        "kept": keep,
        "sparsity": sparsity,
        "exact_seconds": middle(lambda: fairgrape.select(tensor, alive, keep)),
        "sort_seconds": middle(lambda: [fairgrape._best(row, keep) for row in values]),
        "greedy_seconds": middle(lambda: greedy(by_weight, best)),
        "longest_seconds": middle(lambda: fairgrape.select(tensor, alive, len(alive) - 1), 1),
        "twin_seconds": twin_seconds,
        "same_as_twin": plain[0] == ours.tolist(),
    }


def compile_seconds() -> float:
    fairgrape._compiled_greedy.cache_clear()
    return seconds(lambda: fairgrape._compiled_greedy()(np.ones((3, 2)), np.zeros((2, 1), dtype=np.int64)))


def run() -> dict[str, Any]:
    """Everything above."""
    torch.set_num_threads(1)
    compiling = compile_seconds()
    model = learned()
    masks = Masks.of(model)
    scoring = score_seconds(model, masks)
    importance = group_importance(model, masks, [batch(BATCH, i) for i in range(SCORED)], groups=GROUPS)
    return {
        "benchmark": "fairgrape",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "batch": BATCH,
        "scored_batches": SCORED,
        "compile_seconds": compiling,
        "score_seconds_a_batch": scoring,
        "selection": selection(importance, masks),
        "all_weights_at_once": parts(importance, 0.85),
    }


def table(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """What was measured, the figure, and the aim."""
    scoring, alone = figures["score_seconds_a_batch"], figures["all_weights_at_once"]
    rows = [
        (f"scores, s a batch of {figures['batch']}: {way}", f"{value:.2f}", "")
        for way, value in scoring.items()
    ]
    rows += [
        (
            "exact selection, 2,188,896 weights × 5 groups at once, 85 %",
            f"{alone['exact_seconds']:.2f} s",
            "≤ 3 s",
        ),
        ("  sorting", f"{alone['sort_seconds']:.2f} s", ""),
        ("  greedy loop", f"{alone['greedy_seconds']:.2f} s", ""),
        ("  keeping all weights but one", f"{alone['longest_seconds']:.2f} s", "≤ 3 s"),
        ("  compilation, once a process", f"{figures['compile_seconds']:.2f} s", ""),
        ("  the plain Python twin", f"{alone['twin_seconds']:.2f} s", ""),
        ("  chooses the same weights as the twin", "yes" if alone["same_as_twin"] else "NO", "yes"),
    ]
    for row in figures["selection"]:
        what = f"{row['scope']}, {row['sparsity']:.1%}"
        times = f"{row['exact_seconds']:.2f} s, {row['fast_seconds']:.2f} s"
        rows.append((f"exact, fast rule: {what}", times, ""))
        agreement = f"{row['mask_agreement']:.2%}, {row['kept_agreement']:.1%}"
        rows.append(("  they agree on: the mask, what is kept", agreement, "99 % of the mask"))
    return rows
