"""`python -m benchmarks [NAME …]`: run benchmarks, print what they measured, keep the figures as JSON."""

import importlib
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy
from rich.console import Console
from rich.table import Table

from evenprune import atomic

NAMES = ("audit_speed", "constraint_overhead", "coverage", "fairgrape", "image_cache")
# Need a GPU: only if named.
ASKED_FOR = ("gpu", "narrow_conv", "fused_norm", "depthwise_conv", "pointwise_conv", "images_per_second")
RESULTS = Path(__file__).parent / "results"


def main(names: list[str]) -> None:
    unknown = [name for name in names if name not in (*NAMES, *ASKED_FOR)]
    if unknown:
        sys.exit(f"no benchmark {', '.join(unknown)}; there are {', '.join((*NAMES, *ASKED_FOR))}")
    console = Console(width=120)
    for name in names or NAMES:
        console.print(f"[bold]{name}[/bold] …")
        module = importlib.import_module(f"benchmarks.{name}")
        start = time.perf_counter()
        figures = module.run()
        seconds = time.perf_counter() - start
        keep(name, figures, seconds)
        console.print(as_table(name, module.table(figures)))
        console.print(f"{seconds:.0f} s, kept in benchmarks/results/{name}.json\n")


def keep(name: str, figures: dict[str, Any], seconds: float) -> None:
    document = {"benchmark": name, "seconds": round(seconds, 1), "machine": machine(), "figures": figures}
    atomic.write_text(RESULTS / f"{name}.json", json.dumps(document, indent=1) + "\n")


def machine() -> dict[str, Any]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return {
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit.stdout.strip() or None,
    }


def as_table(name: str, rows: list[tuple[str, str, str]]) -> Table:
    table = Table(title=name, title_justify="left")
    for heading in ("what", "measured", "aim"):
        table.add_column(heading)
    for row in rows:
        table.add_row(*row)
    return table


if __name__ == "__main__":
    main(sys.argv[1:])
