"""Does it hold on unseen data? CIFAR-100, with a held-out part that neither the dense nor any run trains on.

    python paper/beyond.py dense          the dense model, trained without the held-out images
    python paper/beyond.py dense --folds 4    those for cross-fitting, each trained without a fold as well
    python paper/beyond.py study          rivals and held-out multipliers, with and without augmentation
    python paper/beyond.py formulations   other ways to write the constraint: which of them become feasible
    python paper/beyond.py list           what is finished
    python paper/beyond.py show           the tables, as text
    python paper/beyond.py page           the same and pictures, as one HTML file

Any of them can be killed and started again. README.md says more.
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
from evenprune.augment import Both, Crop, Flip
from evenprune.data import cifar100
from evenprune.models import cifar_resnet56
from evenprune.recipe import Recipe, Run, Split
from evenprune.tally import InputProblems
from paper import (
    beyond_cells,
    beyond_folds,
    beyond_page,
    beyond_results,
    beyond_rows,
    beyond_splits,
    beyond_table,
    command_line,
    dense_model,
    runner,
)
from paper import cifar100 as tables
from paper.beyond_cells import FORMULATIONS, KINDS, STUDY, Cell, Grid
from paper.command_line import PAPER, Commands, recipe_for
from paper.runner import ROOT, Start, Where

AUGMENT = Both(Crop(4), Flip())
LATE = ("train", "audit")  # evaluated after the last epoch only
RECIPE = replace(runner.RECIPE, only_at_end=LATE, importance_batches=50)


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
        beyond_results.add_correct(path, start, part[0].groups, answers)
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


def splits_in(
    folder: Path, groups: Any, *, heldout: int, used: int | None
) -> tuple[dict[str, Split], tuple[str, ...]]:
    data = cifar100.load(folder, groups=groups)
    train, test = (cifar100.split(images, groups) for images in (data.train, data.test))
    return beyond_splits.three_splits(train, test, per_class=heldout, used=used), data.groups


def weights_of(flags: argparse.Namespace) -> Path:
    return flags.weights or PAPER / "weights" / f"cifar100_heldout{flags.heldout}.safetensors"


def start_from(flags: argparse.Namespace, where: Where) -> Start:
    """The dense model and the data, checked against the results file before anything is trained."""
    weights = weights_of(flags)
    model = dense_model.load_weights(weights, cifar_resnet56())
    splits, names = splits_in(flags.data, flags.groups, heldout=flags.heldout, used=flags.heldout_used)
    refuse_other_dense(where.results, weights, heldout=flags.heldout, images=beyond_splits.identity(splits))
    return runner.measure(model, splits, names, recipe=RECIPE, where=where)


def refuse_other_dense(results: Path, weights: Path, *, heldout: int, images: str) -> None:
    """The held-out images must be those that this very dense model has not seen."""
    held = beyond_results.dense_of(beyond_results.read(results), heldout)
    if held is None:
        raise InputProblems(
            [f"{results} does not say which images {weights} was trained on; train it first, with `dense`"]
        )
    if held["sha256"] != dense_model.digest(weights):
        raise InputProblems([f"{results} is of another dense model than {weights}"])
    if held["training_images"] != images:
        raise InputProblems(
            [f"{weights} was trained on other images than these with {heldout} a class held out: its "
             "held-out images would not be unseen. Are the pixels those of the official files?"]
        )  # fmt: skip


def dense(flags: argparse.Namespace, where: Where) -> None:
    if flags.folds:
        dense_folds(flags, where)
        return
    weights, held = weights_of(flags), beyond_results.read(where.results)
    if weights.exists() and beyond_results.dense_of(held, flags.heldout) is not None:
        where.say(f"The dense model is trained: {weights}. Remove that file to train it again.")
        return
    runs = [run for run in held["runs"] if run["heldout_per_class"] == flags.heldout]
    if runs:
        other = f"{where.results} has {len(runs)} runs of a dense model whose weights are not {weights}"
        raise InputProblems([f"{other}; put them back, or give --results another file"])
    splits, names = splits_in(flags.data, "class", heldout=flags.heldout, used=None)
    recipe, settings = dense_recipe(flags)
    document = train_dense(
        cifar_resnet56(), splits, names, weights, recipe, where, heldout=flags.heldout, settings=settings
    )
    told = ", ".join(f"{value:.2%} {split}" for split, value in document["accuracy"].items())
    where.say(f"Dense model: {told}, {document['seconds']:.0f} s; {weights}")


def dense_recipe(flags: argparse.Namespace) -> tuple[Recipe, dict[str, Any]]:
    """How dense models are trained, and what the results file says of it; seeds the first weights."""
    torch.manual_seed(flags.seed)
    settings = {"epochs": flags.epochs, "lr": flags.lr, "batch": flags.batch}
    recipe = replace(recipe_for(flags, tables.dense_recipe(**settings)), only_at_end=LATE)
    return recipe, settings | {"seed": flags.seed, "as": "paper/cifar100.py dense"}


def dense_folds(flags: argparse.Namespace, where: Where) -> None:
    """The dense models without a fold each, from the same first weights as the one with all."""
    weights = beyond_folds.weights_of(weights_of(flags), flags.folds)
    if beyond_folds.is_trained(weights, where, heldout=flags.heldout):
        where.say(f"The dense models are trained: {weights[0]} … Remove that file to train them again.")
        return
    splits, names = splits_in(flags.data, "class", heldout=flags.heldout, used=None)
    recipe, settings = dense_recipe(flags)
    document = beyond_folds.train(
        cifar_resnet56(), splits, names, weights, recipe, where, heldout=flags.heldout, settings=settings
    )
    where.say(f"{beyond_folds.sentence(document)}; {weights[0]} …")


def train_dense(
    model: torch.nn.Module,
    splits: dict[str, Split],
    names: Sequence[str],
    weights: Path,
    recipe: Recipe,
    where: Where,
    *,
    heldout: int,
    settings: dict[str, Any],
) -> dict[str, Any]:
    """Train, write the weights, and say in the results file which images they have seen."""
    untrained = runner.measure(model, splits, names, recipe=recipe, where=where)
    trained = dense_model.train_dense(untrained, recipe, where, seed=settings["seed"])
    dense_model.write_weights(weights, trained.fitted[0].model)
    start = runner.measure(trained.fitted[0].model, splits, names, recipe=recipe, where=where)
    document = {
        "heldout_per_class": heldout,
        "weights": weights.name,
        "sha256": dense_model.digest(weights),
        "training_images": beyond_splits.identity(splits),
        "accuracy": {s: float(answers.correct.double().mean()) for s, answers in start.answers.items()},
        "recipe": settings,
        "seconds": round(trained.seconds, 3),
        "versions": runner.versions(where.device),
        "commit": where.commit,
    }
    beyond_results.set_dense(where.results, document)
    return document


# --- commands ---


def grid_of(flags: argparse.Namespace) -> Grid:
    names = ("groups", "sparsity", "tolerance", "pair_tolerance", "loss_tolerance", "buffer", "refresh")
    told = {name: getattr(flags, name) for name in (*names, "heldout_used", "epochs", "folds")}
    told["heldout_per_class"] = flags.heldout
    return Grid(**told, steps=flags.dual_lr, el_steps=flags.el_dual_lr)


def study_methods(flags: argparse.Namespace) -> list[str]:
    """With fewer held-out samples, the methods that look at them: the others would be the same runs again."""
    if flags.methods:
        return list(flags.methods)
    return [name for name, kind in STUDY.items() if flags.heldout_used is None or kind.sees_heldout]


def recipe_of(flags: argparse.Namespace, *, augment: bool) -> Recipe:
    recipe = runner.shortened(recipe_for(flags, RECIPE), flags.epochs)
    recipe = replace(recipe, importance_batches=flags.importance_batches)
    return replace(recipe, augment=AUGMENT) if augment else recipe


def run_cells(flags: argparse.Namespace, where: Where, names: Sequence[str]) -> None:
    start = start_from(flags, where)
    if any(KINDS[name].crossed for name in names):
        weights = beyond_folds.weights_of(weights_of(flags), flags.folds)
        train = start.data.train
        held = beyond_folds.load(weights, cifar_resnet56, train, where.results, heldout=flags.heldout)
        start = beyond_folds.with_folds(start, held)
    for augment in (word == "yes" for word in dict.fromkeys(flags.augment)):
        cells = beyond_cells.cells_of(grid_of(flags), names=names, seeds=flags.seeds, augment=augment)
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
    for model in held.get("dense", []):
        accuracy = ", ".join(f"{value:.2%} {split}" for split, value in model["accuracy"].items())
        where.say(f"dense model, {model['heldout_per_class']} a class held out: {accuracy}")


def _formulations(flags: argparse.Namespace) -> list[str]:
    whole = flags.groups == "superclass" and flags.heldout_used is None
    return list(FORMULATIONS) if whole else []


def show(flags: argparse.Namespace, where: Where) -> None:
    held = beyond_results.read(where.results)
    correct = beyond_results.read_correct(beyond_results.correct_path(where.results))
    for line in beyond_table.lines(held, correct, tolerance=flags.tolerance):
        where.say(line)


def page(flags: argparse.Namespace, where: Where) -> None:
    """What `show` prints, in words and with pictures, as one HTML file."""
    files = [where.results, beyond_results.correct_path(where.results)]
    refuse_target(flags.to, files)
    held, correct = beyond_results.read(files[0]), beyond_results.read_correct(files[1])
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


def add_grid(part: argparse.ArgumentParser, augment: Sequence[str]) -> None:
    """The flags that make the cells."""
    grid = Grid(groups="superclass")
    command_line.add_seeds(part)
    command_line.add_fleet(part, 45)
    part.add_argument("--groups", choices=list(cifar100.GROUPS), default=grid.groups)
    part.add_argument("--methods", nargs="+", choices=list(KINDS), metavar="METHOD", help="; ".join(KINDS))
    part.add_argument("--augment", nargs="+", choices=("no", "yes"), default=list(augment))
    part.add_argument("--dual-lr", type=float, nargs="+", default=list(grid.steps), help="to choose from")
    part.add_argument("--el-dual-lr", type=float, nargs="+", default=list(grid.el_steps), help="of EL + RB")
    part.add_argument("--heldout-used", type=int, help="held-out samples a group to look at (all)")
    for flag, default, told in (
        ("--sparsity", grid.sparsity, "0.95 leaves one weight in twenty"),
        ("--pair-tolerance", grid.pair_tolerance, "of Ψ_PW and all pairs"),
        ("--loss-tolerance", grid.loss_tolerance, "of CELG"),
        ("--buffer", grid.buffer, "length of the rings"),
        ("--refresh", grid.refresh, "steps from one pass over the held-out samples to the next"),
        ("--folds", grid.folds, "of cross-fitting"),
        ("--epochs", grid.epochs, "a quarter of them prune"),
        ("--importance-batches", RECIPE.importance_batches, "of FairGRAPE's scores"),
    ):
        part.add_argument(flag, type=type(default), default=default, help=f"{told} (%(default)s)")


def parser() -> argparse.ArgumentParser:
    told, parts = command_line.parser(__doc__, COMMANDS)
    command_line.add_places(parts, "cifar100")
    for name, part in parts.items():
        part.set_defaults(results=PAPER / "results" / "beyond.json", work=ROOT / "runs" / "beyond")
        part.add_argument("--heldout", type=int, default=50, help="images of each class (%(default)s)")
        part.add_argument("--weights", type=Path, help="(weights/cifar100_heldout<N>.safetensors)")
        if name != "dense":
            part.add_argument("--tolerance", type=float, default=beyond_cells.TOLERANCE)
    for name, augment in (("study", ("no", "yes")), ("formulations", ("no",)), ("list", ("no", "yes"))):
        add_grid(parts[name], augment)
    parts["page"].add_argument("--to", type=Path, default=Path("beyond.html"), help="(%(default)s)")
    command_line.add_dense_settings(parts["dense"], epochs=200, lr=0.1, batch=256)
    parts["dense"].add_argument("--folds", type=int, help="so many models, each trained without its fold")
    return told


def main(arguments: Sequence[str] | None = None) -> int:
    return command_line.run(parser(), COMMANDS, arguments)


if __name__ == "__main__":
    sys.exit(main())
