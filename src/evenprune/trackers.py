"""What hears about the training: metrics.jsonl, a progress bar, and trackers of a few lines each.

A hook is told of the start, of every epoch and of the end. It gets plain numbers, one dictionary per run,
read from the device once an epoch; the loop knows nothing of any tracker.
"""

import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from evenprune import atomic
from evenprune.recipe import Run

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

Row = Mapping[str, Any]  # one epoch of one run, as in Fitted.history
LONGEST_LIST = 1000  # per-group numbers of more groups than this stay out of metrics.jsonl


class Hook(Protocol):
    """Told of the training of one fleet; several fleets follow one another."""

    def start(self, runs: Sequence[Run], epochs: int, past: Sequence[Sequence[Row]]) -> None:
        """Before the first epoch. `past`: the epochs that a resumed training has behind it, with all runs."""

    def epoch(self, rows: Sequence[Row]) -> None:
        """After an epoch: one row per run."""

    def finish(self) -> None:
        """After the last epoch, or when the training stopped with an error."""


def name_of(place: int, run: Run) -> str:
    """A run's name as a file or tracker can hold it: 003-ceag-s0.9-seed2."""
    method = re.sub(r"[^\w.+-]+", "-", run.method.name).strip("-")
    return f"{place:03d}-{method}-s{run.sparsity:g}-seed{run.seed}"


class MetricsFiles:
    """One metrics.jsonl per run: one line an epoch, always whole, also after a kill and a resume.

    Short epochs are written together, once in `pause` seconds: a fleet has many files, and the disk is slow.
    """

    pause = 1.0

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.places: list[Path] = []
        self.lines: list[list[str]] = []
        self.written = -math.inf

    def start(self, runs: Sequence[Run], epochs: int, past: Sequence[Sequence[Row]]) -> None:
        self.places = [self.folder / name_of(i, run) / "metrics.jsonl" for i, run in enumerate(runs)]
        self.lines = [[_line(rows[i]) for rows in past] for i in range(len(runs))]
        for place in self.places:
            place.parent.mkdir(parents=True, exist_ok=True)
        self._write()

    def epoch(self, rows: Sequence[Row]) -> None:
        for lines, row in zip(self.lines, rows, strict=True):
            lines.append(_line(row))
        if time.monotonic() - self.written > self.pause:
            self._write()

    def finish(self) -> None:
        self._write()

    def _write(self) -> None:
        self.written = time.monotonic()
        for place, lines in zip(self.places, self.lines, strict=True):
            atomic.write_text(place, "".join(lines))


def _line(row: Row) -> str:
    return json.dumps(_without_long_lists(row), allow_nan=False) + "\n"


def _without_long_lists(value: Any) -> Any:
    if isinstance(value, Mapping):
        kept = {k: v for k, v in value.items() if not (isinstance(v, list) and len(v) > LONGEST_LIST)}
        return {k: _without_long_lists(v) for k, v in kept.items()}
    return value


class ProgressBar:
    """Epoch, accuracy, max ψ and Σλ on one line; silent where the output is not a terminal."""

    def __init__(self, console: "Console | None" = None) -> None:
        from rich.console import Console  # here, because training without a bar works without rich
        from rich.progress import TaskID

        self.console = console or Console(stderr=True)
        self.progress: Progress | None = None
        self.task = TaskID(0)

    def start(self, runs: Sequence[Run], epochs: int, past: Sequence[Sequence[Row]]) -> None:
        if not self.console.is_terminal:
            return
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        label = f"{len(runs)} runs" if len(runs) > 1 else str(runs[0])
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[news]}"))
        self.progress = Progress(*columns, TimeRemainingColumn(), console=self.console)
        self.task = self.progress.add_task(label, total=epochs, completed=len(past), news="")
        self.progress.start()

    def epoch(self, rows: Sequence[Row]) -> None:
        if self.progress is not None:
            self.progress.update(self.task, completed=rows[0]["epoch"] + 1, news=news(rows))

    def finish(self) -> None:
        if self.progress is not None:
            self.progress.stop()
            self.progress = None


def news(rows: Sequence[Row]) -> str:
    """One epoch in a few words: mean accuracy, and the largest max ψ and Σλ of the runs that have any."""
    accuracy = sum(row["accuracy"] for row in rows) / len(rows)
    psi = [row["max_excess_gap"] for row in rows if row["max_excess_gap"] is not None]
    multipliers = [row["multiplier_sum"] for row in rows if row["multiplier_sum"] is not None]
    words = [f"epoch {rows[0]['epoch'] + 1}", f"accuracy {accuracy:.1%}"]
    words += [f"max ψ {max(psi):.2%}"] if psi else []
    words += [f"Σλ {max(multipliers):.3g}"] if multipliers else []
    return " · ".join(words)


def numbers(row: Row, prefix: str = "") -> Iterator[tuple[str, float]]:
    """The single numbers of a row by name, such as ("test/accuracy", 0.93); lists are left out."""
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from numbers(value, "" if name == "splits" else f"{prefix}{name}/")
        elif isinstance(value, int | float) and name != "epoch" and math.isfinite(value):
            yield f"{prefix}{name}", float(value)


class Names:
    """Names of the runs of fleets that follow one another: numbered on, so that none comes twice."""

    def __init__(self) -> None:
        self.before = 0

    def of(self, runs: Sequence[Run]) -> list[str]:
        names = [name_of(self.before + i, run) for i, run in enumerate(runs)]
        self.before += len(runs)
        return names


class TensorBoard:
    """Event files for TensorBoard, one folder per run."""

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise _missing("tensorboard", error) from error
        self.folder, self.make, self.writers = Path(folder), SummaryWriter, list[Any]()
        self.naming = Names()

    def start(self, runs: Sequence[Run], epochs: int, past: Sequence[Sequence[Row]]) -> None:
        self.writers = [self.make(str(self.folder / name)) for name in self.naming.of(runs)]

    def epoch(self, rows: Sequence[Row]) -> None:
        for writer, row in zip(self.writers, rows, strict=True):
            for name, value in numbers(row):
                writer.add_scalar(name, value, row["epoch"])

    def finish(self) -> None:
        for writer in self.writers:
            writer.close()


class MLflow:
    """Metrics in the MLflow run that is active; those of several runs are told apart by a prefix."""

    def __init__(self) -> None:
        try:
            import mlflow
        except ImportError as error:
            raise _missing("mlflow", error) from error
        self.log, self.names, self.naming = mlflow.log_metrics, list[str](), Names()

    def start(self, runs: Sequence[Run], epochs: int, past: Sequence[Sequence[Row]]) -> None:
        self.names = self.naming.of(runs)

    def epoch(self, rows: Sequence[Row]) -> None:
        for name, row in zip(self.names, rows, strict=True):
            self.log({f"{name}/{key}": value for key, value in numbers(row)}, step=row["epoch"])

    def finish(self) -> None:
        pass


class WandB:
    """One Weights & Biases run per run; settings such as project and group go to wandb.init."""

    def __init__(self, **settings: Any) -> None:
        try:
            import wandb
        except ImportError as error:
            raise _missing("wandb", error) from error
        self.begin, self.settings, self.open, self.naming = wandb.init, settings, list[Any](), Names()

    def start(self, runs: Sequence[Run], epochs: int, past: Sequence[Sequence[Row]]) -> None:
        started = [{"name": name, "reinit": "create_new", **self.settings} for name in self.naming.of(runs)]
        self.open = [self.begin(**settings) for settings in started]

    def epoch(self, rows: Sequence[Row]) -> None:
        for tracked, row in zip(self.open, rows, strict=True):
            tracked.log(dict(numbers(row)), step=row["epoch"])

    def finish(self) -> None:
        for tracked in self.open:
            tracked.finish()


def _missing(package: str, error: ImportError) -> ImportError:
    return ImportError(f"This tracker needs {package}, not importable ({error}): pip install {package}")
