"""The study as plain text: one table a setting, all methods × {train, unseen}, and what differs from NFT."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from evenprune.audit import Options, audit, audit_tally
from evenprune.paired import Comparison
from evenprune.paper_cells import Spread
from evenprune.tally import Tally
from paper.beyond_cells import TOLERANCE, chosen, key_of
from paper.beyond_results import METHODS, answers_in, groups_in
from paper.results_file import Document

Row = Mapping[str, Any]
BLOCK = ("groups", "sparsity", "augment", "heldout_per_class", "heldout_used", "epochs")
MEASURES = ("accuracy", "max_excess_gap", "pairwise_disparity", "worst_gap")
TITLES = ("accuracy", "max ψ", "Ψ_PW", "worst Δ")


def lines(results: Document, correct: Document, *, tolerance: float = TOLERANCE) -> list[str]:
    """Everything that `show` prints. Percent; mean ± standard deviation over seeds."""
    if not results["runs"]:
        return ["No run is finished yet."]
    found, answers = list[str](), answers_in(correct)
    picked = chosen(results["runs"], tolerance)
    every = _blocks(results["runs"])
    for setting, rows in _blocks(picked).items():
        by_method = _by_method(rows)
        found += [_title(rows[0]), ""]
        found += [*aligned(_numbers(by_method, tolerance)), ""]
        found += [*aligned(_heldout(by_method)), ""]
        found += [*aligned(_paired(by_method, picked, answers, correct, tolerance)), ""]
        constrained = [row for row in every[setting] if row["constraint"] is not None]
        found += [*aligned(_multipliers(_by_method(constrained))), ""] if constrained else []
    return [*found, *_legend(tolerance)]


def _blocks(rows: Iterable[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """Runs that stand in one table."""
    blocks: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        blocks.setdefault(tuple(row.get(name) for name in BLOCK), []).append(row)
    return blocks


def _title(row: Row) -> str:
    used = "all of them" if row["heldout_used"] is None else f"{row['heldout_used']} a group"
    return (
        f"{row['groups']} groups, {row['sparsity']:.1%} sparse, {'with' if row['augment'] else 'without'} "
        f"augmentation, {row['heldout_per_class']} a class held out, {used} looked at, {row['epochs']} epochs"
    )


def _legend(tolerance: float) -> list[str]:
    return [
        f"A dual step is chosen on the held-out split: within ψ ≤ {tolerance:.1%} the most accurate,",
        "else the smallest max ψ. It is never chosen on the audit split, which is what “unseen” stands for.",
        "noise floor: what max ψ and Ψ_PW would be on so many audit samples if no group had been harmed.",
        "against NFT: paired by seed and by audit sample; “clear” counts seeds whose limits exclude zero.",
        "constraints: every dual step; “train” is the left side of the worst one, to be at most “allowed”",
        "(fractions; CELG and EL: losses); “held” counts seeds; the change is that of the last 10 epochs.",
    ]


def _by_method(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """In the order of the study; settings that are not the usual ones are named."""
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (METHODS[row["method"]], row["tolerance"] or 0, row["seed"])):
        several = {
            name
            for name in ("tolerance", "buffer", "refresh")
            if len({r[name] for r in rows if r["method"] == row["method"]}) > 1
        }
        words = [f"{name} {row[name]:g}" for name in sorted(several) if row[name] is not None]
        found.setdefault(", ".join([row["method"], *words]), []).append(row)
    return found


# --- the tables ---


def _numbers(methods: Mapping[str, Sequence[Row]], tolerance: float) -> Iterator[list[str]]:
    named = [f"{split} {title}" for split in ("train", "unseen") for title in TITLES]
    yield ["method", "step", "seeds", *named, "floor max ψ", "floor Ψ_PW", "verdicts", "seconds"]
    for name, rows in methods.items():
        cells = [percent([row[split][m] for row in rows]) for split in ("train", "audit") for m in MEASURES]
        audits = [
            audit_tally(tally_of(row["changes"]["audit"]), Options(tolerance=tolerance)) for row in rows
        ]
        floors = [
            f"{100 * statistics.fmean(a.noise_floor[key]['mean'] for a in audits):.1f}"
            for key in ("max_excess_gap", "pairwise_disparity")
        ]
        words = [a.verdict for a in audits]
        told = " ".join(f"{words.count(w)} {w}" for w in ("pass", "inconclusive", "fail") if w in words)
        seconds = f"{statistics.fmean(row['seconds'] for row in rows):.1f}"
        yield [name, _step(rows[0]), str(len(rows)), *cells, *floors, told, seconds]


def _heldout(methods: Mapping[str, Sequence[Row]]) -> Iterator[list[str]]:
    """What the choice rests on, and how well ψ is known there."""
    yield ["method", *(f"held-out {title}" for title in TITLES), "s.e. of ψ"]
    for name, rows in methods.items():
        held = [percent([row["heldout"][m] for row in rows]) for m in MEASURES]
        yield [name, *held, percent([row["standard_error"]["heldout"] for row in rows])]


def _multipliers(methods: Mapping[str, Sequence[Row]]) -> Iterator[list[str]]:
    """Every dual step of every method: whether its own constraints hold, and whether multipliers settle."""
    splits = {"train": "train", "heldout": "held-out", "audit": "unseen"}
    feasible = [f"{word}: held" for word in splits.values()]
    yield ["constraints", "step", "allowed", "train", *feasible, "Σλ", "Σ|λ|", "its change", "active"]
    for name, rows in methods.items():
        for step in sorted({row["dual_lr"] for row in rows}):
            own = [row for row in rows if row["dual_lr"] == step]
            told = [row["constraint"] for row in own]
            holds = [f"{sum(one['feasible'][split] for one in told)} of {len(told)}" for split in splits]
            values = [
                plain([row["multipliers"][key] for row in own]) for key in ("sum", "size", "size_change")
            ]
            active = f"{statistics.fmean(row['multipliers']['active'] for row in own):.0f}"
            of_rows = f"{active} of {own[0]['multipliers']['rows']}"
            value = plain([one["value"]["train"] for one in told])
            yield [name, f"{step:g}", f"{told[0]['allowed']:g}", value, *holds, *values, of_rows]


def _paired(
    methods: Mapping[str, Sequence[Row]],
    rows: Sequence[Row],
    answers: Mapping[tuple[Any, ...], Any],
    correct: Document,
    tolerance: float,
) -> Iterator[list[str]]:
    yield ["against NFT", "seeds", "accuracy", "clear", "max ψ", "clear", "Ψ_PW", "clear"]
    for name, own in methods.items():
        if own[0]["method"] == "NFT":
            continue
        pairs = [
            (base, row) for row in own if (base := partner(row, rows, answers)) and key_of(row) in answers
        ]
        found = [
            compared(answers[key_of(a)], answers[key_of(b)], groups_in(correct, b["groups"]), tolerance)
            for a, b in pairs
        ]
        cells = []
        for measure, better in (("accuracy", 1), ("max_excess_gap", -1), ("pairwise_disparity", -1)):
            differences = [getattr(one, measure) for one in found]
            cells += [percent([d.estimate for d in differences], sign="+"), clear(differences, better)]
        yield [name, str(len(found)), *cells]


def partner(row: Row, rows: Iterable[Row], answers: Mapping[tuple[Any, ...], Any]) -> Row | None:
    """The NFT run of the same seed; if need be one that was measured with another number of held-out samples,
    which NFT does not see."""
    same = [name for name in BLOCK if name != "heldout_used"] + ["seed"]
    own = [
        other
        for other in rows
        if other["method"] == "NFT" and all(other[n] == row[n] for n in same) and key_of(other) in answers
    ]
    return min(own, key=lambda other: other["heldout_used"] != row["heldout_used"], default=None)


def compared(first: Any, second: Any, groups: Any, tolerance: float) -> Comparison:
    """The second run against the first, sample by sample; each is (dense right, run right)."""
    found = audit(
        dense_correct=second[0],
        pruned_correct={"first": first[1], "second": second[1]},
        groups=groups,
        tolerance=tolerance,
    )
    return found.comparisons[0]


def clear(differences: Sequence[Any], better: int) -> str:
    """How many are better or worse for certain."""
    if not differences:
        return "–"
    up, down = sum(d.lower > 0 for d in differences), sum(d.upper < 0 for d in differences)
    good, bad = (up, down) if better > 0 else (down, up)
    return f"{good} better, {bad} worse"


def tally_of(counts: Mapping[str, Sequence[int]]) -> Tally:
    """Counts as an audit takes them. How often both models were right changes no limit: zero will do."""
    n, broke, fixed = (np.array(counts[name], dtype=np.int64) for name in ("samples", "broke", "fixed"))
    n, broke, fixed = n[n > 0], broke[n > 0], fixed[n > 0]
    groups = np.arange(n.size)
    count = np.concatenate([broke, fixed, n - broke - fixed])
    cells = tuple((f"{place:06d}",) for place in groups)
    return Tally(("group",), cells, ("sparse",), np.tile(groups, 3), np.repeat([1, 2, 0], n.size), count)


# --- text ---


def percent(values: Iterable[float | None], sign: str = "") -> str:
    spread = Spread.of(None if value is None else 100 * value for value in values)
    return _told(spread, f"{sign}.1f")


def plain(values: Iterable[float | None]) -> str:
    return _told(Spread.of(values), ".3g")


def _told(spread: Spread | None, form: str) -> str:
    if spread is None:
        return "–"
    sd = "" if spread.sd is None else f" ± {spread.sd:{form.removeprefix('+')}}"
    return f"{spread.mean:{form}}{sd}"


def _step(row: Row) -> str:
    return "–" if row["dual_lr"] is None else f"{row['dual_lr']:g}"


def aligned(table: Iterable[Sequence[str]]) -> list[str]:
    rows = list(table)
    wide = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            t.ljust(w) if i == 0 else t.rjust(w) for i, (t, w) in enumerate(zip(row, wide, strict=True))
        )
        for row in rows
    ]


def finished(rows: Iterable[Row], wanted: Iterable[Row]) -> list[str]:
    """One line a setting: the seeds that are there, and a dot for each that is missing."""
    held = {key_of(row) for row in rows}
    found: dict[tuple[str, ...], list[str]] = {}
    for row in wanted:
        setting = (row["method"], _step(row), "yes" if row["augment"] else "no")
        found.setdefault(setting, []).append(str(row["seed"]) if key_of(row) in held else "·")
    head = ["method", "step", "augment", "seeds finished (·: missing)"]
    return aligned([head, *([*setting, " ".join(words)] for setting, words in found.items())])
