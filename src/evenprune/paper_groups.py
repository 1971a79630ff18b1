"""Group by group: who paid on either split, what chance alone would show, accuracies beside the paper's."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evenprune import maximum
from evenprune.groups import Grouping
from evenprune.limits import Counts, Noise
from evenprune.paper_cells import (
    CONFIDENCE,
    Cell,
    Figure,
    Table,
    WorstGroup,
    figure,
    is_printed,
    one_per_seed,
)
from evenprune.paper_fields import SPLITS
from evenprune.paper_printed import Place, Printed
from evenprune.paper_results import Changes, Dense, Results, Run, Task
from evenprune.tally import FloatArray

MOST_GROUPS_LISTED = 20
Groups = tuple[float | None, ...]  # None: a group without samples


def chance_band(changes: Changes) -> FloatArray:
    """Where 95 % of the estimated excess gaps lie if no group was harmed  [2, groups]; NaN: no samples."""
    columns = np.array([changes.samples, changes.broke, changes.fixed], dtype=float)
    known = columns[0] > 0
    n, b, c = columns[:, known]
    counts = Counts(n, b, c, b)
    alone = Grouping(tuple(map(str, range(n.size))), tuple({} for _ in n), (np.arange(n.size),))
    draws = Noise(alone, n, counts.variance).errors(maximum.null_gaps(counts, np.random.default_rng(0)))
    band = np.full((2, known.size), np.nan)
    band[:, known] = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    return band


@dataclass(frozen=True)
class GroupGaps:
    """Excess gaps of every group for one method: mean over seeds, and the seeds' range  [groups]."""

    method: str
    mean: Groups
    low: Groups
    high: Groups
    band: tuple[Groups, Groups] | None  # by chance alone, one run; test data


@dataclass(frozen=True)
class GroupTable:
    """Who paid, at one place: by split."""

    task: Task
    sparsity: float
    tolerance: float | None
    names: tuple[str, ...]
    methods: Mapping[str, tuple[GroupGaps, ...]]  # by split


def excess_gaps(run: Run, split: str, dense: Dense | None) -> list[float | None] | None:
    """ψ_g of every group: from counts, or else from the accuracies of both models."""
    if split in run.changes:
        return run.changes[split].excess_gaps()
    own, before = run.group_accuracy.get(split), dense.group_accuracy.get(split) if dense else None
    if own is None or before is None or dense is None or len(own) != len(before):
        return None
    overall = dense.accuracy[split] - run.figures[split]["accuracy"]
    pairs = zip(before, own, strict=True)
    return [None if a is None or b is None else a - b - overall for a, b in pairs]


def _group_gaps(method: str, runs: Sequence[Run], split: str, dense: Dense | None) -> GroupGaps | None:
    known = [gaps for gaps in (excess_gaps(run, split, dense) for run in runs) if gaps is not None]
    if not known or len({len(gaps) for gaps in known}) > 1:
        return None
    values = np.array(known, dtype=float)  # [seeds, groups]
    mean, low, high = (_tuple(part) for part in (values.mean(axis=0), values.min(axis=0), values.max(axis=0)))
    return GroupGaps(method, mean, low, high, _mean_band(runs) if split == "test" else None)


def _mean_band(runs: Sequence[Run]) -> tuple[Groups, Groups] | None:
    bands = [chance_band(run.changes["test"]) for run in runs if "test" in run.changes]
    if not bands:
        return None
    low, high = np.mean(bands, axis=0)
    return _tuple(low), _tuple(high)


def _tuple(values: FloatArray) -> Groups:
    return tuple(None if math.isnan(value) else value for value in values.tolist())


def group_table(place: Place, runs: Sequence[Run], dense: Dense | None, paper: Printed) -> GroupTable | None:
    own = [run for run in runs if (run.task, run.sparsity) == place and is_printed(run, paper)]
    order = [cell.method for cell in paper.cells[place]]
    methods: dict[str, tuple[GroupGaps, ...]] = {}
    for split in SPLITS:
        made = [
            _group_gaps(m, one_per_seed(run for run in own if run.method == m), split, dense) for m in order
        ]
        methods[split] = tuple(gaps for gaps in made if gaps is not None)
    sizes = {len(gaps.mean) for of in methods.values() for gaps in of}
    if len(sizes) != 1:
        return None
    size, setting = sizes.pop(), paper.settings.get(place)
    named = (
        dense.groups if dense and len(dense.groups) == size else tuple(f"group {i + 1}" for i in range(size))
    )
    return GroupTable(*place, setting.tolerance if setting else None, named, methods)


# --- the worst group ---


def with_worst(table: Table, results: Results, paper: Printed) -> Table:
    """Every cell with the group that is most often the worst on training data, where groups have names."""
    place, dense = (table.task, table.sparsity), dense_of(results, table.task)
    if dense is None or not dense.groups:
        return table
    own = [run for run in results.runs if (run.task, run.sparsity) == place and is_printed(run, paper)]
    cells = []
    for cell in table.cells:
        runs = one_per_seed(run for run in own if run.method == cell.method)
        gaps = [gaps for gaps in (excess_gaps(run, "train", dense) for run in runs) if gaps is not None]
        told = [row for row in gaps if len(row) == len(dense.groups)]
        theirs = printed_worst(place, cell.method, dense.groups, paper)
        cells.append(replace(cell, worst=_worst(cell, told, dense.groups, theirs)) if told else cell)
    return replace(table, cells=tuple(cells))


def _worst(
    cell: Cell, gaps: Sequence[Sequence[float | None]], names: Sequence[str], paper: tuple[str, ...]
) -> WorstGroup:
    values = np.array(gaps, dtype=float)  # [seeds, groups]
    tops = np.nanmax(values, axis=1, keepdims=True)
    counts = (values >= tops - 1e-12).sum(axis=0)  # a tie counts for all of its groups
    known = np.where(np.isnan(values).all(axis=0), -np.inf, np.nan_to_num(values).mean(axis=0))
    place = max(range(len(names)), key=lambda group: (counts[group], known[group]))
    figure = cell.figures["train"]["max_excess_gap"]
    return WorstGroup(
        name=names[place],
        seeds=int(counts[place]),
        of=len(gaps),
        multiple=_over(float(tops.mean()), cell.tolerance),
        paper=paper,
        paper_multiple=_over(figure.paper.mean, cell.tolerance) if figure.paper else None,
    )


def _over(gap: float, tolerance: float | None) -> float | None:
    return gap / tolerance if tolerance else None


def printed_worst(place: Place, method: str, ours: Sequence[str], paper: Printed) -> tuple[str, ...]:
    """The groups that lost most by the paper's printed accuracies, under our names where these match."""
    dense, pruned = (paper.group_accuracy.get((*place, "train", name), {}) for name in ("Dense", method))
    lost = {group: round(dense[group].mean - pruned[group].mean, 9) for group in pruned if group in dense}
    same = named_alike(ours, tuple(lost))
    return tuple(ours[same[i]] if same else g for i, g in enumerate(lost) if lost[g] == max(lost.values()))


@dataclass(frozen=True)
class GroupAccuracy:
    """Accuracy of every group at one place, for one split, beside the paper's: tasks of a few groups only."""

    task: Task
    sparsity: float
    split: str
    names: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Figure, ...]], ...]  # method -> one figure a group


def group_accuracy(place: Place, split: str, results: Results, paper: Printed) -> GroupAccuracy | None:
    """None where the paper prints none, or no run has them."""
    numbers = paper.group_accuracy.get((*place, split, "NFT"))
    own = [run for run in results.runs if (run.task, run.sparsity) == place and is_printed(run, paper)]
    if numbers is None or not own or len(numbers) > MOST_GROUPS_LISTED:
        return None
    dense = dense_of(results, place[0])
    values = {"Dense": [dense.group_accuracy[split]] if dense and split in dense.group_accuracy else []}
    for cell in paper.cells[place]:
        runs = one_per_seed(run for run in own if run.method == cell.method)
        values[cell.method] = [run.group_accuracy[split] for run in runs if split in run.group_accuracy]
    order = matched(dense.groups if dense else (), tuple(numbers))
    rows = []
    for method, of in values.items():
        if of and all(len(row) == len(numbers) for row in of):
            printed = paper.group_accuracy.get((*place, split, method), {})
            figures = (
                figure([row[at] for row in of], printed.get(g)) for g, at in zip(numbers, order, strict=True)
            )
            rows.append((method, tuple(figures)))
    return GroupAccuracy(*place, split, tuple(numbers), tuple(rows)) if rows else None


def dense_accuracies(task: Task, results: Results, paper: Printed) -> dict[str, tuple[float, float]]:
    """Of the dense models by split: ours, and the paper's, by its accuracy of every group and our samples."""
    dense, found = dense_of(results, task), {}
    for split in SPLITS:
        printed = next(
            (p for k, p in paper.group_accuracy.items() if (k[0], *k[2:]) == (task, split, "Dense")), {}
        )
        samples = next(
            (run.changes[split].samples for run in results.runs if run.task == task and split in run.changes),
            (),
        )
        if dense and split in dense.accuracy and printed and len(printed) == len(samples):
            places = matched(dense.groups, tuple(printed))
            right = sum(n.mean * samples[at] for n, at in zip(printed.values(), places, strict=True))
            found[split] = (dense.accuracy[split], right / sum(samples))
    return found


def matched(ours: Sequence[str], theirs: Sequence[str]) -> list[int]:
    """Where the paper's groups stand among ours: by name ("W-M" is "White × male"), or else by order."""
    return named_alike(ours, theirs) or list(range(len(theirs)))


def named_alike(ours: Sequence[str], theirs: Sequence[str]) -> list[int] | None:
    """Where they stand by their names; None unless each is found once."""
    names = {key: place for place, name in enumerate(ours) for key in (name.casefold(), _initials(name))}
    found = [names.get(name.casefold()) for name in theirs]
    by_name = [place for place in found if place is not None]
    return by_name if len(set(by_name)) == len(theirs) else None


def _initials(name: str) -> str:
    parts = re.split(r"\s*[×,/]\s*", name.casefold())
    return "-".join("".join(word[0] for word in re.findall(r"[^\W_]+", part)) for part in parts)


def dense_of(results: Results, task: Task) -> Dense | None:
    return next((dense for dense in results.dense if dense.task == task), None)
