"""Who pays, named by held-out samples, and how uneven all groups are: what chance alone does not make."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from paper.beyond_measures import carried_over, gap_of, groups_worse, name_of, payers_of, spread_of

Counts = dict[str, list[int]]


def counts_of(lost: NDArray[np.float64], samples: int, rng: np.random.Generator) -> Counts:
    """Of groups that lose so much in truth; one sample in twenty is fixed."""
    broke = rng.binomial(samples, lost + 0.05)
    fixed = rng.binomial(samples, 0.05, lost.shape)
    return {"samples": [samples] * len(lost), "broke": broke.tolist(), "fixed": fixed.tolist()}


def row_of(lost: NDArray[np.float64], rng: np.random.Generator, samples: int = 250) -> dict[str, Any]:
    splits = {"heldout": samples, "choice": samples // 2, "audit": 2 * samples}
    return {"changes": {split: counts_of(lost, n, rng) for split, n in splits.items()}}


def few(**groups: tuple[int, int, int]) -> dict[str, Any]:
    """A row with the same counts of held-out and choice samples: those of each group."""
    n, broke, fixed = map(list, zip(*groups.values(), strict=True))
    own = {"samples": n, "broke": broke, "fixed": fixed}
    return {"changes": dict.fromkeys(("heldout", "choice", "audit"), own)}


def test_a_fifth_of_the_groups_pays_and_at_least_one() -> None:
    row = few(a=(10, 1, 0), b=(10, 4, 1), c=(10, 3, 0), d=(10, 0, 2))
    assert payers_of([row]) == (1,)  # 3 of 10, as c: of equals the first
    many = {"changes": {s: counts_of(np.linspace(0, 0.9, 20), 10**6, np.random.default_rng(0)) for s in
                        ("heldout", "choice", "audit")}}  # fmt: skip
    assert payers_of([many]) == (16, 17, 18, 19)
    assert payers_of([]) == ()


def test_payers_are_named_by_all_seeds_together_and_never_by_unseen_samples() -> None:
    first, second = (
        few(a=(10, 4, 0), b=(10, 0, 0), c=(10, 3, 0)),
        few(a=(10, 0, 0), b=(10, 0, 0), c=(10, 3, 0)),
    )
    assert payers_of([first]) == (0,)
    assert payers_of([first, second]) == (2,)
    unseen = {"samples": [10] * 3, "broke": [0, 9, 0], "fixed": [0] * 3}
    other = {"changes": first["changes"] | {"audit": unseen}}
    assert payers_of([other]) == (0,)
    gone = {"changes": first["changes"] | {"audit": {**unseen, "samples": [0, 10, 10]}}}
    assert payers_of([gone]) == (2,)  # of the first there is nothing to be said


def test_their_gap_is_the_mean_of_their_excess_gaps() -> None:
    row = few(a=(10, 4, 0), b=(20, 2, 0), c=(10, 3, 1))
    counts, gaps = row["changes"]["audit"], [0.4, 0.1, 0.2]
    for payers in ((0,), (0, 2), (0, 1, 2)):
        expected = np.mean([gaps[g] for g in payers]) - (4 + 2 + 2) / 40
        assert gap_of(counts, payers) == pytest.approx(expected)


def test_who_pays_is_not_made_by_chance_and_true_payers_are_found() -> None:
    """Named on some samples and looked at on others: where nobody pays, nobody seems to."""
    rng = np.random.default_rng(1)
    alike, uneven = np.full(20, 0.1), np.array([0.1] * 16 + [0.16] * 4)
    none, some = (
        [gap_of((row := row_of(lost, rng))["changes"]["audit"], payers_of([row])) for _ in range(400)]
        for lost in (alike, uneven)
    )
    assert abs(np.mean(none)) < 0.002
    truth = 0.16 - uneven.mean()
    assert 0.8 * truth < np.mean(some) < truth  # some of them are missed, nobody is made worse
    largest = [max(own["broke"]) / 500 - 0.15 for own in (counts_of(alike, 500, rng) for _ in range(400))]
    assert np.mean(largest) > 0.02  # as max ψ seems to


@pytest.mark.parametrize("tau", [0.0, 0.03, 0.06])
def test_the_spread_is_that_of_the_groups_and_not_of_chance(tau: float) -> None:
    rng = np.random.default_rng(2)
    found, seen = [], []
    for _ in range(200):
        lost = 0.2 + tau * rng.permutation(np.repeat([-1.0, 1.0], 15))
        counts = counts_of(lost, 500, rng)
        found.append(spread_of(counts))
        seen.append(np.std((np.array(counts["broke"]) - counts["fixed"]) / 500))
    assert np.sqrt(np.mean(np.square(found))) == pytest.approx(tau, abs=0.008)  # none is below zero
    assert np.mean(seen) > np.sqrt(tau**2 + 0.02**2)


def test_groups_have_names_where_they_are_known() -> None:
    assert name_of(16, dataset="cifar100", groups="superclass") == "small mammals"
    assert name_of(4, dataset="utkface", groups="race") == "Others"
    assert name_of(7, dataset="utkface", groups="race") == "group 7"
    assert name_of(0, dataset="<b>", groups="race") == "group 0"


def test_groups_are_worse_where_they_lose_more_in_the_mean_of_all_seeds() -> None:
    plain = [few(a=(10, 2, 0), b=(10, 4, 0), c=(10, 1, 0)), few(a=(10, 4, 0), b=(10, 4, 0), c=(10, 1, 0))]
    other = [few(a=(10, 5, 0), b=(10, 3, 0), c=(10, 1, 0)), few(a=(10, 3, 0), b=(10, 4, 0), c=(10, 2, 1))]
    assert groups_worse(other, plain) == 1  # a: 4 of 10 instead of 3; c: 1, as before
    assert groups_worse(plain, other) == 1  # b
    assert groups_worse(plain, plain) == 0
    gone = [few(a=(10, 9, 0), b=(0, 0, 0), c=(10, 1, 0))]
    assert groups_worse(gone, plain) == 1  # nothing is known of b


@pytest.mark.parametrize(("share", "shift"), [(1.0, 0.0), (0.4, 0.1), (0.0, 0.2)])
def test_what_is_carried_over_is_the_slope_over_groups_whatever_all_lose(share: float, shift: float) -> None:
    held, samples = np.linspace(0, 0.5, 11), 10**6
    rng = np.random.default_rng(0)
    rows = [
        {
            "changes": {
                "heldout": counts_of(held, samples, rng),
                "audit": counts_of(shift + share * held, samples, rng),
            }
        }
        for _ in range(3)
    ]
    assert carried_over(rows) == pytest.approx(share, abs=0.005)


def test_nothing_is_carried_over_of_gaps_that_are_alike() -> None:
    assert carried_over([few(a=(10, 2, 0), b=(20, 4, 0))]) is None
    assert carried_over([few(a=(10, 2, 0), b=(0, 0, 0))]) is None
