"""What the whole of FairGRAPE costs: MobileNetV2, 18,964 training images of 128 px (UTKFace's), five groups.

scores         one pruning: the importance of every weight for every group, over all training images
  whole batch  the same with every batch left whole, a forward and a backward per group, as the published code
               has it; from a few batches
selection      of one pruning, within layers, by the exact greedy rule and by the fast one; of the first one,
               which keeps 97.5 % of the weights: the more are kept, the longer it takes
epoch          of training, flips included; and an evaluation of 4,741 test images
hours          prunings · (scores + selection) + epochs · (training + evaluation) + compilation, by two
               schedules:
  published    the published code's for UTKFace: each pruning leaves 97.5 % of the weights, down to 10 %, and
               three epochs follow it; 19 epochs before the first and 19 after the last one
  gradual      that of the methods of this project: the sparsity rises in the first 15 of 60 epochs
ratio          the paper's "more than 90 hours" (the published code, UTKFace, race, on an A100) over these

The paper does not say with which settings its 90 hours were spent. The published code's own are 224 px,
batches of 64 and four groups, and the CPU decodes and augments every image at every pass. So the ratio is one
of whole programs on different GPUs, not of the method alone; "whole batch" shows what the cut by group does.

On a GPU a whole epoch is timed. On a CPU a few batches are, and the rest is extrapolated; both are said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from benchmarks.fairgrape import GROUPS, PIXELS, SHARES, whole_batch
from benchmarks.gpu import HEADINGS as HEADINGS  # newest, and the one before
from benchmarks.gpu import WARM_UP, told
from benchmarks.gpu_loop import EPOCH, caches, images, new_loop, seconds, steps
from evenprune import fairgrape, methods
from evenprune.augment import Flip
from evenprune.importance import MiniBatches, group_importance
from evenprune.loop import Loop, draw_epoch
from evenprune.masks import Masks, schedule
from evenprune.models import mobilenet_v2
from evenprune.predict import Answers, autocast, evaluating
from evenprune.recipe import Recipe, Split

TRAINING_IMAGES, TEST_IMAGES = 18_964, 4_741  # four fifths and one fifth of UTKFace
PAPER_HOURS = 90  # and more
SPARSITY, KEPT = 0.9, 0.975  # in the end, and of what is left at each pruning
FEW = 2  # batches that are timed on a CPU
WHOLE_BATCHES = 5  # timed with every batch left whole, at the most
Figures = dict[str, Any]


@dataclass(frozen=True)
class Schedule:
    prunings: int
    epochs: int


def schedules(sparsity: float = SPARSITY) -> dict[str, Schedule]:
    """How often scores are measured and how long is trained, by the two schedules above."""
    times = math.ceil(math.log(1 - sparsity) / math.log(KEPT))
    rises = sum(schedule(epoch, final=sparsity, last=14) > 0 for epoch in range(15))
    return {"published": Schedule(times, 19 + 3 * times + 19), "gradual": Schedule(rises, 60)}


def faces(samples: int, *, side: int, device: torch.device) -> Split:
    """Random images; the groups are the labels, as unequal as the races of UTKFace."""
    made = images(samples, side=side, classes=GROUPS, device=device)
    shares, generator = torch.tensor(SHARES).float(), torch.Generator().manual_seed(0)
    labels = torch.multinomial(shares, samples, replacement=True, generator=generator).to(device)
    return replace(made, labels=labels, groups=labels)


def measured(
    make: Callable[[], nn.Module], recipe: Recipe, train: Split, test: Split, *, images: int, tests: int
) -> Figures:
    """Seconds of each part for so many training and test images, extrapolated where there are fewer."""
    method = methods.fairgrape()
    loop = new_loop(make(), 1, recipe, train, classes=GROUPS, method=method)
    batches = images // recipe.batch_size
    most = batches / loop.steps  # how often what is timed is in an epoch
    figures = pruning_seconds(loop)
    figures["scores_s"] *= most
    figures["whole_batch_scores_s"] = batches * whole_batch_seconds(make(), recipe, train)
    draw_epoch(loop, EPOCH, 0)
    compilation = seconds(lambda: steps(loop, min(WARM_UP, loop.steps)))
    loop.now.place.zero_()
    figures["training_s"] = most * seconds(lambda: steps(loop, loop.steps))
    answers = Answers(loop.network, test, recipe)
    compilation += seconds(answers)
    figures["evaluation_s"] = tests / len(test) * min(seconds(answers) for _ in range(2))
    figures["compilation_s"] += compilation
    return figures | {"timed_batches": loop.steps, "batches": batches, "batch": recipe.batch_size}


def pruning_seconds(loop: Loop) -> Figures:
    """One pruning as the loop does it, and what its first call costs beyond that."""
    size, groups, precision = loop.recipe.batch_size, loop.plan.groups, loop.recipe.precision

    def scored(count: int | None) -> dict[str, torch.Tensor]:
        few = MiniBatches(loop.train, size=size, count=count)
        return group_importance(loop.network, loop.masks, few, groups=groups, precision=precision)

    def chosen(by: fairgrape.Criterion) -> dict[str, torch.Tensor]:
        return fairgrape.scores(loop.network, loop.masks, importance, 1 - KEPT, by=by)

    first = seconds(lambda: scored(None))  # groups come in many sizes, each with kernels of its own
    found: list[Any] = []
    every = seconds(lambda: found.append(scored(None)))
    importance = found[0]
    rule: fairgrape.Criterion = "fairgrape" if find_spec("numba") else "fairgrape_fast"
    first = max(first - every, 0) + seconds(lambda: chosen(rule))
    taken, fast = (min(seconds(lambda b=by: chosen(b)) for _ in range(3)) for by in (rule, "fairgrape_fast"))
    best = chosen(rule)
    cut = seconds(lambda: loop.masks.prune_(loop.network, 1 - KEPT, scores=best))
    return {
        "scores_s": every,
        "selection_s": taken + cut,
        "selection": "exact" if rule == "fairgrape" else "fast (numba is not installed)",
        "fast_selection_s": fast + cut,
        "compilation_s": first,
    }


def whole_batch_seconds(model: nn.Module, recipe: Recipe, train: Split) -> float:
    """Scores of one batch by a forward and a backward of all of it for each group: the fastest of a few."""
    device = train.labels.device
    model.to(device)
    masks = Masks.of(model)
    few = MiniBatches(train, size=recipe.batch_size, count=WHOLE_BATCHES)
    with evaluating(model), autocast(device, recipe.precision):
        return min(seconds(lambda b=one: whole_batch(model, masks, b, forwards=GROUPS)) for one in few)


def whole(parts: Figures, plan: Schedule) -> Figures:
    """Hours of a procedure by its parts, and the paper's hours over theirs."""
    each = {
        "scores": plan.prunings * parts["scores_s"],
        "selection": plan.prunings * parts["selection_s"],
        "training": plan.epochs * parts["training_s"],
        "evaluation": plan.epochs * parts["evaluation_s"],
        "compilation": parts["compilation_s"],
    }
    hours = sum(each.values()) / 3600
    return {
        "prunings": plan.prunings,
        "epochs": plan.epochs,
        "hours": hours,
        "ratio": PAPER_HOURS / hours,
        "parts": {name: value / 3600 for name, value in each.items()},
    }


def run() -> Iterator[Figures]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gpu, before = device.type == "cuda", caches()
    torch.manual_seed(0)
    recipe = Recipe(augment=Flip(), evaluate_batch=256).on(device)
    few = FEW * recipe.batch_size
    train, test = (
        faces(count if gpu else few, side=PIXELS, device=device) for count in (TRAINING_IMAGES, TEST_IMAGES)
    )
    parts = measured(
        lambda: mobilenet_v2(GROUPS), recipe, train, test, images=TRAINING_IMAGES, tests=TEST_IMAGES
    )
    yield {
        "device": torch.cuda.get_device_name(device) if gpu else f"CPU, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "caches": before,
        "extrapolated": parts["timed_batches"] < parts["batches"],
        **parts,
        "procedures": {name: whole(parts, plan) for name, plan in schedules().items()},
        "paper_hours": PAPER_HOURS,
    }


LINES = (
    ("device", "{device}, torch {torch}"),
    ("commit, date", "{commit}, {date}"),
    ("batches of {batch} that were timed", "{timed_batches} of {batches}"),
    ("one pruning: scores", "{scores_s:.2f} s"),
    ("  with every batch left whole", "{whole_batch_scores_s:.2f} s"),
    ("one pruning: selection, {selection}", "{selection_s:.2f} s"),
    ("  fast selection", "{fast_selection_s:.2f} s"),
    ("an epoch of training", "{training_s:.2f} s"),
    ("an evaluation", "{evaluation_s:.2f} s"),
    ("first calls: compilation, capture", "{compilation_s:.1f} s"),
)
OF_A_PROCEDURE = (
    ("{name}: {prunings} prunings, {epochs} epochs", "{hours:.2f} h"),
    ("  the paper's 90 h, and more, over it", "{ratio:.1f} ×"),
    ("  scores, selection", "{parts[scores]:.2f} h, {parts[selection]:.2f} h"),
    ("  training, evaluation", "{parts[training]:.2f} h, {parts[evaluation]:.2f} h"),
)


def table(measurements: Sequence[Figures]) -> list[tuple[str, str, str, str]]:
    """The newest measurement beside the one before."""
    newest, before = measurements[-1], measurements[-2] if len(measurements) > 1 else {}
    rows = [(told(what, newest), told(text, newest), told(text, before), "") for what, text in LINES]
    for name, plan in newest["procedures"].items():
        other = before.get("procedures", {}).get(name, {})
        for what, text in OF_A_PROCEDURE:
            rows.append((told(what, plan | {"name": name}), *(told(text, one) for one in (plan, other)), ""))
    words = ("extrapolated" if one.get("extrapolated") else "" for one in (newest, before))
    return [*rows, ("hours are from the parts above", *words, "")]
