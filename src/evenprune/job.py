"""One fleet to train: what fit() was told, and this fleet's share of it."""

import copy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from evenprune.companions import pooled, with_companions
from evenprune.method import FOLDS
from evenprune.predict import Predictions, predict
from evenprune.recipe import Data, Recipe, Run, Split
from evenprune.trackers import Hook

CHECKPOINT = "checkpoint.safetensors"


@dataclass(frozen=True)
class Job:
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
        return {name: dense_answers(self, name, split).correct for name, split in found.items()}


def dense_answers(job: Job, name: str, split: Split) -> Predictions:
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
