"""One setting chosen on the held-out split: by means over seeds, and the run that stands for it."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenprune import limits
from evenprune.predict import Predictions
from evenprune.run_figures import judged
from evenprune.selection import Candidate, choose, sentence


def candidates(off: float = 0.0, **settings: list[tuple[float, float]]) -> list[Candidate]:
    """Settings by name: (accuracy, max ψ) of every seed; the lower limit of max ψ is so far off."""
    return [
        Candidate(f"{name}, seed {seed}", name, name.upper(), accuracy, gap, gap - off)
        for name, runs in settings.items()
        for seed, (accuracy, gap) in enumerate(runs)
    ]


def test_a_lucky_seed_does_not_decide() -> None:
    lucky = [(0.99, 0.0), (0.80, 0.09), (0.80, 0.09)]  # one seed is better than all others
    steady = [(0.90, 0.01), (0.90, 0.03), (0.90, 0.02)]
    found = choose(candidates(a=lucky, b=steady), tolerance=0.02)
    assert (found.title, found.within, found.settings, found.seeds) == ("B", True, 2, 3)
    assert found.name == "b, seed 2"  # the median of 0.01, 0.03, 0.02


def test_of_those_within_the_tolerance_the_most_accurate_and_else_the_nearest() -> None:
    runs = {"a": [(0.9, 0.020)], "b": [(0.95, 0.021)], "c": [(0.8, 0.0)]}
    assert choose(candidates(**runs), 0.02).title == "A"  # exactly the tolerance is within it
    assert choose(candidates(**runs), 0.03).title == "B"
    assert choose(candidates(b=runs["b"], a=[(0.99, 0.5)]), 0.01).title == "B"


def test_where_none_is_within_it_the_most_accurate_that_is_not_shown_to_be_beyond() -> None:
    runs = {"a": [(0.7, 0.04)], "b": [(0.9, 0.05)], "c": [(0.95, 0.09)]}
    found = choose(candidates(0.04, **runs), 0.02)  # the lower limits: 0, 0.01, 0.05
    assert (found.title, found.within, found.beyond) == ("B", False, False)
    assert choose(candidates(0.04, **runs), 0.04).title == "A"  # within it
    found = choose(candidates(0.01, **runs), 0.02)  # all are shown to be beyond it
    assert (found.title, found.within, found.beyond) == ("A", False, True)


def test_of_two_runs_the_one_with_the_smaller_gap() -> None:
    assert choose(candidates(a=[(0.9, 0.02), (0.9, 0.01)]), 0.1).name == "a, seed 1"


@given(
    st.lists(
        st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=5), min_size=1, max_size=4
    ),
    st.floats(0, 1),
    st.floats(0, 0.5),
)
def test_no_setting_is_better_than_the_chosen_one(
    settings: list[list[tuple[float, float]]], tolerance: float, off: float
) -> None:
    named = {f"s{i}": runs for i, runs in enumerate(settings)}
    found = choose(candidates(off, **named), tolerance)
    means = {
        name: [sum(column) / len(runs) for column in zip(*runs, strict=True)] for name, runs in named.items()
    }
    inside, told = (
        [accuracy for accuracy, gap in means.values() if gap <= most] for most in (tolerance, tolerance + off)
    )
    if found.within or not found.beyond:
        assert found.accuracy >= max(inside if found.within else told, default=0.0) - 1e-6
        assert found.within or not inside
    else:
        assert found.gap <= min(gap for _, gap in means.values()) + 1e-9
        assert not told
    own = sorted(gap for _, gap in named[found.title.lower()])
    seed = int(found.name.rpartition(" ")[2])
    assert named[found.title.lower()][seed][1] == own[(len(own) - 1) // 2]


@pytest.mark.parametrize(
    ("runs", "tolerance", "said"),
    [
        ({"a": [(0.9, 0.01)] * 3, "b": [(0.8, 0.01)]}, 0.02,
         "Chosen on the held-out data: A, the most accurate within ε = 2 of 2 settings (mean of 3 seeds: "
         "90.0 % accurate, max ψ 1.0 points). Its run of the median max ψ is a, seed 1."),
        ({"a": [(0.9, 0.09)], "b": [(0.8, 0.1)]}, 0.02,
         "Chosen on the held-out data: A, of 2 settings all are shown to be beyond ε = 2, this one is "
         "nearest (90.0 % accurate, max ψ 9.0 points)."),
        ({"a": [(0.8, 0.04)], "b": [(0.9, 0.05)]}, 0.02,
         "Chosen on the held-out data: B, the most accurate not shown to be beyond ε = 2 of 2 settings, of "
         "which none is within it (90.0 % accurate, max ψ 5.0 points)."),
        ({"a": [(0.9, 0.04)]}, 0.005,
         "Chosen on the held-out data: A, the only setting, not shown to be beyond ε = 0.5 (90.0 % accurate, "
         "max ψ 4.0 points)."),
        ({"a": [(0.9, 0.05)]}, 0.005,
         "Chosen on the held-out data: A, the only setting, beyond ε = 0.5 (90.0 % accurate, max ψ 5.0 "
         "points)."),
        ({"a": [(0.8, math.inf)], "b": [(0.9, math.inf)] * 3}, 0.02,
         "Chosen on the held-out data: B, the most accurate of 2 settings (mean of 3 seeds: 90.0 % "
         "accurate); there is no max ψ to choose by, as no group of the training data has held-out samples. "
         "Of its runs b, seed 1 stands for it."),
        ({"a": [(0.8, math.inf)]}, 0.02,
         "Chosen on the held-out data: A, the only setting (80.0 % accurate); there is no max ψ to choose "
         "by, as no group of the training data has held-out samples."),
    ],
)  # fmt: skip
def test_the_choice_in_one_sentence(
    runs: dict[str, list[tuple[float, float]]], tolerance: float, said: str
) -> None:
    assert sentence(choose(candidates(0.04, **runs), tolerance), tolerance) == said


# --- what a choice is made by ---


def answers(right: list[bool], groups: list[int]) -> Predictions:
    labels = torch.zeros(len(right), dtype=torch.int64)
    return Predictions(labels, 1 - torch.tensor(right).long(), torch.tensor(groups), labels.double())


def test_a_run_is_judged_by_its_gaps_and_their_limits() -> None:
    """20 of the 40 samples of the first group break, none of the 360 others; 40 have no group."""
    groups = [0] * 40 + [1] * 360 + [-1] * 40
    dense = answers([True] * 440, groups)
    pruned = answers([False] * 20 + [True] * 420, groups)
    found = judged(dense, pruned, ["a", "b"])
    assert found["accuracy"] == 420 / 440
    assert found["gap"] == pytest.approx(0.5 - 20 / 440)
    z = limits.quantile(1 - 0.05 / 2)  # of two groups
    for before, after, broke, fixed in ((dense, pruned, 20, 0), (pruned, dense, 0, 20)):
        columns = ([40, 360, 40], [broke, 0, 0], [fixed, 0, 0], [0, 0, 0])
        every = limits.Counts(*(np.array(own, float) for own in columns))
        lower = limits.excess_limits(every, every.outside_of(every.total()), (z, z))[0][0]
        assert judged(before, after, ["a", "b"])["least"] == pytest.approx(lower[:2].max())
    nobody = answers([True] * 440, [-1] * 440)
    assert judged(nobody, nobody, ["a", "b"]) == {"accuracy": 1.0, "gap": math.inf, "least": math.inf}
