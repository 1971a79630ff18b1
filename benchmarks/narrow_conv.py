"""The convolutions of a widened CifarResNet-56 on a GPU: our kernels against cuDNN, layer by layer.

Times are µs of forward, gradient of the input and of the weight (bfloat16, batch 128, channels-last),
replayed from a CUDA graph. `floor_us` is the time to read the inputs and write the results at 4.2 TB/s.

`python -m benchmarks.narrow_conv tune [RUNS]` tries settings of the walking kernels, prints and keeps them.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from evenprune import grouped_conv
from evenprune.grouped_conv import Shape

# channels in and out of one run, side of the images, kernel, stride, padding; how many such layers there are
LAYERS = {
    "first": (3, 16, 32, 3, 1, 1, 1),
    "16": (16, 16, 32, 3, 1, 1, 18),
    "16 to 32": (16, 32, 32, 3, 2, 1, 1),
    "16 to 32, 1×1": (16, 32, 32, 1, 2, 0, 1),
    "32": (32, 32, 16, 3, 1, 1, 17),
    "32 to 64": (32, 64, 16, 3, 2, 1, 1),
    "32 to 64, 1×1": (32, 64, 16, 1, 2, 0, 1),
    "64": (64, 64, 8, 3, 1, 1, 17),
}
RUNS = (1, 25)
BATCH, COPIES, BYTES_PER_S = 128, 3, 4.2e12


def replayed_us(work: Callable[[int], Any], repeats: int = 9) -> float:
    """µs of one call; the calls of a graph take turns with COPIES sets of tensors, so that no cache helps."""
    for place in range(COPIES):
        work(place)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for place in range(repeats):
            work(place % COPIES)
    best = float("inf")
    for _ in range(4):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, 1000 * begin.elapsed_time(end) / repeats)
    return best


def tensors(name: str, runs: int) -> tuple[list[Tensor], list[Tensor], Tensor, Shape]:
    channels, out, side, kernel, stride, pad, _ = LAYERS[name]
    channels = max(channels, grouped_conv.LEAST_INPUT)
    shape = Shape(kernel, stride, pad, runs)

    def images(count: int, size: int) -> Tensor:
        drawn = torch.randn(BATCH, runs * count, size, size, device="cuda", dtype=torch.bfloat16)
        return drawn.contiguous(memory_format=torch.channels_last)

    small = shape.result(side, side)[0]
    weight = torch.randn(runs * out, channels, kernel, kernel, device="cuda")
    return (
        [images(channels, side) for _ in range(COPIES)],
        [images(out, small) for _ in range(COPIES)],
        weight.contiguous(memory_format=torch.channels_last),
        shape,
    )


def ours(name: str, runs: int) -> dict[str, float]:
    xs, dys, weight, shape = tensors(name, runs)
    inner, outer = list(xs[0].shape[2:]), list(dys[0].shape[2:])
    works = {
        "forward": lambda i: grouped_conv.narrow_conv(xs[i], weight, outer, *shape, False),
        "input": lambda i: grouped_conv.narrow_conv(dys[i], weight, inner, *shape, True),
        "weight": lambda i: grouped_conv.narrow_conv_back(xs[i], dys[i], *shape),
    }
    return {
        part: replayed_us(work) for part, work in works.items() if not (part == "input" and name == "first")
    }


def cudnn(name: str, runs: int) -> dict[str, float]:
    xs, dys, weight, shape = tensors(name, runs)
    if name == "first":
        xs = [
            x.unflatten(1, (runs, -1))[:, :, :3].flatten(1, 2).contiguous(memory_format=torch.channels_last)
            for x in xs
        ]
        weight = weight[:, :3]
    half = weight.bfloat16().contiguous(memory_format=torch.channels_last)
    _, stride, pad, _ = shape

    def back(i: int, mask: list[bool]) -> Any:
        return torch.ops.aten.convolution_backward(
            dys[i], xs[i], half, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], runs, mask
        )

    works = {
        "forward": lambda i: functional.conv2d(xs[i], half, stride=stride, padding=pad, groups=runs),
        "input": lambda i: back(i, [True, False, False]),
        "weight": lambda i: back(i, [False, True, False]),
    }
    return {
        part: replayed_us(work) for part, work in works.items() if not (part == "input" and name == "first")
    }


def largest_error(name: str, runs: int) -> float:
    """‖ours - cuDNN‖ / ‖cuDNN‖ of the result."""
    xs, _, weight, shape = tensors(name, runs)
    plain = functional.conv2d(
        xs[0].float(), weight.bfloat16().float(), stride=shape.stride, padding=shape.pad, groups=runs
    )
    got = grouped_conv.convolve(xs[0], weight, None, shape).float()
    return float((got - plain).norm() / plain.norm())


def run() -> dict[str, Any]:
    if not torch.cuda.is_available():
        raise SystemExit("This benchmark needs a CUDA device.")
    rows = []
    for runs, name in itertools.product(RUNS, LAYERS):
        channels, out, side, _, stride, _, layers = LAYERS[name]
        pixels = BATCH * runs * side * side
        moved = 2 * (pixels * channels + pixels // stride**2 * out)
        rows.append(
            {
                "runs": runs,
                "layer": name,
                "layers": layers,
                "ours_us": ours(name, runs),
                "cudnn_us": cudnn(name, runs),
                "floor_us": 1e6 * moved / BYTES_PER_S,
                "error": largest_error(name, runs),
                "used": uses_ours(name, runs),
            }
        )
    return {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}


def uses_ours(name: str, runs: int) -> bool:
    xs, _, weight, shape = tensors(name, runs)
    return grouped_conv.serves(xs[0], weight if name != "first" else weight[:, :3], shape)


def table(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    told = []
    for row in figures["rows"]:
        parts = " / ".join(f"{row['ours_us'][part]:.0f}" for part in row["ours_us"])
        rival = " / ".join(f"{row['cudnn_us'][part]:.0f}" for part in row["cudnn_us"])
        used = "ours is used" if row["used"] else "cuDNN is used"
        told.append(
            (
                f"{row['runs']} runs, {row['layer']}",
                f"ours {parts}, cuDNN {rival}, floor {row['floor_us']:.0f}; error {row['error']:.0e}",
                used,
            )
        )
    return told


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["tune", *runs] if len(runs) < 2 and all(word.isdigit() for word in runs):
            from benchmarks import walk_settings

            walk_settings.tune(*map(int, runs))
        case _:
            sys.exit("python -m benchmarks narrow_conv, or python -m benchmarks.narrow_conv tune [RUNS]")
