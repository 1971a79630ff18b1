"""What hears of the training: the files, the bar, and what trackers are given."""

import importlib.util
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from evenprune import methods, trackers
from evenprune.recipe import Run
from evenprune.trackers import MetricsFiles, ProgressBar, name_of, news, numbers
from evenprune.training import fit
from tests.training_cases import data_for, images, network, recipe, trained

RUNS = [
    Run(method=methods.nft(), sparsity=0.5, seed=0),
    Run(method=methods.ceag(tolerance=0.01, k=5), sparsity=0.9, seed=3),
]


def row(epoch: int, **changes: Any) -> dict[str, Any]:
    basic = {"epoch": epoch, "accuracy": 0.5, "max_excess_gap": None, "multiplier_sum": None, "splits": {}}
    return basic | changes


def test_a_run_has_one_name_per_place() -> None:
    assert name_of(3, RUNS[1]) == "003-ceag-s0.9-seed3"


def test_metrics_files_hold_what_the_history_holds(tmp_path: Path) -> None:
    split = images()
    model = trained(network(), split)
    fitted = fit(model, data_for(model, split, train=split), runs=RUNS, recipe=recipe(), folder=tmp_path)
    for i, one in enumerate(fitted):
        lines = (tmp_path / name_of(i, one.run) / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == one.history
    assert fitted[1].history[-1]["splits"]["train"].keys() == {
        "accuracy",
        "loss",
        "max_excess_gap",
        "pairwise_disparity",
        "group_accuracy",
    }


def test_metrics_files_begin_with_the_past_and_leave_out_long_lists(tmp_path: Path) -> None:
    files = MetricsFiles(tmp_path)
    files.start(RUNS[:1], 3, [[row(0, multipliers=[1.0])]])
    files.epoch(
        [row(1, multipliers=[0.5] * 1001, splits={"test": {"group_accuracy": [0.1] * 1001, "loss": 2.0}})]
    )
    files.finish()
    lines = (tmp_path / name_of(0, RUNS[0]) / "metrics.jsonl").read_text().splitlines()
    first, second = (json.loads(line) for line in lines)
    assert first["multipliers"] == [1.0]
    assert "multipliers" not in second
    assert second["splits"] == {"test": {"loss": 2.0}}


@pytest.mark.parametrize("terminal", [True, False])
def test_the_bar_tells_the_news_on_a_terminal_and_is_silent_elsewhere(terminal: bool) -> None:
    screen = io.StringIO()
    bar = ProgressBar(Console(file=screen, force_terminal=terminal, width=120))
    bar.start(RUNS, 4, [])
    bar.epoch([row(0), row(0)])
    bar.epoch([row(1), row(1, accuracy=0.7, max_excess_gap=0.034, multiplier_sum=0.25)])
    bar.finish()
    shown = screen.getvalue()
    if not terminal:
        assert shown == ""
        return
    for part in ("2 runs", "epoch 2", "accuracy 60.0%", "max ψ 3.40%", "Σλ 0.25"):
        assert part in shown


def test_the_news_take_the_worst_run() -> None:
    rows = [row(4, max_excess_gap=0.1, multiplier_sum=1.0), row(4, max_excess_gap=0.2, multiplier_sum=0.5)]
    assert news(rows) == "epoch 5 · accuracy 50.0% · max ψ 20.00% · Σλ 1"


def test_trackers_get_single_numbers_by_name() -> None:
    given = row(2, multipliers=[1.0], splits={"test": {"accuracy": 0.25, "group_accuracy": [0.1, None]}})
    assert dict(numbers(given)) == {"accuracy": 0.5, "test/accuracy": 0.25}


@pytest.mark.parametrize(
    ("tracker", "package"), [("TensorBoard", "tensorboard"), ("MLflow", "mlflow"), ("WandB", "wandb")]
)
def test_a_tracker_that_is_not_installed_says_how_to_get_it(
    tracker: str, package: str, tmp_path: Path
) -> None:
    assert package not in sys.modules
    if importlib.util.find_spec(package) is not None:
        pytest.skip(f"{package} is installed here")
    with pytest.raises(ImportError, match=f"pip install {package}"):
        getattr(trackers, tracker)(*([tmp_path] if tracker == "TensorBoard" else []))


def test_fleets_that_follow_one_another_share_no_name():
    naming = trackers.Names()
    runs = [Run(method=methods.ceag(tolerance=t), sparsity=0.5) for t in (0.01, 0.05)]
    names = [name for run in runs for name in naming.of([run])]
    assert len(set(names)) == 2
