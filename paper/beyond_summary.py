"""The numbers of the study, computed once for the text and for the page. Pure functions of the two files.

A block is a setting; in it stand all methods, each with the dual step that the choice split chose and with
all of its seeds: its audits on unseen data, and its runs against those of a baseline, sample by sample.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evenprune.audit import Options, audit_tally
from evenprune.maximum import Range
from evenprune.paper_cells import Spread
from evenprune.tally import Tally
from evenprune.verdict import Audit
from paper import runner
from paper.beyond_cells import NEAR, NO_LABELS, SETTING, TOLERANCE, by_step, chosen, common_seeds, key_of
from paper.beyond_measures import PAYERS, SPREAD, gap_of, spread_of
from paper.beyond_methods import BASELINES, BIAS, KINDS, METHODS, baselines_of, constraints_of
from paper.beyond_paired import Paired, Row, Setting, Versus
from paper.beyond_pooled import BETTER, Difference
from paper.results_file import Document

MEASURES = ("accuracy", "max_excess_gap", "pairwise_disparity", "worst_gap")
# By split. Unseen samples had no part in naming payers.
SHOWN = {"train": MEASURES, "audit": (*MEASURES, PAYERS, SPREAD)}
DISPARITIES = ("max_excess_gap", "pairwise_disparity")  # those that have a noise floor
VERDICTS = ("pass", "inconclusive", "fail")

# Multipliers of a run without a whole epoch of them.
STILL: Row = {"sizes": [], **dict.fromkeys(("size", "size_change", "active", "rows"), 0)}


@dataclass(frozen=True)
class Entry:
    """One method in one setting, with the dual step that the choice split chose."""

    name: str  # the method, and the settings that tell it from others of that method
    rows: tuple[Row, ...]  # by seed
    audits: tuple[Audit, ...]  # on unseen data, one a row
    against: str  # the baseline that it is compared with
    versus: Versus  # without rows if it is the baseline itself, or if answers were not kept
    others: Mapping[str, Versus]  # the same with other baselines that it has to face
    steps: int  # dual steps to choose from
    tuned_on: tuple[int, ...]  # seeds that the steps were compared with
    payers: tuple[int, ...]  # groups that pay, by held-out samples

    def beside(self, baseline: str) -> "Entry":
        """The same runs, compared with another baseline."""
        return replace(self, against=baseline, versus=self.others[baseline])

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
        """Of ψ on the choice split, the mean over groups."""
        return Spread.of(row["standard_error"]["choice"] for row in self.rows)

    @property
    def mixed(self) -> bool:
        """Whether the seconds are of runs that shared their fleet with others that cost more or less."""
        return any(row["mixed"] and row["seconds"] is not None for row in self.rows)

    @property
    def negative_weights(self) -> float:
        """Sample weights that would have been negative, and were clipped: the mean over seeds."""
        return statistics.fmean(row["negative_weights"] for row in self.rows)

    @property
    def verdicts(self) -> dict[str, int]:
        words = [audit.verdict for audit in self.audits]
        return {word: words.count(word) for word in VERDICTS if word in words}

    def spread(self, split: str, measure: str) -> Spread | None:
        if measure == PAYERS:
            counts = [row["changes"][split] for row in self.rows if self.payers]
            return Spread.of(gap_of(own, self.payers) for own in counts)
        if measure == SPREAD:
            return Spread.of(spread_of(row["changes"][split]) for row in self.rows)
        return Spread.of(row[split][measure] for row in self.rows)

    def floor(self, measure: str) -> Range:
        """What a disparity would be on so many audit samples if no group had been harmed; mean over seeds."""
        ranges = [audit.noise_floor[measure] for audit in self.audits]
        return Range(*(statistics.fmean(one[part] for one in ranges) for part in ("mean", "low", "high")))

    @property
    def limits(self) -> tuple[float, float]:
        """Of max ψ on unseen data, as the audits have them: means over seeds."""
        known = [audit.max_excess_gap for audit in self.audits]
        return statistics.fmean(g.lower for g in known), statistics.fmean(g.upper for g in known)

    @property
    def debiased(self) -> float:
        """Max ψ on unseen data without what chance adds to a maximum: the mean over seeds."""
        return statistics.fmean(audit.max_excess_gap.debiased for audit in self.audits)

    @property
    def settling(self) -> int | None:
        """Samples of a group that would settle the audits which are inconclusive: the median, if any says."""
        told = [a.settle.samples_per_group for a in self.audits if a.settle is not None]
        known = [samples for samples in told if samples is not None]
        return round(statistics.median(known)) if known else None

    def above(self, measure: str) -> int:
        """Runs above the range of their own noise floor."""
        pairs = zip(self.rows, self.audits, strict=True)
        return sum(row["audit"][measure] > audit.noise_floor[measure]["high"] for row, audit in pairs)

    def within(self, split: str, tolerance: float) -> int:
        """Runs whose max ψ is within the tolerance."""
        return sum(row[split]["max_excess_gap"] <= tolerance + NEAR for row in self.rows)

    @property
    def compared(self) -> int:
        """Seeds that both have."""
        return len(self.versus.rows)

    def difference(self, measure: str) -> Difference | None:
        """From the baseline; None where nothing is compared."""
        return self.versus.by.get(measure)

    def apart(self, measure: str) -> Spread | None:
        """The same over seeds."""
        found = self.difference(measure)
        return None if found is None else Spread.of(found.values)

    def clear(self, measure: str) -> int:
        """1: better than the baseline for certain, -1: worse."""
        found = self.difference(measure)
        return 0 if found is None else BETTER[measure] * found.sign

    @property
    def overshoots(self) -> bool:
        """Whether payers are now farther ahead of the average than they were behind it with the baseline."""
        apart = self.apart(PAYERS)
        if apart is None:
            return False
        own = statistics.fmean(gap_of(row["changes"]["audit"], self.payers) for row in self.versus.rows)
        return own < -(own - apart.mean)


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
    size: Spread | None  # Σ|λ|
    change: Spread | None  # of Σ|λ| in the last epochs
    active: float
    of: int  # constraints
    sizes: tuple[tuple[float, ...], ...]  # Σ|λ| after each epoch, by seed
    first_epoch: int  # of these
    diverged: int  # seeds


@dataclass(frozen=True)
class Block:
    setting: Setting
    tolerance: float
    against: str
    entries: tuple[Entry, ...]
    constraints: tuple[Constrained, ...]  # every dual step, not only the chosen one
    heldout_samples: int  # of a group, the median
    groups: int
    unanswered: int  # chosen runs whose answers to the audit samples were not kept
    payers: tuple[int, ...]  # groups that pay, by held-out samples

    @property
    def faced(self) -> dict[str, list[Entry]]:
        """By other baseline, the methods that have to face it, compared with it."""
        names = dict.fromkeys(name for entry in self.entries for name in entry.others)
        return {name: [e.beside(name) for e in self.entries if name in e.others] for name in names}


# --- from the files ---


def blocks(
    results: Document,
    answers: Document,
    *,
    tolerance: float | None = None,
    against: str = BASELINES[0],
    payers: Sequence[str] = (),
) -> list[Block]:
    """In the order of the results file. tolerance: None is what the runs of each setting aim at; payers:
    names of groups to look at in place of those that held-out samples show to pay."""
    every = _by_setting(results["runs"])
    # Chosen within a setting, so that a data set is never chosen on another's runs.
    picked = {setting: chosen(rows) for setting, rows in every.items()}
    paired = Paired.of(answers, [r for rows in picked.values() for r in rows], payers)
    aims = {key: aimed_at(rows) if tolerance is None else tolerance for key, rows in picked.items()}
    return [_block(key, rows, every[key], paired, against, aims[key]) for key, rows in picked.items()]


def aimed_at(rows: Iterable[Row]) -> float:
    """The bound of max ψ that most runs aim at."""
    told = [row["tolerance"] for row in rows if KINDS[row["method"]].tolerance in ("usual", "after")]
    return statistics.mode(told) if told else TOLERANCE


def _by_setting(rows: Iterable[Row]) -> dict[Setting, list[Row]]:
    found: dict[Setting, list[Row]] = {}
    for row in rows:
        found.setdefault(Setting.of(row), []).append(row)
    return found


def _block(
    setting: Setting,
    picked: Sequence[Row],
    every: Sequence[Row],
    paired: Paired,
    against: str,
    tolerance: float,
) -> Block:
    constrained = [row for row in every if row["constraint"] is not None]
    counts = [n for n in picked[0]["changes"]["heldout"]["samples"] if n > 0]
    tried = {key: (len(steps), tuple(sorted(common_seeds(steps)))) for key, steps in by_step(every).items()}
    return Block(
        setting=setting,
        tolerance=tolerance,
        against=against,
        entries=tuple(
            _entry(name, rows, paired, against, tolerance, *tried[key_of(rows[0], SETTING)])
            for name, rows in by_method(picked).items()
        ),
        constraints=tuple(
            _constrained(name, rows, step)
            for name, rows in by_method(constrained).items()
            for step in sorted({row["dual_lr"] for row in rows})
        ),
        heldout_samples=round(statistics.median(counts)),
        groups=sum(n > 0 for n in picked[0]["changes"]["audit"]["samples"]),
        unanswered=sum(not paired.answered(row) for row in picked),
        payers=paired.payers(setting),
    )


def _entry(
    name: str,
    rows: Sequence[Row],
    paired: Paired,
    against: str,
    tolerance: float,
    steps: int,
    tuned_on: tuple[int, ...],
) -> Entry:
    options = Options(tolerance=tolerance)
    audits = tuple(audit_tally(tally_of(row["changes"]["audit"]), options) for row in rows)
    none = {against, BIAS} if rows[0]["groups"] in NO_LABELS else {against}
    others = {b: paired.versus(rows, b) for b in baselines_of(rows[0]["method"]) if b not in none}
    versus, payers = paired.versus(rows, against), paired.payers(Setting.of(rows[0]))
    return Entry(name, tuple(rows), audits, against, versus, others, steps, tuned_on, payers)


def _constrained(name: str, rows: Sequence[Row], step: float) -> Constrained:
    own = [row for row in rows if row["dual_lr"] == step]
    told = [row["constraint"] for row in own]
    moved = [row["multipliers"] or STILL for row in own]  # none of a run that diverged at once
    sizes = tuple(tuple(one["sizes"]) for one in moved)
    groups = len(own[0]["changes"]["audit"]["samples"])
    return Constrained(
        name=name,
        method=own[0]["method"],
        step=step,
        seeds=len(own),
        allowed=told[0]["allowed"],
        value=Spread.of(one["value"]["train"] for one in told),
        held={split: sum(one["feasible"][split] for one in told) for split in told[0]["feasible"]},
        size=Spread.of(one["size"] for one in moved),
        change=Spread.of(one["size_change"] for one in moved),
        active=statistics.fmean(one["active"] for one in moved),
        of=max(constraints_of(own[0]["method"], one["rows"], groups=groups) for one in moved),
        sizes=sizes,
        first_epoch=runner.shortened(runner.RECIPE, own[0]["epochs"]).pruning_epochs,
        diverged=sum(row.get("diverged") is not None for row in own),
    )


def by_method(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """In the order of the study; settings that are not the usual ones are named."""
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (METHODS[row["method"]], row["tolerance"] or 0, row["seed"])):
        several = {
            name
            for name in ("tolerance", "buffer", "refresh", "folds", "importance_batches")
            if len({r.get(name) for r in rows if r["method"] == row["method"]}) > 1
        }
        words = [f"{name} {row[name]:g}" for name in sorted(several) if row.get(name) is not None]
        found.setdefault(", ".join([row["method"], *words]), []).append(row)
    return found


def tally_of(counts: Mapping[str, Sequence[int]]) -> Tally:
    """Counts as an audit takes them. How often both models were right changes no limit: zero will do."""
    n, broke, fixed = (np.array(counts[name], dtype=np.int64) for name in ("samples", "broke", "fixed"))
    n, broke, fixed = n[n > 0], broke[n > 0], fixed[n > 0]
    groups = np.arange(n.size)
    count = np.concatenate([broke, fixed, n - broke - fixed])
    cells = tuple((f"{place:06d}",) for place in groups)
    return Tally(("group",), cells, ("sparse",), np.tile(groups, 3), np.repeat([1, 2, 0], n.size), count)


# --- seconds ---


def newest_timings(results: Document) -> list[Row]:
    """Of every method, task and device the last one, in the order of the study."""
    found = dict[tuple[Any, ...], Row]()
    for timing in results.get("timings", []):
        names = ("dataset", "groups", "sparsity", "fleet", "method")
        found[(timing["versions"]["device"], *(timing[name] for name in names))] = timing
    return sorted(found.values(), key=lambda one: (one["dataset"], one["groups"], METHODS[one["method"]]))


# --- gain or loss against how well ψ is known from the samples that are followed ---


@dataclass(frozen=True)
class Followed:
    """The samples whose ψ moves the multipliers, or the class bias, of some runs."""

    split: str
    samples: int  # of a group, the median
    error: Spread  # standard error of ψ of these samples


def followed_by(rows: Iterable[Row]) -> Followed | None:
    """None where nothing is followed."""
    told = [row["followed"] for row in rows if row["followed"] is not None]
    error = Spread.of(one["standard_error"] for one in told)
    if error is None:
        return None
    samples = round(statistics.median(n for n in told[0]["samples"] if n > 0))
    return Followed(told[0]["split"], samples, error)


@dataclass(frozen=True)
class Gain:
    """One method that follows unseen samples; the runs are those that the baseline has a partner for."""

    entry: Entry
    setting: Setting
    followed: Followed
    difference: Spread  # payers' ψ on unseen data, minus the baseline's


def gains(found: Iterable[Block]) -> dict[Setting, list[Gain]]:
    """By task, whatever number of samples is held out; within a method, the largest standard error first."""
    tasks: dict[Setting, list[Gain]] = {}
    for block in found:
        for entry in block.entries:
            followed = followed_by(entry.versus.rows)
            difference = entry.apart(PAYERS)
            if followed and difference and KINDS[entry.method].follows_unseen:
                gain = Gain(entry, block.setting, followed, difference)
                tasks.setdefault(block.setting.task, []).append(gain)
    for own in tasks.values():
        own.sort(key=lambda gain: (METHODS[gain.entry.method], gain.entry.name, -gain.followed.error.mean))
    return tasks
