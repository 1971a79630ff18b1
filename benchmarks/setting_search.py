"""Settings of kernels, tried on a GPU: what the searches for them share.

Kernels are compiled in parallel processes, into Triton's cache on disk; then every option is timed on the
cases that it suits, in the order given, until the time is up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import get_context
from typing import Any, NamedTuple, Protocol

from benchmarks.__main__ import keep
from benchmarks.mobilenet_layers import Moves, floor_us, machine, need_a_gpu
from benchmarks.narrow_conv import replayed_us

PROCESSES = 14
INFINITE = float("inf")


class Case(Protocol):
    """A kernel at work in a layer."""

    @property
    def layer(self) -> Moves: ...

    @property
    def runs(self) -> int: ...


class Option(Protocol):
    """A way to launch a kernel."""

    def within(self, case: Any) -> Any:
        """The same for a case, without what the case makes no use of."""

    def shown(self) -> list[Any]: ...


Found = dict[tuple[Any, Any], float]  # µs by case and option


class Search(NamedTuple):
    name: str  # of the file that the figures are kept in
    budget_s: float  # for all of it
    compile_all: Callable[[], list[tuple[Any, Any]]]  # gives what can be timed: cases and options
    timed: Callable[[Any, Any], float]
    chosen: Callable[[Found], dict[str, Any]]  # a table by kernel
    report: Callable[[Found, dict[str, Any]], list[dict[str, Any]]]


def in_processes(
    build: Callable[[tuple[Any, float]], list[Any]], wanted: Sequence[Any], seconds: float
) -> list[Any]:
    """What `build` gives for a share of the wanted and the time at which to stop, from all processes."""
    until = time.time() + seconds
    with get_context("spawn").Pool(PROCESSES) as pool:
        shares = [(wanted[i::PROCESSES], until) for i in range(PROCESSES)]
        return [done for part in pool.map(build, shares, chunksize=1) for done in part]


def measure(
    pairs: Iterable[tuple[Any, Any]], timed: Callable[[Any, Any], float], until: float
) -> tuple[Found, int]:
    """µs of every pair of a case and an option; and how many could not be tried in time."""
    found: Found = {}
    late = 0
    for key in dict.fromkeys(pairs):
        if time.time() > until:
            late += 1
        else:
            found[key] = timed(*key)
    return found, late


def time_of(work: Callable[[int], Any]) -> float:
    """µs; infinite if the kernel cannot be built."""
    try:
        return replayed_us(work)
    except Exception:  # too much shared memory, too many registers
        return INFINITE


def fastest(options: Iterable[Option], found: Found, weights: dict[Any, int]) -> Any | None:
    """Of the options timed in all these cases, the one whose times add up to the least, if there is any."""
    totals = {
        option: sum(
            weight * found.get((case, option.within(case)), INFINITE) for case, weight in weights.items()
        )
        for option in options
    }
    best = min(totals, key=totals.__getitem__, default=None)
    return best if weights and best is not None and totals[best] < INFINITE else None


def report(found: Found, cases: Iterable[Case], used: Callable[[Any], Option]) -> list[dict[str, Any]]:
    """Of every case that was timed: the fastest of all options, and the one that would be used."""
    rows = []
    for case in cases:
        tried = {option: us for (other, option), us in found.items() if other == case}
        if tried:
            best, own = min(tried, key=tried.__getitem__), used(case).within(case)
            rows.append(
                {
                    "case": str(case),
                    "best_us": tried[best],
                    "best": best.shown(),
                    "used_us": tried.get(own),
                    "used": own.shown(),
                    "floor_us": floor_us(case.layer, case.runs),
                }
            )
    return rows


def told(row: dict[str, Any]) -> str:
    used = "not timed" if row["used_us"] is None else f"{row['used_us']:.1f}"
    return (
        f"{row['case']}: best {row['best_us']:.1f} µs {row['best']}, "
        f"used {used} {row['used']}, floor {row['floor_us']:.1f}"
    )


def tune(search: Search) -> None:
    need_a_gpu()
    start = time.time()
    pairs = search.compile_all()
    compiled = time.time() - start
    found, late = measure(pairs, search.timed, start + search.budget_s)
    best = search.chosen(found)
    rows = search.report(found, best)
    for row in rows:
        print(told(row))
    for kernel, table in best.items():
        print(f"{kernel}:", *(f"    {key}: {setting}," for key, setting in table.items()), sep="\n")
    print(f"{len(found)} timed, {late} too late; compiled in {compiled:.0f} s", flush=True)
    tables = {kernel: {str(key): s for key, s in table.items()} for kernel, table in best.items()}
    figures = {"settings": tables, "cases": rows, "timed": len(found), "late": late}
    keep(search.name, machine() | figures | {"compilation_s": compiled}, time.time() - start)
