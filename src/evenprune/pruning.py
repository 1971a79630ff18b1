"""prune(): one call from a dense model and its data to pruned models with their audits."""

import contextlib
import hashlib
import itertools
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from evenprune import checkpoint, samples
from evenprune.audit import Options
from evenprune.masks import Masks
from evenprune.plan import Method
from evenprune.predict import Predictions, evaluating, predict
from evenprune.recipe import Data, Recipe, Run, Split, check
from evenprune.reference import DenseReference
from evenprune.result import Result
from evenprune.samples import Groups, Samples
from evenprune.tally import InputProblems
from evenprune.trackers import Hook, ProgressBar
from evenprune.training import fit, identify


def prune(
    model: nn.Module,
    *,
    train: Any,
    test: Any,
    groups: Groups = None,
    sparsity: float | Sequence[float],
    method: Method | Sequence[Method],
    seeds: int | Iterable[int] = range(1),
    recipe: Recipe | None = None,
    folder: str | Path | None = None,
    tolerance: float | None = None,
    confidence: float = 0.95,
    device: torch.device | str | None = None,
    validation: Any = None,
    select: Literal["validation"] | None = None,
    hooks: Sequence[Hook] | None = None,
) -> Result:
    """Prune a trained model, fine-tune it under constraints, and audit it on training and test data.

    model: the dense model, trained; it is not changed. It maps a batch of inputs to logits [batch, classes].
    train, test: (inputs, labels, groups) as tensors or arrays, or a map-style data set of such items. Groups
        are one column, or a mapping of columns, whose intersections are the groups; −1 or None: not known.
        A data set is read once, before the training: random augmentation belongs in Recipe(augment=…).
    groups: which columns to take; or, as {"race": ["White", "Black", …]}, names for the codes 0, 1, …
    sparsity, method, seeds: one run for each combination; all runs train as one fleet where that can be.
    recipe: how to train (epochs, optimizer, what is pruned, …); see Recipe.
    folder: where the training is saved. The same call again resumes it, or returns at once if it is finished.
    tolerance, confidence: of the audits. Without one, the tolerance is that of the first method that has one.
    device: where to train; without one, where the model is.
    validation: a third split, held out: nft_es(on="validation") picks its best epoch on it, multipliers can
        follow it (multipliers_on="validation"), and `select` chooses on it.
    select: "validation" chooses one of the runs there (result.selected), for which result.audit speaks.
    hooks: what hears about the training. Without any: a progress bar, silent where there is no terminal.
    """
    methods = [method] if isinstance(method, Method) else list(method)
    sparsities = [sparsity] if isinstance(sparsity, int | float) else list(sparsity)
    seeds = range(seeds) if isinstance(seeds, int) else seeds
    runs = [Run(method=m, sparsity=s, seed=i) for m, s, i in itertools.product(methods, sparsities, seeds)]
    options, problems = _audit_options(methods, tolerance, confidence)
    problems = [*problems, *_leaks(methods)]
    if select is not None and (select != "validation" or validation is None):
        problems = [*problems, _select_problem(select, validation is None)]
    splits = {"train": train, "test": test} | ({} if validation is None else {"validation": validation})
    place = _device(model, device)
    recipe = (recipe or Recipe()).on(place)
    data = _checked(model, splits, groups, runs=runs, recipe=recipe, problems=problems)
    dense = _dense_answers(model, data, runs=runs, recipe=recipe, folder=folder, device=place)
    with _one_message():
        reference = dense["train"].reference(data.names)
        fitted = fit(
            model,
            Data(train=data.splits["train"], evaluate=data.splits, reference=reference),
            runs=runs,
            recipe=recipe,
            folder=folder,
            device=place,
            hooks=[ProgressBar()] if hooks is None else hooks,
        )
    return Result(
        model_name=type(model).__name__,
        samples=data,
        dense=dense,
        fitted=tuple(fitted),
        recipe=recipe,
        tolerance=options.tolerance,
        confidence=options.confidence,
        select=select,
    )


def _leaks(methods: Sequence[Method]) -> list[str]:
    """Samples that steer the training cannot audit it."""
    return [
        f"method {m.name!r}: {name}='test', but the test data is for the audit; hold out another split, "
        "give it as validation=…, and name that."
        for m in methods
        for name in ("multipliers_on", "keep_on")
        if getattr(m, name) == "test"
    ]


def _select_problem(select: str, absent: bool) -> str:
    if select != "validation":
        return f"select is {select!r}: choose on 'validation', a split that neither trains nor audits."
    return "select='validation' needs validation=…, samples that neither train nor audit." if absent else ""


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
    splits: Mapping[str, Any],
    groups: Groups,
    *,
    runs: Sequence[Run],
    recipe: Recipe,
    problems: list[str],
) -> Samples:
    """The data, after everything that can be checked before the first step; all problems in one error."""
    try:
        data = samples.read(splits, groups)
    except InputProblems as error:
        raise InputProblems(problems + error.problems + _mask_problems(model, runs, recipe)) from None
    classes, found = _look_at_outputs(model, data.splits["train"])
    problems = problems + found + _mask_problems(model, runs, recipe)
    try:
        with warnings.catch_warnings(action="ignore"):  # fit() warns of late rings once more
            check(data=_unmeasured(data), runs=runs, recipe=recipe, classes=classes)
    except InputProblems as error:
        twice = 'split "train": '  # the training data is also a split that is evaluated
        problems += [problem for problem in error.problems if not problem.startswith(twice)]
    if len(data.names) < 2:
        problems.append(
            f"the training data has {len(data.names)} groups ({', '.join(data.names)}); give two or more"
        )
    if problems:
        raise InputProblems(problems)
    for sentence in samples.strangers(data):
        warnings.warn(sentence, stacklevel=3)
    return data


def _mask_problems(model: nn.Module, runs: Sequence[Run], recipe: Recipe) -> list[str]:
    """Why some run cannot become as sparse as asked, found before the training and not at its 15th epoch."""
    found = []
    try:
        masks = Masks.of(model, exclude=recipe.exclude)
        for sparsity in sorted({run.sparsity for run in runs if 0 <= run.sparsity < 1}):
            try:
                masks.check_reachable(sparsity, scope=recipe.scope, pattern=recipe.pattern)
            except ValueError as error:
                found.append(str(error))
    except ValueError as error:
        found.append(str(error))
    return found


def _look_at_outputs(model: nn.Module, split: Split) -> tuple[int, list[str]]:
    """How many classes the model tells apart, and whether it fits the data at all."""
    first = next(model.parameters(), torch.empty(0))
    inputs = split.at(torch.arange(min(2, len(split)))).to(first.device)
    what = f"{str(inputs.dtype).removeprefix('torch.')} of shape {list(inputs.shape)}"
    try:
        with torch.no_grad(), evaluating(model):
            logits = model(inputs)
    except Exception as error:  # whatever a user's model raises
        reason = str(error).strip().split("\n")[0]
        return 10**9, [
            f"the model does not take the training inputs ({what}): {type(error).__name__}: {reason}"
        ]
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(inputs):
        got = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        return 10**9, [f"the model must give logits [batch, classes]; for inputs {what} it gives {got}"]
    return int(logits.shape[1]), []


def _unmeasured(data: Samples) -> Data:
    """The data with a reference that only counts: enough for all checks."""
    train = data.splits["train"]
    nothing = torch.zeros(len(train))
    counted = DenseReference.from_outcomes(
        correct=nothing, losses=nothing, groups=train.groups, names=data.names
    )
    return Data(train=train, evaluate=data.splits, reference=counted)


def _dense_answers(
    model: nn.Module,
    data: Samples,
    *,
    runs: Sequence[Run],
    recipe: Recipe,
    folder: str | Path | None,
    device: torch.device,
) -> dict[str, Predictions]:
    """What the dense model answers on each split: from the folder, if it was measured before."""
    if folder is None:
        return _measure(model, data, recipe, device)
    identity = identify(model, _unmeasured(data), runs=runs, recipe=recipe)
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
