"""Notes on a result: when they are made, and that their numbers are right."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from evenprune import methods
from evenprune.reference import DenseReference
from evenprune.training_notes import (
    dual_step,
    idle_multipliers,
    negative_weights,
    none_feasible,
    otherwise_in_evaluation,
    standard_errors,
    too_few,
    unmeasured,
)

CEAG = methods.ceag(tolerance=0.01)


def test_the_step_brings_the_multipliers_to_the_order_of_one_half() -> None:
    """λ ← λ + η v in every step, once more with the step that is proposed."""
    violations = np.random.default_rng(0).uniform(0.01, 0.04, 405)
    reached = float(CEAG.dual_lr * violations.sum())
    (note,) = idle_multipliers("CEAG", CEAG, gaps=[0.032], sums=[reached], steps=405)
    assert note.startswith(
        "CEAG hardly acted: its multipliers sum to 0.021 at the end, while max ψ is 3.2 points"
    )
    assert "on the training data against ε = 1." in note
    step = float(re.search(r"dual_lr=(\S+) instead of 0.002", note)[1])  # type: ignore[index]
    assert step * violations.sum() == pytest.approx(0.5, rel=0.35)  # one digit


def test_a_run_that_keeps_its_best_feasible_epoch_says_where_it_had_none() -> None:
    kept = replace(CEAG, keep="feasible", keep_on="heldout")
    assert none_feasible("CEAG", kept, gaps={0: 0.01, 1: -0.02}, runs=2) == []
    (one,) = none_feasible("CEAG", kept, gaps={0: 0.02}, runs=1)
    assert one.startswith("CEAG: no epoch kept every group within ε = 1 on the held-out data. Kept is the")
    (two,) = none_feasible("CEAG", kept, gaps={2: 0.02, 0: 0.03, 1: 0.0}, runs=3)
    assert two.startswith("CEAG: no epoch with seeds 0, 2 kept every group")


def test_multipliers_that_began_late_are_not_pushed_beyond_reason() -> None:
    assert dual_step(CEAG, gap=0.03, reached=0.0, steps=500) == pytest.approx(0.05)
    assert dual_step(replace(CEAG, dual_lr=0.0), gap=0.03, reached=0.0, steps=500) == pytest.approx(0.05)
    assert dual_step(CEAG, gap=0.03, reached=1e-7, steps=500) == pytest.approx(0.05)
    for small in (0.0101, 0.011, 0.02):
        assert dual_step(CEAG, gap=small, reached=0.0, steps=500) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("method", "gaps", "sums"),
    [
        (CEAG, [0.01], [0.0]),  # it kept its promise
        (CEAG, [0.05], [0.3]),  # it acted
        (methods.nft(), [0.05], [0.0]),
        (methods.el_rb(), [0.05], [0.0]),  # its bound is on losses
        (methods.equalized(), [0.05], [0.0]),
        (CEAG, [], []),
    ],
)
def test_there_is_no_note_where_nothing_is_wrong(
    method: methods.Method, gaps: list[float], sums: list[float]
) -> None:
    assert idle_multipliers("it", method, gaps=gaps, sums=sums, steps=100) == []


def test_multipliers_that_had_no_steps_are_told_without_a_step_to_propose() -> None:
    for method in (CEAG, methods.el_rb(), methods.group_dro()):
        (note,) = idle_multipliers("It", method, gaps=[0.05], sums=[0.0], steps=0)
        assert note.startswith("It never acted: ")
        assert "dual_lr" not in note
    assert idle_multipliers("it", methods.nft(), gaps=[0.05], sums=[0.0], steps=0) == []


def test_multipliers_that_are_made_to_rest_are_no_idle_ones() -> None:
    assert idle_multipliers("x", replace(CEAG, dead_zone=0.05), gaps=[0.05], sums=[0.0], steps=90) == []
    (note,) = idle_multipliers("x", replace(CEAG, dead_zone=0.04), gaps=[0.055], sums=[0.0], steps=100)
    assert "dual_lr=0.5 instead of" in note  # 0.5 over 100 steps of the tolerance, 0.01
    passes = replace(CEAG, multipliers_on="heldout", estimator="pass", refresh=5, caution=1.645)
    (note,) = idle_multipliers("x", passes, gaps=[0.05], sums=[0.0], steps=90)
    assert "while max ψ by its lower limit is 5 points on the held-out data" in note


def test_groups_without_held_out_samples_are_named() -> None:
    def measured(*samples: int) -> DenseReference:
        groups = torch.cat([torch.tensor([-1])] + [torch.full((n,), g) for g, n in enumerate(samples)])
        zeros = torch.zeros(len(groups))
        names = [f"g{i}" for i in range(len(samples))]
        return DenseReference.from_outcomes(correct=zeros, losses=zeros, groups=groups, names=names)

    assert unmeasured(measured(3, 1)) == []
    assert unmeasured(measured(0, 0)) == []  # then there is no max ψ at all, which the choice says
    (one,) = unmeasured(measured(3, 0, 2))
    assert one.startswith('Group "g1" has no held-out samples: ')
    (many,) = unmeasured(measured(3, *[0] * 7))
    assert many.startswith('Groups "g1", "g2", "g3", "g4", "g5" and 2 more have no held-out samples: ')


def test_the_followed_split_and_the_bounded_measure_are_named() -> None:
    follows = replace(CEAG, multipliers_on="heldout")
    assert "on the held-out data" in idle_multipliers("x", follows, gaps=[0.1], sums=[0.0], steps=9)[0]
    spread = methods.pairwise(tolerance=0.01)
    assert "while Ψ_PW is 10 points" in idle_multipliers("x", spread, gaps=[0.1], sums=[0.0], steps=9)[0]


def test_negative_weights_are_a_mean_over_the_seeds() -> None:
    assert negative_weights("CEAG", CEAG, counts=[0, 0], weights=100) == []
    (note,) = negative_weights("CEAG", CEAG, counts=[1000, 2000], weights=9000)
    assert "(1,500 of 9,000 in a run, mean of 2 seeds); they were clipped at zero." in note


# --- how much held-out samples can tell ---


def reference(sizes: list[int], accuracy: float) -> DenseReference:
    samples = torch.tensor(sizes, dtype=torch.float64)
    right = (samples * accuracy).round()
    everything = float(samples.sum()), float(right.sum())
    names = tuple(f"g{i}" for i in range(len(sizes)))
    return DenseReference(names, samples, right, samples * 0, *everything, 0.0)


def test_standard_errors_are_those_of_models_that_err_independently() -> None:
    sizes, accuracy = [400, 100, 50], 0.8
    rng, groups = np.random.default_rng(0), np.repeat(np.arange(3), sizes)
    change = (rng.random((4000, 550)) < accuracy) * 1.0 - (
        rng.random((4000, 550)) < accuracy
    )  # dense − sparse
    gaps = np.stack([change[:, groups == g].mean(1) for g in range(3)], 1) - change.mean(1, keepdims=True)
    assert standard_errors(reference(sizes, accuracy)).tolist() == pytest.approx(
        gaps.std(0).tolist(), rel=0.05
    )


def test_twelve_samples_are_too_few_for_a_point_and_the_note_says_by_how_much() -> None:
    (note,) = too_few(reference([3] * 4, 0.67), tolerance=0.01, who="the choice of a run")
    assert note.startswith(
        "12 held-out samples in 4 groups are few for ε = 1: the standard error of ψ is about "
    )
    error = float(re.search(r"about (\S+) points for “g\d” \(3 samples\)", note)[1]) / 100  # type: ignore[index]
    assert error == pytest.approx(float(standard_errors(reference([3] * 4, 0.67)).max()), rel=0.05)
    assert "so the choice of a run will follow noise" in note


def test_the_number_that_it_names_is_enough() -> None:
    (note,) = too_few(reference([40] * 4, 0.8), tolerance=0.02, who="it")
    needed = int(re.search(r"Some ([\d,]+) samples a group", note)[1].replace(",", ""))  # type: ignore[index]
    assert too_few(reference([needed] * 4, 0.8), tolerance=0.02, who="it") == []
    assert too_few(reference([needed // 3] * 4, 0.8), tolerance=0.02, who="it") != []


def test_no_tolerance_and_absent_groups_are_no_reason_to_warn() -> None:
    assert too_few(reference([3] * 4, 0.5), tolerance=0.0, who="it") == []
    (note,) = too_few(reference([9, 0, 9], 0.5), tolerance=0.01, who="it")
    assert "in 2 groups" in note
    assert math.isfinite(float(standard_errors(reference([9, 0, 9], 0.5)).max()))


def test_runs_that_evaluation_harms_are_told_and_no_others() -> None:
    (note,) = otherwise_in_evaluation("NFT", {2: (0.9, 0.31), 0: (0.88, 0.2), 1: (0.9, 0.81), 3: (0.5, 0.9)})
    assert "(seed 0: 20% instead of 88%, seed 2: 31% instead of 90%)" in note
    assert otherwise_in_evaluation("NFT", {1: (0.9, 0.81)}) == otherwise_in_evaluation("NFT", {}) == []
