"""Runs become the cells of the paper's tables: mean and spread over seeds, beside the printed number.

Pure functions of the results and of the printed tables; the order of the runs is nothing to them.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evenprune.audit import Options, audit_tally
from evenprune.maximum import Range
from evenprune.paper_fields import MEASURES, SPLITS
from evenprune.paper_printed import EL_STEP, EL_STEPS, RING, ROUNDING, SEEDS, Number, Place, Printed
from evenprune.paper_results import Run, Task, order
from evenprune.tally import Tally
from evenprune.verdict import Audit

NEAR = {"train": 0.01, "test": 0.015}  # what counts as the paper's accuracy
CONFIDENCE = 0.95
RINGS = {"CEAG": RING, "EL + RB": RING, "CEAG (no RB)": 0}  # where a run does not say
DISPARITIES = ("pairwise_disparity", "max_excess_gap")
BOUNDS_PAIRS = "PW"  # the method whose tolerance is of Ψ_PW


# --- numbers ---


@dataclass(frozen=True)
class Spread:
    mean: float
    sd: float | None  # None of a single value
    n: int
    values: tuple[float, ...]  # by seed

    @staticmethod
    def of(values: Iterable[float | None]) -> "Spread | None":
        known = tuple(float(v) for v in values if v is not None)
        if not known:
            return None
        sd = statistics.stdev(known) if len(known) > 1 else None
        return Spread(statistics.fmean(known), sd, len(known), known)


@dataclass(frozen=True)
class Figure:
    """One number of one cell: here, in the paper, and how far apart."""

    here: Spread | None
    paper: Number | None
    difference: float | None  # here − paper
    standard_errors: float | None
    floor: Range | None = None  # of a disparity on test data, if no group had been harmed; mean over seeds
    beyond: int | None = None  # runs above the range of their own floor


def standard_errors(here: Spread, paper: Number) -> float | None:
    """z = (x̄ − p) / sqrt(s²/n + s_p²/5 + r²), r the rounding of the printed mean, uniform in ±0.05 points.

    So a printed deviation of 0.0 is no certainty. Where none is printed, ours stands for it.
    """
    if here.sd is None:
        return None
    sd = here.sd if paper.sd is None else paper.sd
    return (here.mean - paper.mean) / math.sqrt(here.sd**2 / here.n + sd**2 / SEEDS + ROUNDING**2)


def figure(values: Iterable[float | None], paper: Number | None) -> Figure:
    here = Spread.of(values)
    if here is None or paper is None:
        return Figure(here, paper, None, None)
    return Figure(here, paper, here.mean - paper.mean, standard_errors(here, paper))


# --- the audit of a run, from its counts ---


def tally_of(run: Run, split: str) -> Tally:
    """The counts of a run as an audit takes them; bit 0: the dense model was right, bit 1: the sparse one."""
    changes = run.changes[split]
    n, b, c = (np.array(x, dtype=np.int64) for x in (changes.samples, changes.broke, changes.fixed))
    # How often both were right changes no limit, so zero will do where it is not known.
    share = np.array(run.group_accuracy.get(split) or np.zeros(n.size), dtype=float)
    both = np.clip(np.rint(np.nan_to_num(share) * n).astype(np.int64) - c, 0, n - b - c)
    n, b, c, both = (x[n > 0] for x in (n, b, c, both))
    groups = np.arange(n.size)
    count = np.concatenate([both, b, c, n - both - b - c])
    cells = tuple((f"{place:06d}",) for place in groups)
    return Tally(("group",), cells, ("sparse",), np.tile(groups, 4), np.repeat([3, 1, 2, 0], n.size), count)


def audit_of(run: Run, tolerance: float) -> Audit | None:
    """The audit on test data; None for a run that kept no counts, or too few groups."""
    if "test" not in run.changes or sum(n > 0 for n in run.changes["test"].samples) < 2:
        return None
    return audit_tally(tally_of(run, "test"), Options(tolerance=tolerance, confidence=CONFIDENCE))


def floor_of(audits: Sequence[Audit], key: str) -> Range | None:
    """What chance alone shows of a disparity, mean over the runs."""
    ranges = [audit.noise_floor[key] for audit in audits]
    if not ranges:
        return None
    return Range(*(statistics.fmean(r[part] for r in ranges) for part in ("mean", "low", "high")))


def _disparity(audit: Audit, key: str) -> float:
    return audit.max_excess_gap.estimate if key == "max_excess_gap" else audit.pairwise_disparity


def _beyond(audits: Sequence[Audit], key: str) -> int | None:
    above = [_disparity(audit, key) > audit.noise_floor[key]["high"] for audit in audits]
    return sum(above) if above else None


# --- cells ---


@dataclass(frozen=True)
class SeedMet:
    """Whether one seed kept the tolerance on training data."""

    seed: int
    disparity: float  # that its tolerance is of
    met: bool


@dataclass(frozen=True)
class WorstGroup:
    """The group that is most often the worst on training data."""

    name: str
    seeds: int  # in which it is
    of: int
    multiple: float | None  # max ψ over the tolerance, mean over seeds; None of a tolerance of zero
    paper: tuple[str, ...]  # the paper's, by its printed means; several where these tie
    paper_multiple: float | None


@dataclass(frozen=True)
class Cell:
    method: str
    seeds: tuple[int, ...]
    figures: Mapping[str, Mapping[str, Figure]]  # split -> measure
    met: int | None  # seeds whose training disparity is within the tolerance of the place
    paper_met: bool | None
    near: Mapping[str, bool | None]  # accuracy within NEAR of the printed one, by split
    verdicts: Mapping[str, int]  # of the test audits
    multiplier_sum: Spread | None = None
    negative_weights: Spread | None = None
    diverged: int = 0  # seeds that keep weights of before their loss was not finite
    met_by_seed: tuple[SeedMet, ...] = ()
    tolerance: float | None = None  # that it is judged by
    worst: WorstGroup | None = None

    @property
    def above_one(self) -> int | None:
        """Seeds of CEAG whose multipliers summed to more than 1 at some step; None where that is not told.

        CEAG's weights (1 − Σλ)/B + λ_g/n_g are negative only then; other methods also push groups away.
        """
        if self.negative_weights is None or not self.method.startswith("CEAG"):
            return None
        return sum(count > 0 for count in self.negative_weights.values)


@dataclass(frozen=True)
class Table:
    """One sparsity of one task."""

    task: Task
    sparsity: float
    tolerance: float | None
    cells: tuple[Cell, ...]


def ring_of(run: Run) -> int | None:
    return run.buffer if run.buffer is not None else RINGS.get(run.method)


def same(value: float | None, wanted: float) -> bool:
    return value is None or math.isclose(value, wanted, rel_tol=1e-6, abs_tol=1e-12)


def is_printed(run: Run, paper: Printed) -> bool:
    """Whether the run has the settings of a cell of the paper; what a run does not say is taken to be so."""
    place = (run.task, run.sparsity)
    known = run.method in {cell.method for cell in paper.cells.get(place, ())}
    if not known or run.overall != "micro" or run.varied:
        return False
    if run.method in RINGS and ring_of(run) != RINGS[run.method]:
        return False
    if run.method.startswith("EL"):
        return same(run.dual_lr, EL_STEPS.get(place, EL_STEP))
    if not run.method.startswith("CEAG"):
        return True
    setting = paper.settings[place]
    return same(run.tolerance, setting.tolerance) and same(run.dual_lr, setting.dual_lr)


def one_per_seed(runs: Iterable[Run]) -> list[Run]:
    """A seed that was run alone and in a fleet counts once: the fleet's."""
    found: dict[int, Run] = {}
    for run in sorted(runs, key=lambda run: (run.seed, run.alone, order(run))):
        found.setdefault(run.seed, run)
    return list(found.values())


def cell_of(
    method: str,
    runs: Sequence[Run],
    tolerance: float | None,
    paper: Mapping[str, Mapping[str, Number]],
    paper_met: bool | None = None,
) -> Cell:
    """A cell from the runs of its seeds, and from what the paper prints."""
    audits = [] if tolerance is None else [a for a in (audit_of(run, tolerance) for run in runs) if a]
    figures = {
        split: {
            m: figure([run.figures[split][m] for run in runs], paper.get(split, {}).get(m)) for m in MEASURES
        }
        for split in SPLITS
    }
    for key in DISPARITIES:
        bare = figures["test"][key]
        figures["test"][key] = replace(bare, floor=floor_of(audits, key), beyond=_beyond(audits, key))
    words = [audit.verdict for audit in audits]
    met = () if tolerance is None else tuple(_met(run, tolerance) for run in runs)
    return Cell(
        method=method,
        seeds=tuple(run.seed for run in runs),
        figures=figures,
        met=None if tolerance is None or not runs else sum(one.met for one in met),
        paper_met=paper_met,
        near={split: _near(figures[split]["accuracy"], split) for split in SPLITS},
        verdicts={word: words.count(word) for word in ("pass", "inconclusive", "fail") if words},
        multiplier_sum=Spread.of(run.multiplier_sum for run in runs),
        negative_weights=Spread.of(run.negative_weights for run in runs),
        diverged=sum(run.diverged is not None for run in runs),
        met_by_seed=met,
        tolerance=tolerance,
    )


def _met(run: Run, tolerance: float) -> SeedMet:
    """Of every group's ψ, or of Ψ_PW where that is what is bounded."""
    disparity = run.figures["train"]["pairwise_disparity" if run.method == BOUNDS_PAIRS else "max_excess_gap"]
    return SeedMet(run.seed, disparity, disparity <= tolerance + 1e-9)  # 0.02 is not above 0.02


def _near(accuracy: Figure, split: str) -> bool | None:
    return None if accuracy.difference is None else abs(accuracy.difference) <= NEAR[split] + 1e-9


def table_of(place: Place, runs: Sequence[Run], paper: Printed) -> Table:
    setting = paper.settings.get(place)
    tolerance = setting.tolerance if setting else None
    own = [run for run in runs if (run.task, run.sparsity) == place and is_printed(run, paper)]
    cells = tuple(
        cell_of(
            cell.method,
            one_per_seed(run for run in own if run.method == cell.method),
            tolerance,
            cell.figures,
            cell.feasible,
        )
        for cell in paper.cells[place]
    )
    return Table(*place, tolerance, cells)
