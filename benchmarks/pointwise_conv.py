"""The 1×1 convolutions of MobileNetV2 on a GPU: our kernels against cuDNN's (see mobilenet_layers.py).

`python -m benchmarks.pointwise_conv tune` tries settings of the kernels, prints the best and keeps them.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks import mobilenet_layers
from benchmarks.mobilenet_layers import (
    FEW,
    PARTS,
    RUNS,
    Works,
    convolutions,
    drawn,
    largest_error,
    machine,
    need_a_gpu,
    times,
    torch_works,
)
from benchmarks.narrow_conv import BATCH, COPIES
from benchmarks.setting_search import in_processes
from evenprune import pointwise_conv
from evenprune.grouped_conv import Shape

COMPILE_S = 60


class Layer(NamedTuple):
    channels: int  # of one run: coming in
    out: int  # and going out
    side: int

    def __str__(self) -> str:
        return f"{self.channels} → {self.out} × {self.side}²"

    def moved(self, runs: int) -> int:
        """Bytes of the inputs and of the results."""
        return 2 * BATCH * runs * (self.channels + self.out) * self.side**2


def layers() -> dict[Layer, int]:
    """Every distinct 1×1 layer of MobileNetV2, and how often there is one."""
    return Counter(
        Layer(module.in_channels, module.out_channels, side)
        for module, side in convolutions()
        if module.kernel_size == (1, 1)
    )


class Tensors(NamedTuple):
    """COPIES sets, so that no cache helps from one call to the next."""

    xs: list[Tensor]
    dys: list[Tensor]
    weight: Tensor
    runs: int


def tensors(layer: Layer, runs: int, batch: int = BATCH, copies: int = COPIES) -> Tensors:
    xs, dys = (
        [drawn(batch, runs * channels, layer.side) for _ in range(copies)]
        for channels in (layer.channels, layer.out)
    )
    return Tensors(xs, dys, torch.randn(runs * layer.out, layer.channels, 1, 1, device="cuda"), runs)


def ours(xs: list[Tensor], dys: list[Tensor], weight: Tensor, runs: int) -> Works:
    works = (
        lambda i: pointwise_conv.pointwise_conv(xs[i], weight, runs, False),
        lambda i: pointwise_conv.pointwise_conv(dys[i], weight, runs, True),
        lambda i: pointwise_conv.pointwise_conv_back(xs[i], dys[i], runs),
    )
    return dict(zip(PARTS, works, strict=True))


def plain(xs: list[Tensor], dys: list[Tensor], weight: Tensor, runs: int) -> Works:
    return torch_works(xs, dys, weight, stride=1, pad=0, groups=runs)


def build(given: tuple[list[Layer], float]) -> list[Layer]:
    """Compile the kernels of layers in a process of its own, until it is late."""
    share, until = given
    for layer in share:
        if time.time() < until:
            for work in ours(*tensors(layer, 2, 1, 1)).values():
                work(0)
    return share


def error_of(layer: Layer, runs: int) -> float:
    given = tensors(layer, runs, FEW, 1)
    images = ([t.float() for t in ts] for ts in given[:2])
    return largest_error(ours(*given), plain(*images, given.weight.bfloat16().float(), runs))


def measured(layer: Layer, runs: int) -> dict[str, Any]:
    given = tensors(layer, runs)
    return times(ours(*given), plain(*given), layer, runs) | {
        "error": error_of(layer, runs),
        "used": pointwise_conv.serves(given.xs[0], given.weight, Shape(1, 1, 0, runs)),
    }


def run() -> dict[str, Any]:
    need_a_gpu()
    torch.backends.cudnn.benchmark = True
    in_processes(build, list(layers()), COMPILE_S)
    rows = [
        {"runs": runs, **layer._asdict(), "layers": count, **measured(layer, runs)}
        for runs in RUNS
        for layer, count in layers().items()
    ]
    return machine() | {"rows": rows}


def table(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    return mobilenet_layers.table(figures, lambda row: Layer(row["channels"], row["out"], row["side"]))


if __name__ == "__main__":
    if sys.argv[1:] == ["tune"]:
        from benchmarks import pointwise_settings

        pointwise_settings.tune()
    else:
        sys.exit("python -m benchmarks pointwise_conv, or python -m benchmarks.pointwise_conv tune")
