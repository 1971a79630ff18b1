"""fit(): runs to fleets, each trained from the dense model to its results; a run is a fleet of one."""

import contextlib
import copy
import gc
import hashlib
import json
import logging
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import LBFGS

from evenprune import checkpoint, epochs, fairgrape, fleet, lineup, resume, shared_start
from evenprune.companions import dense_models, with_companions
from evenprune.compiling import compiles
from evenprune.draws import seed_of
from evenprune.epochs import NotFinite, not_finite
from evenprune.fitted import Fitted, results
from evenprune.heldout import Heldout
from evenprune.identity import identify
from evenprune.importance import MiniBatches
from evenprune.job import CHECKPOINT, Job, dense_answers
from evenprune.live_channels import steps_of
from evenprune.loop import Loop, build
from evenprune.masks import Masks
from evenprune.method import FOLDS
from evenprune.plan import groups_have
from evenprune.predict import evaluating
from evenprune.recipe import Data, Recipe, Run, Split, check
from evenprune.resume import Memory
from evenprune.tally import InputProblems
from evenprune.teacher import Teacher, Teachers, teacher_of
from evenprune.trackers import Hook

__all__ = ["Fitted", "NoRoom", "NotFinite", "fit", "identify"]
SHARE_FOR_DATA = 0.5  # of the device's free memory
log = logging.getLogger("evenprune")


class NoRoom(RuntimeError):
    """A fleet needs more memory than the device has."""


def fit(
    model: nn.Module,
    data: Data,
    *,
    runs: Sequence[Run],
    recipe: Recipe | None = None,
    folder: str | Path | None = None,
    device: torch.device | str = "cpu",
    hooks: Sequence[Hook] = (),
) -> list[Fitted]:
    """Prune and fine-tune a dense model, once per run; `model` itself is not changed.

    All runs start from the same dense weights and train as one widened network; where that cannot be, one
    after another through the same loop. With a folder the training is saved there: started again it
    resumes, or returns at once if it had finished.

    A run without a fold starts from the dense model of that fold. Runs whose multipliers follow folds have
    companions, which train in the same network and are not returned: see folds.py and companions.py.

    A run that diverges after the last pruning keeps the weights of its last good epoch (`Fitted.diverged`),
    and the others go on; where it happens earlier, to all of them or to a companion, NotFinite is raised.
    NoRoom is raised where a fleet needs more memory than the device has.
    """
    place = torch.device(device)
    recipe = (recipe or Recipe()).on(place)
    classes = _classes(model, data.train, place) if len(data.train) else 0
    check(data=data, runs=runs, recipe=recipe, classes=classes, model=model)
    _refuse_several_evaluations(recipe)
    home, identity = None if folder is None else Path(folder), ""
    if home is not None:
        whole = identify(model, data, runs=runs, recipe=recipe)
        checkpoint.claim(home, whole)
        identity = hashlib.sha256(json.dumps(whole).encode()).hexdigest()
    fitted: list[Fitted] = []
    on_gpu = place.type == "cuda"
    with (
        torch.random.fork_rng(devices=[place] if on_gpu else []),
        torch.cuda.device(place) if on_gpu else contextlib.nullcontext(),
    ):
        fleets = lineup.fleets(model, data, runs, recipe, device=place)
        homes = [home / f"fleet-{i:03d}" if home and len(fleets) > 1 else home for i in range(len(fleets))]
        _check_importances(fleets, homes, data, recipe)
        for number, (members, own) in enumerate(zip(fleets, homes, strict=True)):
            job = Job(model, data, members, recipe, place, tuple(hooks), own, f"{identity} {number}")
            try:
                fitted += _fit_fleet(job)
            except torch.OutOfMemoryError as error:
                traceback.clear_frames(error.__traceback__)  # they hold the fleet that had no room
                raise NoRoom(_no_room(job)) from error
            if on_gpu:  # a captured step refers to itself; its memory is for the next fleet
                gc.collect()
    if all(one.diverged is not None for one in fitted):
        lines = [f"run {i} of {len(runs)} ({one.run}), epoch {one.diverged}" for i, one in enumerate(fitted)]
        raise NotFinite(not_finite("The loss or the weights of every run are not finite", lines, home))
    return fitted


def has_begun(folder: str | Path | None) -> bool:
    """Whether some fleet has a checkpoint in the folder of fit()."""
    places = (CHECKPOINT, f"fleet-*/{CHECKPOINT}")
    return folder is not None and any(any(Path(folder).glob(place)) for place in places)


def _classes(model: nn.Module, split: Split, device: torch.device) -> int:
    network = fleet.single(copy.deepcopy(model)).to(device)
    with torch.no_grad(), evaluating(network):
        logits = network(split.at(torch.arange(1, device=split.labels.device)).to(device).unsqueeze(0))
    return int(logits.shape[-1])


def _refuse_several_evaluations(recipe: Recipe) -> None:
    try:
        optimizer = recipe.optimizer([{"params": [nn.Parameter(torch.zeros(1))]}])
    except Exception:  # people's own factories; if this one is wrong, the real parameters will tell
        return
    if isinstance(optimizer, LBFGS):
        raise InputProblems(["LBFGS evaluates the loss several times a step, which this loop does not do."])


def _check_importances(
    fleets: Sequence[Sequence[Run]], homes: Sequence[Path | None], data: Data, recipe: Recipe
) -> None:
    """Before the first fleet trains; those that have a checkpoint may need them no more."""
    pairs = zip(fleets, homes, strict=True)
    fresh = [
        run.method.importance
        for members, own in pairs
        if own is None or not (own / CHECKPOINT).exists()
        for run in members
    ]
    if "fairgrape" in fresh:
        fairgrape.check_numba()
    count = recipe.importance_batches
    if count is None or {*fresh} <= {"magnitude"}:
        return
    left_out = MiniBatches(data.train, recipe.batch_size, count).left_out()
    if left_out:
        none = groups_have([data.reference.names[group] for group in left_out])
        raise InputProblems(
            [
                f"{none} no sample in the batches of recipe.importance_batches={count}, so FairGRAPE would "
                "keep no weight for their sake. Raise it, or leave it out: all training samples count then."
            ]
        )


def _fit_fleet(job: Job) -> list[Fitted]:
    torch.manual_seed(seed_of("network", *(run.seed for run in job.runs)))
    saved = None if job.path is None else checkpoint.load(job.path)
    there = job.recipe.data_on_device
    if there is None:
        there = _fits(job)
    train = job.data.train.to(job.device, inputs=there)
    splits = {
        n: train if s is job.data.train else s.to(job.device, inputs=there)
        for n, s in job.data.evaluate.items()
    }
    measured = splits | ({FOLDS: train} if any(run.method.cross_fitted for run in job.runs) else {})
    if saved is None:
        names = job.data.reference.names
        dense = {name: dense_answers(job, name, s).reference(names) for name, s in measured.items()}
        memory = Memory(reference=job.data.reference, dense=dense)
    else:
        memory = resume.remembered(saved, job.path, identity=job.identity, reference=job.data.reference)
    loop = _loop(job, train, measured, memory)
    if saved is None:
        memory.starts = _shared_starts(job, loop)
    elif memory.starts is None:
        resume.restore(loop, saved)

    def early() -> Loop:
        """One run of each start, which trains for all of them until pruning ends."""
        first = replace(job, runs=shared_start.beginners(job.runs, memory.starts or []))
        found = _loop(first, train, measured, memory)
        if saved is not None:
            resume.restore(found, saved)
        return found

    if not memory.finished:
        epochs.train(loop, memory, job, splits, early=early)
    return results(loop, memory, job.runs, job.data.evaluate)


def _loop(job: Job, train: Split, splits: Mapping[str, Split], memory: Memory) -> Loop:
    """Of all that train, before the first step."""
    network = lineup.dense_network(job.model, job.data, job.crew, job.recipe, device=job.device)
    steps = steps_of(job.model, dims=train.inputs.ndim)
    masks = Masks.of(network, runs=len(job.crew), exclude=job.recipe.exclude, steps=steps)
    return build(
        network,
        runs=job.crew,
        recipe=job.recipe,
        train=train,
        reference=memory.reference,
        masks=masks.to(job.device),
        teacher=_teacher(job, train),
        folds=job.data.folds,
        **_heldout(job, network, splits, memory),
    )


def _shared_starts(job: Job, loop: Loop) -> list[int] | None:
    """The start of each run, where some are trained once until pruning ends; companions are not, nothing is
    compiled twice, and nothing is shared beside constraints that act while pruning."""
    found = shared_start.starts(job.runs)
    early = any(run.method.while_pruning for run in job.runs)
    wanted = job.recipe.share_pruning and job.recipe.pruning_epochs > 0 and job.crew == job.runs and not early
    if not wanted or len(set(found)) == len(found) or compiles(loop.network, job.recipe, job.device):
        return None
    if not shared_start.can_be_handed_over(job.recipe):
        log.info("Runs are not trained together until pruning ends: the optimizer holds more than momenta.")
        return None
    return found


def _teacher(job: Job, train: Split) -> Teacher | Teachers | None:
    """The dense models' answers, if some method learns from them: each run from the one it began as."""
    dense = zip(job.crew, dense_models(job.crew, job.model, job.data.folds), strict=True)
    models = [model if run.method.needs_teacher else None for run, model in dense]
    return None if all(model is None for model in models) else teacher_of(models, train, job.recipe)


def _heldout(
    job: Job, network: fleet.Fleet | fleet.Single, splits: Mapping[str, Split], memory: Memory
) -> dict[str, Any]:
    """The split that multipliers follow, and the dense model on it; nothing if none does."""
    name = next((run.method.multipliers_on for run in job.runs if run.method.multipliers_on), None)
    if name is None:
        return {}
    heldout = Heldout(
        network,
        splits[name],
        dense_correct=dense_answers(job, name, splits[name]).correct,
        runs=job.crew,
        recipe=job.recipe,
        batch=job.recipe.batch_size,
        folds=job.data.folds if name == FOLDS else None,
    )
    return {"heldout": heldout, "heldout_reference": memory.dense[name]}


def _fits(job: Job) -> bool:
    """Whether the inputs of all splits have room on the device."""
    if job.device.type != "cuda":
        return True
    inputs = {id(split.inputs): split.inputs for split in (job.data.train, *job.data.evaluate.values())}
    wanted = sum(t.numel() * t.element_size() for t in inputs.values() if t.device != job.device)
    free, _ = torch.cuda.mem_get_info(job.device)
    free += torch.cuda.memory_reserved(job.device) - torch.cuda.memory_allocated(job.device)
    return bool(wanted <= SHARE_FOR_DATA * free)


def _no_room(job: Job) -> str:
    runs, others = len(job.runs), len(job.crew) - len(job.runs)
    who = f"{runs} run{'s' * (runs > 1)}{f' and {others} companions' * (others > 0)}"
    least = max(len(with_companions([run], job.data.folds)) for run in job.runs)
    fewer = max(len(job.crew) // 2, least)
    ways = [f"train fewer at once (recipe.fleet_size = {fewer})"] if fewer < len(job.crew) else []
    ways += ["take a smaller recipe.batch_size"]
    elsewhere = "" if job.folder is None else ", in another folder"
    kept = ""
    if job.path is not None and job.path.exists():
        changes = "with another recipe.evaluate_batch, data_on_device or graph"
        kept = f"\nThe last checkpoint is {job.path}: {changes} the same call goes on from there."
    return (
        f"The memory of {job.device} is too small for {who} of these samples: {', or '.join(ways)}"
        f"{elsewhere}.{kept}"
    )
