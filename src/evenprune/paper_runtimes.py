"""Seconds per run, alone and in fleets, beside the paper's runtime table."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from evenprune.paper_printed import CIFAR, HARDEST, Printed, Runtime
from evenprune.paper_results import Task, Timed


@dataclass(frozen=True)
class Timing:
    """Seconds per run of one method on one device, in fleets of one size."""

    device: str
    fleet: int
    runs: int
    low: float
    median: float
    high: float
    sparsity: float | None  # None: of several sparsities
    ratio: float | None  # the paper's median over ours


@dataclass(frozen=True)
class RuntimeRow:
    method: str
    paper: Runtime | None
    alone: tuple[Timing, ...]
    fleets: tuple[Timing, ...]


@dataclass(frozen=True)
class RuntimeTable:
    task: Task
    rows: tuple[RuntimeRow, ...]


def runtime_table(times: Sequence[Timed], task: Task, paper: Printed) -> RuntimeTable:
    """By method, in the paper's order, others after them; runs at 95 % where there are any."""
    timed = [time for time in times if time.task == task]
    printed_times = paper.runtime if task == CIFAR else {}
    names = [*_paper_order(task, paper), *printed_times, *(time.method for time in timed)]
    rows = []
    for method in dict.fromkeys(names):
        own = [time for time in timed if time.method == method]
        sizes = sorted({(time.device, time.fleet) for time in own})
        found = [_timing(own, *size, printed_times.get(method)) for size in sizes]
        if own or method in printed_times:
            alone, fleets = ([t for t in found if (t.fleet == 1) is one] for one in (True, False))
            rows.append(RuntimeRow(method, printed_times.get(method), tuple(alone), tuple(fleets)))
    return RuntimeTable(task, tuple(rows))


def _paper_order(task: Task, paper: Printed) -> list[str]:
    return [cell.method for place, cells in paper.cells.items() if place[0] == task for cell in cells]


def _timing(times: Sequence[Timed], device: str, fleet: int, paper: Runtime | None) -> Timing:
    own = [time for time in times if (time.device, time.fleet) == (device, fleet)]
    own = [time for time in own if time.sparsity == HARDEST] or own
    seconds, sparsities = [time.seconds for time in own], {time.sparsity for time in own}
    median = statistics.median(seconds)
    return Timing(
        device=device,
        fleet=fleet,
        runs=len(own),
        low=min(seconds),
        median=median,
        high=max(seconds),
        sparsity=sparsities.pop() if len(sparsities) == 1 else None,
        ratio=paper.median / median if paper and median > 0 else None,
    )
