"""Settings of the walking kernels, tried on a GPU: `python -m benchmarks.narrow_conv tune [RUNS]`.

Kernels are compiled in parallel processes; then every setting is timed on the layers of 25 runs, or of as
many as are named. Four warps and 64 pairs make a product of warp groups, whose fences cost more than the
product: left out.
"""

from __future__ import annotations

import itertools
import time
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch

from benchmarks.__main__ import keep
from benchmarks.narrow_conv import LAYERS, cudnn, ours, replayed_us, tensors
from evenprune import grouped_conv

MANY, PROCESSES, BEST = 25, 14, 4
NAMES = ("16", "32")
SHAPES = ((16, 1), (16, 2), (32, 1), (32, 2), (32, 4), (64, 2))  # pairs of pixels at a time, warps
BACK_SHAPES = ((32, 1), (32, 2), (64, 2), (64, 4), (32, 4), (128, 4))  # pixels at a time, warps
STAGES, PROGRAMS = (1, 2, 3), (528, 1056, 2112, 4224)
SHARES, SHARES_OF_FEW = (1, 2), (2, 4, 8)  # of the rows, in bands: few runs need more programs


class Option(NamedTuple):
    layer: str
    runs: int
    back: bool
    setting: tuple[int, ...]


def options(name: str, runs: int) -> list[Option]:
    side, shares = LAYERS[name][2], SHARES if runs > grouped_conv.FEW_RUNS else SHARES_OF_FEW
    walks = [
        Option(name, runs, False, (pairs, side // share, warps, stages))
        for (pairs, warps), share, stages in itertools.product(SHAPES, shares, STAGES)
        if pairs >= side // 2
    ]
    return walks + [
        Option(name, runs, True, (pixels, side // share, warps, 1, programs))
        for (pixels, warps), share, programs in itertools.product(BACK_SHAPES, shares, PROGRAMS)
        if pixels >= side
    ]


def timed(option: Option) -> dict[str, float]:
    """µs of the parts that the option is for; nothing if it cannot be built."""
    xs, dys, weight, shape = tensors(option.layer, option.runs)
    size, key = list(xs[0].shape[2:]), shape.key(LAYERS[option.layer][0])
    grouped_conv.WALK = {key: option.setting if not option.back else (32, 8, 2, 1)}  # type: ignore[dict-item]
    grouped_conv.WALK_BACK = {key: option.setting if option.back else (64, 8, 2, 1, 1056)}  # type: ignore[dict-item]
    try:
        if option.back:
            return {"weight": replayed_us(lambda i: grouped_conv.narrow_conv_back(xs[i], dys[i], *shape))}
        return {
            "forward": replayed_us(lambda i: grouped_conv.narrow_conv(xs[i], weight, size, *shape, False)),
            "input": replayed_us(lambda i: grouped_conv.narrow_conv(dys[i], weight, size, *shape, True)),
        }
    except Exception:  # too much shared memory, too many registers: no candidate
        return {}


def build(part: list[Option]) -> None:
    """Compile options in a process of its own, into Triton's cache on disk."""
    for option in part:
        timed(option)


def tune(runs: int = MANY) -> None:
    start, every = time.time(), [option for name in NAMES for option in options(name, runs)]
    rivals = {name: {"cudnn": cudnn(name, runs), "as set": ours(name, runs)} for name in NAMES}
    once = list({(o.layer, o.back, o.setting[:4]): o for o in every}.values())
    with get_context("spawn").Pool(PROCESSES) as pool:
        pool.map(build, [once[i::PROCESSES] for i in range(PROCESSES)], chunksize=1)
    compiled = time.time() - start
    rows = [{**option._asdict(), "us": us} for option in every if (us := timed(option))]
    for name, back in itertools.product(NAMES, (False, True)):
        own = sorted((r for r in rows if (r["layer"], r["back"]) == (name, back)), key=total)
        shown = "; ".join(f"{told(row['us'])} {row['setting']}" for row in own[:BEST])
        others = ", ".join(f"{word} {told(us)}" for word, us in rivals[name].items())
        print(f"{name}, {'back' if back else 'walk'}: {shown}; {others}", flush=True)
    figures = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "runs": runs}
    figures |= {"compilation_s": compiled, "rivals_us": rivals, "settings": rows}
    keep("walk_settings" if runs == MANY else f"walk_settings_{runs}", figures, time.time() - start)


def total(row: dict[str, Any]) -> float:
    return sum(row["us"].values())


def told(us: dict[str, float]) -> str:
    return " / ".join(f"{value:.0f}" for value in us.values())
