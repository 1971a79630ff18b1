"""A loop on random images, ready to be stepped and timed: what the benchmarks of training on a GPU share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from evenprune import methods
from evenprune.fleet import single, widen
from evenprune.loop import Loop, advance, begin_epoch, build, draw_epoch
from evenprune.masks import Masks
from evenprune.recipe import Recipe, Run, Split
from evenprune.reference import DenseReference

EPOCH = 15  # the first one after pruning: the constraints act


def images(samples: int, *, side: int, classes: int, device: torch.device) -> Split:
    """Random images; the groups are the classes."""
    generator = torch.Generator(device).manual_seed(0)
    pixels = torch.randint(
        0, 256, (samples, 3, side, side), dtype=torch.uint8, device=device, generator=generator
    )
    labels = torch.arange(samples, device=device) % classes
    half = torch.full((3,), 0.5, device=device)
    return Split(pixels, labels, labels, half, half / 2)


def reference(samples: int, classes: int) -> DenseReference:
    """A dense model that is always right."""
    each = torch.full((classes,), samples / classes, dtype=torch.float64)
    names = tuple(str(group) for group in range(classes))
    return DenseReference(names, each, each, 0 * each, float(samples), float(samples), 0.0)


def new_loop(model: nn.Module, runs: int, recipe: Recipe, train: Split, *, classes: int) -> Loop:
    """CEAG, 92.5 % sparse, on the device of the samples; widened if the recipe captures a graph."""
    device = train.labels.device
    sample = torch.zeros(4, *train.inputs.shape[1:])
    network = widen(model, runs, sample_input=sample, check=False) if recipe.graph else single(model)
    if recipe.channels_last:
        network.to(memory_format=torch.channels_last)
    network.to(device).train()
    method = methods.ceag(tolerance=0.02, negative="keep")
    members = [Run(method=method, sparsity=0.925, seed=seed) for seed in range(runs)]
    masks = Masks.of(network, runs=runs).to(device)
    dense = reference(len(train), classes)
    return build(network, runs=members, recipe=recipe, train=train, reference=dense, masks=masks)


def begin(loop: Loop) -> None:
    """Prune, and draw the epoch that will be stepped through."""
    begin_epoch(loop, EPOCH - 1)
    draw_epoch(loop, EPOCH, 0)


def steps(loop: Loop, count: int) -> None:
    for step in range(count):
        advance(loop, step, epoch=EPOCH)


def seconds(work: Callable[[], Any]) -> float:
    """Until the device has done it."""
    _wait()
    start = time.perf_counter()
    work()
    _wait()
    return time.perf_counter() - start


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
