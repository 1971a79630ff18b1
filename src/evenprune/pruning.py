"""prune(): one call from a dense model and its data to pruned models with their audits."""

import contextlib
import hashlib
import itertools
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from evenprune import asked_for, augment, checkpoint, fairgrape, leaks, samples, splits
from evenprune.audit import Options
from evenprune.comparison_wording import title_of
from evenprune.folds import Folds
from evenprune.masks import Masks
from evenprune.method import Method
from evenprune.predict import Predictions, look_at_outputs, predict
from evenprune.reading import counted
from evenprune.recipe import Data, Recipe, Run, check
from evenprune.reference import DenseReference
from evenprune.result import Result
from evenprune.samples import Groups, Samples
from evenprune.tally import InputProblems
from evenprune.trackers import Hook, ProgressBar
from evenprune.training import fit, has_begun, identify
from evenprune.training_notes import constrains_gaps, too_few, unmeasured

# Problems that the checks of the recipe find and that are told here in other words, or are told twice.
TOLD = ('split "train": ', '", which is not evaluated (', "there are no folds: ")


def prune(
    model: nn.Module,
    *,
    train: Any,
    heldout: Any = None,
    audit: Any = None,
    groups: Groups = None,
    sparsity: float | Sequence[float],
    method: Method | Sequence[Method],
    seeds: int | Iterable[int] = range(1),
    recipe: Recipe | None = None,
    folder: str | Path | None = None,
    tolerance: float | None = None,
    confidence: float = 0.95,
    device: torch.device | str | None = None,
    select: str | None = None,
    folds: Folds | None = None,
    hooks: Sequence[Hook] | None = None,
    test: Any = None,
    validation: Any = None,
) -> Result:
    """Prune a trained model, fine-tune it under constraints, and audit it on samples that nothing has seen.

    model: the dense model, trained; it is not changed. It maps a batch of inputs to logits [batch, classes].
    train, heldout, audit: three splits, each (inputs, labels, groups) as tensors or arrays, or a map-style
        data set of such items. Groups are one column, or a mapping of columns, whose intersections are the
        groups; −1 or None: not known. Training samples may be (inputs, labels) where no method looks at their
        groups: nft, kd, performance_weighted. A data set is read once, before the training: random
        augmentation belongs in Recipe(augment=…). On `audit` (also called `test`) nothing is trained or
        chosen: samples that are in two splits are refused or noted. Choices are made on `heldout` (also
        called `validation`), if it is given: multipliers can follow it (multipliers_on="heldout"), a best
        epoch can be picked on it (keep_on="heldout"), and `select` chooses on it.
    groups: which columns to take; or, as {"race": ["White", "Black", …]}, names for the codes 0, 1, …
    sparsity, method, seeds: one run for each combination; all runs train as one fleet where that can be.
    recipe: how to train (epochs, optimizer, what is pruned, …); see Recipe.
    folder: where the training is saved. The same call again resumes it, or returns at once if it is finished.
    tolerance, confidence: of the audits. Without one, the tolerance is that of the first method that has one.
    device: where to train; without one, where the model is.
    select: "heldout" chooses one setting there by its mean over the seeds, and of its runs the one of the
        median max ψ (result.selected), for which result.audit speaks.
    folds: for multipliers_on="folds", Folds(of, models): the fold of each training sample (folds.assign) and
        a dense model for each fold, trained without it.
    hooks: what hears about the training. Without any: a progress bar, silent where there is no terminal.
    """
    given = {"train": train, "heldout": heldout, "audit": audit, "test": test, "validation": validation}
    wanted = prepared(
        model,
        given,
        groups=groups,
        sparsity=sparsity,
        method=method,
        seeds=seeds,
        recipe=recipe,
        folder=folder,
        tolerance=tolerance,
        confidence=confidence,
        device=device,
        select=select,
        folds=folds,
    )
    for sentence in samples.strangers(wanted.data):
        warnings.warn(sentence, stacklevel=2)
    runs, recipe, options, place = wanted.runs, wanted.recipe, wanted.options, wanted.device
    dense = _dense_answers(
        model, wanted.data, runs=runs, recipe=recipe, folder=folder, device=place, folds=folds
    )
    data = samples.remarked(wanted.data, dense["train"])  # a dense model no better than a guess
    warned = _warned(dense, data.names, [run.method for run in runs], options.tolerance, select)
    with _one_message():
        reference = dense["train"].reference(data.names)
        fitted = fit(
            model,
            Data(train=data.splits["train"], evaluate=data.splits, reference=reference, folds=folds),
            runs=runs,
            recipe=recipe,
            folder=folder,
            device=place,
            hooks=[ProgressBar()] if hooks is None else hooks,
        )
    return Result(
        model_name=type(model).__name__,
        samples=data,
        dense=splits.BySplit(dense),
        fitted=tuple(fitted),
        recipe=recipe,
        tolerance=options.tolerance,
        confidence=options.confidence,
        select=select,
        warned=tuple(warned),
        shared=wanted.shared,
    )


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What a call of prune() asks for, with nothing left to check before the dense model answers."""

    runs: list[Run]
    recipe: Recipe
    options: Options  # of the audits
    data: Samples
    shared: dict[str, list[str]]  # by split, notes on samples that are in another one as well
    device: torch.device


def prepared(
    model: nn.Module,
    given: Mapping[str, Any],
    *,
    groups: Groups,
    sparsity: float | Sequence[float],
    method: Method | Sequence[Method],
    seeds: int | Iterable[int],
    recipe: Recipe | None,
    folder: str | Path | None,
    tolerance: float | None,
    confidence: float,
    device: torch.device | str | None,
    select: str | None,
    folds: Folds | None = None,
) -> Prepared:
    """All that prune() checks, or one error that lists every problem; the model need not be trained yet.

    given: the splits, under any of their names. The rest is what prune() takes.
    """
    asked, sparsities, drawn = asked_for.checked(
        method, sparsity, seeds, recipe=recipe, select=select, folds=folds
    )
    methods = [splits.resolved(m) for m in asked]
    runs = [Run(method=m, sparsity=s, seed=i) for m, s, i in itertools.product(methods, sparsities, drawn)]
    options, problems = _audit_options(methods, tolerance, confidence)
    known, more = splits.gathered(given["train"], {n: given[n] for n in given if n != "train"})
    problems += [*more, *splits.problems(asked, select, known), *_undecided(methods, tolerance, select)]
    problems += [*_without_folds(asked, folds), *_without_numba(runs, folder)]
    place = _device(model, device)
    recipe = splits.renamed(recipe or Recipe()).on(place)
    data, shared = _checked(model, known, groups, runs=runs, recipe=recipe, folds=folds, problems=problems)
    return Prepared(runs=runs, recipe=recipe, options=options, data=data, shared=shared, device=place)


def _undecided(methods: Sequence[Method], tolerance: float | None, select: str | None) -> list[str]:
    """A choice among methods of several tolerances needs one to judge all by."""
    own = list(dict.fromkeys(m.tolerance for m in methods if constrains_gaps(m)))
    if select is None or tolerance is not None or len(own) < 2:
        return []
    listed = ", ".join(f"{value:g}" for value in own)
    return [
        f"select={select!r} among methods of several tolerances ({listed}): say by which all are judged, "
        f"such as tolerance={own[0]:g}."
    ]


def _without_folds(methods: Sequence[Method], folds: Folds | None) -> list[str]:
    crossed = [m.name for m in methods if m.cross_fitted]
    if not crossed or folds is not None:
        return []
    return [
        f"method {crossed[0]!r}: multipliers_on='folds' cross-fits, and needs folds=Folds(of, models): of "
        "from folds.assign(groups, 4), models trained by fit() without each fold, as folds.py shows."
    ]


def _without_numba(runs: Sequence[Run], folder: str | Path | None) -> list[str]:
    """That the exact FairGRAPE is missing; nothing where a training in the folder may have done with it."""
    if all(run.method.importance != "fairgrape" for run in runs) or has_begun(folder):
        return []
    try:
        fairgrape.check_numba()
    except ImportError as error:
        return [str(error)]
    return []


def _warned(
    dense: Mapping[str, Predictions],
    names: Sequence[str],
    methods: Sequence[Method],
    tolerance: float,
    select: str | None,
) -> list[str]:
    """That choices on so few held-out samples would follow noise: also a warning, before the training."""
    if splits.HELDOUT not in dense:
        return []
    judged = [m for m in methods if constrains_gaps(m) and m.tolerance > 0]  # a loss has no points
    moved = [m for m in judged if m.multipliers_on == splits.HELDOUT]
    kept = [m for m in judged if m.keep == "feasible" and m.keep_on == splits.HELDOUT]
    titles = [list(dict.fromkeys(title_of(m.name) for m in some)) for some in (moved, kept)]
    who = [f"the multipliers of {', '.join(titles[0])}"] if moved else []
    who += [f"the iterate that {', '.join(titles[1])} keeps"] if kept else []
    who += ["the choice of a run"] if select is not None else []
    limits = [m.tolerance for m in [*moved, *kept]] + ([tolerance] if select is not None else [])
    if not who:
        return []
    found = too_few(dense[splits.HELDOUT].reference(names), tolerance=min(limits), who=" and ".join(who))
    found += unmeasured(dense[splits.HELDOUT].reference(names))
    for sentence in found:
        warnings.warn(sentence, stacklevel=3)
    return found


def _device(model: nn.Module, device: torch.device | str | None) -> torch.device:
    first = next(model.parameters(), torch.empty(0))
    return first.device if device is None else torch.device(device)


def _audit_options(
    methods: Sequence[Method], tolerance: float | None, confidence: float
) -> tuple[Options, list[str]]:
    """How the runs are audited, and what is wrong with that."""
    own = [m.tolerance for m in methods if m.measure == "accuracy" and m.kind != "equal" and m.rows != "none"]
    if tolerance is None and not own:
        names = ", ".join(m.name for m in methods) or "no method"
        return Options(tolerance=0.0, confidence=confidence), [
            f"tolerance is missing, and {names} has none of its own: how much more accuracy than the average "
            "may a group lose, e.g. tolerance=0.02?"
        ]
    options = Options(tolerance=own[0] if tolerance is None else tolerance, confidence=confidence)
    return options, options.problems()


@contextlib.contextmanager
def _one_message() -> Iterator[None]:
    """Problems that lower layers find in the user's values are all of one kind here."""
    try:
        yield
    except (InputProblems, checkpoint.DifferentExperiment):
        raise
    except ValueError as error:  # SparsityNotReachable and the checks of Plan and DenseReference
        raise InputProblems([str(error)]) from error


def _checked(
    model: nn.Module,
    given: Mapping[str, Any],
    groups: Groups,
    *,
    runs: Sequence[Run],
    recipe: Recipe,
    folds: Folds | None,
    problems: list[str],
) -> tuple[Samples, dict[str, list[str]]]:
    """The data, after everything that can be checked before the first step; all problems in one error.

    Also notes on samples that a split shares with another one.
    """
    try:
        data = samples.read(given, groups, needs_groups=any(run.method.needs_groups for run in runs))
    except InputProblems as error:
        raise InputProblems(problems + error.problems + _mask_problems(model, runs, recipe)) from None
    classes, found = look_at_outputs(model, data.splits["train"], "the training inputs")
    problems = problems + found + _mask_problems(model, runs, recipe)
    try:
        with warnings.catch_warnings(action="ignore"):  # fit() warns of late rings once more
            check(data=_unmeasured(data, folds), runs=runs, recipe=recipe, classes=classes)
    except InputProblems as error:
        problems += [problem for problem in error.problems if not any(told in problem for told in TOLD)]
    train = data.splits["train"]
    problems += augment.unfit(recipe.augment, train.inputs, mean=train.mean, std=train.std)
    twice, shared = leaks.found(given, data.splits)
    problems += twice
    problems += _few_groups(data)
    if problems:
        raise InputProblems(problems)
    return data, shared


def _few_groups(data: Samples) -> list[str]:
    """Nothing to compare: in train or, where its groups are not looked at, in the other splits."""
    who = "train" if data.grouped_train else " and ".join(name for name in data.splits if name != "train")
    if len(data.names) > 1 or not who:
        return []
    known = counted(len(data.names), "known group", "known groups")
    return [f"{who}: {known} ({', '.join(data.names)}); give two or more"]


def _mask_problems(model: nn.Module, runs: Sequence[Run], recipe: Recipe) -> list[str]:
    """Why some run cannot become as sparse as asked, found before the training and not at its 15th epoch."""
    found = []
    try:
        masks = Masks.of(model, exclude=recipe.exclude, steps=())
        for sparsity in sorted({run.sparsity for run in runs if 0 <= run.sparsity < 1}):
            try:
                masks.check_reachable(sparsity, scope=recipe.scope, pattern=recipe.pattern)
            except ValueError as error:
                found.append(str(error))
    except ValueError as error:
        found.append(str(error))
    return found


def _unmeasured(data: Samples, folds: Folds | None) -> Data:
    """The data with a reference that only counts: enough for all checks."""
    train = data.splits["train"]
    nothing = torch.zeros(len(train))
    counted = DenseReference.from_outcomes(
        correct=nothing, losses=nothing, groups=train.groups, names=data.names
    )
    return Data(train=train, evaluate=data.splits, reference=counted, folds=folds)


def _dense_answers(
    model: nn.Module,
    data: Samples,
    *,
    runs: Sequence[Run],
    recipe: Recipe,
    folder: str | Path | None,
    device: torch.device,
    folds: Folds | None,
) -> dict[str, Predictions]:
    """What the dense model answers on each split: from the folder, if it was measured before."""
    if folder is None:
        return _measure(model, data, recipe, device)
    identity = identify(model, _unmeasured(data, folds), runs=runs, recipe=recipe)
    checkpoint.claim(Path(folder), identity)
    path, digest = (
        Path(folder) / "dense.safetensors",
        hashlib.sha256(json.dumps(identity).encode()).hexdigest(),
    )
    saved = checkpoint.load(path)
    if saved is None or saved["identity"] != digest:
        answers = _measure(model, data, recipe, device)
        kept = {name: (one.predictions.int(), one.losses) for name, one in answers.items()}
        checkpoint.save(path, {"identity": digest, "answers": kept})
        return answers
    return {
        name: Predictions(data.splits[name].labels, predicted.long(), data.splits[name].groups, losses)
        for name, (predicted, losses) in saved["answers"].items()
    }


def _measure(model: nn.Module, data: Samples, recipe: Recipe, device: torch.device) -> dict[str, Predictions]:
    home = _device(model, None)
    try:
        answers = {
            name: predict(
                model, split, device=device, batch_size=recipe.evaluate_batch, precision=recipe.precision
            )
            for name, split in data.splits.items()
        }
    finally:
        model.to(home)
    broken = {name: int((~one.losses.isfinite()).sum()) for name, one in answers.items()}
    problems = [
        f"the dense model's loss is NaN or infinite on {count} of {len(data.splits[name])} samples "
        f"of {name}: train it first, or check its weights"
        for name, count in broken.items()
        if count
    ]
    if problems:
        raise InputProblems(problems)
    return answers
