"""The flags of the study, and what they stand for: data, cells, recipes; usual values by data set."""

import argparse
import contextlib
from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from evenprune.recipe import Recipe
from evenprune.tally import InputProblems
from paper import beyond_cells, command_line, runner
from paper.beyond_cells import DATASET, GROUPINGS, NO_LABELS, Cell, Grid, tolerance_of
from paper.beyond_data import SOURCES, Source, el_steps_of, steps_of
from paper.beyond_methods import BIAS, FORMULATIONS, KINDS, ONCE, STUDY
from paper.beyond_plan import PARTS, Part
from paper.beyond_results import Origin
from paper.cells import seeds_in
from paper.command_line import PAPER, Commands, recipe_for
from paper.runner import ROOT

SHOWN = ("show", "page")  # of all data sets, unless told
# With augmentation or without, as usual, of the commands that make cells.
AUGMENT = dict.fromkeys(("study", "formulations", "timing", "plan"), ("no",)) | {"list": ("no", "yes")}
TUNE_SEEDS = "0-1"
TIMED_EPOCHS, TIMED_RUNS = 8, 5  # two epochs of them prune, one by scores


# --- what they stand for ---


def source_of(flags: Namespace) -> Source:
    return SOURCES[flags.dataset]


def origin_of(flags: Namespace) -> Origin:
    return Origin(flags.dataset, flags.heldout)


def weights_of(flags: Namespace) -> Path:
    name = f"{source_of(flags).weights}_heldout{flags.heldout:g}.safetensors"
    return flags.weights or PAPER / "weights" / name


def grid_of(flags: Namespace, used: float | None = None) -> Grid:
    """What is not told is usual for the data set at that sparsity."""
    names = ("dataset", "groups", "sparsity", "pair_tolerance", "loss_tolerance", "buffer", "refresh")
    told = {name: getattr(flags, name) for name in (*names, "epochs", "folds")}
    source, groups, sparsity = source_of(flags), flags.groups, flags.sparsity
    batches = flags.importance_batches
    batches = source.importance_batches[groups] if batches is None else batches
    return Grid(
        **told,
        tolerance=tolerance_of(groups, sparsity) if flags.tolerance is None else flags.tolerance,
        steps=flags.dual_lr or steps_of(groups, sparsity),
        el_steps=flags.el_dual_lr or el_steps_of(groups, sparsity),
        dro_steps=flags.dro_dual_lr or source.dro_steps,
        heldout_per_class=flags.heldout,
        heldout_used=used,
        importance_batches=batches,
        sizes=sizes_of(flags),
        tolerances=tolerances_of(flags),
    )


def tolerances_of(flags: Namespace) -> dict[str, float]:
    """By all groups of the data set, as far as they have a usual one at that sparsity."""
    if flags.tolerance is not None:
        return dict.fromkeys(GROUPINGS[flags.dataset], flags.tolerance)
    found = dict[str, float]()
    for groups in GROUPINGS[flags.dataset]:
        with contextlib.suppress(InputProblems):
            found[groups] = tolerance_of(groups, flags.sparsity)
    return found


def sizes_of(flags: Namespace) -> dict[str, list[float]]:
    """By groups, the numbers of held-out samples that class biases are fitted to: planned and told ones."""
    planned = source_of(flags).sizes
    told = {groups: list(own) for groups, own in planned.items()}
    if flags.groups not in NO_LABELS:
        told[flags.groups] = sorted({*told[flags.groups], *filter(None, flags.heldout_used)})
    return {groups: [n for n in own if less_than_all(flags, groups, n)] for groups, own in told.items()}


def less_than_all(flags: Namespace, groups: str, used: float) -> bool:
    """Whether so many held-out samples of a group are not all of them."""
    if used < 1 or flags.heldout < 1:  # a share of them; or as many as there are, which is not known here
        return True
    return bool(used < flags.heldout * source_of(flags).classes_of[groups])


def sizes_looked_at(flags: Namespace) -> list[float | None]:
    """Numbers of held-out samples a group, each once; None: all of them, by whatever number that was told."""
    few = {u for u in flags.heldout_used if u is not None and less_than_all(flags, flags.groups, u)}
    return list(dict.fromkeys(used if used in few else None for used in flags.heldout_used))


def methods_of(flags: Namespace, used: float | None = None) -> list[str]:
    """What a command trains, times or lists, of so many held-out samples; None: of all."""
    if flags.command == "timing":
        return timed_methods(flags)
    if flags.command == "formulations":
        return _kept(flags, flags.methods or FORMULATIONS)
    return study_methods(flags, used)


def study_methods(flags: Namespace, used: float | None) -> list[str]:
    """With fewer held-out samples, the methods that look at them: the others would be the same runs again."""
    if flags.methods:
        return _kept(flags, flags.methods)
    kept = {name: kind for name, kind in STUDY.items() if name not in _left_out(flags)}
    return [name for name, kind in kept.items() if used is None or kind.sees_heldout]


def timed_methods(flags: Namespace) -> list[str]:
    """Those that are named, or all of the study and the other rivals; companions have costs of their own."""
    if flags.methods:
        return _kept(flags, flags.methods)
    usual = [name for name in {**STUDY, **ONCE} if not KINDS[name].crossed]
    return [name for name in usual if name not in _left_out(flags)]


def _kept(flags: Namespace, names: Iterable[str]) -> list[str]:
    return [name for name in names if name not in flags.without]


def _left_out(flags: Namespace) -> list[str]:
    return [*flags.without, *([BIAS] if flags.groups in NO_LABELS else [])]


def formulated(flags: Namespace, used: float | None) -> list[str]:
    whole = used is None and (flags.dataset, flags.groups) == (DATASET, GROUPINGS[DATASET][0])
    return _kept(flags, FORMULATIONS) if whole else []


def settings_of(flags: Namespace) -> list[list[Cell]]:
    """The cells of a command, one list a setting: augmented or not, and by held-out samples."""
    found = []
    for augment in dict.fromkeys(word == "yes" for word in flags.augment):
        for used in sizes_looked_at(flags):
            names = methods_of(flags, used)
            if flags.command == "list" and not flags.methods and not augment:
                names = list(dict.fromkeys([*names, *formulated(flags, used)]))
            grid = grid_of(flags, used)
            found.append(beyond_cells.cells_of(grid, names=names, seeds=flags.seeds, augment=augment))
    return found


def tune_seeds(flags: Namespace) -> list[int]:
    """Those of the seeds that dual steps are chosen with."""
    found = [seed for seed in seeds_in(flags.tune_seeds) if seed in flags.seeds]
    if not found:
        seeds = ", ".join(map(str, flags.seeds))
        raise InputProblems(
            [f"dual steps are chosen with seeds {flags.tune_seeds}, and --seeds is {seeds}: give those too "
             "(finished runs are skipped), or other --tune-seeds"]
        )  # fmt: skip
    return found


def recipe_of(flags: Namespace) -> Recipe:
    """Of the runs, without augmentation; apart, so that seconds are of the method, also while pruning."""
    recipe = runner.shortened(recipe_for(flags, source_of(flags).recipe), flags.epochs)
    return replace(recipe, share_pruning=flags.mixed)


def needs_folds(settings: Sequence[Sequence[Cell]]) -> bool:
    return any(KINDS[cell.method].crossed for cells in settings for cell in cells)


# --- parts of the study ---


def part_of(flags: Namespace) -> Part | None:
    return None if getattr(flags, "part", None) is None else PARTS[flags.part - 1]


def part_problems(flags: Namespace, part: Part) -> list[str]:
    """What contradicts a part."""
    problems = ["--part names its own methods; leave --methods out"] if flags.methods else []
    if flags.dataset not in (None, part.dataset):
        problems.append(f"this part is of {part.dataset}; leave --dataset {flags.dataset} out")
    return problems


def with_part(flags: Namespace, part: Part) -> Namespace:
    """The flags of a part: those of the command line, but for what the part is about."""
    return Namespace(**{**vars(flags), "dataset": part.dataset, "command": part.command, **part.told})


# --- the command line ---


def samples_in(text: str) -> float:
    """A number of samples, 50, or a share of them, 0.2; which numbers will do is said elsewhere."""
    try:
        value = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of samples, such as 50, nor a share, as 0.2"
        ) from error
    return int(value) if value.is_integer() else value


def used_in(text: str) -> float | None:
    return None if text == "all" else samples_in(text)


def add_grid(part: argparse.ArgumentParser, source: Source, dataset: str, augment: Sequence[str]) -> None:
    """The flags that make the cells."""
    groups = GROUPINGS[dataset]
    grid = Grid(groups=groups[0], sparsity=source.sparsity, refresh=source.refresh)
    command_line.add_seeds(part)
    part.add_argument(
        "--tune-seeds",
        default=TUNE_SEEDS,
        help="every dual step with these, then the other seeds with the step they chose (%(default)s)",
    )
    command_line.add_fleet(part, source.fleet)
    part.add_argument(
        "--mixed",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="few large fleets, or one for each kind of method, so that seconds are of the method alone",
    )
    part.add_argument("--groups", choices=groups, default=groups[0])
    command_line.add_methods(part, (), list(KINDS))
    part.set_defaults(methods=None)
    part.add_argument(
        "--without",
        nargs="+",
        choices=list(STUDY),
        default=[],
        metavar="METHOD",
        help="methods of the study to leave out",
    )
    part.add_argument("--augment", nargs="+", choices=("no", "yes"), default=list(augment))
    for flag, steps, told in (
        ("--dual-lr", steps_of(groups[0], grid.sparsity), "to choose from"),
        ("--el-dual-lr", el_steps_of(groups[0], grid.sparsity), "of EL + RB"),
        ("--dro-dual-lr", source.dro_steps, "of GroupDRO"),
    ):
        usual = " ".join(f"{step:g}" for step in steps)
        part.add_argument(
            flag, type=float, nargs="+", help=f"{told} ({groups[0]} at {grid.sparsity:g}: {usual})"
        )
    part.add_argument(
        "--heldout-used",
        type=used_in,
        nargs="+",
        default=[None],
        help="held-out samples a group to look at (all)",
    )
    for flag, default, told in (
        ("--sparsity", grid.sparsity, "0.95 leaves one weight in twenty"),
        ("--pair-tolerance", grid.pair_tolerance, "of Ψ_PW and all pairs"),
        ("--loss-tolerance", grid.loss_tolerance, "of CELG"),
        ("--buffer", grid.buffer, "length of the rings"),
        ("--refresh", grid.refresh, "steps from one pass over the held-out samples to the next"),
        ("--folds", grid.folds, "of cross-fitting"),
        ("--epochs", grid.epochs, "a quarter of them prune"),
    ):
        part.add_argument(flag, type=type(default), default=default, help=f"{told} (%(default)s)")
    batches = ", ".join(f"{name} {count}" for name, count in source.importance_batches.items())
    part.add_argument("--importance-batches", type=int, help=f"of FairGRAPE's scores ({batches})")


def add_dataset(part: argparse.ArgumentParser, dataset: str | None) -> None:
    part.add_argument("--dataset", choices=list(SOURCES), default=dataset, help=f"({dataset or 'all'})")


def add_heldout(part: argparse.ArgumentParser, source: Source) -> None:
    """Which images are held out, and what they look like."""
    part.add_argument(
        "--heldout",
        type=samples_in,
        default=source.heldout,
        help="of each class: a number of images, or a share as 0.2; half as many to choose on (%(default)s)",
    )
    part.add_argument("--weights", type=Path, help=f"(weights/{source.weights}_heldout<N>.safetensors)")
    if source.image_size is not None:
        part.add_argument("--image-size", type=int, default=source.image_size, help="in pixels (%(default)s)")


def parser(about: str | None, commands: Commands, dataset: str = DATASET) -> argparse.ArgumentParser:
    """With what is usual for a data set; `show`, `page` and `plan` are of all, unless told."""
    told, parts = command_line.parser(about, commands)
    source = SOURCES[dataset]
    command_line.add_places(parts, source.folder)
    command_line.add_compile(parts, ("dense", "study", "formulations", "timing"))
    for name, part in parts.items():
        shown = name in SHOWN
        part.set_defaults(results=PAPER / "results" / "beyond.json", work=ROOT / "runs" / "beyond")
        add_dataset(part, None if shown or name == "plan" else dataset)
        if not shown:
            add_heldout(part, source)
        if name != "dense":
            part.add_argument("--tolerance", type=float, help="of max ψ, a fraction (as the runs aim at)")
        if shown:
            part.add_argument(
                "--against", choices=list(KINDS), default="NFT", metavar="METHOD", help="compared with (NFT)"
            )
            part.add_argument("--dual-lr", type=float, nargs="+", help="runs of these steps alone (all)")
        if name in AUGMENT:
            add_grid(part, source, dataset, AUGMENT[name])
    numbers = range(1, len(PARTS) + 1)
    parts["study"].add_argument("--part", type=int, choices=numbers, help="of the plan")
    parts["plan"].add_argument("--seconds-per-run", type=float, help="of 60 epochs, in a fleet")
    parts["plan"].add_argument("--seconds-per-fleet", type=float, default=0.0, help="beside its runs (0)")
    parts["timing"].set_defaults(epochs=TIMED_EPOCHS, fleet=TIMED_RUNS)
    parts["timing"].add_argument("--again", action="store_true", help="also what this commit has timed")
    parts["show"].add_argument(
        "--payers",
        nargs="+",
        default=[],
        metavar="GROUP",
        help="groups to look at in place of those that held-out images show to pay",
    )
    parts["show"].add_argument("--markdown", action="store_true", help="tables of Markdown, not of text")
    parts["page"].add_argument("--to", type=Path, default=Path("beyond.html"), help="(%(default)s)")
    command_line.add_dense_settings(parts["dense"], **source.dense)
    parts["dense"].add_argument("--folds", type=int, help="so many models, each trained without its fold")
    return told


def dataset_in(words: Sequence[str]) -> str:
    """The data set that a command line names, or that of its part: what is usual depends on it."""
    first = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    for flag in ("--dataset", "--part", "--data"):  # the last is no abbreviation of the first
        first.add_argument(flag)
    told = first.parse_known_args(words)[0]
    if told.dataset is None and str(told.part) in map(str, range(1, len(PARTS) + 1)):
        return PARTS[int(told.part) - 1].dataset
    return told.dataset if told.dataset in SOURCES else DATASET  # then the whole parser refuses it
