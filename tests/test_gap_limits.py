"""Standard errors and limits of ψ as tensors: the audit's own numbers, and true to simulation."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evenprune import limits
from evenprune.gap_limits import (
    SHOWN,
    PairedCounts,
    excess_limits,
    least_excess_gap,
    least_maximum,
    paired_counts,
    psi_standard_errors,
)
from evenprune.groups import Grouping
from evenprune.heldout import followed
from tests.test_constraint import WAITS, Recorded

# n, and of these broken and fixed.
GROUPS = st.lists(
    st.tuples(st.integers(1, 3000), st.floats(0, 1), st.floats(0, 1)).map(
        lambda drawn: (
            drawn[0],
            (broke := round(drawn[0] * drawn[1] ** 3)),
            round((drawn[0] - broke) * drawn[2] ** 3),
        )
    ),
    min_size=2,
    max_size=12,
)
Z95 = torch.tensor([[limits.quantile(0.95)]], dtype=torch.float64)


def tensors(groups: list[tuple[int, int, int]]) -> PairedCounts:
    return PairedCounts(*torch.tensor(groups, dtype=torch.float64).T.unsqueeze(1))  # [1, groups] each


def arrays(groups: list[tuple[int, int, int]]) -> limits.Counts:
    n, b, c = np.array(groups, dtype=float).T
    return limits.Counts(n, b, c, b)


@settings(max_examples=300)
@given(groups=GROUPS, deviate=st.floats(0.05, 4))
def test_limits_are_those_of_the_audit(groups: list[tuple[int, int, int]], deviate: float) -> None:
    audit = arrays(groups)
    expected = limits.excess_limits(audit, audit.outside_of(audit.total()), (deviate, deviate))[0]
    found = excess_limits(tensors(groups), torch.tensor([[deviate]], dtype=torch.float64))
    for own, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(own[0].numpy(), theirs, rtol=0, atol=1e-9)


@settings(max_examples=300)
@given(groups=GROUPS)
def test_standard_errors_are_those_of_the_audit(groups: list[tuple[int, int, int]]) -> None:
    audit = arrays(groups)
    names = tuple(str(g) for g in range(len(groups)))
    alone = Grouping(names, tuple({} for _ in groups), (np.arange(len(groups)),))
    noise = limits.Noise(alone, audit.n, audit.variance)
    found = psi_standard_errors(*tensors(groups))[0].numpy()
    np.testing.assert_allclose(found, noise.standard_errors(), rtol=1e-9)


@settings(max_examples=100)
@given(groups=GROUPS)
def test_the_largest_gap_is_at_least_what_the_audits_limits_say(groups: list[tuple[int, int, int]]) -> None:
    audit, z = arrays(groups), limits.quantile(1 - (1 - SHOWN) / len(groups))  # α/G each
    lower = limits.excess_limits(audit, audit.outside_of(audit.total()), (z, z))[0][0]
    found = least_maximum(tensors([*groups, (0, 0, 0)]))[0]  # one without samples takes no part
    assert float(found) == pytest.approx(lower.max(), abs=1e-9)
    last = least_maximum(tensors(groups), first=len(groups) - 1)[0]  # the last is part of the mean alone
    z = limits.quantile(1 - (1 - SHOWN) / (len(groups) - 1))
    lower = limits.excess_limits(audit, audit.outside_of(audit.total()), (z, z))[0][0]
    assert float(last) == pytest.approx(lower[:-1].max(), abs=1e-9)
    lower = limits.excess_limits(audit, audit.outside_of(audit.total()), (0.7, 0.7))[0][0]
    assert float(least_maximum(tensors(groups), deviate=0.7)[0]) == pytest.approx(lower.max(), abs=1e-9)


def test_samples_without_a_group_are_in_the_mean_and_no_group() -> None:
    before = torch.ones(400, dtype=torch.bool)
    correct = torch.ones(2, 400, dtype=torch.bool)
    correct[0, :60] = False  # of the first group; the second run loses samples of no group instead
    correct[1, 200:260] = False
    groups = torch.tensor([0, 1, -1, -1]).repeat_interleave(100)
    harmed, other = least_excess_gap(before, correct, groups, count=2).tolist()
    counts = paired_counts(before, correct, torch.tensor([0, 1, 2, 2]).repeat_interleave(100), count=3)
    assert [harmed, other] == least_maximum(counts, first=2).tolist()
    assert harmed > 0.2
    assert other < 0
    nobody = least_excess_gap(before, correct, torch.full((400,), -1), count=2)
    assert torch.isnan(nobody).all()
    assert torch.isnan(least_excess_gap(before, correct, torch.full((400,), -1), count=0)).all()


@pytest.mark.parametrize("samples", [20, 125, 2000])
def test_what_the_largest_gap_is_at_least_is_seldom_too_much(samples: int) -> None:
    """Two of twenty groups pay 5 points more than the others; so few are shown to pay more than they do."""
    rng = np.random.default_rng(samples)
    lost = np.array([0.15] * 2 + [0.10] * 18)
    truth = lost.max() - lost.mean()
    broke = rng.binomial(samples, lost + 0.05, (2000, 20))
    fixed = rng.binomial(samples - broke, 0.05 / (1 - lost - 0.05))
    every = (np.full_like(broke, samples), broke, fixed)
    counts = PairedCounts(*(torch.tensor(part, dtype=torch.float64) for part in every))
    wrong = (least_maximum(counts) > truth).double().mean()
    assert float(wrong) < 1 - SHOWN + 0.015


def test_every_run_has_its_own_deviate() -> None:
    groups = [(3, 3, 0), (40, 4, 1), (900, 30, 40)]
    every = PairedCounts(*(part.expand(2, -1) for part in tensors(groups)))
    lower, upper = excess_limits(every, torch.tensor([[0.5], [2.0]], dtype=torch.float64))
    for run, deviate in enumerate((0.5, 2.0)):
        alone = excess_limits(tensors(groups), torch.tensor([[deviate]], dtype=torch.float64))
        assert torch.equal(torch.stack([lower[run], upper[run]]), torch.cat(alone))
    assert (lower[1] < lower[0]).all()
    assert (upper[1] > upper[0]).all()


def test_groups_without_samples_and_without_others_do_no_harm() -> None:
    alone = tensors([(30, 9, 0), (0, 0, 0)])  # nothing but the first group, whose ψ is therefore 0
    lower, upper = excess_limits(alone, Z95)
    assert (lower[0, 0].item(), upper[0, 0].item()) == (0, 0)
    assert torch.isfinite(lower).all()
    error = psi_standard_errors(*alone)[0]
    assert error[0] == pytest.approx(0, abs=1e-12)
    assert error[1] == torch.inf


# --- simulation: the truth is known ---

SIZES = torch.tensor([3, 10, 40, 250, 1000])
BROKE = torch.tensor([0.6, 0.02, 0.3, 0.12, 0.1], dtype=torch.float64)
FIXED = torch.tensor([0.05, 0.02, 0.05, 0.1, 0.08], dtype=torch.float64)
DRAWS = 4000


def simulated() -> tuple[PairedCounts, Tensor]:
    """Counts [draws, groups] and the true ψ [groups]."""
    generator = torch.Generator().manual_seed(1)
    n = SIZES.double().expand(DRAWS, -1)
    broke = torch.binomial(n, BROKE.expand(DRAWS, -1), generator=generator)
    fixed = torch.binomial(n - broke, (FIXED / (1 - BROKE)).expand(DRAWS, -1), generator=generator)
    gap = BROKE - FIXED
    return PairedCounts(n, broke, fixed), gap - (gap * SIZES).sum() / SIZES.sum()


def test_lower_limits_hold_as_often_as_they_say_also_for_three_samples() -> None:
    counts, truth = simulated()
    lower, upper = excess_limits(counts, Z95)
    assert ((lower <= truth).double().mean(0) > 0.94).all()
    assert ((upper >= truth).double().mean(0) > 0.94).all()
    assert ((lower <= truth).double().mean(0)[2:] < 0.985).all()  # not by being endless
    psi = (counts.broke - counts.fixed) / counts.samples
    psi = psi - (psi * SIZES).sum(1, keepdim=True) / SIZES.sum()
    wald = psi - Z95 * _wald(counts)
    assert ((wald <= truth).double().mean(0)[:3] < 0.94).any()  # what the estimate less standard errors does


def _wald(counts: PairedCounts) -> Tensor:
    """(mean d² − mean² d)/(n − 1): zero where all samples of a group changed alike."""
    n, b, c = counts
    share, variance = n / n.sum(1, keepdim=True), ((b + c) / n - ((b - c) / n).square()) / (n - 1)
    common = (share.square() * variance).sum(1, keepdim=True)
    return ((1 - 2 * share) * variance + common).sqrt()


def test_standard_errors_are_those_of_simulation() -> None:
    counts, _ = simulated()
    gap = (counts.broke - counts.fixed) / counts.samples
    psi = gap - (gap * SIZES).sum(1, keepdim=True) / SIZES.sum()
    told, seen = psi_standard_errors(*counts).square().mean(0).sqrt(), psi.std(0)
    torch.testing.assert_close(told[2:], seen[2:], rtol=0.06, atol=0)
    assert (told[:2] > 0.9 * seen[:2]).all()  # of few samples rather too large than too small


# --- counting ---


@given(
    st.lists(
        st.tuples(st.booleans(), st.booleans(), st.booleans(), st.integers(-1, 3)), min_size=1, max_size=60
    )
)
def test_paired_counts_are_those_of_a_loop(samples: list[tuple[bool, bool, bool, int]]) -> None:
    dense, first, second, groups = (torch.tensor(column) for column in zip(*samples, strict=True))
    found = paired_counts(dense, torch.stack([first, second]), groups, count=4)
    for run in (0, 1):
        for g in range(4):
            own = [(s[0], s[1 + run]) for s in samples if s[3] == g]
            assert found.samples[run, g] == len(own)
            assert found.broke[run, g] == own.count((True, False))
            assert found.fixed[run, g] == own.count((False, True))
    alone = paired_counts(dense, first, groups, count=4)
    assert all(torch.equal(one, both[0]) for one, both in zip(alone, found, strict=True))


def test_what_multipliers_follow_in_numbers() -> None:
    """250 samples in each of 20 groups, of which 22 % changed: a standard error of 2.9 points."""
    told = followed(torch.full((20,), 250), torch.full((20,), 30), torch.full((20,), 25))
    assert told["samples"] == [250] * 20
    assert told["median_standard_error"] == pytest.approx(0.029, abs=0.0005)
    uneven = followed(torch.tensor([10, 100, 1000]), torch.tensor([2, 9, 80]), torch.tensor([1, 9, 70]))
    errors = psi_standard_errors(
        torch.tensor([10, 100, 1000]), torch.tensor([2, 9, 80]), torch.tensor([1, 9, 70])
    )
    assert uneven["standard_errors"] == errors.tolist()
    assert uneven["worst_standard_error"] == errors[0].item() == errors.max().item()
    assert uneven["median_standard_error"] == errors[1].item()


def test_no_host_sync_and_as_many_operations_for_1000_groups_as_for_10() -> None:
    seen = []
    for groups in (10, 1000):
        ids = torch.arange(4 * groups) % groups
        dense, sparse = torch.rand(len(ids)) < 0.9, torch.rand(2, len(ids)) < 0.8
        with Recorded() as recorded:
            excess_limits(paired_counts(dense, sparse, ids, count=groups), Z95)
        seen.append(recorded)
    assert seen[0].seen == seen[1].seen
    assert not {name.split(".")[1] for name in seen[0].seen} & set(WAITS)
    assert not seen[0].boolean_index
