"""`python -m benchmarks [NAME [NUMBER …] …]`: run benchmarks, print the figures and keep them as JSON.

Most keep their newest figures. Some (GROWING) append a measurement to those that they have, write it whenever
there is more of it, and show it beside the one before. `gpu 1 25` is of fleets of 1 and 25 runs only.
"""

import importlib
import json
import os
import platform
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy
from rich.console import Console
from rich.table import Table

from evenprune import atomic

NAMES = ("audit_speed", "constraint_overhead", "coverage", "fairgrape", "image_cache")
# Only if named: all but the last need a GPU, and that one is slow without.
ASKED_FOR = (
    "gpu",
    "narrow_conv",
    "fused_norm",
    "depthwise_conv",
    "pointwise_conv",
    "images_per_second",
    "fairgrape_procedure",
)
GROWING = ("gpu", "images_per_second", "fairgrape_procedure")
NUMBERED = ("gpu",)  # take numbers
RESULTS = Path(__file__).parent / "results"
HEADINGS = ("what", "measured", "aim")

Measurement = dict[str, Any]


def main(words: list[str]) -> None:
    console = Console(width=120)
    for name, numbers in asked(words):
        console.print(f"[bold]{name}[/bold] …")
        module = importlib.import_module(f"benchmarks.{name}")
        start = time.perf_counter()
        if name in GROWING:
            rows = module.table(grow(name, module.run(*numbers)))
        else:
            figures = module.run()
            keep(name, figures, time.perf_counter() - start)
            rows = module.table(figures)
        console.print(as_table(name, rows, getattr(module, "HEADINGS", HEADINGS)))
        seconds = time.perf_counter() - start
        console.print(f"{seconds:.0f} s, kept in benchmarks/results/{name}.json\n")


def asked(words: Sequence[str]) -> list[tuple[str, tuple[int, ...]]]:
    """Benchmarks, each with the numbers that follow its name."""
    if {"-h", "--help"} & set(words):
        print(f"{__doc__}\nThere are {', '.join(NAMES)}; if asked for, {', '.join(ASKED_FOR)}.")
        sys.exit()
    found: list[tuple[str, tuple[int, ...]]] = []
    problems = []
    for word in words:
        if not word.isdecimal():
            found.append((word, ()))
        elif found and found[-1][0] in NUMBERED and int(word) > 0:
            found[-1] = (found[-1][0], (*found[-1][1], int(word)))
        else:
            problems.append(f"{word}: numbers follow {', '.join(NUMBERED)}, and begin with 1")
    known = (*NAMES, *ASKED_FOR)
    unknown = [name for name, _ in found if name not in known]
    if unknown:
        problems.append(f"no benchmark {', '.join(unknown)}; there are {', '.join(known)}")
    if problems:
        sys.exit("\n".join(problems))
    return found or [(name, ()) for name in NAMES]


def keep(name: str, figures: Measurement, seconds: float) -> None:
    """In place of the figures before."""
    write(name, {"seconds": round(seconds, 1), "machine": machine(), "figures": figures})


def grow(name: str, states: Iterable[Measurement]) -> list[Measurement]:
    """Append a measurement to those before; each state, more complete than the last, is written at once."""
    path = RESULTS / f"{name}.json"
    before = json.loads(path.read_text(encoding="utf-8"))["measurements"] if path.exists() else []
    start, now = time.perf_counter(), list(before)
    for figures in states:
        now = [*before, machine() | {"seconds": round(time.perf_counter() - start, 1)} | figures]
        write(name, {"measurements": now})
    return now


def write(name: str, document: Measurement) -> None:
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({"benchmark": name, **document}, indent=1)
    atomic.write_text(RESULTS / f"{name}.json", text + "\n")


def machine() -> dict[str, Any]:
    from paper.runner import commit_here  # with torch, which what is measured may do without

    return {
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "commit": os.environ.get("EVENPRUNE_COMMIT") or commit_here(),  # a copy of a checkout has none
    }


def as_table(name: str, rows: Iterable[Sequence[str]], headings: Sequence[str] = HEADINGS) -> Table:
    table = Table(title=name, title_justify="left")
    for heading in headings:
        table.add_column(heading)
    for row in rows:
        table.add_row(*row)
    return table


if __name__ == "__main__":
    main(sys.argv[1:])
