"""Runs against those of a baseline, sample by sample: of the same seed and setting, on the same samples."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evenprune.audit import Options
from evenprune.evidence import Demand
from evenprune.groups import group_cells
from evenprune.paired import compare
from evenprune.tally import IntArray, Tally
from evenprune.verdict import Comparison, Difference
from paper.beyond_answers import Answers, Bits, Key, answers_in, groups_in
from paper.beyond_cells import key_of
from paper.beyond_methods import KINDS
from paper.results_file import Document

Row = Mapping[str, Any]
BETTER = {"accuracy": 1, "max_excess_gap": -1, "pairwise_disparity": -1}  # the sign of a good difference


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Runs of one setting stand in one table."""

    dataset: str
    groups: str
    sparsity: float
    augment: bool
    heldout_per_class: float
    heldout_used: float | None
    epochs: int

    @staticmethod
    def of(row: Row) -> "Setting":
        return Setting(**{name: row[name] for name in Setting.__dataclass_fields__})

    @property
    def family(self) -> "Setting":
        """Settings that differ only in how many held-out samples are looked at; NFT is the same in all."""
        return replace(self, heldout_used=None)

    @property
    def task(self) -> "Setting":
        """Settings that differ only in held-out samples: each has its own baseline, but gains compare."""
        return replace(self, heldout_used=None, heldout_per_class=0)


@dataclass(frozen=True)
class Pair:
    """A run against the baseline's run of its seed: `found` is the run minus the baseline."""

    row: Row
    found: Comparison
    same: float  # share of audit samples that both put into the same class


@dataclass(frozen=True)
class Paired:
    """All that comparisons need."""

    answers: Mapping[Key, Answers]
    document: Document
    rows: Sequence[Row]  # of all settings, each with its chosen dual step: to find baselines in

    @staticmethod
    def of(document: Document, rows: Sequence[Row]) -> "Paired":
        return Paired(answers_in(document), document, rows)

    def answered(self, row: Row) -> bool:
        return key_of(row) in self.answers

    def pairs(self, rows: Sequence[Row], baseline: str, tolerance: float) -> tuple[Pair, ...]:
        """None of runs of the baseline itself, nor of runs whose answers were not kept."""
        found = []
        known = [row for row in self.rows if row["method"] == baseline and self.answered(row)]
        for row in rows:
            base = None if row["method"] == baseline else partner(row, known)
            if base is not None and self.answered(row):
                first, second = self.answers[key_of(base)], self.answers[key_of(row)]
                groups = groups_in(self.document, row["groups"], row["dataset"])
                same = float(np.mean(first.predicted == second.predicted))
                found.append(Pair(row, compared(first, second, groups, tolerance), same))
        return tuple(found)


def partner(row: Row, known: Iterable[Row]) -> Row | None:
    """The baseline's run of the same seed. One that does not look at held-out samples is the same run
    whatever number of them is looked at; of several, the one with the settings nearest to the row's."""
    wanted = Setting.of(row).family, row["seed"]
    own = [
        other
        for other in known
        if (Setting.of(other).family, other["seed"]) == wanted
        and (not KINDS[other["method"]].sees_heldout or other["heldout_used"] == row["heldout_used"])
    ]
    return min(own, key=lambda other: other["tolerance"] != row["tolerance"], default=None)


def compared(first: Answers, second: Answers, groups: IntArray, tolerance: float) -> Comparison:
    """The second run against the first, sample by sample.

    The comparison that an audit of both would make, without the two audits.
    """
    tally = pair_tally(second.dense_right, first.right, second.right, groups)
    options = Options(tolerance=tolerance)
    demand = Demand(options.tolerance, options.confidence, options.seed)
    (found,) = compare(tally, group_cells(tally.cells, tally.attributes, each=False), demand)
    return found


def pair_tally(dense: Bits, first: Bits, second: Bits, groups: IntArray) -> Tally:
    """How often each of the eight patterns of right and wrong occurs in each group that has samples."""
    present, cell = np.unique(groups, return_inverse=True)
    pattern = dense + 2 * first + 4 * second  # [samples] bit 0: the dense model, bits 1 and 2: the two runs
    count = np.bincount(8 * cell + pattern, minlength=8 * present.size)
    places, patterns = np.arange(present.size).repeat(8), np.tile(np.arange(8), present.size)
    cells = tuple((str(group),) for group in present.tolist())
    return Tally(("group",), cells, ("first", "second"), places, patterns, count)


def clear(differences: Iterable[Difference], better: int) -> tuple[int, int]:
    """How many are better, and how many worse, for certain: their limits exclude zero."""
    known = list(differences)
    up, down = sum(d.lower > 0 for d in known), sum(d.upper < 0 for d in known)
    return (up, down) if better > 0 else (down, up)
