"""Is any group paying for the pruning? Predictions in, verdict out. Needs numpy alone.

samples -> tally (counts per cell) -> evidence (estimates and limits) -> Audit (verdict)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evenprune import evidence, limits, maximum, paired, verdict
from evenprune.evidence import Demand, Evidence
from evenprune.further_columns import read_columns, with_columns
from evenprune.groups import (
    MOST_ATTRIBUTES_FOR_EACH,
    Grouping,
    Merged,
    group_cells,
    merged_of,
    natural_key,
    notes_of,
)
from evenprune.intake import Answers, crowded, one_group, read
from evenprune.reading import counted
from evenprune.tally import FloatArray, InputProblems, Measure, Scores, Tally
from evenprune.verdict import Audit

POWER = 0.8  # of the sample sizes that an inconclusive audit asks for
TINY = {"accuracy": 10, "score": 30, "loss": 30}  # groups below cannot pass


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to audit, whatever the data."""

    tolerance: float
    confidence: float = 0.95
    each: bool = False
    missing: Literal["group", "drop"] = "group"
    min_samples: int | None = None  # None: 10 for accuracy, 30 for scores and losses
    seed: int = 0

    def problems(self, measure: Measure = "accuracy") -> list[str]:
        found = [
            f"{name} is {value!r}: it must be a number"
            for name, value in (("tolerance", self.tolerance), ("confidence", self.confidence))
            if not isinstance(value, int | float | np.number)
        ]
        if not isinstance(self.min_samples, int | np.integer | None):
            found.append(f"min_samples is {self.min_samples!r}: it must be a whole number")
        return found or self._range_problems(measure)

    def _range_problems(self, measure: Measure) -> list[str]:
        found = []
        top = np.inf if measure == "loss" else 1.0
        if not (0 <= self.tolerance <= top and np.isfinite(self.tolerance)):
            limit = "at least 0" if measure == "loss" else "within [0, 1], such as 0.02 for 2 points"
            found.append(f"tolerance is {self.tolerance}: it must be {limit}")
        if not 0.5 < self.confidence < 1:
            found.append(f"confidence is {self.confidence}: it must lie between 0.5 and 1, such as 0.95")
        if self.missing not in ("group", "drop"):
            found.append(f"missing is {self.missing!r}: choose 'group' or 'drop'")
        if self.min_samples is not None and self.min_samples < 1:
            found.append(f"min_samples is {self.min_samples}: it must be at least 1")
        return found


def audit(
    *,
    labels: Any = None,
    dense: Any = None,
    pruned: Any = None,
    dense_correct: Any = None,
    pruned_correct: Any = None,
    groups: Any,
    tolerance: float,
    confidence: float = 0.95,
    measure: Measure = "accuracy",
    each: bool = False,
    missing: Literal["group", "drop"] = "group",
    min_samples: int | None = None,
    columns: Mapping[str, Mapping[str, float | None]] | None = None,
) -> Audit:
    """Audit one pruned model, or several side by side, against the dense one.

    `labels`, `dense` and `pruned` hold one class id per sample, the models also scores [n, classes]; several
    pruned models go in as a mapping by name. Correctness that is known already goes in as `dense_correct` and
    `pruned_correct`. With measure="score" (in [0, 1], higher is better) or "loss", `dense` and `pruned` hold
    one number per sample, and no labels are needed.
    `groups` is one column, or a mapping of columns: their intersections are audited, or with `each` every
    column and every intersection together. A missing group label is a group of its own unless missing="drop".
    `columns` are further numbers to show beside each group, {title: {name of a group: number}}, such as
    diagnostics.columns gives; no verdict rests on them.
    """
    options = Options(
        tolerance=tolerance, confidence=confidence, each=each, missing=missing, min_samples=min_samples
    )
    answers = Answers(measure, labels, dense, pruned, dense_correct, pruned_correct)
    data, problems = read(answers, groups)
    further, more = read_columns(columns)
    if problems or more or data is None or options.problems(measure):
        raise InputProblems(options.problems(measure) + problems + more)
    found, notes = with_columns(audit_tally(data, options), further)
    return with_notes(found, [*notes_of(groups), *notes], merged_of(groups))


def with_notes(found: Audit, notes: Sequence[str], merged: Merged) -> Audit:
    """What was noted of the columns comes first: ranges that could not be had, groups that were merged."""
    models = {name: with_notes(one, notes, merged) for name, one in found.models.items()}
    notes = (*notes, *found.notes)
    return replace(found, notes=notes, merged=merged, models=models)


def audit_tally(data: Tally | Scores, options: Options) -> Audit:
    """Audit data that is tallied already (or per-sample scores): the one way to a verdict."""
    measure: Measure = "accuracy" if isinstance(data, Tally) else data.measure
    data, dropped = _drop_missing(data) if options.missing == "drop" else (data, 0)
    problems = options.problems(measure) + _group_problems(data, options)
    if problems:
        raise InputProblems(problems)
    data = _in_order(data)
    grouping = group_cells(data.cells, data.attributes, each=options.each)
    demand = Demand(options.tolerance, options.confidence, options.seed)
    audits = {
        name: _judge(name, _evidence(data, i, grouping, demand), data, grouping, options, dropped)
        for i, name in enumerate(data.models)
    }
    worst = max(audits.values(), key=lambda a: (verdict.STRICTNESS[a.verdict], a.max_excess_gap.estimate))
    if len(audits) == 1:
        return worst
    return replace(worst, models=audits, comparisons=tuple(paired.compare(data, grouping, demand)))


def _drop_missing(data: Tally | Scores) -> tuple[Tally | Scores, int]:
    """Leave out the samples with a missing group label; also returns how many these were."""
    whole = np.array([None not in cell for cell in data.cells], dtype=bool)
    keep = whole[data.cell]
    index = np.cumsum(whole) - 1
    cells = tuple(c for c, ok in zip(data.cells, whole, strict=True) if ok)
    kept = _take(data, keep, cells, index)
    return kept, data.samples - kept.samples


def _take(
    data: Tally | Scores, rows: NDArray[Any], cells: tuple[Any, ...], index: NDArray[np.int64]
) -> Tally | Scores:
    """Some rows of the data, in the order given, with cells renumbered."""
    cell = index[data.cell[rows]]
    if isinstance(data, Tally):
        return replace(data, cells=cells, cell=cell, pattern=data.pattern[rows], count=data.count[rows])
    return replace(data, cells=cells, cell=cell, dense=data.dense[rows], pruned=data.pruned[:, rows])


def _in_order(data: Tally | Scores) -> Tally | Scores:
    """Cells in an order that depends on their figures alone, so that names and rows change no limit."""
    size = len(data.cells)
    if isinstance(data, Tally):
        bits = range(len(data.models) + 1)
        right = [data.count * ((data.pattern >> bit) & 1) for bit in bits]
        columns = [np.bincount(data.cell, values, size) for values in (data.count, *right)]
    else:
        columns = [np.bincount(data.cell, minlength=size).astype(float)]
        columns += [np.bincount(data.cell, values, size) for values in (data.dense, *data.pruned)]
    by_name = {cell: i for i, cell in enumerate(sorted(data.cells, key=natural_key))}
    rounded = [np.round(c, 9) for c in columns]
    tie_break = np.array([by_name[c] for c in data.cells])
    order = np.lexsort(np.stack([tie_break, *reversed(rounded)]))
    index = np.empty(size, dtype=np.int64)
    index[order] = np.arange(size)
    cells = tuple(data.cells[i] for i in order)
    rows = (
        np.arange(data.cell.size) if isinstance(data, Scores) else np.argsort(index[data.cell], kind="stable")
    )
    return _take(data, rows, cells, index)


def _group_problems(data: Tally | Scores, options: Options) -> list[str]:
    if data.samples == 0:
        return ["there are no samples to audit"]
    found = crowded(data.attributes, data.cells, data.samples)
    if len(data.cells) == 1:
        found.append(one_group(data.attributes, data.cells[0]))
    if options.each and len(data.attributes) > MOST_ATTRIBUTES_FOR_EACH:
        found.append(f"each takes at most {MOST_ATTRIBUTES_FOR_EACH} attributes, not {len(data.attributes)}")
    if options.each and len(data.cells) > 1:
        for i, attribute in enumerate(data.attributes):
            if len({cell[i] for cell in data.cells}) == 1:
                found.append(f"one group only in {attribute!r}: leave this column out")
    return found


def _evidence(data: Tally | Scores, model: int, grouping: Grouping, demand: Demand) -> Evidence:
    if isinstance(data, Tally):
        return evidence.from_counts(paired.paired_counts(data, 0, model + 1), grouping, demand)
    sign = -1.0 if data.measure == "loss" else 1.0
    most = 1.0 if data.measure == "score" else None
    scores = evidence.PairedScores(sign * data.dense, sign * data.pruned[model], data.cell, most)
    return evidence.from_scores(scores, grouping, demand)


def _judge(
    name: str, found: Evidence, data: Tally | Scores, grouping: Grouping, options: Options, dropped: int
) -> Audit:
    estimates, bounds = found.estimates, found.limits
    measure: Measure = "accuracy" if isinstance(data, Tally) else data.measure
    sign = -1.0 if measure == "loss" else 1.0
    floor = options.min_samples or TINY[measure]
    tiny = estimates.samples < floor
    at = int(estimates.excess.argmax())
    word = _verdict(bounds, tiny, options.tolerance)
    needed, settle = _settle(found, grouping, options, word, measure)
    groups = _groups(found, grouping, tiny, needed, sign)
    overall = found.overall
    return Audit(
        verdict=word,
        model=name,
        tolerance=options.tolerance,
        confidence=options.confidence,
        measure=measure,
        limits="score" if isinstance(data, Tally) else "bootstrap",
        samples=data.samples,
        attributes=data.attributes,
        grouping="each" if options.each else "intersection",
        overall=verdict.Overall(
            dense=sign * overall.dense,
            pruned=sign * overall.pruned,
            gap=overall.dense - overall.pruned,
            lower=overall.lower,
            upper=overall.upper,
            disagreement=overall.disagreement,
        ),
        max_excess_gap=verdict.MaxExcessGap(
            estimate=float(estimates.excess[at]),
            group=grouping.names[at],
            lower=max(float(bounds.test_lower.max()), 0.0),  # Σπψ = 0: the largest is not negative
            upper=float(bounds.test_upper.max()),
            debiased=found.worst.debiased,
        ),
        pairwise_disparity=float(maximum.disparity(estimates.gap)),
        noise_floor={
            "max_excess_gap": vars(found.worst.floor_max).copy(),
            "pairwise_disparity": vars(found.worst.floor_disparity).copy(),
        },
        violations=tuple(g.group for g in groups if g.violates),
        fell=tuple(g.group for g in groups if g.fell),
        settle=settle,
        notes=tuple(_notes(groups, floor, dropped, measure)),
        groups=groups,
        models={},
        comparisons=(),
    )


def _verdict(bounds: evidence.Limits, tiny: NDArray[np.bool_], tolerance: float) -> verdict.Word:
    if bounds.violates.any():
        return "fail"
    passed = bool((bounds.test_upper <= tolerance).all()) and not tiny.any()
    return "pass" if passed else "inconclusive"


def _groups(
    found: Evidence, grouping: Grouping, tiny: NDArray[np.bool_], needed: list[int | None], sign: float
) -> tuple[verdict.Group, ...]:
    e, b = found.estimates, found.limits
    columns = {
        "samples": e.samples, "dense": sign * e.dense, "pruned": sign * e.pruned, "gap": e.gap,
        "excess_gap": e.excess, "lower": b.lower, "upper": b.upper, "test_lower": b.test_lower,
        "test_upper": b.test_upper, "gap_lower": b.gap_lower, "gap_upper": b.gap_upper, "broke": e.broke,
        "fixed": e.fixed, "disagreement": (e.broke + e.fixed) / e.samples, "violates": b.violates,
        "fell": b.gap_lower > 0, "tiny": tiny,
    }  # fmt: skip
    rows = zip(*(values.tolist() for values in columns.values()), strict=True)
    named = zip(grouping.names, grouping.attributes, needed, rows, strict=True)
    return tuple(
        verdict.Group(
            group=name, attributes=parents, samples_needed=n, **dict(zip(columns, row, strict=True))
        )
        for name, parents, n, row in named
    )


def _settle(
    found: Evidence, grouping: Grouping, options: Options, word: verdict.Word, measure: Measure
) -> tuple[list[int | None], verdict.Settle | None]:
    """Samples each group needs, and the sample that would settle an inconclusive audit.

    If the shrunken gaps are the true ones: to pass, all upper limits must fall below the tolerance; where a
    group seems beyond it, its simultaneous lower limit must rise above.
    """
    e = found.estimates
    unit = e.variance * e.samples  # n_g Var ψ_g
    margin = options.tolerance - found.worst.shrunken
    beyond = np.where(margin < -1e-9, -margin, np.nan)
    to_fail = unit * ((found.limits.critical + limits.quantile(POWER)) / beyond) ** 2
    numbers = np.where(margin > 0, _to_pass(unit, margin, options, measure), to_fail)
    numbers = np.nan_to_num(np.maximum(numbers, options.min_samples or TINY[measure]), nan=np.inf)
    needed = [int(np.ceil(x)) if np.isfinite(x) and x < 1e12 else None for x in numbers]
    if word != "inconclusive":
        return needed, None
    fails = bool((margin <= 0).any())
    factor = numbers / e.samples
    # One group beyond the tolerance fails an audit; to pass it, the neediest group must be satisfied.
    at = int(np.where(margin <= 0, factor, np.inf).argmin()) if fails else int(factor.argmax())
    total = None if needed[at] is None else int(np.ceil(max(factor[at], 1.0) * e.samples.sum()))
    return needed, verdict.Settle("fail" if fails else "pass", grouping.names[at], needed[at], total)


def _to_pass(unit: FloatArray, margin: FloatArray, options: Options, measure: Measure) -> FloatArray:
    """Samples per group to pass, as `sample_size` has them; a loss has no disagreement, only a variance."""
    groups = unit.size
    if measure == "loss":
        deviate = limits.quantile(options.confidence) + limits.quantile(POWER ** (1 / groups))
        return np.asarray(unit * (deviate / np.where(margin > 1e-9, margin, np.nan)) ** 2)
    return limits.needed_samples(
        groups=groups,
        distance=margin,
        disagreement=np.clip(unit, 1e-12, 1.0),
        confidence=options.confidence,
        power=POWER,
    )


def _notes(groups: Sequence[verdict.Group], floor: int, dropped: int, measure: Measure) -> list[str]:
    notes = []
    if measure != "accuracy":
        notes.append("The limits come from a paired bootstrap of the samples within each group.")
    tiny = [g for g in groups if g.tiny]
    if tiny:
        names = ", ".join(f"{g.group} ({g.samples})" for g in tiny[:8]) + (", …" if len(tiny) > 8 else "")
        notes.append(
            counted(len(tiny), f"of {len(groups)} groups has", f"of {len(groups)} groups have")
            + f" fewer than {floor} samples, which keeps the audit from passing: {names}."
        )
    missing = sum(g.samples for g in groups if g.attributes and all(v is None for v in g.attributes.values()))
    if missing:
        many = counted(missing, "sample has", "samples have")
        notes.append(f"{many} no group label; audited as the group “(missing)”.")
    if dropped:
        many = counted(dropped, "sample without a group label was", "samples without a group label were")
        notes.append(f"{many} left out, as asked.")
    return notes
