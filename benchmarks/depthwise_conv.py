"""The depthwise convolutions of MobileNetV2 on a GPU: our kernels against torch's (see mobilenet_layers.py).

`python -m benchmarks.depthwise_conv tune` tries settings of the kernels, prints the best and keeps them.
"""

from __future__ import annotations

import sys
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
from evenprune import depthwise_conv


class Layer(NamedTuple):
    channels: int  # of one run
    side: int  # of its inputs
    stride: int

    def __str__(self) -> str:
        return f"{self.channels} × {self.side}²" + (", stride 2" if self.stride == 2 else "")

    def moved(self, runs: int) -> int:
        """Bytes of the inputs and of the results."""
        small = -(-self.side // self.stride)
        return 2 * BATCH * runs * self.channels * (self.side**2 + small**2)


def layers() -> dict[Layer, int]:
    """Every distinct depthwise layer of MobileNetV2, and how often there is one."""
    return Counter(
        Layer(module.in_channels, side, module.stride[0])
        for module, side in convolutions()
        if module.groups > 1
    )


class Tensors(NamedTuple):
    """COPIES sets, so that no cache helps from one call to the next."""

    xs: list[Tensor]
    dys: list[Tensor]
    weight: Tensor
    stride: int


def tensors(layer: Layer, runs: int, batch: int = BATCH, copies: int = COPIES) -> Tensors:
    channels, small = runs * layer.channels, -(-layer.side // layer.stride)
    xs, dys = ([drawn(batch, channels, side) for _ in range(copies)] for side in (layer.side, small))
    return Tensors(xs, dys, torch.randn(channels, 1, 3, 3, device="cuda"), layer.stride)


def ours(xs: list[Tensor], dys: list[Tensor], weight: Tensor, stride: int) -> Works:
    inner, outer = list(xs[0].shape[2:]), list(dys[0].shape[2:])
    works = (
        lambda i: depthwise_conv.depthwise_conv(xs[i], weight, outer, stride, False),
        lambda i: depthwise_conv.depthwise_conv(dys[i], weight, inner, stride, True),
        lambda i: depthwise_conv.depthwise_conv_back(xs[i], dys[i], stride),
    )
    return dict(zip(PARTS, works, strict=True))


def plain(xs: list[Tensor], dys: list[Tensor], weight: Tensor, stride: int) -> Works:
    return torch_works(xs, dys, weight, stride=stride, pad=1, groups=weight.shape[0])


def error_of(layer: Layer, runs: int) -> float:
    given = tensors(layer, runs, FEW, 1)
    images = ([t.float() for t in ts] for ts in given[:2])
    return largest_error(ours(*given), plain(*images, given.weight.bfloat16().float(), given.stride))


def measured(layer: Layer, runs: int) -> dict[str, Any]:
    given = tensors(layer, runs)
    return times(ours(*given), plain(*given), layer, runs) | {
        "error": error_of(layer, runs),
        "used": depthwise_conv.serves(given.xs[0], given.weight, layer.stride, 1),
    }


def run() -> dict[str, Any]:
    need_a_gpu()
    torch.backends.cudnn.benchmark = True
    rows = [
        {"runs": runs, **layer._asdict(), "layers": count, **measured(layer, runs)}
        for runs in RUNS
        for layer, count in layers().items()
    ]
    return machine() | {"rows": rows}


def table(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    return mobilenet_layers.table(figures, lambda row: Layer(row["channels"], row["side"], row["stride"]))


if __name__ == "__main__":
    if sys.argv[1:] == ["tune"]:
        from benchmarks import depthwise_settings

        depthwise_settings.tune()
    else:
        sys.exit("python -m benchmarks depthwise_conv, or python -m benchmarks.depthwise_conv tune")
