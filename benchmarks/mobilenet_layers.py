"""Layers of MobileNetV2 (128 px, batch 128): what the benchmarks of its convolutions share.

Times are µs of forward, gradient of the input and of the weight (bfloat16, channels-last), replayed from a
CUDA graph. `cudnn_us` is what torch picks: cuDNN or a kernel of its own. `floor_us` is the time to read the
inputs and write the results of one of the three at 4.2 TB/s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.narrow_conv import BYTES_PER_S, replayed_us
from evenprune.models import mobilenet_v2

RUNS = (1, 5)
SIDE, CLASSES = 128, 5
FEW = 16  # images that errors are measured on
PARTS = ("forward", "input", "weight")
Works = dict[str, Callable[[int], Any]]  # of PARTS, with the number of a set of tensors


class Moves(Protocol):
    def moved(self, runs: int) -> int:
        """Bytes of the inputs and of the results."""
        ...


def convolutions(side: int = SIDE) -> Iterator[tuple[nn.Conv2d, int]]:
    """Every convolution of MobileNetV2 in the order of the model, and the side of its inputs."""
    with torch.device("meta"):
        model, images = mobilenet_v2(CLASSES), torch.zeros(2, 3, side, side)
    found: list[tuple[nn.Conv2d, int]] = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda own, inputs, _: found.append((own, inputs[0].shape[-1])))
    model(images)
    yield from found


def drawn(batch: int, channels: int, side: int) -> Tensor:
    values = torch.randn(batch, channels, side, side, device="cuda", dtype=torch.bfloat16)
    return values.contiguous(memory_format=torch.channels_last)


def torch_works(
    xs: list[Tensor], dys: list[Tensor], weight: Tensor, *, stride: int, pad: int, groups: int
) -> Works:
    """The rival: a convolution as torch computes it, with its weight in the type of the images."""
    half = weight.to(xs[0].dtype).contiguous(memory_format=torch.channels_last)

    def back(i: int, which: int) -> Tensor:
        mask = [which == place for place in range(3)]
        return torch.ops.aten.convolution_backward(
            dys[i], xs[i], half, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], groups, mask
        )[which]

    return {
        "forward": lambda i: functional.conv2d(xs[i], half, stride=stride, padding=pad, groups=groups),
        "input": lambda i: back(i, 0),
        "weight": lambda i: back(i, 1),
    }


def largest_error(ours: Works, wide: Works) -> float:
    """‖ours - wide‖ / ‖wide‖, the largest of the three; `wide` computes in float32 on the same values."""
    with torch.backends.cudnn.flags(allow_tf32=False):
        truth = {part: work(0) for part, work in wide.items()}
    found = {part: work(0).float() for part, work in ours.items()}
    return max(float((found[part] - truth[part]).norm() / truth[part].norm()) for part in PARTS)


def times(ours: Works, rival: Works, layer: Moves, runs: int) -> dict[str, Any]:
    return {
        "ours_us": {part: replayed_us(work) for part, work in ours.items()},
        "cudnn_us": {part: replayed_us(work) for part, work in rival.items()},
        "floor_us": floor_us(layer, runs),
    }


def floor_us(layer: Moves, runs: int) -> float:
    return 1e6 * layer.moved(runs) / BYTES_PER_S


def need_a_gpu() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("This benchmark needs a CUDA device.")


def machine() -> dict[str, str]:
    return {"device": torch.cuda.get_device_name(), "torch": torch.__version__}


def table(
    figures: dict[str, Any], layer_of: Callable[[dict[str, Any]], object]
) -> list[tuple[str, str, str]]:
    told = []
    for row in figures["rows"]:
        text = f"{compared(row['ours_us'], row['cudnn_us'], row['floor_us'])}; error {row['error']:.0e}"
        used = "ours is used" if row["used"] else "cuDNN is used"
        told.append((f"{row['runs']} runs, {layer_of(row)}", text, used))
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


def compared(ours_us: dict[str, float], cudnn_us: dict[str, float], floor: float) -> str:
    own, rival = (" / ".join(f"{times[part]:.0f}" for part in PARTS) for times in (ours_us, cudnn_us))
    return f"ours {own}, cuDNN {rival}, floor {floor:.0f}"
