"""A loop on random images, ready to be stepped and timed: what the benchmarks of training on a GPU share."""

from __future__ import annotations

import gc
import getpass
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

from evenprune import methods
from evenprune.fleet import single, widen
from evenprune.loop import Loop, advance, begin_epoch, build, draw_epoch, forward
from evenprune.masks import Masks
from evenprune.method import Method
from evenprune.recipe import Recipe, Run, Split
from evenprune.reference import DenseReference

EPOCH = 15  # the first one after pruning: the constraints act
LONGEST_NAME = 120  # of a kernel


def the_gpu() -> torch.device:
    if not torch.cuda.is_available():
        raise SystemExit(
            "This benchmark needs a CUDA device: run it on a machine with an NVIDIA GPU; "
            "`make bench` is for CPUs."
        )
    return torch.device("cuda")


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


def new_loop(
    model: nn.Module,
    runs: int,
    recipe: Recipe,
    train: Split,
    *,
    classes: int,
    method: Method | None = None,
) -> Loop:
    """CEAG unless told, 92.5 % sparse, where the samples are; widened if the recipe captures a graph."""
    device = train.labels.device
    sample = torch.zeros(4, *train.inputs.shape[1:])
    network = widen(model, runs, sample_input=sample, check=False) if recipe.graph else single(model)
    if recipe.channels_last:
        network.to(memory_format=torch.channels_last)
    network.to(device).train()
    method = method or methods.ceag(tolerance=0.02, negative="keep")
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


def is_compiled(loop: Loop) -> bool:
    """By torch.compile; where Recipe.compile leaves it open, the network decides."""
    return loop.parts.forward is not forward


# --- time ---


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


def busiest(loop: Loop, count: int) -> list[dict[str, Any]]:
    """Kernels by the time that they take: µs and calls of one step, of `count` steps of a warm loop.

    Those within a replayed CUDA graph are seen as well. Without a GPU: torch's operations.
    """
    gpu = loop.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
    loop.now.place.zero_()
    with torch.profiler.profile(activities=activities) as profiler:
        seconds(lambda: steps(loop, count))
    total = "self_device_time_total" if gpu else "self_cpu_time_total"
    found = [
        {
            "kernel": event.key[:LONGEST_NAME],
            "us": round(getattr(event, total) / count, 2),
            "calls": event.count / count,
        }
        for event in profiler.key_averages()
        if event.device_type == (DeviceType.CUDA if gpu else DeviceType.CPU) and not event.is_user_annotation
    ]
    return sorted(found, key=lambda row: -row["us"])


# --- memory ---


def forget() -> int:
    """Free what earlier loops held, which refer to themselves, and begin a new peak; returns what is held."""
    gc.collect()
    if not torch.cuda.is_available():
        return 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def peak_gib(name: str = "peak_gib", *, beyond: int = 0) -> dict[str, float]:
    """The most memory that was held since `forget`, less what is not to be counted; nothing without a GPU."""
    if not torch.cuda.is_available():
        return {}
    return {name: (torch.cuda.max_memory_allocated() - beyond) / 2**30}


def ran_out(error: BaseException | None) -> bool:
    """Whether the device had too little memory: torch says so, or what torch's error became on its way."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


# --- caches ---


def caches() -> dict[str, str]:
    """Of compiled kernels, on disk: "cold" where there are none yet. To be asked before compiling any."""
    user = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"
    places = {
        "triton": Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache"),
        "inductor": Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or user),
    }
    return {
        name: "warm" if path.is_dir() and any(path.iterdir()) else "cold" for name, path in places.items()
    }
