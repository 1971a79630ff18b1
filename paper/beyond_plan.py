"""The study in parts, each a table that is useful by itself; and what each of them still needs."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from paper import beyond_cells
from paper.beyond_cells import DATASET, SMALL, Cell, Grid, riders
from paper.beyond_methods import BY_SIZE, KINDS, OF_ONE_SIZE, ONCE, SPARSER

FULL = 60  # epochs of a run that --seconds-per-run is of
CROSSED = [name for name in ONCE if KINDS[name].crossed]
RIVALS = [name for name in ONCE if name not in CROSSED]
OTHERS = [name for name in RIVALS if name not in BY_SIZE]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A command, and what it is told where that is not as usual."""

    title: str
    dataset: str = DATASET
    command: str = "study"
    told: Mapping[str, Any] = field(default_factory=dict)  # flag -> value


FACES = "utkface"
YES = ["yes"]  # with augmentation
ONE = "0"  # seed to tune on
PARTS = (
    Part(title="superclasses"),
    Part(title="UTKFace", dataset=FACES, told={"tune_seeds": ONE}),
    Part(title="formulations", command="formulations", told={"tune_seeds": ONE}),
    Part(title="classes", told={"groups": "class", "tune_seeds": ONE}),
    Part(
        title="numbers of held-out samples",
        told={"methods": [*BY_SIZE], "heldout_used": [25, 100], "tune_seeds": ONE},  # all: parts 1 and 10
    ),
    Part(
        title="numbers of held-out samples, UTKFace",
        dataset=FACES,
        told={"methods": [*BY_SIZE], "heldout_used": [0.1, 0.3, None], "tune_seeds": ONE},
    ),
    Part(title="superclasses, augmented", told={"augment": YES, "tune_seeds": ONE}),
    Part(title="UTKFace, augmented", dataset=FACES, told={"augment": YES, "tune_seeds": ONE}),
    Part(title="classes, augmented", told={"groups": "class", "augment": YES, "tune_seeds": ONE}),
    Part(
        title="other rivals, lower limit",
        told={"methods": [name for name in RIVALS if name in OF_ONE_SIZE], "tune_seeds": ONE},
    ),
    Part(title="cross-fitting", told={"methods": CROSSED, "tune_seeds": ONE}),
    Part(title="98 % sparse", told={"methods": [*SPARSER], "sparsity": 0.98, "tune_seeds": ONE}),
    Part(title="small faces, by age", dataset=SMALL, told={"tune_seeds": ONE}),
    Part(
        title="numbers of held-out samples, small faces",
        dataset=SMALL,
        told={"methods": [*BY_SIZE], "heldout_used": [0.1, 0.3, None], "tune_seeds": ONE},
    ),
    Part(
        title="other rivals, cross-fitting, small faces",
        dataset=SMALL,
        told={"methods": [*OTHERS, *CROSSED], "tune_seeds": ONE},
    ),
    Part(title="other rivals, UTKFace", dataset=FACES, told={"methods": OTHERS, "tune_seeds": ONE}),
)


def crossed_part(dataset: str) -> int | None:
    """The number of the part that needs the dense models of the folds; None: no part of the data set does."""
    asked = {n: {*part.told.get("methods", ())} for n, part in enumerate(PARTS, 1) if part.dataset == dataset}
    return next((n for n, names in asked.items() if names & {*CROSSED}), None)


@dataclass(frozen=True)
class Need:
    """What is to be trained for some cells: fleets of runs, in order."""

    fleets: tuple[tuple[Cell, ...], ...]

    @property
    def runs(self) -> int:
        return sum(map(len, self.fleets))

    @property
    def epochs(self) -> int:
        """Of all networks that train, companions included."""
        return sum(beyond_cells.members(cell) * cell.epochs for part in self.fleets for cell in part)

    def seconds(self, *, per_run: float, per_fleet: float) -> float:
        return per_run * self.epochs / FULL + per_fleet * len(self.fleets)


Rows = Sequence[Mapping[str, Any]]
Fleets = Callable[[Sequence[Cell]], list[list[Cell]]]  # the runs to train for some cells


def need(
    rows: Rows, settings: Iterable[Sequence[Cell]], grid: Grid, *, tune: Sequence[int], fleets: Fleets
) -> tuple[Need, list[dict[str, Any]]]:
    """What a command still trains, and the cells that the results have afterwards.

    A dual step that is not chosen yet counts as one run a seed, whichever it will be.
    """
    held, found = [dict(row) for row in rows], list[list[Cell]]()
    for cells in settings:
        measured = [row for row in rows if "choice" in row]  # not those that are only planned
        for part in (beyond_cells.tuning(cells, tune), beyond_cells.tuned(measured, cells, tune)):
            missing = beyond_cells.missing(held, part)
            new = fleets(missing)
            served = [cell for own in new for run in own for cell in riders(run, grid)]
            held += [asdict(cell) for cell in (*missing, *served)]
            found += new
    return Need(tuple(map(tuple, found))), held


def other_lengths(rows: Iterable[Mapping[str, Any]], epochs: int) -> Iterator[str]:
    """That runs of other lengths are there, which a plan of so many epochs does not count."""
    lengths = Counter(row["epochs"] for row in rows if row["epochs"] != epochs)
    if lengths:
        told = ", ".join(f"{count:,} of {length} epochs" for length, count in lengths.most_common())
        yield f"Not counted here: runs of other lengths ({told}). --epochs N counts those of N."


def table(needs: Mapping[int, Need], *, per_run: float | None, per_fleet: float) -> list[list[str]]:
    """One line a part: what it still trains."""
    head = ["part", "runs, at least", "epochs", "in fleets of", "minutes"]
    lines = [
        [f"{number:>2} {PARTS[number - 1].title}", *_numbers(own, per_run=per_run, per_fleet=per_fleet)]
        for number, own in needs.items()
    ]
    every = Need(tuple(part for own in needs.values() for part in own.fleets))
    runs, epochs, _, minutes = _numbers(every, per_run=per_run, per_fleet=per_fleet)
    return [head, *lines, ["all", runs, epochs, f"{len(every.fleets)} fleets", minutes]]


def _numbers(need: Need, *, per_run: float | None, per_fleet: float) -> list[str]:
    sizes = " ".join(str(len(part)) for part in need.fleets) or "–"
    minutes = "–" if per_run is None else f"{need.seconds(per_run=per_run, per_fleet=per_fleet) / 60:.1f}"
    return [str(need.runs), f"{need.epochs:,}", sizes, minutes]
