"""Coverage, size, noise floor and de-biased maximum by seeded simulation; `make bench` runs it in full."""

import numpy as np
import pytest

from benchmarks.coverage import Scenario, simulate, simulate_scores

SMALL = [
    Scenario(groups=5, samples=10, disagreement=0.2, repeats=150),
    Scenario(groups=20, samples=100, disagreement=0.2, repeats=150),
    Scenario(groups=20, samples=100, disagreement=0.1, repeats=100, unbalanced=True),
    Scenario(groups=100, samples=30, disagreement=0.2, repeats=60, harmed=True),
    Scenario(groups=5, samples=1000, disagreement=0.05, repeats=150, harmed=True),
]


@pytest.mark.parametrize("scenario", SMALL, ids=str)
def test_coverage_and_size(scenario):
    found = simulate(scenario)
    noise = 2.5 * np.sqrt(0.05 * 0.95 / scenario.repeats)  # of a simulated share of 5 %
    assert found["coverage"] >= 0.95 - noise
    assert found["false_fail"] <= 0.05 + noise
    assert found["false_pass"] <= 0.05 + noise


def test_wald_and_the_naive_rule_do_worse():
    found = simulate(Scenario(groups=100, samples=10, disagreement=0.2, repeats=40, harmed=True))
    assert found["coverage"] >= 0.95
    assert found["wald_coverage"] < 0.6
    assert found["naive_false_fail"] > 0.9


def test_noise_floor_is_what_a_harmless_pruning_shows():
    """The mean over many harmless samples, from few samples (normal draws) and from tiny ones (counts)."""
    for samples, disagreement in ((100, 0.2), (20, 0.1)):
        found = simulate(Scenario(50, samples, disagreement, repeats=100))
        assert found["floor_mean"] == pytest.approx(found["max_estimate"], rel=0.05)
        assert found["floor_disparity_mean"] == pytest.approx(found["disparity_estimate"], rel=0.05)


def test_debiased_maximum_is_nearer_to_the_truth():
    for harmed in (False, True):
        found = simulate(Scenario(groups=100, samples=100, disagreement=0.2, repeats=30, harmed=harmed))
        assert abs(found["debiased"] - found["true_max"]) < abs(found["max_estimate"] - found["true_max"]) / 2


@pytest.mark.parametrize("kind", ["score", "loss"])
def test_bootstrap_limits_cover(kind):
    found = simulate_scores(kind=kind, groups=8, samples=100, repeats=80)
    assert found["coverage"] >= 0.9
    assert found["false_fail"] <= 0.1
    assert found["pointwise_upper"] >= 0.92
