"""The examples run as they are printed, stay short, and the demo keeps what it promises."""

import copy
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from evenprune import built_in
from evenprune.experiment import BUILT_IN

EXAMPLES = Path(__file__).parent.parent / "examples"
SHORT = ("audit_only", "one_call", "own_loop")
SEEDS = 3  # of the five that the demo trains
Run = Callable[[str], tuple[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def digits() -> tuple[torch.nn.Module, dict[str, Any]]:
    """The dense model that most examples start from: trained once for all of them."""
    return built_in.dense_and_data("digits")


@pytest.fixture
def run(
    digits: tuple[torch.nn.Module, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Run]:
    """Run an example in an empty folder; what it prints, and what its names stand for at the end."""

    def trained(name: str, **_: Any) -> tuple[torch.nn.Module, dict[str, Any]]:
        assert name == "digits"
        return copy.deepcopy(digits)

    def ran(name: str) -> tuple[str, dict[str, Any]]:
        capsys.readouterr()
        made = runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        said, err = capsys.readouterr()
        assert err == ""
        return said, made

    threads = torch.get_num_threads()
    monkeypatch.setattr(built_in, "dense_and_data", trained)
    monkeypatch.chdir(tmp_path)
    yield ran
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", SHORT)
def test_examples_are_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 40


def test_audit_only(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLES / "audit_only.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "fail: west lost" in done.stdout
    assert done.stdout.endswith("Not deployed.\n")


@pytest.mark.slow
def test_one_call_and_its_second_start(run: Run, tmp_path: Path) -> None:
    said, _ = run("one_call")
    assert re.search(r"^CEAG .* [012]/2 ", said, re.M)
    assert (tmp_path / "runs/digits-95/comparison.html").exists()
    written = (tmp_path / "runs/digits-95/checkpoint.safetensors").stat().st_mtime_ns
    assert run("one_call")[0] == said  # resumed: the very same table
    assert (tmp_path / "runs/digits-95/checkpoint.safetensors").stat().st_mtime_ns == written


@pytest.mark.slow
def test_own_loop(run: Run) -> None:
    said, made = run("own_loop")
    found = re.search(r"accuracy (\S+)% dense, (\S+)% pruned", said)
    assert found
    assert float(found[1]) > 95
    assert float(found[2]) > 80
    assert "95.0" in said  # of the prunable weights are gone
    for layer in made["masks"].layers:
        assert not made["model"].get_parameter(layer.name)[made["masks"][layer.name] == 0].any()


@pytest.mark.slow
def test_the_demo_shows_that_ceag_keeps_its_promise_where_plain_fine_tuning_does_not(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fewer = replace(BUILT_IN["digits"], seeds=tuple(range(SEEDS)), evaluate_every=20)
    monkeypatch.setitem(BUILT_IN, "digits", fewer)
    said, _ = run("demo")
    page = tmp_path / "demo" / "digits.html"
    assert page.as_uri() in said
    assert "</html>" in page.read_text(encoding="utf-8")
    for part in ("In plain words", "worst excess gap", "EL+RB"):
        assert part in said
    number = r"(\d+\.\d) ± \S+"
    columns = " +".join([number] * 6)  # accuracy, max ψ, Ψ_PW, each on train and test
    rows = {name: re.search(rf"^{name} +{columns} +(\d)/{SEEDS} ", said, re.M) for name in ("NFT", "CEAG")}
    plain, fair = rows["NFT"], rows["CEAG"]
    assert plain
    assert fair
    assert int(fair[7]) - int(plain[7]) >= SEEDS - 1  # so many at least: CEAG within ε, NFT not
    assert float(fair[3]) < float(plain[3]) / 2  # max ψ; on so few unseen images it is mostly chance
    assert float(fair[2]) > float(plain[2]) - 1  # not bought with everybody else's accuracy
