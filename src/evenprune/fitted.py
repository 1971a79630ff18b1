"""What a training ends with: one finished run each, as plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from evenprune import fleet
from evenprune.history import of_run, own_rows
from evenprune.loop import Loop
from evenprune.masks import Masks
from evenprune.predict import Predictions
from evenprune.recipe import Run, Split
from evenprune.resume import Memory


@dataclass(frozen=True)
class Fitted:
    """One finished run."""

    run: Run
    model: nn.Module  # the architecture that fit() was given, pruned weights at zero, in evaluation mode
    masks: Masks
    history: list[dict[str, Any]]  # one entry per epoch, plain numbers
    multipliers: Tensor  # [epochs, rows of its own method]; see constraint.multipliers
    predictions: dict[str, Predictions]  # by split
    kept_epoch: int  # the epoch whose weights these are
    last: dict[str, Predictions]  # by split, of the last iterate: the same, unless an earlier one is kept
    # [steps after pruning, rows]: multipliers after each step, if asked for; also where they act before.
    trace: Tensor | None = None
    diverged: int | None = None  # the epoch whose loss or weights were not finite: all this is of before


def results(loop: Loop, memory: Memory, runs: Sequence[Run], splits: Mapping[str, Split]) -> list[Fitted]:
    """Of the runs that were asked for, which come first in the loop."""
    own = own_rows(loop)
    return [_result(loop, memory, splits, i, own[i]) for i in range(len(runs))]


def _result(loop: Loop, memory: Memory, splits: Mapping[str, Split], i: int, own: list[int]) -> Fitted:
    since, best = int(loop.rest.since[i]), int(loop.best["epoch"][i]) if loop.best else -1
    good = since if since >= 0 else loop.recipe.epochs  # epochs that count
    kept_answers = _predictions(memory.final, i, splits)
    last_answers = kept_answers if not loop.best else {}
    if memory.last:
        last_answers = _predictions(memory.last, i, splits)
    traced = [epoch[i][:, own] for epoch in memory.traces]  # of each epoch after pruning
    counting = traced[: max(0, good - loop.recipe.pruning_epochs)]
    return Fitted(
        run=loop.runs[i],
        model=fleet.extract(loop.network, i).cpu().eval(),
        masks=loop.masks.extract(i).cpu(),
        history=[of_run(row, i, own) for row in memory.history[:good]],
        multipliers=torch.stack([row["multipliers"][i, own] for row in memory.history[:good]]),
        predictions=kept_answers,
        kept_epoch=min(best, good - 1) if best >= 0 else good - 1,  # a resting run is evaluated, too
        last=last_answers,
        trace=torch.cat([traced[0][:0], *counting]) if traced else None,
        diverged=since if since >= 0 else None,
    )


def _predictions(
    answers: Mapping[str, tuple[Tensor, Tensor]], i: int, splits: Mapping[str, Split]
) -> dict[str, Predictions]:
    """What run `i` answered on each split."""
    return {
        name: Predictions(
            split.labels.cpu(),
            answers[name][0][i].long().cpu(),
            split.groups.cpu(),
            answers[name][1][i].cpu(),
        )
        for name, split in splits.items()
    }
