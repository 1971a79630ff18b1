"""The depthwise convolutions of MobileNetV2 (128 px, batch 128) on a GPU: our kernels against torch's.

Times are µs of forward, gradient of the input and of the weight (bfloat16, channels-last), replayed from a
CUDA graph. `cudnn_us` is what torch picks: cuDNN or a kernel of its own. `floor_us` is the time to read the
inputs and write the results of one of the three at 4.2 TB/s.

`python -m benchmarks.depthwise_conv tune` tries settings of the kernels, prints the best and keeps them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.narrow_conv import BATCH, BYTES_PER_S, COPIES, replayed_us
from evenprune import depthwise_conv
from evenprune.models import mobilenet_v2

RUNS = (1, 5)
SIDE, CLASSES = 128, 5
FEW = 16  # images that errors are measured on
PARTS = ("forward", "input", "weight")


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


def layers(side: int = SIDE) -> dict[Layer, int]:
    """Every distinct depthwise layer of MobileNetV2, and how often there is one."""
    with torch.device("meta"):
        model, images = mobilenet_v2(CLASSES), torch.zeros(2, 3, side, side)
    found: Counter[Layer] = Counter()

    def look(module: nn.Conv2d, inputs: tuple[Tensor], _: Tensor) -> None:
        if module.groups > 1:
            found[Layer(module.in_channels, inputs[0].shape[-1], module.stride[0])] += 1

    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(look)
    model(images)
    return dict(found)


class Tensors(NamedTuple):
    """COPIES sets, so that no cache helps from one call to the next."""

    xs: list[Tensor]
    dys: list[Tensor]
    weight: Tensor
    stride: int


def tensors(layer: Layer, runs: int, batch: int = BATCH, copies: int = COPIES) -> Tensors:
    channels, small = runs * layer.channels, -(-layer.side // layer.stride)

    def drawn(side: int) -> Tensor:
        values = torch.randn(batch, channels, side, side, device="cuda", dtype=torch.bfloat16)
        return values.contiguous(memory_format=torch.channels_last)

    xs, dys = ([drawn(side) for _ in range(copies)] for side in (layer.side, small))
    return Tensors(xs, dys, torch.randn(channels, 1, 3, 3, device="cuda"), layer.stride)


Works = dict[str, Callable[[int], Any]]


def ours(xs: list[Tensor], dys: list[Tensor], weight: Tensor, stride: int) -> Works:
    inner, outer = list(xs[0].shape[2:]), list(dys[0].shape[2:])
    return {
        "forward": lambda i: depthwise_conv.depthwise_conv(xs[i], weight, outer, stride, False),
        "input": lambda i: depthwise_conv.depthwise_conv(dys[i], weight, inner, stride, True),
        "weight": lambda i: depthwise_conv.depthwise_conv_back(xs[i], dys[i], stride),
    }


def plain(xs: list[Tensor], dys: list[Tensor], weight: Tensor, stride: int) -> Works:
    half, groups = weight.to(xs[0].dtype).contiguous(memory_format=torch.channels_last), weight.shape[0]

    def back(i: int, which: int) -> Tensor:
        mask = [which == place for place in range(3)]
        return torch.ops.aten.convolution_backward(
            dys[i], xs[i], half, None, [stride] * 2, [1, 1], [1, 1], False, [0, 0], groups, mask
        )[which]

    return {
        "forward": lambda i: functional.conv2d(xs[i], half, stride=stride, padding=1, groups=groups),
        "input": lambda i: back(i, 0),
        "weight": lambda i: back(i, 1),
    }


def largest_error(layer: Layer, runs: int) -> float:
    """‖ours - plain‖ / ‖plain‖, the largest of the three; the plain one is float32 on the same values."""
    given = tensors(layer, runs, FEW, 1)
    wide = Tensors(
        *([t.float() for t in ts] for ts in given[:2]), given.weight.bfloat16().float(), given.stride
    )
    with torch.backends.cudnn.flags(allow_tf32=False):
        truth = {part: work(0) for part, work in plain(*wide).items()}
    found = {part: work(0).float() for part, work in ours(*given).items()}
    return max(float((found[part] - truth[part]).norm() / truth[part].norm()) for part in PARTS)


def measured(layer: Layer, runs: int) -> dict[str, Any]:
    given = tensors(layer, runs)
    return {
        "ours_us": {part: replayed_us(work) for part, work in ours(*given).items()},
        "cudnn_us": {part: replayed_us(work) for part, work in plain(*given).items()},
        "floor_us": 1e6 * layer.moved(runs) / BYTES_PER_S,
        "error": largest_error(layer, runs),
        "used": depthwise_conv.serves(given.xs[0], given.weight, layer.stride, 1),
    }


def run() -> dict[str, Any]:
    if not torch.cuda.is_available():
        raise SystemExit("This benchmark needs a CUDA device.")
    torch.backends.cudnn.benchmark = True
    rows = [
        {"runs": runs, **layer._asdict(), "layers": count, **measured(layer, runs)}
        for runs in RUNS
        for layer, count in layers().items()
    ]
    return {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}


def table(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    told = []
    for row in figures["rows"]:
        name = f"{row['runs']} runs, {Layer(row['channels'], row['side'], row['stride'])}"
        text = f"{compared(row['ours_us'], row['cudnn_us'], row['floor_us'])}; error {row['error']:.0e}"
        told.append((name, text, "ours is used" if row["used"] else "cuDNN is used"))
    fleets = dict.fromkeys(row["runs"] for row in figures["rows"])
    return told + [(f"{runs} runs, all layers", compared(*totals(figures, runs)), "") for runs in fleets]


def totals(figures: dict[str, Any], runs: int) -> tuple[dict[str, float], dict[str, float], float]:
    """Ours, cuDNN's and the floor of all layers, each as often as there is one."""
    rows = [row for row in figures["rows"] if row["runs"] == runs]
    ours_us, cudnn_us = (
        {part: sum(row["layers"] * row[way][part] for row in rows) for part in PARTS}
        for way in ("ours_us", "cudnn_us")
    )
    return ours_us, cudnn_us, sum(row["layers"] * row["floor_us"] for row in rows)


def compared(ours_us: dict[str, float], cudnn_us: dict[str, float], floor_us: float) -> str:
    own, rival = (" / ".join(f"{times[part]:.0f}" for part in PARTS) for times in (ours_us, cudnn_us))
    return f"ours {own}, cuDNN {rival}, floor {floor_us:.0f}"


if __name__ == "__main__":
    if sys.argv[1:] == ["tune"]:
        from benchmarks import depthwise_settings

        depthwise_settings.tune()
    else:
        sys.exit("python -m benchmarks depthwise_conv, or python -m benchmarks.depthwise_conv tune")
