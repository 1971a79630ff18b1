"""Does it hold on unseen data? With a held-out part that neither the dense model nor any run trains on.

    python paper/beyond.py dense          the dense model, trained without the held-out images
    python paper/beyond.py dense --folds 4    those for cross-fitting, each trained without a fold as well
    python paper/beyond.py study          rivals and held-out multipliers, with and without augmentation
    python paper/beyond.py formulations   other ways to write the constraint: which of them become feasible
    python paper/beyond.py list           what is finished
    python paper/beyond.py show           the tables, as text
    python paper/beyond.py page           the same and pictures, as one HTML file

All of them know two data sets, --dataset cifar100 and utkface. Any can be killed and started again. README.md
says more.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

if __package__ in (None, ""):  # run as a file: its neighbours are found from the folder above
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from evenprune import atomic
from evenprune.recipe import Recipe, Run
from evenprune.tally import InputProblems
from paper import (
    beyond_cells,
    beyond_dense,
    beyond_folds,
    beyond_page,
    beyond_results,
    beyond_rows,
    beyond_splits,
    beyond_table,
    command_line,
    dense_model,
    runner,
    utkface,
)
from paper.beyond_cells import DATASET, FORMULATIONS, KINDS, STUDY, Cell, Grid, amount
from paper.beyond_data import LATE, SOURCES, Source
from paper.beyond_results import Origin
from paper.command_line import PAPER, Commands, recipe_for
from paper.runner import ROOT, Start, Where

# --- training ---


def fill(start: Start, cells: Sequence[Cell], recipe: Recipe, where: Where) -> None:
    """Train what the results lack, fleet by fleet; both files grow after each."""
    missing = beyond_cells.missing(beyond_results.read(where.results)["runs"], cells)
    where.say(f"{len(dict.fromkeys(cells)) - len(missing)} of {len(dict.fromkeys(cells))} runs are finished.")
    parts = fleets(missing, where.fleet)
    for number, part in enumerate(parts, 1):
        rows, answers = train(start, part, missing, recipe, where)
        # The answers first: after a kill in between, a row without answers would never get them.
        path = beyond_results.correct_path(where.results)
        beyond_results.add_correct(path, start, answers, dataset=part[0].dataset, groups=part[0].groups)
        beyond_results.add_runs(where.results, rows)
        where.say(
            f"Fleet {number} of {len(parts)}: {len(part)} runs, {rows[0]['seconds']:.1f} s each; "
            f"written to {where.results}"
        )


def fleets(cells: Iterable[Cell], most: int) -> list[list[Cell]]:
    """The runs to train, in fleets of runs that cost the same."""
    kinds: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in dict.fromkeys(beyond_cells.trained_as(cell) for cell in cells):
        kinds.setdefault(beyond_cells.cost(cell), []).append(cell)
    return [part for own in kinds.values() for part in runner.fleets(own, _room(own[0], most))]


def _room(cell: Cell, most: int) -> int:
    """How many such runs make a fleet: companions count, but one run at least trains with all of its own."""
    return max(min(most, 1), most // beyond_cells.members(cell))


def train(
    start: Start, part: Sequence[Cell], wanted: Sequence[Cell], recipe: Recipe, where: Where
) -> tuple[list[dict[str, Any]], dict[Cell, Any]]:
    """Rows, and right and wrong on the audit split, of a fleet and of the class biases fitted to its runs."""
    runs = [Run(method=beyond_cells.method_of(c), sparsity=c.sparsity, seed=c.seed) for c in part]
    trained = runner.fit_fleet(start, runs, recipe, where, kind="beyond")
    shared = beyond_rows.shared_of(trained, part, recipe, where)
    rows, answers = [], {}
    for cell, fitted in zip(part, trained.fitted, strict=True):
        if cell in wanted:
            rows.append(beyond_rows.trained_row(start, cell, fitted, recipe, shared))
            answers[cell] = fitted.predictions["audit"].correct
        for other in wanted:
            if other != cell and beyond_cells.trained_as(other) == cell:
                row, found = beyond_rows.bias_row(start, other, fitted, where, recipe, shared)
                rows.append(row)
                answers[other] = found["audit"].correct
    return rows, answers


# --- data and the dense model ---


def source_of(flags: argparse.Namespace) -> Source:
    return SOURCES[flags.dataset]


def origin_of(flags: argparse.Namespace) -> Origin:
    return Origin(flags.dataset, flags.heldout)


def weights_of(flags: argparse.Namespace) -> Path:
    name = f"{source_of(flags).weights}_heldout{flags.heldout:g}.safetensors"
    return flags.weights or PAPER / "weights" / name


def start_from(flags: argparse.Namespace, where: Where) -> Start:
    """The dense model and the data, checked against the results file before anything is trained."""
    source, weights, origin = source_of(flags), weights_of(flags), origin_of(flags)
    model = dense_model.load_weights(weights, source.network())
    refuse_other_size(flags, where)
    images = source.read(flags, flags.groups)
    splits = images.splits(heldout=flags.heldout, used=flags.heldout_used)
    seen = beyond_splits.identity(splits)
    beyond_dense.refuse_other(where.results, weights, origin=origin, images=seen)
    return runner.measure(model, splits, images.names, recipe=source.recipe, where=where, facts=images.facts)


def refuse_other_size(flags: argparse.Namespace, where: Where) -> None:
    if source_of(flags).image_size is not None:
        held = beyond_results.dense_of(beyond_results.read(where.results), origin_of(flags))
        utkface.refuse_other_size(held, flags.image_size, where.results)


def dense(flags: argparse.Namespace, where: Where) -> None:
    if flags.folds:
        dense_folds(flags, where)
        return
    weights, origin = weights_of(flags), origin_of(flags)
    if beyond_dense.is_trained(weights, where, origin=origin):
        refuse_other_size(flags, where)
        where.say(f"The dense model is trained: {weights}. Remove that file to train it again.")
        return
    start, recipe, told = untrained(flags, where)
    document = beyond_dense.train(start, weights, recipe, where, origin=origin, **told)
    where.say(f"{beyond_dense.sentence(document)}; {weights}")


def dense_folds(flags: argparse.Namespace, where: Where) -> None:
    """The dense models without a fold each, from the same first weights as the one with all."""
    weights, origin = beyond_folds.weights_of(weights_of(flags), flags.folds), origin_of(flags)
    if beyond_folds.is_trained(weights, where, origin=origin):
        refuse_other_size(flags, where)
        where.say(f"The dense models are trained: {weights[0]} … Remove that file to train them again.")
        return
    start, recipe, told = untrained(flags, where)
    document = beyond_folds.train(start, weights, recipe, where, origin=origin, **told)
    where.say(f"{beyond_folds.sentence(document)}; {weights[0]} …")


def untrained(flags: argparse.Namespace, where: Where) -> tuple[Start, Recipe, dict[str, Any]]:
    """Where dense models begin, how they are trained, and how they are told of and stored."""
    source, settings = source_of(flags), {name: getattr(flags, name) for name in ("epochs", "lr", "batch")}
    recipe = replace(recipe_for(flags, source.dense_recipe(**settings)), only_at_end=LATE)
    torch.manual_seed(flags.seed)
    model, images = source.network(), source.read(flags, source.groups[-1])
    splits = images.splits(heldout=flags.heldout)
    where.say(f"Held out: {beyond_dense.sizes(splits['heldout'], images.names)}.")
    start = runner.measure(model, splits, images.names, recipe=recipe, where=where, facts=images.facts)
    settings |= {"seed": flags.seed, "as": source.dense_as}
    return start, recipe, {"settings": settings, "half": source.half}


# --- commands ---


def grid_of(flags: argparse.Namespace) -> Grid:
    """What is not told is usual for the data set at that sparsity."""
    names = ("dataset", "groups", "sparsity", "pair_tolerance", "loss_tolerance", "buffer", "refresh")
    told = {name: getattr(flags, name) for name in (*names, "heldout_used", "epochs", "folds")}
    source, sparsity = source_of(flags), flags.sparsity
    return Grid(
        **told,
        tolerance=source.tolerance(sparsity) if flags.tolerance is None else flags.tolerance,
        steps=flags.dual_lr or source.steps(sparsity),
        el_steps=flags.el_dual_lr or source.el_steps(sparsity),
        heldout_per_class=flags.heldout,
    )


def study_methods(flags: argparse.Namespace) -> list[str]:
    """With fewer held-out samples, the methods that look at them: the others would be the same runs again."""
    if flags.methods:
        return list(flags.methods)
    return [name for name, kind in STUDY.items() if flags.heldout_used is None or kind.sees_heldout]


def recipe_of(flags: argparse.Namespace, *, augment: bool) -> Recipe:
    source = source_of(flags)
    recipe = runner.shortened(recipe_for(flags, source.recipe), flags.epochs)
    recipe = replace(recipe, importance_batches=flags.importance_batches)
    return replace(recipe, augment=source.augment) if augment else recipe


def run_cells(flags: argparse.Namespace, where: Where, names: Sequence[str]) -> None:
    wanted = {
        augment: beyond_cells.cells_of(grid_of(flags), names=names, seeds=flags.seeds, augment=augment)
        for augment in (word == "yes" for word in flags.augment)
    }
    start = start_from(flags, where)
    if any(KINDS[name].crossed for name in names):
        weights = beyond_folds.weights_of(weights_of(flags), flags.folds)
        network, train, origin = source_of(flags).network, start.data.train, origin_of(flags)
        held = beyond_folds.load(weights, network, train, where.results, origin=origin)
        start = beyond_folds.with_folds(start, held)
    for augment, cells in wanted.items():
        fill(start, cells, recipe_of(flags, augment=augment), where)


def study(flags: argparse.Namespace, where: Where) -> None:
    run_cells(flags, where, study_methods(flags))


def formulations(flags: argparse.Namespace, where: Where) -> None:
    run_cells(flags, where, flags.methods or list(FORMULATIONS))


def finished(flags: argparse.Namespace, where: Where) -> None:
    """What is finished, of the study and of the formulations."""
    held = beyond_results.read(where.results)
    names = flags.methods or list(dict.fromkeys([*study_methods(flags), *_formulations(flags)]))
    wanted = [
        asdict(cell)
        for augment in (word == "yes" for word in dict.fromkeys(flags.augment))
        for cell in beyond_cells.cells_of(grid_of(flags), names=names, seeds=flags.seeds, augment=augment)
        if cell.method in STUDY or not augment
    ]
    for line in beyond_table.finished(held["runs"], wanted):
        where.say(line)
    for model in beyond_results.of_dataset(held, flags.dataset).get("dense", []):
        accuracy = ", ".join(f"{value:.2%} {split}" for split, value in model["accuracy"].items())
        where.say(f"dense model, {amount(model['heldout_per_class'], 'class')} held out: {accuracy}")


def _formulations(flags: argparse.Namespace) -> list[str]:
    whole = flags.groups == "superclass" and flags.heldout_used is None
    return list(FORMULATIONS) if whole else []


def show(flags: argparse.Namespace, where: Where) -> None:
    held = beyond_results.of_dataset(beyond_results.read(where.results), flags.dataset)
    correct = beyond_results.read_correct(beyond_results.correct_path(where.results))
    for line in beyond_table.lines(held, correct, tolerance=flags.tolerance):
        where.say(line)


def page(flags: argparse.Namespace, where: Where) -> None:
    """What `show` prints, in words and with pictures, as one HTML file."""
    files = [where.results, beyond_results.correct_path(where.results)]
    refuse_target(flags.to, files)
    held = beyond_results.of_dataset(beyond_results.read(files[0]), flags.dataset)
    correct = beyond_results.read_correct(files[1])
    there = [str(file) for file in files if file.exists()]
    atomic.write_text(flags.to, beyond_page.to_html(held, correct, tolerance=flags.tolerance, files=there))
    where.say(f"Page: {flags.to.resolve()}")


def refuse_target(target: Path, files: Sequence[Path]) -> None:
    """Before the work starts: a page that cannot be written, or would take the place of the results."""
    place = target.resolve()
    if place in [file.resolve() for file in files]:
        raise InputProblems([f"--to {target} is a results file; name another file"])
    if place.is_dir():
        raise InputProblems([f"--to {target} is a folder; name a file inside it"])
    if not place.parent.is_dir():
        raise InputProblems(
            [f"--to {target} cannot be written: {place.parent} does not exist; create it first"]
        )


COMMANDS: Commands = {
    "dense": dense,
    "study": study,
    "formulations": formulations,
    "list": finished,
    "show": show,
    "page": page,
}


def samples_in(text: str) -> float:
    """A number of samples, 50, or a share of them, 0.2."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (0 < value < 1 or (value >= 1 and value.is_integer())):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of samples, such as 50, nor a share, as 0.2")
    return value if value < 1 else int(value)


def add_grid(part: argparse.ArgumentParser, source: Source, augment: Sequence[str]) -> None:
    """The flags that make the cells."""
    grid = Grid(groups=source.groups[0], sparsity=source.sparsity, refresh=source.refresh)
    command_line.add_seeds(part)
    command_line.add_fleet(part, source.fleet)
    part.add_argument("--groups", choices=source.groups, default=grid.groups)
    part.add_argument("--methods", nargs="+", choices=list(KINDS), metavar="METHOD", help="; ".join(KINDS))
    part.add_argument("--augment", nargs="+", choices=("no", "yes"), default=list(augment))
    for flag, steps, told in (
        ("--dual-lr", source.steps, "to choose from"),
        ("--el-dual-lr", source.el_steps, "of EL + RB"),
    ):
        usual = " ".join(f"{step:g}" for step in steps(grid.sparsity))
        part.add_argument(flag, type=float, nargs="+", help=f"{told} (at {grid.sparsity:g}: {usual})")
    part.add_argument("--heldout-used", type=samples_in, help="held-out samples a group to look at (all)")
    for flag, default, told in (
        ("--sparsity", grid.sparsity, "0.95 leaves one weight in twenty"),
        ("--pair-tolerance", grid.pair_tolerance, "of Ψ_PW and all pairs"),
        ("--loss-tolerance", grid.loss_tolerance, "of CELG"),
        ("--buffer", grid.buffer, "length of the rings"),
        ("--refresh", grid.refresh, "steps from one pass over the held-out samples to the next"),
        ("--folds", grid.folds, "of cross-fitting"),
        ("--epochs", grid.epochs, "a quarter of them prune"),
        ("--importance-batches", source.recipe.importance_batches, "of FairGRAPE's scores"),
    ):
        part.add_argument(flag, type=type(default), default=default, help=f"{told} (%(default)s)")


def add_data(part: argparse.ArgumentParser, dataset: str | None, source: Source) -> None:
    """Which images, and which of them are held out."""
    part.add_argument("--dataset", choices=list(SOURCES), default=dataset, help=f"({dataset or 'all'})")
    part.add_argument(
        "--heldout",
        type=samples_in,
        default=source.heldout,
        help="of each class: a number of images, or a share such as 0.2 (%(default)s)",
    )
    part.add_argument("--weights", type=Path, help=f"(weights/{source.weights}_heldout<N>.safetensors)")
    if source.image_size is not None:
        part.add_argument("--image-size", type=int, default=source.image_size, help="in pixels (%(default)s)")


def parser(dataset: str = DATASET) -> argparse.ArgumentParser:
    """With what is usual for a data set; `show` and `page` are of all, unless told."""
    told, parts = command_line.parser(__doc__, COMMANDS)
    source = SOURCES[dataset]
    command_line.add_places(parts, dataset)
    for name, part in parts.items():
        shown = name in ("show", "page")
        part.set_defaults(results=PAPER / "results" / "beyond.json", work=ROOT / "runs" / "beyond")
        add_data(part, None if shown else dataset, source)
        if name != "dense":
            usual = beyond_cells.TOLERANCE if shown else None
            part.add_argument("--tolerance", type=float, default=usual, help="of max ψ, a fraction")
    for name, augment in (("study", ("no", "yes")), ("formulations", ("no",)), ("list", ("no", "yes"))):
        add_grid(parts[name], source, augment)
    parts["page"].add_argument("--to", type=Path, default=Path("beyond.html"), help="(%(default)s)")
    command_line.add_dense_settings(parts["dense"], **source.dense)
    parts["dense"].add_argument("--folds", type=int, help="so many models, each trained without its fold")
    return told


def dataset_in(words: Sequence[str]) -> str:
    """The data set that a command line names: what is usual depends on it."""
    first = argparse.ArgumentParser(add_help=False)
    first.add_argument("--dataset", default=DATASET)
    first.add_argument("--data")  # no abbreviation of the other
    named = str(first.parse_known_args(words)[0].dataset)
    return named if named in SOURCES else DATASET  # then the whole parser refuses it


def main(arguments: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    return command_line.run(parser(dataset_in(words)), COMMANDS, words)


if __name__ == "__main__":
    sys.exit(main())
