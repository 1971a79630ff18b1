"""How many images of 128 px a GPU trains on per second, batch 128: MobileNetV2 and ResNet-34, five classes.

images_per_s    of all runs together; CEAG and flips, as in the paper's runs on faces
fleet of n      the fast path: widened, bfloat16, channels-last, fused norms or torch.compile, one CUDA graph
                per step
eager           a single run of the plain model in the same process, float32 (TF32 in convolutions, as torch
                has it) and bfloat16 with channels-last: no compilation, no graph
compilation_s   the first five steps: compilation of kernels or of all, and capture
peak_gib        memory beyond what was held before; the images are not in it

`python -m benchmarks.images_per_second profile` prints the kernels that take most of a fleet of five's step.
Needs a CUDA device. Images are random: speed does not depend on what they show.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import nn

from benchmarks.gpu_loop import (
    begin,
    busiest,
    forget,
    images,
    is_compiled,
    new_loop,
    peak_gib,
    seconds,
    steps,
    the_gpu,
)
from evenprune.augment import Flip
from evenprune.loop import Loop
from evenprune.models import mobilenet_v2, resnet34
from evenprune.recipe import Recipe, Split

MODELS: dict[str, Callable[[int], nn.Module]] = {"MobileNetV2": mobilenet_v2, "ResNet-34": resnet34}
FLEETS = (1, 5)
SIDE, BATCH, CLASSES = 128, 128, 5
WARM_UP, TURNS, PER_TURN = 5, 6, 10  # a step is timed TURNS times over PER_TURN steps
SAMPLES = BATCH * PER_TURN
PROFILED, SHOWN = 5, 25  # steps, kernels
PLAIN = {"compile": False, "graph": False}
EAGER = {
    "eager float32": Recipe(augment=Flip(), precision="float32", channels_last=False, **PLAIN),
    "eager bfloat16": Recipe(augment=Flip(), precision="bfloat16", channels_last=True, **PLAIN),
}


def ways(device: torch.device, fleets: tuple[int, ...] = FLEETS) -> dict[str, tuple[int, Recipe]]:
    """Name to number of runs and recipe."""
    fast = Recipe(augment=Flip()).on(device)
    eager = {name: (1, recipe.on(device)) for name, recipe in EAGER.items()}
    return eager | {f"fleet of {runs}": (runs, fast) for runs in fleets}


def times(loop: Loop, *, turns: int = TURNS, per_turn: int = PER_TURN) -> dict[str, float]:
    """Seconds until the loop runs at full speed, and milliseconds of a step from then on (median)."""
    begin(loop)
    first = seconds(lambda: steps(loop, min(WARM_UP, loop.steps)))
    found = []
    for _ in range(turns):
        loop.now.place.zero_()  # the same epoch again
        found.append(1000 * seconds(lambda: steps(loop, per_turn)) / per_turn)
    step = statistics.median(found)
    images_per_s = 1000 * len(loop.runs) * loop.recipe.batch_size / step
    return {"compilation_s": first, "step_ms": step, "images_per_s": images_per_s}


def measure(name: str, way: str, runs: int, recipe: Recipe, train: Split) -> dict[str, Any]:
    held = forget()
    loop = new_loop(MODELS[name](CLASSES), runs, recipe, train, classes=CLASSES)
    found = {"compile": is_compiled(loop), **times(loop)}
    return {"model": name, "way": way, "runs": runs, **found, **peak_gib(beyond=held)}


def run() -> Iterator[dict[str, Any]]:
    device, train = prepared()
    rows: list[dict[str, Any]] = []
    for name in MODELS:
        for way, (runs, recipe) in ways(device).items():
            rows.append(measure(name, way, runs, recipe, train))
            yield {"device": torch.cuda.get_device_name(device), "torch": torch.__version__, "rows": rows}


def prepared() -> tuple[torch.device, Split]:
    device = the_gpu()
    torch.manual_seed(0)
    return device, images(SAMPLES, side=SIDE, classes=CLASSES, device=device)


def table(measurements: Sequence[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """The newest measurement."""
    figures = measurements[-1]
    told = [("device", f"{figures['device']}, torch {figures['torch']}", "")]
    rates = {(row["model"], row["way"]): row["images_per_s"] for row in figures["rows"]}
    for row in figures["rows"]:
        text = f"{row['images_per_s']:,.0f} images/s; step {row['step_ms']:.2f} ms; {row['peak_gib']:.1f} GiB"
        if row["way"] not in EAGER:
            known = [(way, rates[row["model"], way]) for way in EAGER if (row["model"], way) in rates]
            against = [f"{row['images_per_s'] / rate:.1f} × {way}" for way, rate in known]
            first = f"first steps {row['compilation_s']:.0f} s, torch.compile {row['compile']}"
            text += f"; {', '.join(against)}; {first}"
        told.append((f"{row['model']}, {row['way']}", text, ""))
    return told


# --- where the time of a step goes ---


def kernel_table(title: str, rows: list[dict[str, Any]], shown: int = SHOWN) -> Table:
    whole = sum(row["us"] for row in rows)
    table = Table(title=f"{title}: {whole / 1000:.2f} ms of kernels in a step", title_justify="left")
    for heading in ("µs", "share", "calls", "kernel"):
        table.add_column(heading, justify="left" if heading == "kernel" else "right")
    for row in rows[:shown]:
        share = row["us"] / whole
        table.add_row(f"{row['us']:.0f}", f"{share:.1%}", f"{row['calls']:g}", escape(row["kernel"][:120]))
    return table


def profile(names: list[str], runs: int = FLEETS[-1]) -> None:
    device, train = prepared()
    recipe = ways(device, (runs,))[f"fleet of {runs}"][1]
    for name in names:
        loop = new_loop(MODELS[name](CLASSES), runs, recipe, train, classes=CLASSES)
        begin(loop)
        steps(loop, WARM_UP)
        rows = busiest(loop, PROFILED)
        Console(width=170).print(kernel_table(f"{name}, fleet of {runs}", rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["profile"] and set(sys.argv[2:]) <= set(MODELS):
        profile(sys.argv[2:] or list(MODELS))
    else:
        sys.exit(
            "python -m benchmarks images_per_second, "
            f"or python -m benchmarks.images_per_second profile [{' | '.join(MODELS)}]"
        )
