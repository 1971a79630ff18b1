"""How fast an audit is: ten million rows through the real command, and against fairlearn's bootstrap.

Claims: 10 million rows in 1,000 groups from Parquet take at most 3 s and 1.5 GB on two cores; with 10,000
samples in 100 groups the audit is at least 1,000 times as fast as fairlearn's bootstrap of group differences.
Both sides of the comparison get the same arrays in memory and run in this process, one after the other.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

import evenprune

ROWS, GROUPS = 10_000_000, 1_000
RIVAL_ROWS, RIVAL_GROUPS = 10_000, 100
N_BOOT, N_BOOT_LEAN = 100, 20  # 100 is what fairlearn's user guide takes
OUR_DRAWS = 4_000  # what the audit itself draws for 100 groups
REPEATS = 3
Columns = dict[str, NDArray[np.int64]]


def run() -> dict[str, Any]:
    """All figures: seconds, bytes and ratios, with the settings that they were measured under."""
    return {"parquet": audit_parquet(), "fairlearn": against_fairlearn(), "cores": os.cpu_count()}


def sample(rows: int, groups: int) -> Columns:
    """Two models that differ on about 10 % of the samples; nobody is harmed more than others."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 10, rows)
    dense = np.where(rng.random(rows) < 0.9, label, rng.integers(0, 10, rows))
    pruned = np.where(rng.random(rows) < 0.9, dense, rng.integers(0, 10, rows))
    return {"label": label, "dense": dense, "pruned": pruned, "group": rng.integers(0, groups, rows)}


def audit_parquet() -> dict[str, Any]:
    """The whole command in a process of its own, JSON and page written too; the median of a few runs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "predictions.parquet"
        names = pl.Series([f"group {i}" for i in range(GROUPS)])
        frame = pl.DataFrame(sample(ROWS, GROUPS))
        frame = frame.with_columns(names.gather(frame["group"]).alias("group"))
        frame.write_parquet(path)
        del frame
        measured = [_measure(path) for _ in range(REPEATS)]
        size = path.stat().st_size
    return {
        "rows": ROWS,
        "groups": GROUPS,
        "file_bytes": size,
        "seconds": statistics.median(seconds for seconds, _ in measured),
        "seconds_of_each_run": [seconds for seconds, _ in measured],
        "peak_bytes": max(memory for _, memory in measured),
    }


# A process starts with the peak memory of the one that forked it, so a small one must start the command.
LAUNCHER = """
import os, subprocess, sys, time
start = time.perf_counter()
process = subprocess.Popen(sys.argv[1:])
_, status, usage = os.wait4(process.pid, 0)
print(time.perf_counter() - start, usage.ru_maxrss, os.waitstatus_to_exitcode(status))
"""


def _measure(path: Path) -> tuple[float, int]:
    command = [sys.executable, "-m", "evenprune", "audit", str(path), "--label", "label", "--dense", "dense"]
    command += ["--pruned", "pruned", "--group", "group", "--tolerance", "0.02", "--inconclusive", "pass"]
    command += ["--json", f"{path}.json", "--html", f"{path}.html", "--quiet"]
    launched = [sys.executable, "-c", LAUNCHER, *command]
    seconds, memory, code = subprocess.run(launched, stdout=subprocess.PIPE, check=True).stdout.split()
    if int(code) != 0:
        raise RuntimeError(f"the audit ended with exit code {int(code)}")
    return float(seconds), int(memory) * (1 if sys.platform == "darwin" else 1024)


def against_fairlearn() -> dict[str, Any]:
    """Limits of the group differences of both models' accuracies, against our whole audit."""
    data = sample(RIVAL_ROWS, RIVAL_GROUPS)
    ours = statistics.median(_seconds(_our_audit, data) for _ in range(10))
    rival = _seconds(_fairlearn, data, N_BOOT, _sklearn_accuracy())
    lean = _seconds(_fairlearn, data, N_BOOT_LEAN, _lean_accuracy)
    return {
        "rows": RIVAL_ROWS,
        "groups": RIVAL_GROUPS,
        "ours_seconds": ours,
        "fairlearn_seconds": rival,
        "n_boot": N_BOOT,
        "ratio": rival / ours,
        "lean_metric_seconds": lean,
        "lean_metric_n_boot": N_BOOT_LEAN,
        # extrapolated: fairlearn's time grows in proportion to n_boot
        "extrapolated_to_n_boot": OUR_DRAWS,
        "extrapolated_ratio": rival / N_BOOT * OUR_DRAWS / ours,
        "extrapolated_ratio_lean_metric": lean / N_BOOT_LEAN * OUR_DRAWS / ours,
    }


def _seconds(work: Callable[..., object], *arguments: Any) -> float:
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


def _our_audit(data: Columns) -> object:
    return evenprune.audit(
        labels=data["label"], dense=data["dense"], pruned=data["pruned"], groups=data["group"], tolerance=0.02
    )


def _fairlearn(data: Columns, n_boot: int, accuracy: Callable[..., float]) -> list[Any]:
    from fairlearn.metrics import MetricFrame  # type: ignore[import-untyped]

    differences = []
    for model in ("dense", "pruned"):
        frame = MetricFrame(
            metrics=accuracy,
            y_true=data["label"],
            y_pred=data[model],
            sensitive_features=data["group"],
            n_boot=n_boot,
            ci_quantiles=[0.025, 0.975],
            random_state=0,
        )
        differences.append(frame.difference_ci())
    return differences


def _sklearn_accuracy() -> Callable[..., float]:
    from sklearn.metrics import accuracy_score

    return accuracy_score  # type: ignore[no-any-return]


def _lean_accuracy(y_true: Any, y_pred: Any) -> float:
    """Without scikit-learn's checks of its input, which take most of the time of the small groups."""
    return float(np.mean(np.asarray(y_true) == np.asarray(y_pred)))


def table(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """What was measured, the figure, and the aim."""
    big, rival = figures["parquet"], figures["fairlearn"]
    each = ", ".join(f"{seconds:.2f}" for seconds in big["seconds_of_each_run"])
    size, rival_size = f"{big['rows']:,} × {big['groups']:,}", f"{rival['rows']:,} × {rival['groups']}"
    return [
        (f"the whole command, {size} from Parquet", f"{big['seconds']:.2f} s (runs: {each})", "≤ 3 s"),
        ("its peak memory", f"{big['peak_bytes'] / 1e9:.2f} GB", "≤ 1.5 GB"),
        (f"one audit of arrays, {rival_size}", f"{rival['ours_seconds'] * 1e3:.1f} ms", ""),
        (f"fairlearn's bootstrap, n_boot={rival['n_boot']}", f"{rival['fairlearn_seconds']:.1f} s", ""),
        ("ratio", f"{rival['ratio']:,.0f}", "≥ 1,000"),
        (
            f"extrapolated to {rival['extrapolated_to_n_boot']:,} draws, as the audit has",
            f"{rival['extrapolated_ratio']:,.0f}",
            "",
        ),
        (
            "the same with a lean metric function for fairlearn",
            f"{rival['extrapolated_ratio_lean_metric']:,.0f}",
            "",
        ),
    ]
