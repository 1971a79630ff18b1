"""What training costs on a GPU: CifarResNet-56, CIFAR-100 shapes, batch 128, fleets of 1 to 45 runs.

step_ms            one training step of the whole fleet, CEAG and plain fine-tuning (NFT) taking turns
epoch_s            390 such steps and a test evaluation: predicted; fit: what three epochs of fit() took, of
                   which the first compiles and captures, and the third captures anew (another learning rate)
seconds_per_run    a run of 60 epochs: (compilation + 60 · epoch_s) / runs
ratio              CEAG step over NFT step
floor              the time that the memory traffic of the step takes at the measured copy rate
eager              the plain loop in the same process: float32, one run, no graph, no compilation
peak_gib           memory, the images (0.2 GiB) included
kernels            the busiest of one step, and the time of all of them together
caches             whether kernels compiled by an earlier process were at hand

The fleet of 25 is measured twice: as Recipe has it, and with compile=True. `python -m benchmarks gpu 1 25` is
of these fleets only, as Recipe has them. Measurements add up in results/gpu.json; each grows fleet by fleet.
Needs a CUDA device. Samples are random images on the device: speed does not depend on what they show.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from benchmarks.gpu_loop import (
    begin,
    busiest,
    caches,
    forget,
    images,
    is_compiled,
    new_loop,
    peak_gib,
    ran_out,
    reference,
    seconds,
    steps,
    the_gpu,
)
from evenprune import constraint, methods
from evenprune.loop import Loop
from evenprune.models.cifar_resnet import cifar_resnet56
from evenprune.plan import Plan
from evenprune.predict import Answers
from evenprune.recipe import Data, Recipe, Run, Split
from evenprune.replay import Replay
from evenprune.training import fit

FLEETS = (1, 5, 10, 25, 45)
MAIN = 25  # the fleet that the aim is set for: also compiled, and also through fit()
PROFILED = (1, MAIN)
EPOCHS, SAMPLES, TEST, CLASSES = 60, 50_000, 10_000, 100
WARM_UP, TURNS, PER_TURN = 5, 6, 10  # each method's step is timed TURNS times over PER_TURN steps
KERNELS, KERNELS_SHOWN, KERNEL_STEPS = 20, 5, 5
# Bytes per sample and step: the activations of 55 convolutions (bfloat16) pass through memory 14.5 times:
# convolution in, out (2), statistics (1), normalise and add (2.5), backward of the norm (5), of the input (2)
# and of the weight (2).
ACTIVATION_BYTES = 2 * (19 * 16 * 32 * 32 + 18 * 32 * 16 * 16 + 18 * 64 * 8 * 8)
PASSES = 14.5
PLAIN = Recipe(precision="float32", channels_last=False, compile=False, graph=False)

Make = Callable[[], nn.Module]
Figures = dict[str, Any]


def copy_rate(device: torch.device) -> float:
    """Bytes read and written per second by a large copy on the device."""
    source = torch.empty(1 << 31, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = [seconds(lambda: target.copy_(source)) for _ in range(6)]
    return 2 * source.numel() / min(times)


def without_constraints(loop: Loop) -> tuple[Plan, constraint.State]:
    dense = reference(len(loop.train), loop.plan.groups)
    plain = Plan.of([methods.nft()] * len(loop.runs), dense, samples=len(loop.train))
    plan = plain.to(loop.device)
    return plan, constraint.init(plan)


def step_times(loop: Loop) -> dict[str, float]:
    """Milliseconds of a step of a warm loop, with and without constraints; leaves it as it was, with them."""
    ceag = (loop.plan, loop.state, loop.replay)
    loop.plan, loop.state = without_constraints(loop)
    loop.replay = Replay(loop.replay.work, device=loop.device, graph=bool(loop.recipe.graph))
    steps(loop, WARM_UP)
    nft = (loop.plan, loop.state, loop.replay)
    times: dict[str, list[float]] = {"nft": [], "ceag": []}
    for _ in range(TURNS):
        for name, parts in (("nft", nft), ("ceag", ceag)):
            loop.plan, loop.state, loop.replay = parts
            loop.now.place.zero_()
            times[name].append(1000 * seconds(lambda: steps(loop, PER_TURN)) / PER_TURN)
    return {name: statistics.median(values) for name, values in times.items()}


def fleet(make: Make, runs: int, recipe: Recipe, train: Split, test: Split) -> Figures:
    """One fleet from nothing: steps, an evaluation, the memory that they need, and the busiest kernels."""
    forget()
    loop = new_loop(make(), runs, recipe, train, classes=int(train.labels.max()) + 1)
    begin(loop)
    compilation = seconds(lambda: steps(loop, WARM_UP))
    answers = Answers(loop.network, test, recipe)
    first = seconds(answers)
    peak = peak_gib()  # before a second step is captured, which no training does
    step = step_times(loop)
    evaluation = min(seconds(answers) for _ in range(2))
    epoch = loop.steps * step["ceag"] / 1000 + evaluation
    found: Figures = {
        "compile": is_compiled(loop),
        "ceag_step_ms": step["ceag"],
        "nft_step_ms": step["nft"],
        "ratio": step["ceag"] / step["nft"],
        "compilation_s": compilation,
        "evaluation_s": evaluation,
        "epoch_s": epoch,
        "seconds_per_run": (compilation + first + EPOCHS * epoch) / runs,
        **peak,
    }
    if runs in PROFILED:
        kernels = busiest(loop, KERNEL_STEPS)
        found["kernels"] = {"ms": sum(row["us"] for row in kernels) / 1000, "busiest": kernels[:KERNELS]}
    return found


def short_fit(make: Make, runs: int, recipe: Recipe, train: Split, test: Split) -> Figures:
    """Three real epochs, one of them pruning: what the second takes is what the estimate predicts."""
    forget()
    classes = int(train.labels.max()) + 1
    data = Data(train=train, evaluate={"test": test}, reference=reference(len(train), classes))
    short = replace(recipe, epochs=3, pruning_epochs=1)
    method = methods.ceag(tolerance=0.02)
    members = [Run(method=method, sparsity=0.925, seed=seed) for seed in range(runs)]
    fitted: list[Any] = []
    whole = seconds(
        lambda: fitted.extend(fit(make(), data, runs=members, recipe=short, device=train.labels.device))
    )
    each = [row["seconds"] for row in fitted[0].history]
    return {"seconds": whole, "epochs_s": each, "epoch_s": each[1]}


def ways(fleets: Sequence[int]) -> list[tuple[str, int, dict[str, Any]]]:
    """Name, runs, and what is not as Recipe has it; all of them where no fleets are asked for."""
    found: list[tuple[str, int, dict[str, Any]]] = []
    for runs in fleets or FLEETS:
        found.append((f"fleet of {runs}", runs, {}))
        if runs == MAIN and not fleets:
            found.append((f"fleet of {runs}, compile=True", runs, {"compile": True}))
    return found


def measured(
    make: Make, fleets: Sequence[int], recipe: Recipe, train: Split, test: Split, *, rate: float
) -> Iterator[Figures]:
    """The measurement as far as it has come, after each fleet; rate: of copies, in bytes a second."""
    device = train.labels.device
    figures: Figures = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "torch": torch.__version__,
        "caches": caches(),
        "copy_tb_per_s": rate / 1e12,
        **eager(make, replace(PLAIN, batch_size=recipe.batch_size), train),
        "fleets": [],
    }
    for way, runs, changes in ways(fleets):
        row: Figures = {"way": way, "runs": runs}
        figures["fleets"].append(row)
        own = replace(recipe, **changes).on(device)
        row |= unless_memory_ends(lambda r=runs, o=own: fleet(make, r, o, train, test))
        if "ceag_step_ms" in row:
            step = row["ceag_step_ms"]
            row["floor_ms"] = 1000 * runs * recipe.batch_size * ACTIVATION_BYTES * PASSES / rate
            row["share_of_floor"] = row["floor_ms"] / step
            row["times_eager"] = figures["eager_float32_step_ms"] * runs / step
        yield figures
        if runs == MAIN and not changes:
            row["fit"] = unless_memory_ends(lambda r=runs, o=own: short_fit(make, r, o, train, test))
            yield figures


def eager(make: Make, recipe: Recipe, train: Split) -> Figures:
    """The plain loop, one run; it is gone afterwards."""
    forget()
    loop = new_loop(make(), 1, recipe.on(train.labels.device), train, classes=int(train.labels.max()) + 1)
    begin(loop)
    steps(loop, WARM_UP)
    times = []
    for _ in range(3):
        loop.now.place.zero_()
        times.append(seconds(lambda: steps(loop, PER_TURN)) / PER_TURN)
    return {"eager_float32_step_ms": 1000 * min(times), **peak_gib("eager_peak_gib")}


def unless_memory_ends(work: Callable[[], Figures]) -> Figures:
    try:
        return work()
    except RuntimeError as error:
        if not ran_out(error):
            raise
        return {"out_of_memory": True}


def run(*fleets: int) -> Iterator[Figures]:
    device = the_gpu()
    torch.manual_seed(0)
    train, test = (images(n, side=32, classes=CLASSES, device=device) for n in (SAMPLES, TEST))
    recipe = Recipe(evaluate_batch=1000)
    rate = copy_rate(device)
    yield from measured(lambda: cifar_resnet56(CLASSES), fleets, recipe, train, test, rate=rate)


# --- what is printed ---

HEADINGS = ("what", "newest", "the one before", "aim")
WHOLE = (
    ("device", "{device}, torch {torch}"),
    ("commit, date", "{commit}, {date}"),
    ("caches of kernels", "Triton {caches[triton]}, Inductor {caches[inductor]}"),
    ("copy rate", "{copy_tb_per_s:.2f} TB/s"),
    ("eager float32 step, one run", "{eager_float32_step_ms:.1f} ms"),
    ("  peak memory", "{eager_peak_gib:.2f} GiB"),
)
OF_A_FLEET = (
    ("  CEAG step", "{ceag_step_ms:.2f} ms", ""),
    ("  NFT step", "{nft_step_ms:.2f} ms", ""),
    ("  CEAG / NFT", "{ratio:.4f}", "≤ 1.01"),
    ("  torch.compile", "{compile}", ""),
    ("  first steps: compilation, capture", "{compilation_s:.1f} s", ""),
    ("  test evaluation", "{evaluation_s:.2f} s", ""),
    ("  an epoch, predicted", "{epoch_s:.2f} s", ""),
    ("  an epoch of fit()", "{fit[epoch_s]:.2f} s", "as predicted"),
    ("  peak memory", "{peak_gib:.2f} GiB", ""),
    ("  share of the memory floor", "{share_of_floor:.0%}", ""),
    ("  times the eager loop", "{times_eager:.1f} ×", ""),
)
RUN_AIMS = {"fleet of 1": "≤ 80 s", f"fleet of {MAIN}": "≤ 25 s"}


def table(measurements: Sequence[Figures]) -> list[tuple[str, str, str, str]]:
    """The newest measurement beside the one before."""
    pair = (measurements[-1], measurements[-2] if len(measurements) > 1 else {})
    rows = [(what, *(told(text, one) for one in pair), "") for what, text in WHOLE]
    fleets = [{row["way"]: row for row in one.get("fleets", ())} for one in pair]
    for way in dict.fromkeys(way for one in fleets for way in one):
        own = [one.get(way, {}) for one in fleets]
        whole = [
            "out of memory" if row.get("out_of_memory") else told("{seconds_per_run:.1f} s a run", row)
            for row in own
        ]
        rows.append((way, *whole, RUN_AIMS.get(way, "")))
        for what, text, aim in OF_A_FLEET:
            words = [told(text, row) for row in own]
            rows += [(what, *words, aim)] if set(words) != {"–"} else []
        rows += kernel_rows(*own)
    return rows


def told(text: str, figures: Figures) -> str:
    try:
        return text.format(**figures)
    except KeyError:  # not measured
        return "–"


def kernel_rows(newest: Figures, before: Figures) -> list[tuple[str, str, str, str]]:
    """The busiest kernels of the newest measurement, and what the same ones took before."""
    times = [
        {one["kernel"]: f"{one['us']:.0f} µs, {one['calls']:g} calls" for one in row["kernels"]["busiest"]}
        if "kernels" in row
        else {}
        for row in (newest, before)
    ]
    shown = list(times[0])[:KERNELS_SHOWN]
    return [(f"  kernel {name[:60]}", times[0][name], times[1].get(name, "–"), "") for name in shown]
