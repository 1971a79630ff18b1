"""The examples run as they are printed, stay short, and the demo keeps what it promises."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.slow
def test_the_demo_shows_that_ceag_keeps_its_promise_where_plain_fine_tuning_does_not(tmp_path: Path) -> None:
    said = run("demo", tmp_path)
    page = tmp_path / "demo" / "digits.html"
    assert page.as_uri() in said
    assert "</html>" in page.read_text(encoding="utf-8")
    for part in ("In plain words", "worst excess gap", "EL+RB"):
        assert part in said
    number = r"(\d+\.\d) ± \S+"
    columns = " +".join([number] * 6)  # accuracy, max ψ, Ψ_PW, each on train and test
    rows = {name: re.search(rf"^{name} +{columns} +(\d)/5 ", said, re.M) for name in ("NFT", "CEAG")}
    plain, fair = rows["NFT"], rows["CEAG"]
    assert plain
    assert fair
    assert int(fair[7]) - int(plain[7]) >= 4  # so many seeds at least: CEAG within ε, NFT not
    assert float(fair[4]) < float(plain[4])  # max ψ on the test data
    assert float(fair[2]) > float(plain[2]) - 1  # not bought with everybody else's accuracy
