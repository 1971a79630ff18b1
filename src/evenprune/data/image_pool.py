"""The same work for many images on all cores, in order, with a bar on a terminal."""

import contextlib
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Progress = Callable[[int, int], None]  # images done, images in all
T = TypeVar("T")

TOGETHER = 32  # images in one task
AHEAD = 3  # tasks per thread that may be finished, or under way, before their turn


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(work: Callable[[int], T], count: int, progress: Progress) -> Generator[T, None, None]:
    """work(0), work(1), … done by threads: reading, hashing, decoding and resizing let each other run.

    Only a few results wait for their turn, so that memory does not grow with the number of images.
    """

    def several(start: int) -> list[T]:
        return [work(place) for place in range(start, min(start + TOGETHER, count))]

    threads = max(1, min(cores(), -(-count // TOGETHER)))
    pool = ThreadPoolExecutor(threads, thread_name_prefix="evenprune-images")
    waiting: deque[Future[list[T]]] = deque()
    starts = iter(range(0, count, TOGETHER))
    done = 0
    try:
        while True:
            while len(waiting) < AHEAD * threads and (start := next(starts, None)) is not None:
                waiting.append(pool.submit(several, start))
            if not waiting:
                return
            results = waiting.popleft().result()
            yield from results
            done += len(results)
            progress(done, count)
    finally:  # also when the reader of the results stops early
        pool.shutdown(cancel_futures=True)


def nothing_shown(done: int, count: int) -> None:
    """A progress that nobody sees."""


@contextlib.contextmanager
def shown(text: str, progress: Progress | None) -> Iterator[Progress]:
    """The progress given; else a bar, silent where there is no terminal or no rich."""
    bar = None
    with contextlib.suppress(ImportError):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        bar = Bar(*columns, console=console) if progress is None and console.is_terminal else None
    if bar is None:
        yield progress or nothing_shown
        return
    with bar:
        task = bar.add_task(text, total=None)
        yield lambda done, count: bar.update(task, completed=done, total=count)
