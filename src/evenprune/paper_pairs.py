"""Two ways to train the same cells, compared seed by seed."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from evenprune.maximum import Range
from evenprune.paper_cells import DISPARITIES, Spread, audit_of, floor_of, one_per_seed
from evenprune.paper_fields import MEASURES, SPLITS
from evenprune.paper_printed import Number
from evenprune.paper_results import Run

STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # 97.5 %, 1 to 9 degrees
NORMAL = 1.95996
FLOOR_AT = 0.02  # a tolerance, for the audit: its noise floor is the same with any


def student(degrees: int) -> float:
    """The 97.5 % quantile of Student's t: from the table, or by its series in 1/ν.

    z + (z³ + z)/4ν + (5z⁵ + 16z³ + 3z)/96ν² + (3z⁷ + 19z⁵ + 17z³ − 15z)/384ν³
    """
    if degrees <= len(STUDENT):
        return STUDENT[degrees - 1]
    z = NORMAL
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + math.fsum(term / degrees ** float(power) for power, term in enumerate(terms, start=1))


@dataclass(frozen=True)
class Paired:
    """Differences seed by seed: their mean, its standard error, and 95 % limits by Student's t."""

    mean: float
    standard_error: float | None  # None of a single seed, as are the limits
    low: float | None
    high: float | None
    n: int

    @property
    def beyond_chance(self) -> bool | None:
        """Whether the limits leave out zero; None without limits."""
        return None if self.low is None or self.high is None else self.low > 0 or self.high < 0


def paired(differences: Sequence[float]) -> Paired:
    """d̄ ± t s/√n."""
    mean, n = statistics.fmean(differences), len(differences)
    if n < 2:
        return Paired(mean, None, None, None, n)
    error = statistics.stdev(differences) / math.sqrt(n)
    reach = student(n - 1) * error
    return Paired(mean, error, mean - reach, mean + reach, n)


@dataclass(frozen=True)
class Pair:
    """One number under both ways, and the second minus the first."""

    first: Spread
    second: Spread
    difference: Paired
    paper: Number | None
    floor: Range | None = None  # of a disparity on test data, the second way


@dataclass(frozen=True)
class Contrast:
    method: str
    seeds: tuple[int, ...]  # that both ways have
    figures: Mapping[str, Mapping[str, Pair]]  # split -> measure
    commits: tuple[tuple[str, ...], ...]  # of the code that either way was run with, where told


def contrast(
    first: Sequence[Run],
    second: Sequence[Run],
    paper: Mapping[str, Mapping[str, Number]],
) -> Contrast | None:
    """Runs of one cell in two ways; None where no seed is in both."""
    one, other = ({run.seed: run for run in one_per_seed(runs)} for runs in (first, second))
    seeds = tuple(seed for seed in one if seed in other)
    if not seeds:
        return None
    figures = {
        split: {
            measure: _pair(
                [one[seed].figures[split][measure] for seed in seeds],
                [other[seed].figures[split][measure] for seed in seeds],
                paper.get(split, {}).get(measure),
            )
            for measure in MEASURES
        }
        for split in SPLITS
    }
    audits = [a for a in (audit_of(other[seed], FLOOR_AT) for seed in seeds) if a]
    for key in DISPARITIES:
        figures["test"][key] = replace(figures["test"][key], floor=floor_of(audits, key))
    told = [{runs[seed].commit or "" for seed in seeds} - {""} for runs in (one, other)]
    return Contrast(one[seeds[0]].method, seeds, figures, tuple(tuple(sorted(c)) for c in told))


def _pair(first: Sequence[float], second: Sequence[float], paper: Number | None) -> Pair:
    differences = [b - a for a, b in zip(first, second, strict=True)]
    one, other = Spread.of(first), Spread.of(second)
    assert one is not None  # there is at least one seed
    assert other is not None
    return Pair(one, other, paired(differences), paper)
