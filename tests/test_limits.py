"""The statistics against longhand twins, known values and simulations with known truth."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenprune import limits, maximum
from evenprune.groups import Grouping, group_cells
from evenprune.limits import Counts
from evenprune.tally import InputProblems
from tests.twins import audit as twin

Z = 1.959963984540054


def a(*values):
    return np.array(values, dtype=float)


def counts(n, b, c):
    n, b, c = (np.asarray(x, dtype=float) for x in (n, b, c))
    return Counts(n, b, c, b)


def plain_grouping(groups: int) -> Grouping:
    return group_cells([(str(i),) for i in range(groups)], ["g"], each=False)


def test_score_limits_known_values():
    # b = c = 0 has the closed form ± z²/(n + z²).
    low, high = limits.score_limits(a(0), a(0), a(10), Z, Z)
    assert high[0] == pytest.approx(Z**2 / (10 + Z**2))
    assert low[0] == -high[0]
    assert limits.score_limits(a(10), a(0), a(10), Z, Z)[1][0] == 1.0  # all broke


def test_limits_of_rare_changes_are_never_narrower_than_the_exact_ones():
    _, high = limits.paired_limits(counts([50], [0], [0]), 1.6448536, 1.6448536)
    assert high[0] == pytest.approx(1 - 0.05 ** (1 / 50), abs=1e-6)  # Tango alone: 0.051, exact 0.058


counts_triple = st.integers(1, 300).flatmap(
    lambda n: st.tuples(st.just(n), st.integers(0, n)).flatmap(
        lambda nb: st.tuples(st.just(nb[0]), st.just(nb[1]), st.integers(0, nb[0] - nb[1]))
    )
)


@settings(max_examples=60)
@given(counts_triple, st.floats(0.5, 4.5))
def test_score_limits_equal_the_root_of_the_textbook_statistic(triple, z):
    n, b, c = triple
    low, high = limits.score_limits(a(b), a(c), a(n), z, z)
    assert (low[0], high[0]) == pytest.approx(twin.score_limits(b, c, n, z), abs=2e-6)
    low, high = limits.paired_limits(counts([n], [b], [c]), z, z)
    assert (low[0], high[0]) == pytest.approx(twin.paired_limits(b, c, n, z), abs=2e-6)


@settings(max_examples=100)
@given(st.lists(counts_triple, min_size=2, max_size=6), st.floats(0.1, 5))
def test_limits_bracket_estimates_and_widen_with_z(triples, z):
    n, b, c = (a(*x) for x in zip(*triples, strict=True))
    group = counts(n, b, c)
    rest = group.outside_of(group.total())
    (low, high), (wide_low, wide_high) = limits.excess_limits(group, rest, (z, z), (z + 0.5, z + 0.5))
    excess = group.gap - group.total().gap
    assert np.all(low <= excess + 1e-9)
    assert np.all(excess <= high + 1e-9)
    assert np.all(wide_low <= low + 1e-9)
    assert np.all(high <= wide_high + 1e-9)


@settings(max_examples=25)
@given(st.lists(counts_triple, min_size=2, max_size=4))
def test_excess_limits_equal_mover_longhand(triples):
    n, b, c = (a(*x) for x in zip(*triples, strict=True))
    group = counts(n, b, c)
    rest = group.outside_of(group.total())
    ((low, high),) = limits.excess_limits(group, rest, (Z, Z))
    for i in range(n.size):
        expected = twin.mover((b[i], c[i], n[i]), (rest.b[i], rest.c[i], rest.n[i]), Z)
        assert (low[i], high[i]) == pytest.approx(expected, abs=5e-6)


@settings(max_examples=60)
@given(st.lists(counts_triple, min_size=2, max_size=8))
def test_variance_equals_the_contrast_matrix(triples):
    n, b, c = (a(*x) for x in zip(*triples, strict=True))
    cells = counts(n, b, c)
    found = limits.excess_variance(plain_grouping(n.size), cells.n, cells.variance)
    assert found == pytest.approx(twin.excess_variance(n, cells.variance), rel=1e-9)


def test_variance_of_overlapping_groups_equals_simulation():
    """`each`: an attribute's group is several cells; its variance follows from theirs."""
    cells = [(r, s) for r in "ab" for s in "xy"]
    grouping = group_cells(cells, ["r", "s"], each=True)
    n, v = a(10, 20, 30, 40), a(0.01, 0.02, 0.005, 0.01)
    noise = limits.Noise(grouping, n, v)
    draws = np.random.default_rng(0).standard_normal((200_000, 4)) * np.sqrt(v)
    assert noise.standard_errors() == pytest.approx(noise.errors(draws).std(axis=0), rel=0.02)


def test_critical_value_of_one_pair_is_the_normal_quantile():
    """Two groups: ψ_1 and ψ_2 have opposite signs, so max t is |N(0, 1)|."""
    cells = counts([500, 500], [25, 25], [25, 25])
    t = limits.t_draws(limits.Noise(plain_grouping(2), cells.n, cells.variance), np.random.default_rng(1))
    assert limits.upper_quantile(t.max(axis=1), 0.95) == pytest.approx(1.96, abs=0.08)


def test_step_down_names_more_than_the_single_step():
    t = np.random.default_rng(0).standard_normal((4000, 3)).astype(np.float32)
    first = limits.upper_quantile(t.max(axis=1), 0.95)  # about 2.12
    observed = np.array([9.0, first - 0.1, 0.0])  # the second passes 1.95, the quantile of the two others
    named = limits.step_down(t, 0.95, lambda z: observed > z)
    assert named.tolist() == [True, True, False]
    assert (observed > first).tolist() == [True, False, False]


@pytest.mark.parametrize(("groups", "disagreement", "about"), [(100, 0.2, 10_000), (5, 0.1, 2_250)])
def test_sample_size(groups, disagreement, about):
    found = limits.sample_size(groups=groups, tolerance=0.02, disagreement=disagreement)
    assert found == pytest.approx(about, rel=0.03)


@pytest.mark.parametrize(
    ("groups", "tolerance", "disagreement"), [(5, 0.03, 0.1), (10, 0.05, 0.01), (2, 0.05, 0.02)]
)
def test_sample_size_gives_the_power_it_promises(groups, tolerance, disagreement):
    """At the size it names, a harmless pruning passes in about 80 % of simulated audits."""
    n = limits.sample_size(groups=groups, tolerance=tolerance, disagreement=disagreement)
    rng, passed, half = np.random.default_rng(2), 0, disagreement / 2
    for _ in range(300):
        m = rng.multinomial(n, [half, half, 1 - disagreement], size=groups).astype(float)
        cells = counts(np.full(groups, n), m[:, 0], m[:, 1])
        rest = cells.outside_of(cells.total())
        upper = limits.excess_limits(cells, rest, (1.645, 1.6448536))[0][1]
        passed += bool((upper <= tolerance).all())
    assert 0.68 <= passed / 300 <= 0.97


def test_sample_size_lists_every_problem():
    with pytest.raises(InputProblems) as caught:
        limits.sample_size(groups=1, tolerance=0, disagreement=2, confidence=0.4, power=1)
    assert len(caught.value.problems) == 5


def test_shrunken_shares_keep_real_differences_and_drop_noise():
    n = np.full(200, 50.0)
    rng = np.random.default_rng(0)
    noise_only = maximum.shrunken_shares(rng.binomial(50, 0.2, 200).astype(float), n)
    assert np.ptp(noise_only) < 0.1
    spread = rng.choice([0.05, 0.5], 200)
    real = maximum.shrunken_shares(rng.binomial(50, spread).astype(float), n)
    assert np.corrcoef(real, spread)[0, 1] > 0.95


def test_a_lone_outlier_is_not_drawn_to_the_mean_and_noise_is():
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(200) * 0.04
    calm = maximum.posterior_gaps(noise, np.full(200, 0.04**2)).expected
    assert np.abs(calm).max() < 0.04  # the largest of 200 estimates is about 0.11
    noise[7] = 0.4
    kept = maximum.posterior_gaps(noise, np.full(200, 0.04**2)).expected
    assert kept[7] == pytest.approx(0.4, abs=0.05)
    assert np.abs(np.delete(kept, 7)).max() < 0.06


def test_paule_mandel_solves_its_equation():
    rng = np.random.default_rng(0)
    s2 = rng.uniform(0.5, 2, 50)
    x = 3 + rng.standard_normal(50) * np.sqrt(4 + s2)
    mean, tau2 = maximum.paule_mandel(x, s2)
    assert ((x - mean) ** 2 / (tau2 + s2)).sum() == pytest.approx(49, abs=1e-6)
    assert maximum.paule_mandel(a(1, 1, 1), a(1, 1, 1)) == (1.0, 0.0)
