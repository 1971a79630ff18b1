"""Seconds per run, alone and in fleets, beside the paper's runtime table."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evenprune.paper_printed import CIFAR, HARDEST, Printed, Runtime
from evenprune.paper_results import COUNTED_AS, EPOCHS, Run, Task, Timed


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
    by_itself: bool = False  # run for its time alone
    mixed: bool | None = False  # whether other methods were in the fleet, and share its time
    epochs: int | None = EPOCHS  # what was run, if other than 60; None: of several lengths
    warm: bool = False  # kernels were compiled before
    compiled: str | None = None  # by torch.compile: "True", "False", or as usual


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


def timed_runs(runs: Sequence[Run]) -> list[Timed]:
    """The times of the runs of the tables."""
    timed = [(run, run.seconds) for run in runs if run.seconds is not None]
    fleets: dict[tuple[Any, ...], list[Run]] = {}
    for run, _ in timed:
        fleets.setdefault(_fleet(run), []).append(run)
    mixed = {key: _is_mixed(mates) for key, mates in fleets.items()}
    return [
        Timed(
            run.task,
            run.method,
            run.sparsity,
            run.fleet or 1,
            seconds,
            run.versions.get("device", "?"),
            mixed=mixed[_fleet(run)],
            compiled=run.versions.get("compile"),
        )
        for run, seconds in timed
    ]


def _fleet(run: Run) -> tuple[Any, ...]:
    """What runs of one fleet share: its time, to the last digit."""
    return (run.task, run.fleet, run.seconds, run.commit, run.versions.get("device"))


def _is_mixed(mates: Sequence[Run]) -> bool | None:
    """Of the runs of a fleet that are at hand; NFT and NFT + ES may be one training."""
    if len({COUNTED_AS.get(run.method, run.method) for run in mates}) > 1:
        return True
    return False if len(mates) >= (mates[0].fleet or 1) else None


def runtime_table(times: Sequence[Timed], task: Task, paper: Printed) -> RuntimeTable:
    """By method, in the paper's order, others after them; runs at 95 % where there are any."""
    timed = [time for time in times if time.task == task]
    printed_times = paper.runtime if task == CIFAR else {}
    names = [*_paper_order(task, paper), *printed_times, *(time.method for time in timed)]
    rows = []
    for method in dict.fromkeys(names):
        own = [time for time in timed if time.method == method]
        found = [_timing(alike, printed_times.get(method)) for alike in _alike(own)]
        if own or method in printed_times:
            alone, fleets = ([t for t in found if (t.fleet == 1) is one] for one in (True, False))
            rows.append(RuntimeRow(method, printed_times.get(method), tuple(alone), tuple(fleets)))
    return RuntimeTable(task, tuple(rows))


def _paper_order(task: Task, paper: Printed) -> list[str]:
    return [cell.method for place, cells in paper.cells.items() if place[0] == task for cell in cells]


def _alike(times: Sequence[Timed]) -> list[list[Timed]]:
    """By device, by size of the fleet, and by what was said of torch.compile."""
    found: dict[tuple[str, int, str], list[Timed]] = {}
    for time in times:
        found.setdefault((time.device, time.fleet, time.compiled or ""), []).append(time)
    return [found[key] for key in sorted(found)]


def _timing(own: Sequence[Timed], paper: Runtime | None) -> Timing:
    """From fleets that ran for their time alone where there are any, or else from runs of the tables."""
    for better in (_by_itself, _whole, _hardest):
        own = list(filter(better, own)) or own
    seconds, median = [time.seconds for time in own], statistics.median(time.seconds for time in own)
    return Timing(
        device=own[0].device,
        fleet=own[0].fleet,
        runs=len(own),
        low=min(seconds),
        median=median,
        high=max(seconds),
        sparsity=_only({time.sparsity for time in own}),
        ratio=paper.median / median if paper and median > 0 else None,
        by_itself=own[0].by_itself,
        mixed=True if any(time.mixed for time in own) else _only({time.mixed for time in own}),
        epochs=_only({time.epochs for time in own}),
        warm=all(time.warm for time in own),
        compiled=own[0].compiled,
    )


def _by_itself(time: Timed) -> bool:
    return time.by_itself


def _whole(time: Timed) -> bool:
    return time.epochs == EPOCHS


def _hardest(time: Timed) -> bool:
    return time.sparsity == HARDEST


def _only(values: set[Any]) -> Any:
    return values.pop() if len(values) == 1 else None
