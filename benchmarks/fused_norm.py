"""Batch norm, shortcut and activation on a GPU: our kernels against torch's operations, part by part.

Times are µs (bfloat16, batch 128, channels-last), replayed from a CUDA graph, for the three stages of
CifarResNet-56 with 25 runs. `floor_us` is the time to read and write the images at 4.2 TB/s.

`python -m benchmarks.fused_norm tune` tries settings of the kernels, prints the best and keeps them.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.__main__ import keep
from benchmarks.narrow_conv import BATCH, BYTES_PER_S, COPIES, replayed_us
from evenprune import fused_norm

RUNS = (1, 25)
STAGES = {"16": (16, 32), "32": (32, 16), "64": (64, 8)}  # channels of a run, side
# The images that each part reads and writes: what the floor is made of.
PASSES = {"moments": 1, "apply": 2, "apply, residual": 3, "back": 5, "back, residual": 8}
TILES = [fused_norm.TILE, *itertools.product((32, 64, 128), (4, 8), (1,))]
SUMS = [
    *dict.fromkeys((fused_norm.MOMENTS, fused_norm.BACK_SUMS)),
    *itertools.product((64,), (8,), (1, 3, 4), (264,), (32, 64)),
    *itertools.product((64,), (4, 8), (3, 4), (528,), (128,)),
    *itertools.product((128,), (8,), (1, 2, 3), (264,), (64,)),
    (32, 8, 4, 528, 64),
]


class Stage:
    """Tensors of one stage, several sets of them, so that no cache helps."""

    def __init__(self, name: str, runs: int) -> None:
        channels, side = STAGES[name][0] * runs, STAGES[name][1]
        self.norm = nn.BatchNorm2d(channels).cuda()
        shape = (BATCH, channels, side, side)
        self.sets = [[self._images(shape) for _ in range(4)] for _ in range(COPIES)]
        self.tickets = fused_norm.no_tickets(self.norm)
        self.mean, self.scale = self.moments(0)

    @staticmethod
    def _images(shape: tuple[int, ...]) -> Tensor:
        drawn = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        return drawn.contiguous(memory_format=torch.channels_last)

    def moments(self, i: int) -> tuple[Tensor, Tensor]:
        return fused_norm.batch_moments(self.norm, self.sets[i][0], self.tickets)

    def ours(self) -> dict[str, Callable[[int], Any]]:
        told = (self.norm.weight, self.norm.bias, self.mean, self.scale)
        return {
            "moments": self.moments,
            "apply": lambda i: fused_norm.apply(self.sets[i][0], None, *told, "relu"),
            "apply, residual": lambda i: fused_norm.apply(*self.sets[i][:2], *told, "relu"),
            "back": lambda i: self.back(i, residual=False),
            "back, residual": lambda i: self.back(i, residual=True),
        }

    def back(self, i: int, *, residual: bool) -> Any:
        x, y, dy, other = self.sets[i]
        given = [dy, other] if residual else [dy]
        told = (self.norm.weight, self.norm.bias, self.mean, self.scale, self.tickets, "relu", True, residual)
        return fused_norm.back(x, y if residual else None, given, *told)

    def plain(self) -> dict[str, Callable[[int], Any]]:
        """Forward and backward by torch, with autograd: all parts at once."""

        def both(i: int, residual: bool) -> None:
            x, more, dy, _ = self.sets[i]
            x = x.detach().requires_grad_()
            y = fused_norm.plain(self.norm, x, more.detach().requires_grad_() if residual else None, "relu")
            y.backward(dy)

        return {"alone": lambda i: both(i, False), "residual": lambda i: both(i, True)}


def run() -> dict[str, Any]:
    if not torch.cuda.is_available():
        raise SystemExit("This benchmark needs a CUDA device.")
    rows = []
    for runs, name in itertools.product(RUNS, STAGES):
        stage = Stage(name, runs)
        image = 2 * stage.sets[0][0].numel() / BYTES_PER_S * 1e6
        rows.append(
            {
                "runs": runs,
                "stage": name,
                "ours_us": {part: replayed_us(work) for part, work in stage.ours().items()},
                "plain_us": {part: replayed_us(work) for part, work in stage.plain().items()},
                "floor_us": {part: passes * image for part, passes in PASSES.items()},
            }
        )
    return {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}


def table(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    told = []
    for row in figures["rows"]:
        parts = ", ".join(f"{part} {us:.0f}" for part, us in row["ours_us"].items())
        plain = ", ".join(f"{part} {us:.0f}" for part, us in row["plain_us"].items())
        floor = ", ".join(f"{us:.0f}" for us in row["floor_us"].values())
        told.append((f"{row['runs']} runs, {row['stage']}", f"{parts}; torch, both ways: {plain}", floor))
    return told


def timed(stage: Stage, parts: tuple[str, ...]) -> dict[str, float]:
    works = stage.ours()
    try:
        return {part: replayed_us(works[part]) for part in parts}
    except Exception:  # too many registers: no candidate
        return {}


def tune() -> None:
    start, rows = time.time(), []
    for runs, name in itertools.product(RUNS, ("16", "64")):
        stage = Stage(name, runs)
        for kind, settings, parts in (
            ("TILE", TILES, ("apply", "apply, residual")),
            ("MOMENTS", SUMS, ("moments",)),
            ("BACK_SUMS", SUMS, ("back", "back, residual")),
        ):
            usual = getattr(fused_norm, kind)
            for setting in settings:
                setattr(fused_norm, kind, setting)
                us = timed(stage, parts)
                rows.append({"runs": runs, "stage": name, "kind": kind, "setting": setting, "us": us})
            setattr(fused_norm, kind, usual)
            for part in parts:
                own = [r for r in rows if (r["runs"], r["stage"]) == (runs, name) and part in r["us"]]
                best = sorted(own, key=lambda row: row["us"][part])[:4]
                shown = "; ".join(f"{row['us'][part]:.0f} {row['setting']}" for row in best)
                print(f"{runs} runs, {name}, {part}: {shown}", flush=True)
    figures = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "settings": rows}
    keep("fused_norm_settings", figures, time.time() - start)


if __name__ == "__main__":
    if sys.argv[1:] == ["tune"]:
        tune()
    else:
        sys.exit("python -m benchmarks fused_norm, or python -m benchmarks.fused_norm tune")
