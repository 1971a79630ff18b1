"""The examples run as they are printed, stay short, and the demo keeps what it promises."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from evenprune.built_in import dense_and_data
from evenprune.comparison_text import within
from evenprune.experiment import BUILT_IN
from evenprune.pruning import prune
from evenprune.result import Result

EXAMPLES = Path(__file__).parent.parent / "examples"
SHORT = ("audit_only", "one_call", "own_loop")


def run(name: str, folder: Path) -> str:
    """Start an example in an empty folder; what it prints."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("name", SHORT)
def test_examples_are_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 40


def test_audit_only(tmp_path: Path) -> None:
    said = run("audit_only", tmp_path)
    assert "fail: west lost" in said
    assert said.endswith("Not deployed.\n")


@pytest.mark.slow
def test_one_call_and_its_second_start(tmp_path: Path) -> None:
    said = run("one_call", tmp_path)
    assert re.search(r"^CEAG .* [012]/2 ", said, re.M)
    assert (tmp_path / "runs/digits-95/comparison.html").exists()
    assert run("one_call", tmp_path) == said  # resumed: the very same table


@pytest.mark.slow
def test_own_loop(tmp_path: Path) -> None:
    said = run("own_loop", tmp_path)
    found = re.search(r"accuracy (\S+)% dense, (\S+)% pruned", said)
    assert found
    assert float(found[1]) > 95
    assert float(found[2]) > 80
    assert "95.0" in said  # of the prunable weights are gone


@pytest.fixture(scope="module")
def digits() -> Iterator[Result]:
    """The demo's own result, made on one thread as there."""
    settings, threads = BUILT_IN["digits"], torch.get_num_threads()
    torch.set_num_threads(1)
    model, data = dense_and_data("digits")
    yield prune(
        model,
        **data,
        sparsity=settings.sparsity,
        method=settings.methods(),
        seeds=settings.seeds,
        recipe=settings.recipe(),
        tolerance=settings.tolerance,
    )
    torch.set_num_threads(threads)


@pytest.mark.slow
def test_on_the_digits_ceag_keeps_its_promise_where_plain_fine_tuning_does_not(digits: Result) -> None:
    document = digits.document()
    plain, _, fair = (method["runs"] for method in document["methods"])
    kept = [within(run, 0.02) for run in fair]
    broken = [not within(run, 0.02) for run in plain]
    assert sum(k and b for k, b in zip(kept, broken, strict=True)) >= 4
    accuracies = [sum(run["test"]["accuracy"] for run in runs) / 5 for runs in (plain, fair)]
    assert accuracies[1] > accuracies[0] - 0.01  # not bought with everybody else's accuracy


@pytest.mark.slow
def test_the_demo_writes_a_page_and_tells_the_story(tmp_path: Path) -> None:
    said = run("demo", tmp_path)
    page = tmp_path / "demo" / "digits.html"
    assert page.as_uri() in said
    assert "</html>" in page.read_text(encoding="utf-8")
    for part in ("NFT", "EL+RB", "CEAG", "In plain words", "worst excess gap"):
        assert part in said
