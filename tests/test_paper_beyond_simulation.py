"""The simulation of held-out multipliers: its rest against slow dynamics, its answers, its command line."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from evenprune import gap_limits
from evenprune.gap_limits import PairedCounts
from evenprune.tally import FloatArray
from paper import beyond_simulation as simulation
from paper.beyond_rest import (
    CAUTION,
    MEASURES,
    NOTHING,
    RULES,
    TOLERANCE,
    Rates,
    Seen,
    judged,
    lower_limits,
    moved,
    observed,
    pushed,
    resting_multipliers,
    standard_error,
    true_gaps,
)
from paper.beyond_simulation import answers, conclusion, main, shown, simulated, turning_point

RATES = Rates(0.15, 0.067)
FEW: dict[str, Any] = {"groups": (6, 9), "spreads": (0.02, 0.03), "samples": (25, 500, 4000)}


def drawn(
    *, trials: int = 1, groups: int = 7, spread: float = 0.03, samples: int = 60, seed: int = 0
) -> tuple[FloatArray, Seen]:
    rng = np.random.default_rng(seed)
    psi = true_gaps(rng, trials=trials, groups=groups, spread=spread)
    return psi, observed(rng, psi, RATES, samples)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return simulated(RATES, trials=30, seed=0, **FEW)


# --- rest ---


@pytest.mark.parametrize("response", [0.2, 1.0, 5.0])
def test_without_noise_no_gap_is_left_beyond_the_tolerance(response: float) -> None:
    psi, _ = drawn(trials=50, groups=20)
    multipliers = resting_multipliers(psi - TOLERANCE, response)
    after = pushed(psi, multipliers, response)
    assert psi.max() > 3 * TOLERANCE
    assert after.max() <= TOLERANCE + 1e-12
    assert after.mean(-1) == pytest.approx(psi.mean(-1), abs=1e-12)
    assert multipliers.min() == 0
    assert after[multipliers > 0] == pytest.approx(TOLERANCE)  # none is pushed further than it must be
    assert after == pytest.approx(pushed(psi, resting_multipliers(psi - TOLERANCE)))  # a has no part in it


def test_gaps_within_the_tolerance_stay() -> None:
    psi = np.array([[0.009, -0.002, -0.007]])
    assert resting_multipliers(psi - TOLERANCE).tolist() == [[0, 0, 0]]


def test_not_all_groups_can_be_below_the_mean() -> None:
    with pytest.raises(ValueError, match="no multipliers come to rest"):
        resting_multipliers(np.array([[0.02, -0.02]]))


# --- a slow twin: the dual steps one by one, group by group ---


def slow_counts(broke: int, fixed: int, images: int) -> tuple[int, int]:
    """One image after the other: no longer broken, newly fixed, by turns; backwards if there are fewer."""
    b, c = broke, fixed
    for step in range(abs(images)):
        turn = (step % 2 == 0) if images > 0 else (step % 2 == 1)
        b, c = (b - np.sign(images), c) if turn else (b, c + np.sign(images))
    while min(b, c) < 0:
        b, c = b + 1, c + 1
    return int(b), int(c)


def slow_limit(seen: Seen, group: int, images: int) -> float:
    """By the training's own limits, as tensors, of the group beside all others as one."""
    broke, fixed = (list(map(int, counts[0])) for counts in (seen.broke, seen.fixed))
    b, c = slow_counts(broke[group], fixed[group], images)
    n, groups = seen.samples, len(broke)
    lines = ([n, n * (groups - 1)], [b, sum(broke) - b], [c, sum(fixed) - c])
    counts = PairedCounts(*(torch.tensor(line, dtype=torch.float64) for line in lines))
    return float(gap_limits.excess_limits(counts, torch.tensor(CAUTION, dtype=torch.float64))[0][0])


def slow_plain(psi: float, _: Seen, __: int) -> float:
    return psi - TOLERANCE


def slow_dead_zone(psi: float, seen: Seen, group: int) -> float:
    """Either side of it: beyond d above the tolerance λ rises, beyond d below it falls."""
    v = ((seen.broke + seen.fixed + 2) - (seen.broke - seen.fixed) ** 2 / (seen.samples + 2))[0]
    v = v / (seen.samples + 2) ** 2
    zone = np.sqrt((1 - 2 / len(v)) * v[group] + sum(v) / len(v) ** 2)
    violation = psi - TOLERANCE
    return float(violation - np.clip(violation, -zone, zone))


def slow_lower_limit(psi: float, seen: Seen, group: int) -> float:
    """A straight line between whole images."""
    images = (float(seen.psi[0, group]) - psi) * seen.samples
    whole = int(np.floor(images))
    near, far = slow_limit(seen, group, whole), slow_limit(seen, group, whole + 1)
    return near + (images - whole) * (far - near) - TOLERANCE


SLOW: dict[str, Callable[[float, Seen, int], float]] = {
    "plain": slow_plain,
    "lower_limit": slow_lower_limit,
    "dead_zone": slow_dead_zone,
}


def slow_rest(rule: str, truth: list[float], seen: Seen, *, steps: int, step: float) -> list[float]:
    """λ <- [λ + η·violation]₊ from 0 on, and then the true gaps."""
    estimate, multipliers = seen.psi[0].tolist(), [0.0] * len(truth)
    for _ in range(steps):
        mean = sum(multipliers) / len(multipliers)
        now = [psi - (own - mean) for psi, own in zip(estimate, multipliers, strict=True)]
        violations = [SLOW[rule](psi, seen, g) for g, psi in enumerate(now)]
        multipliers = [max(own + step * v, 0.0) for own, v in zip(multipliers, violations, strict=True)]
    mean = sum(multipliers) / len(multipliers)
    return [psi - (own - mean) for psi, own in zip(truth, multipliers, strict=True)]


@pytest.mark.parametrize(("rule", "steps"), [("plain", 300), ("lower_limit", 20), ("dead_zone", 300)])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_rest_is_where_slow_multipliers_come_to(rule: str, steps: int, seed: int) -> None:
    psi, seen = drawn(spread=0.06, samples=150, seed=seed)
    slow = slow_rest(rule, psi[0].tolist(), seen, steps=steps, step=0.9)
    fast = pushed(psi, resting_multipliers(RULES[rule](seen)))[0]
    assert fast.tolist() == pytest.approx(slow, abs=1e-5)
    assert np.abs(fast - psi[0]).max() > 0.002  # something has moved
    found = judged(psi, seen)[rule]
    assert found["spread"][0] == pytest.approx(np.std(slow), abs=1e-5)
    assert found["max_excess_gap"][0] == pytest.approx(max(slow), abs=1e-5)
    assert found["worse_group"][0] == pytest.approx(slow[0], abs=1e-5)


@pytest.mark.parametrize("samples", [10, 60, 400])
def test_limits_cross_the_tolerance_where_they_should(samples: int) -> None:
    _, seen = drawn(trials=40, samples=samples)
    wanted = RULES["lower_limit"](seen) * samples
    below, above = lower_limits(seen, np.floor(wanted)), lower_limits(seen, np.floor(wanted) + 1)
    assert (below >= TOLERANCE - 1e-9).all()
    assert (above <= TOLERANCE + 1e-9).all()


@pytest.mark.parametrize("images", [-9, -4, -1, 0, 1, 2, 5, 12])
def test_images_move_by_turns(images: int) -> None:
    broke, fixed = moved(np.array([4.0]), np.array([2.0]), np.array([float(images)]))
    assert (broke[0], fixed[0]) == slow_counts(4, 2, images)
    assert broke[0] - fixed[0] == 2 - images


def test_samples_are_as_noisy_as_told() -> None:
    psi, seen = drawn(trials=400, groups=20, samples=250)
    assert (psi**2).mean() ** 0.5 == pytest.approx(0.03, rel=0.05)
    assert (seen.psi - psi).std() == pytest.approx(standard_error(RATES, groups=20, samples=250), rel=0.03)
    with pytest.raises(ValueError, match=r"spread is 0\.005: .* give 0\.0087 or more"):
        true_gaps(np.random.default_rng(0), trials=1, groups=20, spread=0.005)


# --- the document ---


def test_the_same_seed_gives_the_same_numbers(document: dict[str, Any]) -> None:
    assert simulated(RATES, trials=30, seed=0, **FEW) == document
    assert simulated(RATES, trials=30, seed=1, **FEW)["rows"] != document["rows"]
    assert "commit" not in json.dumps(document)
    assert document["answers"] == answers(document["rows"], RATES)


def test_doing_nothing_does_not_depend_on_the_samples(document: dict[str, Any]) -> None:
    first, second, *_ = document["rows"]
    assert first[NOTHING] == second[NOTHING]
    assert {own["difference"] for own in first[NOTHING].values()} == {0.0}
    for rule in RULES:
        assert first[rule]["spread"]["difference"] == pytest.approx(
            first[rule]["spread"]["mean"] - first[NOTHING]["spread"]["mean"], abs=1e-6
        )


def test_plain_multipliers_harm_with_few_samples_and_help_with_many(document: dict[str, Any]) -> None:
    few, _, many = document["rows"][:3]
    assert few["plain"]["spread"]["difference"] > 0 > many["plain"]["spread"]["difference"]
    assert few["lower_limit"]["spread"]["difference"] < few["plain"]["spread"]["difference"]


@pytest.mark.parametrize(
    ("differences", "turn"),
    [((3, 1, -1), 200), ((3, 2, 1), None), ((-1, -2, -3), 25), ((3, -1, 0.5), None), ((-1, 1, -1), 200)],
)
def test_turning_points(differences: tuple[float, ...], turn: float | None) -> None:
    rows = [
        {"samples": n, "plain": {"spread": {"difference": difference}}}
        for n, difference in zip((25, 100, 400), differences, strict=True)
    ]
    assert turning_point(rows, "spread") == turn


# --- text ---


def test_the_conclusion_follows_the_numbers(document: dict[str, Any]) -> None:
    """Multipliers that always help by much, or that always harm."""

    def told(sign: int) -> str:
        changed = deepcopy(document)
        for row in changed["rows"]:
            for rule in RULES:
                for measure in MEASURES:
                    row[rule][measure] |= {"difference": sign * 0.01, "difference_error": 0.001}
        return conclusion(changed["rows"], answers(changed["rows"], RATES))

    usual = conclusion(document["rows"], document["answers"])
    assert len({usual, told(-1), told(1)}) == 3
    assert "6 groups 25 (spread 2), 25 (spread 3); 9 groups" in told(-1)
    assert "plain raises spread or max ψ in 0 and lowers both in 12 (spread -1.0 points" in told(-1)
    assert "it may be larger than the spread" in told(-1)
    assert "6 groups more than 4000 (spread 2), more than 4000 (spread 3)" in told(1)
    assert "dead zone raises spread or max ψ in 12 and lowers both in 0 (spread +1.0 points" in told(1)
    assert "standard error" not in told(1)


def test_tables_are_aligned(document: dict[str, Any]) -> None:
    lines = shown(document)
    assert max(map(len, lines[:-1])) <= 110
    settings = [line for line in lines if line[:6].strip() in {"25", "500", "4000"}]
    assert len(settings) == len(document["rows"])
    mean = document["rows"][0]["plain"]["spread"]["mean"]
    assert settings[0][35:42].strip(" <>") == f"{100 * mean:.2f}"


# --- the command line ---


def study(path: Path) -> Path:
    run = simulation.STUDIED | {
        "changes": {"audit": {"samples": [50, 50], "broke": [9, 6], "fixed": [4, 3]}},
    }
    path.write_text(json.dumps({"runs": [run, run | {"method": "CEAG"}]}))
    return path


def test_run_and_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the same bytes; the rates are those of the study."""

    def fewer(rates: Rates, **told: Any) -> dict[str, Any]:
        return simulated(rates, **told, **FEW)

    monkeypatch.setattr(simulation, "simulated", fewer)
    told = ["--trials", "5", "--seed", "3", "--study", str(study(tmp_path / "study.json"))]
    for name in ("a", "b"):
        assert main(["run", *told, "--results", str(tmp_path / name)]) == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    settings = json.loads((tmp_path / "a").read_text())["settings"]
    assert (settings["broke"], settings["fixed"], settings["trials"], settings["seed"]) == (0.15, 0.07, 5, 3)
    assert main(["show", "--results", str(tmp_path / "a")]) == 0
    assert "6 groups, spread 2" in capsys.readouterr().out


def test_wrong_numbers_are_told_in_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--trials", "1", "--seed", "-1"]) == 2
    said = capsys.readouterr().err
    assert "--trials is 1: give a whole number of at least 2" in said
    assert "--seed is -1: give a whole number of at least 0" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--trials", "many"], "argument --trials: invalid int value: 'many'"),
        (["--seed", "1.5"], "argument --seed: invalid int value: '1.5'"),
        (["--sead", "1"], "unrecognized arguments: --sead 1"),
    ],
)
def test_flags_that_cannot_be_read(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["run", *words])
    assert error.value.code == 2
    assert said in capsys.readouterr().err


def test_bad_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Named, with what is right; found before anything is simulated."""
    empty, broken, gone = tmp_path / "empty.json", tmp_path / "broken.json", tmp_path / "gone.json"
    empty.write_text('{"runs": [{"method": "NFT"}]}')
    broken.write_text("{")
    for words, said in (
        (
            ["run", "--study", str(empty)],
            f"--study is {empty}, and has no run of dataset cifar100, method NFT",
        ),
        (["run", "--study", str(broken)], f"--study is {broken}, which is not JSON"),
        (
            ["run", "--study", str(gone)],
            f"--study is {gone}, which cannot be read (No such file or directory)",
        ),
        (["show", "--results", str(gone)], "`python paper/beyond_simulation.py run` makes it"),
        (["show", "--results", str(empty)], f"--results is {empty}, which has no list of rows"),
        (
            ["run", "--results", str(gone / "a")],
            f"--results is {gone / 'a'}, in no folder: make {gone} first",
        ),
    ):
        assert main(words) == 2
        assert said in capsys.readouterr().err
