"""Everything that the paper prints beside everything that was run: what page, text and JSON show."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from evenprune.paper_ablations import (
    Ablation,
    Further,
    ablated,
    buffer_table,
    further,
    others_table,
    overall_table,
    tolerance_table,
)
from evenprune.paper_cells import Table, is_printed, table_of
from evenprune.paper_fields import SPLITS
from evenprune.paper_groups import (
    GroupAccuracy,
    GroupTable,
    dense_accuracies,
    dense_of,
    group_accuracy,
    group_table,
    with_worst,
)
from evenprune.paper_printed import CIFAR, FACES, IMAGE_SIZES, WITHOUT_OTHERS, Printed, printed
from evenprune.paper_results import COUNTED_AS, Dense, Results, Run, Task, Trace
from evenprune.paper_runtimes import RuntimeTable, runtime_table, timed_runs
from evenprune.paper_variants import Variant, alone, variants

SCHEMA = "evenprune.paper/1"


@dataclass(frozen=True)
class Summary:
    """What became of one task of the paper."""

    task: Task
    printed: int  # cells in the paper
    ran: int  # of these with results here
    near: Mapping[str, int]
    compared: int  # numbers with a difference in standard errors
    apart: int  # of these beyond 2
    feasible: tuple[tuple[float, int, int, bool | None], ...]  # CEAG: sparsity, met, seeds, met in the paper
    audited: int  # runs with a noise floor
    beyond: int  # of these with max ψ above its range
    image_sizes: tuple[int, ...] = ()  # sides in pixels, where the paper's images were larger or smaller
    # Accuracy of the dense model here, and of the paper's; by split.
    dense: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class MadeWith:
    runs: int
    trainings: int  # one may have served NFT and NFT + ES
    seconds: float | None  # all trainings together
    paper_seconds: float | None  # the same runs at the paper's median
    timed_alike: int  # how many trainings both sums speak of
    devices: Mapping[str, int]
    versions: Mapping[str, Mapping[str, int]]
    commits: Mapping[str, int]


@dataclass(frozen=True)
class PaperReport:
    """Every table of the paper that there are results for, and those that there are none for."""

    tables: tuple[Table, ...]
    summaries: tuple[Summary, ...]
    runtimes: tuple[RuntimeTable, ...]
    ablations: tuple[Ablation, ...]
    variants: tuple[Variant, ...]
    variants_alone: tuple[str, ...]  # runs of another recipe that have nothing to be compared with
    groups: tuple[GroupTable, ...]
    group_accuracies: tuple[GroupAccuracy, ...]
    further: tuple[Further, ...]
    dense: tuple[Dense, ...]
    traces: tuple[Trace, ...]
    made_with: MadeWith
    doubts: tuple[str, ...]
    notes: tuple[str, ...]
    files: tuple[str, ...]


def compare(results: Results) -> PaperReport:
    """Every cell of the paper beside the runs that there are."""
    paper, runs = printed(), results.runs
    tables = tuple(with_worst(table_of(place, runs, paper), results, paper) for place in paper.cells)
    tasks = tuple(dict.fromkeys(table.task for table in tables))
    ran, times = {run.task for run in runs}, [*timed_runs(runs), *results.timed]
    group_tables = (group_table(place, runs, dense_of(results, place[0]), paper) for place in paper.cells)
    accuracies = (group_accuracy(p, s, results, paper) for p in paper.cells if p[0] in ran for s in SPLITS)
    return PaperReport(
        tables=tables,
        summaries=tuple(
            summary_of(
                task,
                tables,
                _other_sizes(task, [*runs, *results.dense]),
                dense_accuracies(task, results, paper),
            )
            for task in tasks
        ),
        runtimes=tuple(runtime_table(times, task, paper) for task in tasks if task in ran),
        ablations=tuple(_ablations(runs, paper, ran)),
        variants=variants(results.variants, runs, paper),
        variants_alone=alone(results.variants, runs),
        groups=tuple(table for table in group_tables if table is not None),
        group_accuracies=tuple(table for table in accuracies if table is not None),
        further=further(runs, [r for r in runs if is_printed(r, paper) or ablated(r, paper)], paper),
        dense=results.dense,
        traces=results.traces,
        made_with=made_with(runs, paper),
        doubts=tuple(filter(None, map(_doubt, runs))),
        notes=results.notes,
        files=results.files,
    )


def _ablations(runs: Sequence[Run], paper: Printed, ran: set[Task]) -> Iterable[Ablation]:
    if CIFAR in ran:
        yield buffer_table(runs, paper)
    if FACES in ran:
        yield tolerance_table(runs, paper)
        if any(run.task == FACES and run.overall == "macro" for run in runs):
            yield overall_table(runs, paper)
    if WITHOUT_OTHERS in ran:
        yield others_table(runs, paper)


def _other_sizes(task: Task, known: Sequence[Run | Dense]) -> tuple[int, ...]:
    found = {int(one.image_size) for one in known if one.task == task and one.image_size is not None}
    return tuple(sorted(found - {IMAGE_SIZES.get(task.dataset)}))


def summary_of(
    task: Task,
    tables: Sequence[Table],
    image_sizes: tuple[int, ...] = (),
    dense: Mapping[str, tuple[float, float]] | None = None,
) -> Summary:
    own = [table for table in tables if table.task == task]
    cells = [cell for table in own for cell in table.cells]
    numbers = [f for cell in cells for of in cell.figures.values() for f in of.values()]
    apart = [abs(f.standard_errors) > 2 for f in numbers if f.standard_errors is not None]
    ceag = [(table.sparsity, cell) for table in own for cell in table.cells if cell.method == "CEAG"]
    return Summary(
        task=task,
        printed=len(cells),
        ran=sum(bool(cell.seeds) for cell in cells),
        near={split: sum(cell.near[split] is True for cell in cells) for split in SPLITS},
        compared=len(apart),
        apart=sum(apart),
        feasible=tuple((s, c.met, len(c.seeds), c.paper_met) for s, c in ceag if c.met is not None),
        audited=sum(sum(cell.verdicts.values()) for cell in cells),
        beyond=sum(cell.figures["test"]["max_excess_gap"].beyond or 0 for cell in cells),
        image_sizes=image_sizes,
        dense=dense or {},
    )


def made_with(runs: Sequence[Run], paper: Printed) -> MadeWith:
    trained = trainings(runs)
    seconds = [run.seconds for run in trained if run.seconds is not None]
    alike = [r for r in trained if r.task == CIFAR and COUNTED_AS.get(r.method, r.method) in paper.runtime]
    alike = [run for run in alike if run.seconds is not None]
    of_paper = sum(paper.runtime[COUNTED_AS.get(run.method, run.method)].median for run in alike)
    versions = {
        name: _counted(run.versions.get(name) for run in runs) for name in ("evenprune", "torch", "python")
    }
    return MadeWith(
        runs=len(runs),
        trainings=len(trained),
        seconds=sum(seconds) if seconds else None,
        paper_seconds=of_paper if alike else None,
        timed_alike=len(alike),
        devices=_counted(run.versions.get("device") for run in runs),
        versions={name: counts for name, counts in versions.items() if counts},
        commits=_counted(run.commit for run in runs),
    )


def trainings(runs: Sequence[Run]) -> list[Run]:
    """One run a training: NFT + ES is left out where it is an earlier iterate of a run of NFT."""
    of_nft = {_training(run) for run in runs if run.method == "NFT"}
    return [run for run in runs if run.method != "NFT + ES" or _training(run) not in of_nft]


def _training(run: Run) -> tuple[Any, ...]:
    """What two iterates of one training share; without a time nothing is known."""
    if run.seconds is None:
        return (run.settings, run.seed)
    return (run.task, run.sparsity, run.seed, run.fleet, run.seconds, run.commit)


def _counted(values: Iterable[str | None]) -> dict[str, int]:
    known = sorted(value for value in values if value)
    return {value: known.count(value) for value in dict.fromkeys(known)}


def _doubt(run: Run) -> str | None:
    """A sentence where the counts of a run do not give the figures that it reports."""
    for split, changes in run.changes.items():
        gaps = [gap for gap in changes.excess_gaps() if gap is not None]
        told = run.figures[split]
        counted = {"max_excess_gap": max(gaps), "pairwise_disparity": max(gaps) - min(gaps)}
        for key, value in counted.items():
            if abs(value - told[key]) > 1e-4:
                return (
                    f"{run.name}: {key} on {split} data is {100 * told[key]:.2f} points in the file, but its "
                    f"counts of changed samples give {100 * value:.2f}"
                )
    return None


def to_document(report: PaperReport) -> dict[str, Any]:
    """Plain values for JSON; the multipliers stay in their own file."""
    document: dict[str, Any] = {"schema": SCHEMA, **asdict(report)}
    del document["traces"]
    return document
