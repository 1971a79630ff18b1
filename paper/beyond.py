"""Does it hold on unseen data? With a held-out part that neither the dense model nor any run trains on.

    python paper/beyond.py plan           the study in parts, and what each of them still trains
    python paper/beyond.py dense          the dense model, trained without the held-out images
    python paper/beyond.py dense --folds 4    those for cross-fitting, each trained without a fold as well
    python paper/beyond.py study --part 1     rivals and held-out multipliers: a part of the plan
    python paper/beyond.py formulations   other ways to write the constraint: which of them become feasible
    python paper/beyond.py timing         what each method costs, in a fleet of its own
    python paper/beyond.py list           what is finished
    python paper/beyond.py show           the tables, as text
    python paper/beyond.py page           the same and pictures, as one HTML file

All of them know three data sets, --dataset cifar100, utkface and small_faces. Any can be killed and started
again. README.md says more.
"""

import argparse
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

if __package__ in (None, ""):  # run as a file: its neighbours are found from the folder above
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from evenprune import atomic
from evenprune.recipe import Recipe
from paper import (
    beyond_answers,
    beyond_cells,
    beyond_dense,
    beyond_flags,
    beyond_folds,
    beyond_page,
    beyond_plan,
    beyond_refused,
    beyond_results,
    beyond_splits,
    beyond_table,
    beyond_timing,
    beyond_train,
    command_line,
    dense_model,
    runner,
    utkface,
)
from paper.beyond_cells import DATASET, amount
from paper.beyond_data import LATE, SOURCES
from paper.beyond_flags import (
    dataset_in,
    grid_of,
    needs_folds,
    origin_of,
    part_of,
    recipe_of,
    settings_of,
    source_of,
    timed_methods,
    tune_seeds,
    weights_of,
    with_part,
)
from paper.beyond_plan import PARTS
from paper.beyond_results import Origin
from paper.beyond_train import Bench
from paper.beyond_views import Views
from paper.command_line import Commands, recipe_for
from paper.results_file import Document
from paper.runner import Start, Where

# --- data and the dense model ---


def views_from(flags: Namespace, where: Where, *, folds: bool) -> Views:
    """The dense model and the data, checked against the results file before anything is trained."""
    source, weights, origin = source_of(flags), weights_of(flags), origin_of(flags)
    model = dense_model.load_weights(weights, source.network())
    refuse_other_size(flags, where)
    images = source.read(flags)
    splits, groupings = images.cut(heldout=flags.heldout)
    seen = beyond_splits.identity(splits)
    beyond_dense.refuse_other(where.results, weights, origin=origin, images=seen)
    names = next(iter(images.groups.values())).names
    start = runner.measure(model, splits, names, recipe=source.recipe, where=where, facts=images.facts)
    if folds:
        paths = beyond_folds.weights_of(weights, flags.folds)
        held = beyond_folds.load(paths, source.network, start.data.train, where.results, origin=origin)
        start = beyond_folds.with_folds(start, held)
    return Views(start, groupings)


def refuse_other_size(flags: Namespace, where: Where) -> None:
    if source_of(flags).image_size is not None:
        held = beyond_results.dense_of(beyond_results.read(where.results), origin_of(flags))
        utkface.refuse_other_size(held, flags.image_size, where.results)


def dense(flags: Namespace, where: Where) -> None:
    if flags.folds is not None:
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


def dense_folds(flags: Namespace, where: Where) -> None:
    """The dense models without a fold each, from the same first weights as the one with all."""
    weights, origin = beyond_folds.weights_of(weights_of(flags), flags.folds), origin_of(flags)
    if beyond_folds.is_trained(weights, where, origin=origin):
        refuse_other_size(flags, where)
        where.say(f"The dense models are trained: {weights[0]} … Remove that file to train them again.")
        return
    start, recipe, told = untrained(flags, where)
    document = beyond_folds.train(start, weights, recipe, where, origin=origin, **told)
    where.say(f"{beyond_folds.sentence(document)}; {weights[0]} …")


def untrained(flags: Namespace, where: Where) -> tuple[Start, Recipe, dict[str, Any]]:
    """Where dense models begin, how they are trained, and how they are told of and stored."""
    source, settings = source_of(flags), {name: getattr(flags, name) for name in ("epochs", "lr", "batch")}
    recipe = replace(recipe_for(flags, source.dense_recipe(**settings)), only_at_end=LATE)
    torch.manual_seed(flags.seed)
    model, images = source.network(), source.read(flags)
    splits, _ = images.cut(heldout=flags.heldout)
    names = next(iter(images.groups.values())).names
    left_out = len(images.train) - sum(len(split) for name, split in splits.items() if name != "audit")
    held, choice = (beyond_dense.sizes(splits[name], names) for name in ("heldout", "choice"))
    where.say(f"Held out: {held}; to choose on: {choice}; {left_out} images left out that come again.")
    start = runner.measure(model, splits, names, recipe=recipe, where=where, facts=images.facts)
    settings |= {"seed": flags.seed, "as": source.dense_as, "left_out": left_out}
    return start, recipe, {"settings": settings, "half": source.half}


# --- commands ---


def run_cells(flags: Namespace, where: Where) -> None:
    settings, tune = settings_of(flags), tune_seeds(flags)
    views = views_from(flags, where, folds=needs_folds(settings))
    grid = grid_of(flags)
    views.refuse_sizes(grid.sizes)
    bench = Bench(views, grid, recipe_of(flags), source_of(flags).augment, flags.mixed)
    for cells in settings:
        beyond_train.run(bench, cells, where, tune=tune)


def timing(flags: Namespace, where: Where) -> None:
    grid, recipe = grid_of(flags), recipe_of(flags)
    names = timed_methods(flags)
    beyond_timing.refuse(recipe, names)
    bench = Bench(views_from(flags, where, folds=False), grid, recipe, source_of(flags).augment)
    beyond_timing.time_methods(bench, flags.fleet, where, names=names, again=flags.again)


def study(flags: Namespace, where: Where) -> None:
    part = part_of(flags)
    run_cells(flags if part is None else with_part(flags, part), where)


def plan(flags: Namespace, where: Where, *, words: Sequence[str]) -> None:
    """What every part of the study still trains, if they are run in order."""
    held = beyond_results.read(where.results)
    rows, needs = list(held["runs"]), dict[int, beyond_plan.Need]()
    for number, told in parts_of(flags, words).items():
        own = with_part(told, PARTS[number - 1])
        trained = partial(beyond_train.fleets, most=own.fleet, mixed=own.mixed)
        settings, grid, tune = settings_of(own), grid_of(own), tune_seeds(own)
        needs[number], rows = beyond_plan.need(rows, settings, grid, tune=tune, fleets=trained)
    per_run, per_fleet = flags.seconds_per_run, flags.seconds_per_fleet
    for line in beyond_table.aligned(beyond_plan.table(needs, per_run=per_run, per_fleet=per_fleet)):
        where.say(line)
    for line in [*dense_lines(flags, held, words), *beyond_plan.other_lengths(held["runs"], flags.epochs)]:
        where.say(line)
    where.say("Run one with: python paper/beyond.py study --part N, and the flags given here.")


def dense_lines(flags: Namespace, held: Document, words: Sequence[str]) -> Iterator[str]:
    """What the parts start from and is not trained yet."""
    for name in SOURCES if flags.dataset is None else (flags.dataset,):
        own = parser(name).parse_args(words)
        origin = Origin(name, own.heldout)
        if beyond_results.dense_of(held, origin) is None:
            yield f"First: dense --dataset {name}"
        crossed = beyond_plan.crossed_part(name)
        if crossed is not None and beyond_results.folds_of(held, origin, own.folds) is None:
            other = "" if name == DATASET else f" --dataset {name}"
            yield f"Before part {crossed}: dense --folds {own.folds}{other}"


def finished(flags: Namespace, where: Where) -> None:
    """What is finished, of the study and of the formulations."""
    held, tune = beyond_results.read(where.results), tune_seeds(flags)
    parts = [beyond_cells.planned(held["runs"], cells, tune) for cells in settings_of(flags)]
    wanted = [asdict(cell) for cells in parts for cell in cells]
    for line in beyond_table.finished(held["runs"], wanted):
        where.say(line)
    asked = {name: getattr(flags, flag) for name, flag in beyond_table.FLAGS.items()}
    for line in beyond_table.elsewhere(held["runs"], asked):
        where.say(line)
    for model in beyond_results.of_dataset(held, flags.dataset).get("dense", []):
        accuracy = ", ".join(f"{value:.2%} {split}" for split, value in model["accuracy"].items())
        where.say(f"dense model, {amount(model['heldout_per_class'], 'class')} held out: {accuracy}")


def shown_of(flags: Namespace, where: Where) -> Document:
    """The results of the data set, and of the dual steps, that are asked for."""
    held = beyond_results.of_dataset(beyond_results.read(where.results), flags.dataset)
    for line in beyond_table.absent(held["runs"], steps=flags.dual_lr, against=flags.against):
        where.say(line)
    if flags.dual_lr is None:
        return held
    return {**held, "runs": [run for run in held["runs"] if run["dual_lr"] in (None, *flags.dual_lr)]}


def show(flags: Namespace, where: Where) -> None:
    held = shown_of(flags, where)
    answers = beyond_answers.read(beyond_answers.path_of(where.results))
    names = ("tolerance", "against", "payers", "markdown")
    told = {name: getattr(flags, name) for name in names}
    for line in beyond_table.lines(held, answers, **told):
        where.say(line)


def page(flags: Namespace, where: Where) -> None:
    """What `show` prints, in words and with pictures, as one HTML file."""
    files = beyond_refused.files_of(where.results)
    held, answers = shown_of(flags, where), beyond_answers.read(files[1])
    there = [str(file) for file in files if file.exists()]
    told = {"tolerance": flags.tolerance, "against": flags.against, "files": there}
    atomic.write_text(flags.to, beyond_page.to_html(held, answers, **told))
    where.say(f"Page: {flags.to.resolve()}")


# --- what is refused ---


def parts_of(flags: Namespace, words: Sequence[str]) -> dict[int, Namespace]:
    """By number, the parts that a command is about; the flags of each as its data set has them."""
    if flags.command == "plan":
        numbers = [n for n, part in enumerate(PARTS, 1) if flags.dataset in (None, part.dataset)]
        return {n: parser(PARTS[n - 1].dataset).parse_args(words) for n in numbers}
    return {} if part_of(flags) is None else {flags.part: flags}


def refuse_wrong(flags: Namespace, *, words: Sequence[str]) -> None:
    """All that is wrong with a command line, in one message, before anything is read."""
    parts = [(own, PARTS[number - 1]) for number, own in parts_of(flags, words).items()]
    beyond_refused.refuse(flags, parts or [(flags, None)])


COMMANDS: Commands = {
    "dense": dense,
    "study": study,
    "formulations": run_cells,
    "timing": timing,
    "plan": partial(plan, words=["plan"]),
    "list": finished,
    "show": show,
    "page": page,
}


def parser(dataset: str = DATASET) -> argparse.ArgumentParser:
    return beyond_flags.parser(__doc__, COMMANDS, dataset)


def main(arguments: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else list(arguments)
    commands: Commands = {**COMMANDS, "plan": partial(plan, words=words)}
    return command_line.run(
        parser(dataset_in(words)), commands, words, refuse=partial(refuse_wrong, words=words)
    )


if __name__ == "__main__":
    sys.exit(main())
