"""Settings of the depthwise kernels, tried on a GPU: `python -m benchmarks.depthwise_conv tune`.

All options are tried in random order (see setting_search.py). Of each kernel and block of channels, that
setting wins whose times add up to the least over the layers that would use it, each as often as MobileNetV2
has it.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks import setting_search
from benchmarks.depthwise_conv import Layer, Tensors, layers, tensors
from benchmarks.mobilenet_layers import RUNS
from benchmarks.setting_search import Found, Search, fastest, in_processes, time_of
from evenprune import depthwise_conv
from evenprune.depthwise_conv import SETTINGS, Setting, block_of

BUDGET_S, COMPILE_S = 85, 35
KERNELS = {1: ("walk", "walk_back"), 2: ("shrink", "grow", "shrink_back")}  # by stride
BLOCKS = (32, 64, 128)
PER_THREAD, WARPS, STAGES = (4, 8), (2, 4, 8), (1, 2, 3)  # elements of a thread at a time
ROWS, BACK_ROWS, PROGRAMS = (8, 16, 32, 64), (16, 64), (528, 1056, 2112)
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

    def shown(self) -> list[Any]:
        return [self.block, *self.setting]


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


def build(given: tuple[list[Option], float]) -> list[Option]:
    """Compile options in a process of its own, until it is late."""
    every, until = given
    small = {stride: tensors(Layer(128, 4, stride), 1, 2, 2) for stride in KERNELS}
    for option in every:
        stride = 1 if option.kernel in KERNELS[1] else 2
        with using(option), contextlib.suppress(Exception):  # too much shared memory, say: no candidate
            if time.time() < until:
                call(option.kernel, small[stride], 0)
    return every


def compile_all() -> list[tuple[Case, Option]]:
    every = every_option()
    in_processes(build, to_compile(every), COMPILE_S)
    return [
        (case, option.within(case))
        for option, case in itertools.product(every, cases())
        if option.suits(case)
    ]


def chosen(found: Found, weights: dict[Case, int]) -> dict[str, dict[int, Setting]]:
    """By kernel and block of channels; the present setting where nothing was timed on all its layers."""
    return {kernel: {block: winner(kernel, block, found, weights) for block in BLOCKS} for kernel in SETTINGS}


def winner(kernel: str, block: int, found: Found, weights: dict[Case, int]) -> Setting:
    tried = [option for option in options(kernel) if option.block == block]
    own = [case for case in weights if tried[0].suits(case)]
    own = [case for case in own if block_of(case.channels, kernel) == block] or own
    best = fastest(tried, found, {case: weights[case] for case in own})
    return best.setting if best else SETTINGS[kernel][block]


def report(found: Found, best: dict[str, dict[int, Setting]]) -> list[dict[str, Any]]:
    def used(case: Case) -> Option:
        block = block_of(case.channels, case.kernel)
        return Option(case.kernel, block, best[case.kernel][block])

    return setting_search.report(found, cases(), used)


def tune() -> None:
    given: dict[tuple[Layer, int], Tensors] = {}

    def timed(case: Case, option: Option) -> float:
        place = (case.layer, case.runs)
        if place not in given:
            given[place] = tensors(*place, copies=4)
        with using(option):
            return time_of(lambda i: call(option.kernel, given[place], i))

    setting_search.tune(
        Search(
            "depthwise_conv_settings",
            BUDGET_S,
            compile_all,
            timed,
            lambda found: chosen(found, cases()),
            report,
        )
    )
