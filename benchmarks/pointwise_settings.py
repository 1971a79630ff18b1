"""Settings of the kernels of 1×1 convolutions, tried on a GPU: `python -m benchmarks.pointwise_conv tune`.

A kernel is compiled for its numbers of channels, so each row of the two tables is tried on one layer alone:
that of MobileNetV2 which moves the most bytes, counted as often as there is one, in a fleet of five. The
gradient of a layer's input is the product of the layer turned round. The present settings come first, then
others at random, as many as can be compiled in COMPILE_S seconds (see setting_search.py).
"""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks import setting_search
from benchmarks.pointwise_conv import Layer, Tensors, layers, tensors
from benchmarks.setting_search import Found, Search, fastest, in_processes, time_of
from evenprune import pointwise_conv
from evenprune.pointwise_conv import LEAST_BLOCK, PAIR_UP, PRODUCT, Setting, block_of, size_of

BUDGET_S, COMPILE_S, RUNS = 60, 30, 5
TABLES = {"product": PRODUCT, "pair_up": PAIR_UP}
BLOCKS, INNER, PIXELS, STAGES, WARPS = (16, 32, 64, 128), (32, 64), (64, 128), (2, 4), (1, 2, 4, 8)
SUMS = (16, 64)  # of a thread, from and to: fewer are not worth a program, more take too many registers
MOST_SHARED = 100 * 1024  # bytes of blocks on their way: two programs on a multiprocessor
PROGRAMS = {"product": (1056, 2112, 4224, 8448), "pair_up": (132, 528, 1056, 2112)}

Key = tuple[int, int]


class Case(NamedTuple):
    """A kernel at work in a layer."""

    kernel: str
    layer: Layer

    @property
    def runs(self) -> int:
        return RUNS

    @property
    def sides(self) -> Key:
        """What a table is looked up with: channels in and out, or of the wider and the narrower tensor."""
        channels, out, _ = self.layer
        return (channels, out) if self.kernel == "product" else (max(channels, out), min(channels, out))

    @property
    def key(self) -> Key:
        return size_of(*self.sides)

    def __str__(self) -> str:
        return f"{self.runs} runs, {self.layer}, {self.kernel}"


class Option(NamedTuple):
    kernel: str
    key: Key
    setting: Setting

    def within(self, case: Case) -> Option:
        """The same with the blocks that the case leads to."""
        blocks = {"outer": block_of(case.sides[1], self.setting.outer)}
        if self.kernel == "pair_up":
            blocks["inner"] = block_of(case.sides[0], self.setting.inner)
        elif self.setting.inner < case.sides[0]:
            blocks["programs"] = 0
        return self._replace(setting=self.setting._replace(**blocks))

    def compiled(self) -> Option:
        """What is compiled into the kernel: all but the number of programs."""
        return self._replace(setting=self.setting._replace(programs=1))

    def shown(self) -> list[Any]:
        return [*self.setting]


def all_cases() -> dict[Case, int]:
    """Every kernel in every layer, and how often there is one."""
    found: Counter[Case] = Counter()
    for (channels, out, side), count in layers().items():
        for inner, outer in ((channels, out), (out, channels)):
            found[Case("product", Layer(inner, outer, side))] += count
        found[Case("pair_up", Layer(channels, out, side))] += count
    return dict(found)


def cases() -> list[Case]:
    """Of every row of a table, the case that moves the most."""
    heaviest: dict[tuple[str, Key], Case] = {}
    every = all_cases()
    for case in sorted(every, key=lambda case: every[case] * case.layer.moved(RUNS)):
        heaviest[case.kernel, case.key] = case
    return list(heaviest.values())


def options(case: Case) -> list[Option]:
    """The present setting, then all others that a program has room for."""
    every = [TABLES[case.kernel][case.key]]
    every += products(case) if case.kernel == "product" else pairs(case)
    return list(dict.fromkeys(Option(case.kernel, case.key, setting).within(case) for setting in every))


def products(case: Case) -> list[Setting]:
    channels, out = case.sides
    whole = max(LEAST_BLOCK, 1 << (channels - 1).bit_length())  # all channels in one block
    inner = [whole] if whole < 64 else [*INNER, whole] if whole <= 128 else INNER
    found = []
    for pixels, depth, outer, warps, stages in itertools.product(PIXELS, inner, BLOCKS, WARPS, STAGES):
        if roomy(pixels, outer, depth, warps, stages) and 4 * outer >= min(out, BLOCKS[-1]):
            stays = depth >= channels
            ways = [(n, False) for n in PROGRAMS["product"]] if stays else [(0, False), (0, True)]
            found += [Setting(pixels, depth, outer, warps, stages, *way) for way in ways]
    return found


def pairs(case: Case) -> list[Setting]:
    return [
        Setting(pixels, wide, narrow, warps, stages, programs)
        for pixels, wide, narrow, warps, stages, programs in itertools.product(
            PIXELS, BLOCKS, BLOCKS, WARPS, STAGES, PROGRAMS["pair_up"]
        )
        if roomy(wide, narrow, pixels, warps, stages)
        and all(4 * b >= min(c, BLOCKS[-1]) for b, c in zip((wide, narrow), case.sides, strict=True))
    ]


def roomy(rows: int, columns: int, depth: int, warps: int, stages: int) -> bool:
    """Whether a product [rows, depth] · [depth, columns] suits so many warps."""
    least, most = SUMS
    shared = 2 * stages * depth * (rows + columns)
    return least <= rows * columns // (32 * warps) <= most and shared <= MOST_SHARED


def to_compile() -> list[tuple[Case, Option]]:
    """The present settings, then others at random, case by case in turn until the time is up."""
    shuffled, columns = random.Random(0), []
    for case in cases():
        present, *others = dict.fromkeys((case, option.compiled()) for option in options(case))
        shuffled.shuffle(others)
        columns.append([present, *others])
    return [pair for turn in itertools.zip_longest(*columns) for pair in turn if pair]


@contextlib.contextmanager
def using(option: Option) -> Iterator[None]:
    """Only this option within the block."""
    table = TABLES[option.kernel]
    before = table[option.key]
    table[option.key] = option.setting
    try:
        yield
    finally:
        table[option.key] = before


def call(kernel: str, given: Tensors, place: int) -> None:
    """The kernel once. A product overwrites the tensors of the last place, which are never read."""
    xs, dys, weight, runs = given
    if kernel == "product":
        pointwise_conv.launch(xs[place], weight, dys[-1], runs, turned=False)
    else:
        pointwise_conv.add_up(pointwise_conv.launch_back(xs[place], dys[place], runs))


def build(given: tuple[list[tuple[Case, Option]], float]) -> list[tuple[Case, Option]]:
    """Compile options in a process of its own until it is late; those that could be."""
    share, until = given
    done = []
    for case, option in share:
        with using(option), contextlib.suppress(Exception):  # too much shared memory, say: no candidate
            if time.time() < until:
                call(option.kernel, tensors(case.layer._replace(side=4), RUNS, 1, 1), 0)
                done.append((case, option))
    return done


def compile_all() -> list[tuple[Case, Option]]:
    """What can be timed, in random order; options that differ in programs alone share a kernel."""
    built = set(in_processes(build, to_compile(), COMPILE_S))
    every = [(case, option) for case in cases() for option in options(case)]
    random.Random(0).shuffle(every)
    return [(case, option) for case, option in every if (case, option.compiled()) in built]


def chosen(found: Found) -> dict[str, dict[Key, Setting]]:
    """By kernel and row of its table; the present setting where nothing was timed."""
    best: dict[str, dict[Key, Setting]] = {kernel: dict(table) for kernel, table in TABLES.items()}
    for case in cases():
        winner = fastest(options(case), found, {case: 1})
        if winner:
            best[case.kernel][case.key] = winner.setting
    return best


def report(found: Found, _: dict[str, dict[Key, Setting]]) -> list[dict[str, Any]]:
    """Of every case: the fastest option, and the one that is used at present."""

    def used(case: Case) -> Option:
        return Option(case.kernel, case.key, TABLES[case.kernel][case.key])

    return setting_search.report(found, cases(), used)


def tune() -> None:
    given: dict[Layer, Tensors] = {}

    def timed(case: Case, option: Option) -> float:
        if case.layer not in given:
            given[case.layer] = tensors(case.layer, RUNS, copies=4)
        with using(option):
            return time_of(lambda place: call(option.kernel, given[case.layer], place))

    name = "pointwise_conv_settings"
    setting_search.tune(Search(name, BUDGET_S, compile_all, timed, chosen, report))
