"""Settings of the depthwise kernels, tried on a GPU: `python -m benchmarks.depthwise_conv tune`.

Kernels are compiled in parallel processes, then every setting is timed on the layers that would use it, in
random order, until BUDGET_S seconds have passed. Of each kernel and block of channels, that setting wins
whose times add up to the least over the layers, each as often as MobileNetV2 has it.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections.abc import Iterator
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch

from benchmarks.__main__ import keep
from benchmarks.depthwise_conv import BYTES_PER_S, RUNS, Layer, Tensors, layers, tensors
from benchmarks.narrow_conv import replayed_us
from evenprune import depthwise_conv
from evenprune.depthwise_conv import SETTINGS, Setting, block_of

BUDGET_S, COMPILE_S, PROCESSES = 85, 35, 14
KERNELS = {1: ("walk", "walk_back"), 2: ("shrink", "grow", "shrink_back")}  # by stride
BLOCKS = (32, 64, 128)
PER_THREAD, WARPS, STAGES = (4, 8), (2, 4, 8), (1, 2, 3)  # elements of a thread at a time
ROWS, BACK_ROWS, PROGRAMS = (8, 16, 32, 64), (16, 64), (528, 1056, 2112)
INFINITE = float("inf")
MOST_PADDED = 4 / 3  # of the channels: a block that wastes more is not tried


class Case(NamedTuple):
    """A kernel at work in a layer."""

    kernel: str
    layer: Layer
    runs: int

    @property
    def channels(self) -> int:
        return self.runs * self.layer.channels

    @property
    def down(self) -> int:
        return -(-self.layer.side // self.layer.stride)

    def __str__(self) -> str:
        return f"{self.runs} runs, {self.layer}, {self.kernel}"


class Option(NamedTuple):
    kernel: str
    block: int
    setting: Setting

    def suits(self, case: Case) -> bool:
        padded = -(-case.channels // self.block) * self.block
        return self.kernel == case.kernel and padded <= MOST_PADDED * case.channels

    def within(self, case: Case) -> Option:
        """The same for images that are not as high as its bands."""
        return self._replace(setting=self.setting._replace(rows=min(self.setting.rows, case.down)))


Found = dict[tuple[Case, Option], float]  # µs


def cases() -> dict[Case, int]:
    """Every kernel in every layer, and how many such layers there are."""
    return {
        Case(kernel, layer, runs): count
        for layer, count in layers().items()
        for runs in RUNS
        for kernel in KERNELS[layer.stride]
    }


def options(kernel: str) -> list[Option]:
    back = kernel.endswith("_back")
    heights, programs = (BACK_ROWS, PROGRAMS) if back else (ROWS, (0,))
    return [
        Option(kernel, block, Setting(each * 32 * warps // block, rows, warps, stages, count))
        for block, each, warps, stages, rows, count in itertools.product(
            BLOCKS, PER_THREAD, WARPS, STAGES, heights, programs
        )
    ]


def every_option() -> list[Option]:
    """In random order: what the time does not suffice for is spread evenly."""
    every = [option for kernel in itertools.chain(*KERNELS.values()) for option in options(kernel)]
    random.Random(0).shuffle(every)
    return every


def to_compile(every: list[Option]) -> list[Option]:
    """Rows and programs are arguments of a kernel, all else is compiled into it."""
    return list(
        {(*option[:2], *option.setting._replace(rows=0, programs=0)): option for option in every}.values()
    )


@contextlib.contextmanager
def using(option: Option) -> Iterator[None]:
    """Only this option within the block."""
    before = SETTINGS[option.kernel]
    SETTINGS[option.kernel] = {option.block: option.setting}
    try:
        yield
    finally:
        SETTINGS[option.kernel] = before


def call(kernel: str, given: Tensors, place: int) -> None:
    """The kernel once. It overwrites the tensors of the last place, which are never read."""
    x, dy, stride = given.xs[place], given.dys[place], given.stride
    if kernel.endswith("_back"):
        depthwise_conv.launch_back(x, dy, stride).sum(0)
    elif kernel == "grow":
        depthwise_conv.launch(dy, given.weight, given.xs[-1], stride, transposed=True)
    else:
        depthwise_conv.launch(x, given.weight, given.dys[-1], stride, transposed=False)


def build(given: tuple[list[Option], float]) -> None:
    """Compile options in a process of its own, into Triton's cache on disk, until it is late."""
    every, until = given
    small = {stride: tensors(Layer(128, 4, stride), 1, 2, 2) for stride in KERNELS}
    for option in every:
        stride = 1 if option.kernel in KERNELS[1] else 2
        with using(option), contextlib.suppress(Exception):  # too much shared memory, say: no candidate
            if time.time() < until:
                call(option.kernel, small[stride], 0)


def compile_all(every: list[Option]) -> None:
    until, wanted = time.time() + COMPILE_S, to_compile(every)
    with get_context("spawn").Pool(PROCESSES) as pool:
        pool.map(build, [(wanted[i::PROCESSES], until) for i in range(PROCESSES)], chunksize=1)


def measure(every: list[Option], until: float) -> tuple[Found, int]:
    """µs of every case with every option that suits it; and how many could not be tried in time."""
    given = {(case.layer, case.runs): tensors(case.layer, case.runs, copies=4) for case in cases()}
    found: Found = {}
    late = 0
    for option, case in itertools.product(every, cases()):
        key = (case, option.within(case))
        if not option.suits(case) or key in found:
            continue
        if time.time() > until:
            late += 1
            continue
        found[key] = timed(key[1], given[case.layer, case.runs])
    return found, late


def timed(option: Option, given: Tensors) -> float:
    """Infinite if the option cannot be built."""
    try:
        with using(option):
            return replayed_us(lambda place: call(option.kernel, given, place))
    except Exception:  # too much shared memory, too many registers
        return INFINITE


def chosen(found: Found, weights: dict[Case, int]) -> dict[str, dict[int, Setting]]:
    """By kernel and block of channels."""
    return {
        kernel: {block: fastest(kernel, block, found, weights) for block in BLOCKS} for kernel in SETTINGS
    }


def fastest(kernel: str, block: int, found: Found, weights: dict[Case, int]) -> Setting:
    """Of the options timed on all layers that would use them; the present setting if there is none."""
    tried = [option for option in options(kernel) if option.block == block]
    own = [case for case in weights if tried[0].suits(case)]
    own = [case for case in own if block_of(case.channels, kernel) == block] or own
    totals = {
        option.setting: sum(weights[case] * found.get((case, option.within(case)), INFINITE) for case in own)
        for option in tried
    }
    best = min(totals, key=totals.__getitem__)
    return best if own and totals[best] < INFINITE else SETTINGS[kernel][block]


def report(found: Found, best: dict[str, dict[int, Setting]]) -> list[dict[str, Any]]:
    """Of every case: the fastest of all options, and the one that would be used."""
    rows = []
    for case in cases():
        times = {option: us for (other, option), us in found.items() if other == case}
        block = block_of(case.channels, case.kernel)
        used = Option(case.kernel, block, best[case.kernel][block]).within(case)
        if times:
            best_one = min(times, key=times.__getitem__)
            rows.append(
                {
                    "case": str(case),
                    "best_us": times[best_one],
                    "best": [best_one.block, *best_one.setting],
                    "used_us": times.get(used),
                    "used": [used.block, *used.setting],
                    "floor_us": 1e6 * case.layer.moved(case.runs) / BYTES_PER_S,
                }
            )
    return rows


def told(row: dict[str, Any]) -> str:
    used = "not timed" if row["used_us"] is None else f"{row['used_us']:.1f}"
    return (
        f"{row['case']}: best {row['best_us']:.1f} µs {row['best']}, "
        f"used {used} {row['used']}, floor {row['floor_us']:.1f}"
    )


def tune() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("This benchmark needs a CUDA device.")
    start, every = time.time(), every_option()
    compile_all(every)
    compiled = time.time() - start
    found, late = measure(every, start + BUDGET_S)
    best = chosen(found, cases())
    rows = report(found, best)
    for row in rows:
        print(told(row))
    for kernel, table in best.items():
        print(f'"{kernel}": {table}')
    print(f"{len(found)} timed, {late} too late; compiled in {compiled:.0f} s", flush=True)
    figures = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "settings": best}
    figures |= {"cases": rows, "timed": len(found), "late": late, "compilation_s": compiled}
    keep("depthwise_conv_settings", figures, time.time() - start)
