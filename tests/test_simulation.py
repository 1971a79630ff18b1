"""Coverage, size, noise floor and de-biased maximum by seeded simulation; `make bench` runs it in full."""

import numpy as np
import pytest

from benchmarks import coverage
from benchmarks.coverage import Scenario, harmless_pair, rare_breaks, simulate, simulate_scores

SMALL = [
    Scenario(groups=5, samples=10, disagreement=0.2, repeats=100),
    Scenario(groups=20, samples=100, disagreement=0.2, repeats=100),
    Scenario(groups=20, samples=100, disagreement=0.1, repeats=100, unbalanced=True),
    Scenario(groups=100, samples=30, disagreement=0.2, repeats=60, harmed=True),
    Scenario(groups=5, samples=1000, disagreement=0.05, repeats=100, harmed=True),
]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SMALL, ids=str)
def test_coverage_and_size(scenario):
    found = simulate(scenario)
    noise = 2.5 * np.sqrt(0.05 * 0.95 / scenario.repeats)  # of a simulated share of 5 %
    assert found["coverage"] >= 0.95 - noise
    assert found["false_fail"] <= 0.05 + noise
    assert found["false_pass"] <= 0.05 + noise


@pytest.fixture
def estimates_alone(monkeypatch):
    """Without the share of false passes, which draws every sample once more: the test does not ask for it."""
    monkeypatch.setattr(coverage, "_false_pass", lambda _: None)


@pytest.mark.usefixtures("estimates_alone")
def test_wald_and_the_naive_rule_do_worse():
    found = simulate(Scenario(groups=100, samples=10, disagreement=0.2, repeats=40, harmed=True))
    assert found["coverage"] >= 0.95
    assert found["wald_coverage"] < 0.6
    assert found["naive_false_fail"] > 0.9


@pytest.mark.usefixtures("estimates_alone")
def test_noise_floor_is_what_a_harmless_pruning_shows():
    """The mean over many harmless samples, from few samples (normal draws) and from tiny ones (counts)."""
    for samples, disagreement in ((100, 0.2), (20, 0.1)):
        found = simulate(Scenario(30, samples, disagreement, repeats=80))
        assert found["floor_mean"] == pytest.approx(found["max_estimate"], rel=0.05)
        assert found["floor_disparity_mean"] == pytest.approx(found["disparity_estimate"], rel=0.05)


@pytest.mark.usefixtures("estimates_alone")
def test_debiased_maximum_is_nearer_to_the_truth():
    for harmed, part in ((False, 0.5), (True, 1.0)):
        found = simulate(Scenario(groups=100, samples=100, disagreement=0.2, repeats=20, harmed=harmed))
        naive, debiased = (abs(found[key] - found["true_max"]) for key in ("max_estimate", "debiased"))
        assert debiased < part * naive


@pytest.mark.parametrize("kind", ["score", "loss"])
def test_bootstrap_limits_cover(kind):
    found = simulate_scores(kind=kind, groups=8, samples=100, repeats=80)
    noise = 2.5 * np.sqrt(0.05 * 0.95 / 80)
    assert found["coverage"] >= 0.95 - noise
    assert found["false_fail"] <= 0.05 + noise
    assert found["pointwise_upper"] >= 0.93


@pytest.mark.parametrize(
    ("measure", "samples", "tolerance"), [("accuracy", 53, 0.05), ("accuracy", 20, 0.02), ("score", 30, 0.02)]
)
def test_rare_breaks_do_not_pass(measure, samples, tolerance):
    repeats = 40 if measure == "score" else 200
    found = rare_breaks(measure=measure, samples=samples, tolerance=tolerance, repeats=repeats)
    assert found["false_pass"] <= 0.05 + 2.5 * np.sqrt(0.05 * 0.95 / repeats)


def test_two_harmless_models_do_not_differ_because_one_is_noisier():
    found = harmless_pair(groups=10, samples=200, disagreements=(0.02, 0.2), repeats=30)
    assert found["max_excess_gap_excludes_zero"] <= 0.1
    assert found["pairwise_disparity_excludes_zero"] <= 0.1
