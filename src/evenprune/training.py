"""fit(): the one loop. It prunes, weighs, steps, masks, evaluates and saves; a run is a fleet of one."""

import contextlib
import copy
import gc
import hashlib
import json
import logging
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS
from torch.optim.lr_scheduler import ReduceLROnPlateau

from evenprune import checkpoint, constraint, divergence, fairgrape, fleet, lineup, resume, shared_start
from evenprune.companions import dense_models, pooled, with_companions
from evenprune.compiling import compiles
from evenprune.draws import seed_of
from evenprune.fitted import Fitted, results
from evenprune.gap_limits import least_excess_gap
from evenprune.heldout import Heldout
from evenprune.history import epoch_row, of_run, own_rows
from evenprune.identity import identify
from evenprune.importance import MiniBatches
from evenprune.iterates import keep_best, put_back_best
from evenprune.live_channels import steps_of
from evenprune.loop import (
    Loop,
    advance,
    begin_epoch,
    build,
    draw_epoch,
)
from evenprune.masks import Masks
from evenprune.method import FOLDS
from evenprune.per_run import broken
from evenprune.plan import groups_have
from evenprune.predict import Answers, Predictions, evaluating, predict, scores
from evenprune.recipe import Data, Recipe, Run, Split, check
from evenprune.resume import Memory
from evenprune.tally import InputProblems
from evenprune.teacher import Teacher, Teachers, teacher_of
from evenprune.trackers import Hook, MetricsFiles

__all__ = ["Fitted", "NoRoom", "NotFinite", "fit", "identify"]
CHECKPOINT = "checkpoint.safetensors"
SHARE_FOR_DATA = 0.5  # of the device's free memory
log = logging.getLogger("evenprune")


class NotFinite(RuntimeError):
    """A loss or a weight became NaN or infinite: before the last pruning, in a companion, or in every run."""


class NoRoom(RuntimeError):
    """A fleet needs more memory than the device has."""


@dataclass(frozen=True)
class Job:
    """One fleet to train: what fit() was told, and this fleet's share of it."""

    model: nn.Module  # dense, never changed
    data: Data
    runs: tuple[Run, ...]  # those that were asked for
    recipe: Recipe
    device: torch.device
    hooks: tuple[Hook, ...]
    folder: Path | None
    identity: str  # a checkpoint of another experiment has another one
    dense: dict[str, Predictions] = field(default_factory=dict)  # of the dense model, by split, once known

    @property
    def path(self) -> Path | None:
        return None if self.folder is None else self.folder / CHECKPOINT

    @cached_property
    def crew(self) -> tuple[Run, ...]:
        """All that train: these runs, then their companions."""
        return with_companions(self.runs, self.data.folds)

    @cached_property
    def dense_correct(self) -> dict[str, Tensor]:
        """What the dense model gets right of the splits that feasible iterates are kept on."""
        names = {run.method.keep_on for run in self.runs if run.method.keep == "feasible"}
        found = {name: split for name, split in self.data.evaluate.items() if name in names}
        return {name: _dense_answers(self, name, split).correct for name, split in found.items()}


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
        raise NotFinite(_not_finite("The loss or the weights of every run are not finite", lines, home))
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
        dense = {name: _dense_answers(job, name, s).reference(names) for name, s in measured.items()}
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
        _train(loop, memory, job, splits, early=early)
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


def _dense_answers(job: Job, name: str, split: Split) -> Predictions:
    """The dense model on a split: what its gaps are measured against. Of "folds", the models of the folds."""
    if name in job.dense:
        return job.dense[name]
    if name == FOLDS and job.data.folds is not None:
        found = pooled(job.data.folds, split, job.recipe)
    else:
        model, batch, precision = copy.deepcopy(job.model), job.recipe.evaluate_batch, job.recipe.precision
        found = predict(model, split, device=job.device, batch_size=batch, precision=precision)
    job.dense[name] = found
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
        dense_correct=_dense_answers(job, name, splits[name]).correct,
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


def _train(
    loop: Loop, memory: Memory, job: Job, splits: Mapping[str, Split], *, early: Callable[[], Loop]
) -> None:
    hooks = [*job.hooks, *([MetricsFiles(job.folder)] if job.folder else [])]
    past = [_told(loop, job, row) for row in memory.history]
    try:
        for hook in hooks:
            hook.start(job.runs, job.recipe.epochs, past)
        if memory.starts is not None:
            _train_early(early(), loop, memory, job, splits, hooks)
            memory.starts = None
            gc.collect()  # a captured step refers to itself; its memory is for the next ones
        answers = {name: Answers(loop.network, split, job.recipe) for name, split in splits.items()}
        while memory.epoch < job.recipe.epochs and bool((loop.rest.since[: len(job.runs)] < 0).any()):
            found, seconds = _epoch(loop, memory, job, answers)
            row = epoch_row(loop, memory.epoch) | {"splits": found}
            if loop.now.trace is not None and memory.epoch >= job.recipe.pruning_epochs:
                memory.traces.append(loop.now.trace.to("cpu", copy=True))
            _end_epoch(loop, memory, job, row, seconds)
            _tell(hooks, loop, memory, job)
        _give_up_steps(loop)
        if loop.best:
            memory.last = _answered(answers, job)
            put_back_best(loop.best, loop.network)
        memory.final = _answered(answers, job)
        memory.finished = True
        _save(loop, memory, job)
    finally:
        for hook in hooks:
            hook.finish()


def _give_up_steps(loop: Loop) -> None:
    """After the last one: their memory is for evaluations of splits that no epoch has looked at."""
    loop.replay.forget()
    loop.optimizer.zero_grad()
    loop.heldout = None


def _train_early(
    early: Loop, loop: Loop, memory: Memory, job: Job, splits: Mapping[str, Split], hooks: Sequence[Hook]
) -> None:
    """Until pruning ends; what is found out about one run of a start holds for all of them."""
    assert memory.starts is not None
    answers = {name: Answers(early.network, split, job.recipe) for name, split in splits.items()}
    while memory.epoch < job.recipe.pruning_epochs:
        found, seconds = _epoch(early, memory, job, answers)
        row = shared_start.row_of_all(early, loop, memory.starts, epoch=memory.epoch, splits=found)
        _end_epoch(early, memory, job, row, seconds)
        _tell(hooks, loop, memory, job)
    shared_start.hand_over(early, loop, memory.starts)


def _tell(hooks: Sequence[Hook], loop: Loop, memory: Memory, job: Job) -> None:
    told = _told(loop, job, memory.history[-1])
    for hook in hooks:
        hook.epoch(told)


def _told(loop: Loop, job: Job, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """An epoch of the runs that were asked for; rows of runs that rest say since when."""
    told = [of_run(row, i, rows) for i, rows in enumerate(own_rows(loop)[: len(job.runs)])]
    for one, since in zip(told, loop.rest.since.tolist(), strict=False):
        if 0 <= since <= one["epoch"]:
            one["diverged"] = since
    return told


def _answered(answers: Mapping[str, Answers], job: Job) -> dict[str, resume.Answers]:
    """Of the runs that were asked for."""
    found, asked = {name: answer() for name, answer in answers.items()}, len(job.runs)
    return {name: (predicted[:asked], losses[:asked]) for name, (predicted, losses) in found.items()}


def _epoch(
    loop: Loop, memory: Memory, job: Job, answers: Mapping[str, Answers]
) -> tuple[dict[str, Any], float]:
    """One epoch, or what is left of it; returns the scores of the splits that are due, and the seconds."""
    began, recipe = time.perf_counter(), job.recipe
    loop.network.train()
    if memory.step == 0:
        begin_epoch(loop, memory.epoch)
    draw_epoch(loop, memory.epoch, memory.step)
    while memory.step < loop.steps:
        advance(loop, memory.step, memory.epoch)
        if loop.scheduler is not None and recipe.scheduler_steps == "batch":
            loop.scheduler.step()
        memory.step += 1
        if (
            recipe.checkpoint_steps
            and memory.step % recipe.checkpoint_steps == 0
            and memory.step < loop.steps
        ):
            _save(loop, memory, job)
    _lay_down_broken(loop, memory, job)
    divergence.end_epoch(loop.rest, loop.network, final=memory.epoch >= recipe.pruning_epochs - 1)
    due = (memory.epoch + 1) % recipe.evaluate_every == 0 or memory.epoch + 1 == recipe.epochs
    wanted = [name for name in answers if due and name not in recipe.only_at_end]
    answered = {name: answers[name]() for name in wanted}
    found = {name: scores(answers[name].split, *answered[name], memory.dense[name]) for name in wanted}
    if found and memory.epoch >= recipe.pruning_epochs:
        least = {
            name: _least_gaps(answers[name].split, answered[name][0], right, len(memory.dense[name].names))
            for name, right in job.dense_correct.items()
            if name in answered
        }
        methods = [run.method for run in loop.runs]
        keep_best(loop.best, loop.network, methods, epoch=memory.epoch, scores=found, least=least)
    return found, time.perf_counter() - began


def _least_gaps(split: Split, predicted: Tensor, dense_correct: Tensor, groups: int) -> Tensor:
    """What max ψ is at least, [runs], on the CPU."""
    before, after = dense_correct.to(predicted.device), predicted == split.labels
    return least_excess_gap(before, after, split.groups, count=groups).cpu()


def _end_epoch(loop: Loop, memory: Memory, job: Job, row: dict[str, Any], seconds: float) -> None:
    """The history gets its row, and the next epoch can begin."""
    _step_scheduler(loop, row)
    memory.history.append(row | {"seconds": seconds})
    memory.epoch, memory.step = memory.epoch + 1, 0
    if memory.epoch % job.recipe.checkpoint_epochs == 0 or memory.epoch == job.recipe.epochs:
        _save(loop, memory, job)


def _step_scheduler(loop: Loop, row: Mapping[str, Any]) -> None:
    if loop.scheduler is None or loop.recipe.scheduler_steps == "batch":
        return
    if isinstance(loop.scheduler, ReduceLROnPlateau):
        loop.scheduler.step(float(row["loss"].mean()))
    else:
        loop.scheduler.step()


def _save(loop: Loop, memory: Memory, job: Job) -> None:
    """Replace the checkpoint; never by one that holds NaN."""
    _lay_down_broken(loop, memory, job)
    if job.path is not None:
        job.path.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.save(job.path, resume.snapshot(loop, memory, identity=job.identity))


def _lay_down_broken(loop: Loop, memory: Memory, job: Job) -> None:
    """Runs whose loss or weights are not finite rest from now on; those that cannot stop everything."""
    found = broken(loop.network.parameters(), loop.totals, loop.now.place)
    if not found:
        return
    runs, hit = loop.runs, found
    if memory.starts is not None:  # one run stands for all of its start
        runs, at_step = job.runs, dict(found)
        hit = [(i, at_step[start]) for i, start in enumerate(memory.starts) if start in at_step]
    lines = [f"run {i} of {len(runs)} ({runs[i]}), by step {at} of {loop.steps}" for i, at in hit]
    if not loop.rest.good or any(i >= len(job.runs) for i, _ in found):  # a companion has no result
        kept = "There is no checkpoint. "
        if job.path is not None and job.path.exists():
            kept = f"The last good checkpoint is {job.path}. "
        said = f"The loss or the weights are not finite in epoch {memory.epoch}"
        raise NotFinite(_not_finite(said, lines, job.folder, kept))
    fresh = constraint.init(loop.plan)
    states = [(tensor, fresh[name]) for name, tensor in loop.state.items()]
    for (run, _), line in zip(found, lines, strict=True):
        if loop.rest.awake[run]:
            log.warning("Not finite in epoch %d: %s. It rests at its last good epoch.", memory.epoch, line)
        divergence.lay_down(
            loop.rest, run, memory.epoch, network=loop.network, optimizer=loop.optimizer, states=states
        )
        loop.totals["broken_at"][run] = -1


def _not_finite(said: str, lines: Sequence[str], folder: Path | None, kept: str = "") -> str:
    # Other settings are another experiment, which this folder would refuse.
    elsewhere = "" if folder is None else ", in another folder"
    way_out = f"set recipe.clip_norm, or leave these runs out{elsewhere}."
    return (
        f"{said}:\n- " + "\n- ".join(lines) + f"\n{kept}Lower the learning rate or the dual step, {way_out}"
    )


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
