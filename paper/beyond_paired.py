"""Runs against those of a baseline, sample by sample: of the same seed and setting, on the same samples."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paper.beyond_answers import Answers, Key, answers_in, groups_in
from paper.beyond_cells import key_of
from paper.beyond_measures import groups_named, payers_of
from paper.beyond_methods import KINDS
from paper.beyond_pooled import Difference, differences
from paper.results_file import Document

Row = Mapping[str, Any]


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
class Versus:
    """Runs against the baseline's runs of their seeds."""

    rows: tuple[Row, ...]  # those that have such a partner
    same: tuple[float, ...]  # by row, the share of audit samples that both put into the same class
    by: Mapping[str, Difference]  # by measure; none where there are no rows


@dataclass(frozen=True)
class Paired:
    """All that comparisons need."""

    answers: Mapping[Key, Answers]
    document: Document
    rows: Sequence[Row]  # of all settings, each with its chosen dual step: to find baselines in
    named: Sequence[str] = ()  # groups to look at in place of those that pay

    @staticmethod
    def of(document: Document, rows: Sequence[Row], named: Sequence[str] = ()) -> "Paired":
        return Paired(answers_in(document), document, rows, named)

    def answered(self, row: Row) -> bool:
        return key_of(row) in self.answers

    def versus(self, rows: Sequence[Row], baseline: str) -> Versus:
        """Not of runs of the baseline itself, nor of runs whose answers were not kept."""
        known = [row for row in self.rows if row["method"] == baseline and self.answered(row)]
        partners = [
            (row, base)
            for row in rows
            if row["method"] != baseline and self.answered(row) and (base := partner(row, known)) is not None
        ]
        if not partners:
            return Versus((), (), {})
        pairs = [(self.answers[key_of(base)], self.answers[key_of(row)]) for row, base in partners]
        same = tuple(float(np.mean(first.predicted == second.predicted)) for first, second in pairs)
        groups = groups_in(self.document, rows[0]["groups"], rows[0]["dataset"])
        found = differences(pairs, groups, self.payers(Setting.of(rows[0])))
        return Versus(tuple(row for row, _ in partners), same, found)

    def payers(self, setting: Setting) -> tuple[int, ...]:
        """The groups that pay, by the runs of NFT that look at all held-out samples; or those named."""
        if self.named:
            return groups_named(self.named, dataset=setting.dataset, groups=setting.groups)
        return payers_of(r for r in self.rows if r["method"] == "NFT" and Setting.of(r) == setting.family)


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
