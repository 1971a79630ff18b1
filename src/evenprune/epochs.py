"""The epochs of one fleet: steps, evaluations, checkpoints, and what happens to a run that diverges."""

import gc
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from evenprune import checkpoint, constraint, divergence, resume, shared_start
from evenprune.gap_limits import least_excess_gap
from evenprune.history import epoch_row, of_run, own_rows
from evenprune.iterates import keep_best, put_back_best
from evenprune.job import Job
from evenprune.loop import Loop, advance, begin_epoch, draw_epoch
from evenprune.per_run import broken
from evenprune.predict import Answers, scores
from evenprune.recipe import Split
from evenprune.resume import Memory
from evenprune.trackers import Hook, MetricsFiles

log = logging.getLogger("evenprune")


class NotFinite(RuntimeError):
    """A loss or a weight became NaN or infinite: before the last pruning, in a companion, or in every run."""


def train(
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
        raise NotFinite(not_finite(said, lines, job.folder, kept))
    fresh = constraint.init(loop.plan)
    states = [(tensor, fresh[name]) for name, tensor in loop.state.items()]
    for (run, _), line in zip(found, lines, strict=True):
        if loop.rest.awake[run]:
            log.warning("Not finite in epoch %d: %s. It rests at its last good epoch.", memory.epoch, line)
        divergence.lay_down(
            loop.rest, run, memory.epoch, network=loop.network, optimizer=loop.optimizer, states=states
        )
        loop.totals["broken_at"][run] = -1


def not_finite(said: str, lines: Sequence[str], folder: Path | None, kept: str = "") -> str:
    # Other settings are another experiment, which this folder would refuse.
    elsewhere = "" if folder is None else ", in another folder"
    way_out = f"set recipe.clip_norm, or leave these runs out{elsewhere}."
    return (
        f"{said}:\n- " + "\n- ".join(lines) + f"\n{kept}Lower the learning rate or the dual step, {way_out}"
    )
