"""All seeds against a baseline at once: the estimates are the audit's, the limits hold what they promise."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

import evenprune
from paper.beyond_answers import Answers
from paper.beyond_measures import PAYERS, payers_gap
from paper.beyond_pooled import BETTER, DRAWS, NORMAL, STUDENT, Difference, differences, drawn
from paper.beyond_rows import harms

Bits = NDArray[np.bool_]
MEASURES = {"accuracy", "max_excess_gap", "pairwise_disparity"}  # that an audit has, too


def answers(dense: Bits, right: Bits) -> Answers:
    labels = np.zeros(len(dense), np.uint8)
    return Answers(labels, (~dense).astype(np.uint8), (~right).astype(np.uint8))


@pytest.mark.parametrize("seed", range(4))
def test_every_seed_is_compared_as_an_audit_of_both_compares_them(seed: int) -> None:
    """Groups of unequal sizes, one of them empty, one much harmed by the second run."""
    rng = np.random.default_rng(seed)
    groups = rng.choice([0, 1, 2, 4, 10], 4000, p=[0.4, 0.3, 0.2, 0.08, 0.02])
    dense, first = rng.random(4000) < 0.8, rng.random(4000) < 0.7
    second = np.where((groups == 1) | (rng.random(4000) < 0.2), rng.random(4000) < 0.5, first)
    runs = {"first": first, "second": second}
    audit = evenprune.audit(dense_correct=dense, pruned_correct=runs, groups=groups, tolerance=0.01)
    found = differences([(answers(dense, first), answers(dense, second))], groups)
    assert set(found) == MEASURES == set(BETTER) - {PAYERS}
    for measure, one in found.items():
        slow = getattr(audit.comparisons[0], measure)
        assert one.values == pytest.approx([slow.estimate], abs=1e-12)
        assert one.lower < one.values[0] < one.upper
    assert found["accuracy"].sign == -1
    paying = differences([(answers(dense, first), answers(dense, second))], groups, payers=(1, 4))
    assert {name: one for name, one in paying.items() if name != PAYERS} == found
    lost = [dense.astype(float) - run for run in (first, second)]
    before, after = (np.mean([own[groups == g].mean() for g in (1, 4)]) - own.mean() for own in lost)
    assert paying[PAYERS].values == pytest.approx([after - before], abs=1e-12)


def test_runs_that_answer_alike_do_not_differ() -> None:
    rng = np.random.default_rng(0)
    dense, sparse, groups = rng.random(300) < 0.8, rng.random(300) < 0.7, rng.integers(0, 3, 300)
    one = answers(dense, sparse)
    found = differences([(one, one)] * 3, groups)
    assert set(found.values()) == {Difference((0.0,) * 3, 0.0, 0.0)}
    assert {d.sign for d in found.values()} == {0}


def test_a_group_is_drawn_anew_with_as_many_samples() -> None:
    assert set(drawn(37, 0).sum(1).tolist()) == {37}
    assert drawn(37, 0).shape == (DRAWS, 37)
    assert not np.array_equal(drawn(37, 0), drawn(37, 1))


def test_quantiles() -> None:
    assert pytest.approx(stats.norm.ppf(0.975), abs=5e-3) == NORMAL
    assert list(STUDENT) == pytest.approx([stats.t.ppf(0.975, freedom) for freedom in range(1, 10)], abs=5e-3)


# --- simulation with known truth ---

EACH, SEEDS = 150, 5


def world(rng: np.random.Generator, gaps: NDArray[np.float64], seeds: float) -> NDArray[np.bool_]:
    """[runs, groups, samples]: whether each run is right, of a dense model that always is.

    gaps: [runs, groups], of each run off by `seeds`. Runs err on the same samples more often than by chance.
    """
    off = np.clip(gaps + rng.normal(0, seeds, gaps.shape), 0, 1)
    shared, own = rng.random((1, gaps.shape[1], EACH)), rng.random((*gaps.shape, EACH))
    return np.where(rng.random(own.shape) < 0.5, shared, own) > off[..., None]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [0.0, 0.05])
@pytest.mark.parametrize("spread", [0.0, 0.06])
def test_limits_hold_the_mean_difference_of_other_seeds_and_samples(spread: float, seeds: float) -> None:
    """A baseline whose groups differ by `spread` and a method whose groups do not: in at least 92 of 100."""
    rng = np.random.default_rng(7)
    tilt = np.linspace(-spread, spread, 8)
    gaps = np.stack([0.2 + tilt] * SEEDS + [np.full(8, 0.2)] * SEEDS)
    sizes = np.full(8, EACH)

    payers = (6, 7)

    def apart(right: NDArray[np.bool_]) -> dict[str, float]:
        lost = (~right).sum(2).astype(float)
        told = harms(lost, sizes)
        told |= {"accuracy": -told["gap"], PAYERS: payers_gap(lost, sizes, payers)}
        return {name: float(told[name][SEEDS:].mean() - told[name][:SEEDS].mean()) for name in BETTER}

    many = [apart(world(rng, gaps, seeds)) for _ in range(4000)]
    truth = {name: float(np.mean([one[name] for one in many])) for name in BETTER}
    held = dict.fromkeys(BETTER, 0)
    trials, groups, dense = 300, np.repeat(np.arange(8), EACH), np.ones(8 * EACH, dtype=bool)
    for _ in range(trials):
        runs = [answers(dense, run.reshape(-1)) for run in world(rng, gaps, seeds)]
        pairs = list(zip(runs[:SEEDS], runs[SEEDS:], strict=True))
        for name, one in differences(pairs, groups, payers).items():
            held[name] += one.lower <= truth[name] <= one.upper
    assert min(held.values()) >= 0.92 * trials, held
