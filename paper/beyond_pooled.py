"""All seeds of a method against those of a baseline at once: the mean difference, with limits.

The limits are where the mean over seeds would lie with other seeds and on other audit samples, as many of
each group. Seeds share the audit samples, so five of them are no five witnesses of a difference there:
samples are drawn anew within each group, the same ones for all runs.

    limits = mean ± √(1.96² v + t² (s² − e)/S)    v: variance of the mean over draws of samples
    s²: variance over the S seeds                 e: what of it the samples make, by the draws
    t: Student's quantile

They are limits of one difference: of twenty that are none, one is clear by chance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from evenprune.tally import FloatArray, IntArray
from paper.beyond_answers import Answers
from paper.beyond_measures import PAYERS, payers_gap
from paper.beyond_rows import harms

# The sign of a good difference.
BETTER = {"accuracy": 1, "max_excess_gap": -1, "pairwise_disparity": -1, PAYERS: -1}
DRAWS, SEED = 1000, 0
NORMAL = 1.96  # 97.5 %
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # the same, of 1 to 9 degrees of freedom


@dataclass(frozen=True)
class Difference:
    """A method minus its baseline."""

    values: tuple[float, ...]  # by seed
    lower: float  # limits of their mean
    upper: float

    @property
    def sign(self) -> int:
        """Of what is clear: zero lies within the limits of 0."""
        return (self.lower > 0) - (self.upper < 0)


def differences(
    pairs: Sequence[tuple[Answers, Answers]], groups: IntArray, payers: Sequence[int] = ()
) -> dict[str, Difference]:
    """By measure. pairs: of every seed, the answers of the baseline and of the method; groups: [samples].

    Without payers, not by what they lose.
    """
    runs = [*(first for first, _ in pairs), *(second for _, second in pairs)]
    lost = np.stack([run.dense_right.astype(np.float32) - run.right for run in runs])  # [runs, samples]
    present = [lost[:, groups == group] for group in np.unique(groups)]
    sizes = np.array([own.shape[1] for own in present], dtype=float)
    paying = np.flatnonzero(np.isin(np.unique(groups), payers)).tolist()
    here = _apart(np.stack([own.sum(1) for own in present], axis=-1), sizes, paying)  # of [runs, groups]
    draws = [drawn(own.shape[1], place) @ own.T for place, own in enumerate(present)]  # [draws, runs] each
    there = _apart(np.stack(draws, axis=-1), sizes, paying)
    found = {}
    for measure, values in here.items():
        mean, off = float(values.mean()), _off(values, there[measure])
        found[measure] = Difference(tuple(values.tolist()), mean - off, mean + off)
    return found


def _off(values: FloatArray, draws: FloatArray) -> float:
    """From the mean of [seeds] to its limits, by [draws, seeds]; of one seed, what the samples alone do."""
    by_samples = NORMAL**2 * draws.mean(-1).var(ddof=1)
    if values.size < 2:
        return float(np.sqrt(by_samples))
    by_seeds = values.var(ddof=1) - (draws - values).var(-1, ddof=1).mean()
    t = STUDENT[min(values.size - 1, len(STUDENT)) - 1]
    return float(np.sqrt(by_samples + t**2 * max(by_seeds, 0.0) / values.size))


def _apart(lost: NDArray[np.float32], sizes: FloatArray, paying: Sequence[int]) -> Mapping[str, FloatArray]:
    """By measure, the second half of the runs minus the first, by sums of [..., runs, groups]."""
    halves = np.split(lost.astype(float), 2, axis=-2)
    first, second = (
        harms(half, sizes) | ({PAYERS: payers_gap(half, sizes, paying)} if paying else {}) for half in halves
    )
    accuracy = {"accuracy": first["gap"] - second["gap"]}  # what is lost less
    return accuracy | {name: second[name] - first[name] for name in BETTER if name in first}


@cache
def drawn(size: int, place: int) -> NDArray[np.float32]:
    """How often each sample of a group is drawn, [draws, size]; the same for all that is compared."""
    rng = np.random.default_rng([SEED, place, size])
    return rng.multinomial(size, np.full(size, 1 / size), size=DRAWS).astype(np.float32)
