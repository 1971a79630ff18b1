"""What training costs on a GPU: CifarResNet-56, CIFAR-100 shapes, batch 128, fleets of 1 to 45 runs.

step_ms            one training step of the whole fleet, CEAG and plain fine-tuning (NFT) taking turns
seconds_per_run    a run of 60 epochs: (compilation + 60 · (390 steps + a test evaluation)) / runs
ratio              CEAG step over NFT step
floor              the time that the memory traffic of the step takes at the measured copy rate
eager              the plain loop in the same process: float32, one run, no graph, no compilation

Needs a CUDA device. Samples are random images on the device: speed does not depend on what they show.
"""

from __future__ import annotations

import statistics
from typing import Any

import torch

from benchmarks import gpu_loop
from benchmarks.gpu_loop import begin, images, reference, seconds, steps
from evenprune import constraint, methods
from evenprune.loop import Loop
from evenprune.models.cifar_resnet import cifar_resnet56
from evenprune.plan import Plan
from evenprune.predict import Answers
from evenprune.recipe import Recipe, Split

FLEETS = (1, 5, 10, 25, 45)
EPOCHS, STEPS, TEST, CLASSES = 60, 390, 10_000, 100
TURNS, PER_TURN = 6, 10  # each method's step is timed TURNS times over PER_TURN steps
# Bytes per sample and step: the activations of 55 convolutions (bfloat16) pass through memory 14.5 times:
# convolution in, out (2), statistics (1), normalise and add (2.5), backward of the norm (5), of the input (2)
# and of the weight (2).
ACTIVATION_BYTES = 2 * (19 * 16 * 32 * 32 + 18 * 32 * 16 * 16 + 18 * 64 * 8 * 8)
PASSES = 14.5


def new_loop(runs: int, recipe: Recipe, train: Split) -> Loop:
    return gpu_loop.new_loop(cifar_resnet56(CLASSES), runs, recipe, train, classes=CLASSES)


def copy_rate(device: torch.device) -> float:
    """Bytes read and written per second by a large copy on the device."""
    source = torch.empty(1 << 31, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = [seconds(lambda: target.copy_(source)) for _ in range(6)]
    return 2 * source.numel() / min(times)


def without_constraints(loop: Loop) -> tuple[Plan, constraint.State]:
    dense = reference(len(loop.train), CLASSES)
    plain = Plan.of([methods.nft()] * len(loop.runs), dense, samples=len(loop.train))
    plan = plain.to(loop.device)
    return plan, constraint.init(plan)


def fleet(runs: int, recipe: Recipe, train: Split, test: Split, device: torch.device) -> dict[str, Any]:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    loop = new_loop(runs, recipe, train)
    begin(loop)
    compilation = seconds(lambda: steps(loop, 5))
    ceag = (loop.plan, loop.state, loop.replay)
    loop.plan, loop.state = without_constraints(loop)
    loop.replay = type(loop.replay)(loop.replay.work, device=device, graph=bool(recipe.graph))
    steps(loop, 5)
    nft = (loop.plan, loop.state, loop.replay)
    times: dict[str, list[float]] = {"ceag": [], "nft": []}
    for _ in range(TURNS):
        for name, parts in (("ceag", ceag), ("nft", nft)):
            loop.plan, loop.state, loop.replay = parts
            loop.now.place.zero_()
            times[name].append(1000 * seconds(lambda: steps(loop, PER_TURN)) / PER_TURN)
    step = {name: statistics.median(values) for name, values in times.items()}
    answers = Answers(loop.network, test, recipe)
    first = seconds(answers)
    evaluation = min(seconds(answers) for _ in range(2))
    whole = compilation + first + EPOCHS * (STEPS * step["ceag"] / 1000 + evaluation)
    return {
        "runs": runs,
        "ceag_step_ms": step["ceag"],
        "nft_step_ms": step["nft"],
        "ratio": step["ceag"] / step["nft"],
        "compilation_s": compilation,
        "evaluation_s": evaluation,
        "seconds_per_run": whole / runs,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }


def run(fleets: tuple[int, ...] = FLEETS) -> dict[str, Any]:
    if not torch.cuda.is_available():
        raise SystemExit("This benchmark needs a CUDA device.")
    device = torch.device("cuda")
    torch.manual_seed(0)
    train, test = (images(n, side=32, classes=CLASSES, device=device) for n in (50_000, TEST))
    rate = copy_rate(device)
    fast = Recipe(evaluate_batch=1000).on(device)
    plain = Recipe(precision="float32", channels_last=False, compile=False, graph=False).on(device)
    eager = new_loop(1, plain, train)
    begin(eager)
    steps(eager, 5)
    eager_ms = 1000 * min(seconds(lambda: steps(eager, 10)) for _ in range(3)) / 10
    rows = []
    for runs in fleets:
        row = fleet(runs, fast, train, test, device)
        row["floor_ms"] = 1000 * runs * 128 * ACTIVATION_BYTES * PASSES / rate
        row["share_of_floor"] = row["floor_ms"] / row["ceag_step_ms"]
        row["times_eager"] = eager_ms * runs / row["ceag_step_ms"]
        rows.append(row)
    return {
        "device": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "copy_tb_per_s": rate / 1e12,
        "eager_float32_step_ms": eager_ms,
        "fleets": rows,
    }


def table(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    aims = {1: "≤ 80 s", 25: "≤ 25 s"}
    rows = [
        ("device", f"{figures['device']}, torch {figures['torch']}", ""),
        ("copy rate", f"{figures['copy_tb_per_s']:.2f} TB/s", ""),
        ("eager float32 step, one run", f"{figures['eager_float32_step_ms']:.1f} ms", ""),
    ]
    for row in figures["fleets"]:
        told = (
            f"{row['seconds_per_run']:.1f} s a run; step {row['ceag_step_ms']:.2f} ms, "
            f"NFT {row['nft_step_ms']:.2f}, ratio {row['ratio']:.4f}; "
            f"compiled in {row['compilation_s']:.0f} s, test {row['evaluation_s']:.2f} s; "
            f"{row['peak_gib']:.1f} GiB; {row['share_of_floor']:.0%} of the memory floor; "
            f"{row['times_eager']:.1f} × eager"
        )
        aim = f"{aims.get(row['runs'], '')}, ratio ≤ 1.01".removeprefix(", ")
        rows.append((f"fleet of {row['runs']}", told, aim))
    return rows
