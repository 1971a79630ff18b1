"""The numbers of the study, computed once for the text and for the page. Pure functions of the two files.

A block is a setting; in it stand all methods, each with the dual step that the held-out split chose and with
all of its seeds: its audits on unseen data, and its runs against NFT's, sample by sample.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenprune.audit import Options, audit_tally
from evenprune.evidence import Demand
from evenprune.groups import group_cells
from evenprune.maximum import Range
from evenprune.paired import compare
from evenprune.paper_cells import Spread
from evenprune.tally import IntArray, Tally
from evenprune.verdict import Audit, Comparison, Difference
from paper.beyond_cells import FORMULATIONS, NEAR, STUDY, chosen, key_of
from paper.beyond_results import METHODS, answers_in, groups_in
from paper.results_file import Document

Row = Mapping[str, Any]
Bits = NDArray[np.bool_]
Answers = Mapping[tuple[Any, ...], tuple[Bits, Bits]]  # by cell: dense right, run right
MEASURES = ("accuracy", "max_excess_gap", "pairwise_disparity", "worst_gap")
DISPARITIES = ("max_excess_gap", "pairwise_disparity")  # those that have a noise floor
BETTER = {"accuracy": 1, "max_excess_gap": -1, "pairwise_disparity": -1}  # the sign of a good difference
VERDICTS = ("pass", "inconclusive", "fail")
DATASET = "cifar100"  # of rows that name none


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Runs of one setting stand in one table."""

    dataset: str
    groups: str
    sparsity: float
    augment: bool
    heldout_per_class: int
    heldout_used: int | None
    epochs: int

    @staticmethod
    def of(row: Row) -> "Setting":
        names = [name for name in Setting.__dataclass_fields__ if name != "dataset"]
        return Setting(dataset=row.get("dataset") or DATASET, **{name: row[name] for name in names})

    @property
    def family(self) -> "Setting":
        """Settings that differ only in how many held-out samples are looked at; NFT is the same in all."""
        return replace(self, heldout_used=None)


@dataclass(frozen=True)
class Pair:
    """A run against the NFT run of its seed: `found` is the run minus NFT."""

    row: Row
    found: Comparison


@dataclass(frozen=True)
class Entry:
    """One method in one setting, with the dual step that the held-out split chose."""

    name: str  # the method, and the settings that tell it from others of that method
    rows: tuple[Row, ...]  # by seed
    audits: tuple[Audit, ...]  # on unseen data, one a row
    pairs: tuple[Pair, ...]  # none of NFT itself, nor of runs whose answers were not kept

    @property
    def method(self) -> str:
        return str(self.rows[0]["method"])

    @property
    def step(self) -> float | None:
        return self.rows[0]["dual_lr"]  # type: ignore[no-any-return]

    @property
    def seconds(self) -> Spread | None:
        return Spread.of(row["seconds"] for row in self.rows)

    @property
    def standard_error(self) -> Spread | None:
        """Of ψ on the held-out split, the mean over groups."""
        return Spread.of(row["standard_error"]["heldout"] for row in self.rows)

    @property
    def verdicts(self) -> dict[str, int]:
        words = [audit.verdict for audit in self.audits]
        return {word: words.count(word) for word in VERDICTS if word in words}

    def spread(self, split: str, measure: str) -> Spread | None:
        return Spread.of(row[split][measure] for row in self.rows)

    def floor(self, measure: str) -> Range:
        """What a disparity would be on so many audit samples if no group had been harmed; mean over seeds."""
        ranges = [audit.noise_floor[measure] for audit in self.audits]
        return Range(*(statistics.fmean(one[part] for one in ranges) for part in ("mean", "low", "high")))

    def above(self, measure: str) -> int:
        """Runs above the range of their own noise floor."""
        pairs = zip(self.rows, self.audits, strict=True)
        return sum(row["audit"][measure] > audit.noise_floor[measure]["high"] for row, audit in pairs)

    def within(self, split: str, tolerance: float) -> int:
        """Runs whose max ψ is within the tolerance."""
        return sum(row[split]["max_excess_gap"] <= tolerance + NEAR for row in self.rows)

    def differences(self, measure: str) -> list[Difference]:
        return [getattr(pair.found, measure) for pair in self.pairs]

    def clear(self, measure: str) -> tuple[int, int]:
        return clear(self.differences(measure), BETTER[measure])


@dataclass(frozen=True)
class Constrained:
    """One dual step of a method: whether its own constraints hold, and how its multipliers behave."""

    name: str
    method: str
    step: float
    seeds: int
    allowed: float
    value: Spread | None  # the left side of the worst constraint on training data
    held: Mapping[str, int]  # split -> seeds whose constraints hold
    sum: Spread | None  # Σλ
    size: Spread | None  # Σ|λ|
    change: Spread | None  # of Σ|λ| in the last epochs
    active: float
    of: int  # multipliers
    sizes: tuple[tuple[float, ...], ...]  # Σ|λ| after each epoch, by seed
    first_epoch: int  # of these


@dataclass(frozen=True)
class Block:
    setting: Setting
    entries: tuple[Entry, ...]
    constraints: tuple[Constrained, ...]  # every dual step, not only the chosen one
    heldout_samples: int  # of a group, the median
    groups: int
    unanswered: int  # chosen runs whose answers to the audit samples were not kept


# --- from the files ---


def blocks(results: Document, correct: Document, *, tolerance: float) -> list[Block]:
    """In the order of the results file."""
    every = _by_setting(results["runs"])
    # Chosen within a setting, so that a data set is never chosen on another's runs.
    picked = {setting: chosen(rows, tolerance) for setting, rows in every.items()}
    found = _Paired(answers_in(correct), correct, [r for rows in picked.values() for r in rows], tolerance)
    return [_block(setting, rows, every[setting], found) for setting, rows in picked.items()]


def _by_setting(rows: Iterable[Row]) -> dict[Setting, list[Row]]:
    found: dict[Setting, list[Row]] = {}
    for row in rows:
        found.setdefault(Setting.of(row), []).append(row)
    return found


@dataclass(frozen=True)
class _Paired:
    """What comparisons need."""

    answers: Answers
    correct: Document
    rows: Sequence[Row]  # of all settings, to find the NFT run in
    tolerance: float

    def pairs(self, rows: Sequence[Row]) -> tuple[Pair, ...]:
        found = []
        for row in rows:
            base = None if row["method"] == "NFT" else partner(row, self.rows, self.answers)
            if base is not None and key_of(row) in self.answers:
                groups = groups_in(self.correct, row["groups"], Setting.of(row).dataset)
                runs = self.answers[key_of(base)], self.answers[key_of(row)]
                found.append(Pair(row, compared(*runs, groups, self.tolerance)))
        return tuple(found)


def _block(setting: Setting, picked: Sequence[Row], every: Sequence[Row], paired: _Paired) -> Block:
    constrained = [row for row in every if row["constraint"] is not None]
    counts = [n for n in picked[0]["changes"]["heldout"]["samples"] if n > 0]
    return Block(
        setting=setting,
        entries=tuple(_entry(name, rows, paired) for name, rows in by_method(picked).items()),
        constraints=tuple(
            _constrained(name, rows, step)
            for name, rows in by_method(constrained).items()
            for step in sorted({row["dual_lr"] for row in rows})
        ),
        heldout_samples=round(statistics.median(counts)),
        groups=sum(n > 0 for n in picked[0]["changes"]["audit"]["samples"]),
        unanswered=sum(key_of(row) not in paired.answers for row in picked),
    )


def _entry(name: str, rows: Sequence[Row], paired: _Paired) -> Entry:
    options = Options(tolerance=paired.tolerance)
    audits = tuple(audit_tally(tally_of(row["changes"]["audit"]), options) for row in rows)
    return Entry(name, tuple(rows), audits, paired.pairs(rows))


def _constrained(name: str, rows: Sequence[Row], step: float) -> Constrained:
    own = [row for row in rows if row["dual_lr"] == step]
    told, moved = [row["constraint"] for row in own], [row["multipliers"] for row in own]
    sizes = tuple(tuple(one["sizes"]) for one in moved)
    return Constrained(
        name=name,
        method=own[0]["method"],
        step=step,
        seeds=len(own),
        allowed=told[0]["allowed"],
        value=Spread.of(one["value"]["train"] for one in told),
        held={split: sum(one["feasible"][split] for one in told) for split in told[0]["feasible"]},
        sum=Spread.of(one["sum"] for one in moved),
        size=Spread.of(one["size"] for one in moved),
        change=Spread.of(one["size_change"] for one in moved),
        active=statistics.fmean(one["active"] for one in moved),
        of=moved[0]["rows"],
        sizes=sizes,
        first_epoch=own[0]["epochs"] - max(map(len, sizes)),
    )


def by_method(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """In the order of the study; settings that are not the usual ones are named."""
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (METHODS[row["method"]], row["tolerance"] or 0, row["seed"])):
        several = {
            name
            for name in ("tolerance", "buffer", "refresh", "folds")
            if len({r.get(name) for r in rows if r["method"] == row["method"]}) > 1
        }
        words = [f"{name} {row[name]:g}" for name in sorted(several) if row.get(name) is not None]
        found.setdefault(", ".join([row["method"], *words]), []).append(row)
    return found


# --- against NFT, sample by sample ---


def partner(row: Row, rows: Iterable[Row], answers: Mapping[tuple[Any, ...], Any]) -> Row | None:
    """The NFT run of the same seed; if need be one that was measured with another number of held-out samples,
    which NFT does not see."""
    wanted = Setting.of(row).family, row["seed"]
    own = [
        other
        for other in rows
        if other["method"] == "NFT"
        and (Setting.of(other).family, other["seed"]) == wanted
        and key_of(other) in answers
    ]
    return min(own, key=lambda other: other["heldout_used"] != row["heldout_used"], default=None)


def compared(
    first: tuple[Bits, Bits], second: tuple[Bits, Bits], groups: IntArray, tolerance: float
) -> Comparison:
    """The second run against the first, sample by sample; each is (dense right, run right).

    The comparison that an audit of both would make, without the two audits.
    """
    tally = pair_tally(second[0], first[1], second[1], groups)
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


def tally_of(counts: Mapping[str, Sequence[int]]) -> Tally:
    """Counts as an audit takes them. How often both models were right changes no limit: zero will do."""
    n, broke, fixed = (np.array(counts[name], dtype=np.int64) for name in ("samples", "broke", "fixed"))
    n, broke, fixed = n[n > 0], broke[n > 0], fixed[n > 0]
    groups = np.arange(n.size)
    count = np.concatenate([broke, fixed, n - broke - fixed])
    cells = tuple((f"{place:06d}",) for place in groups)
    return Tally(("group",), cells, ("sparse",), np.tile(groups, 3), np.repeat([1, 2, 0], n.size), count)


# --- gain or loss against how well the held-out split knows ψ ---


@dataclass(frozen=True)
class Gain:
    """One method with one number of held-out samples; the runs are those that NFT has a partner for."""

    entry: Entry
    setting: Setting
    heldout_samples: int
    error: Spread  # standard error of ψ on the held-out split
    difference: Spread  # max ψ on unseen data, minus NFT's


def is_formulation(method: str) -> bool:
    """Whether it is one that the study does not have anyway."""
    return method in FORMULATIONS and method not in STUDY


def gains(found: Iterable[Block]) -> dict[Setting, list[Gain]]:
    """The methods of the study by family of settings; within a method, the largest standard error first."""
    families: dict[Setting, list[Gain]] = {}
    for block in found:
        for entry in block.entries:
            error = Spread.of(pair.row["standard_error"]["heldout"] for pair in entry.pairs)
            difference = Spread.of(d.estimate for d in entry.differences("max_excess_gap"))
            if error is not None and difference is not None and not is_formulation(entry.method):
                gain = Gain(entry, block.setting, block.heldout_samples, error, difference)
                families.setdefault(block.setting.family, []).append(gain)
    for own in families.values():
        own.sort(key=lambda gain: (METHODS[gain.entry.method], gain.entry.name, -gain.error.mean))
    return families
