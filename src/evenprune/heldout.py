"""Multipliers that follow samples which neither model was trained on: batch by batch, or in full passes.

They are a split of their own; or, in passes, all training samples, each answered by models without its fold.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from statistics import median

import torch
from torch import Tensor

from evenprune import constraint
from evenprune.companions import FoldAnswers
from evenprune.constraint import Outcomes, Plan, State
from evenprune.fleet import Fleet, Single, copy_runs_, of_runs
from evenprune.folds import Folds
from evenprune.gap_limits import PairedCounts, paired_counts, psi_standard_errors
from evenprune.predict import Answers, autocast, cross_entropies, evaluating
from evenprune.recipe import Recipe, Run, Split
from evenprune.replay import Replay

__all__ = ["Heldout", "PairedCounts", "followed", "paired_counts", "psi_standard_errors"]


def followed(samples: Tensor, broke: Tensor, fixed: Tensor) -> dict[str, list[float] | float]:
    """How much noise multipliers follow that follow ψ of these samples: what a study relates a gain to.

    Counts [groups] of the held-out split, or of all training samples where the multipliers follow folds: in
    all, and how many the pruning broke and fixed (`paired_counts` takes them from answers).
    """
    error = psi_standard_errors(samples, broke, fixed)
    return {
        "samples": [float(n) for n in samples],
        "standard_errors": error.tolist(),
        "median_standard_error": median(error.tolist()),
        "worst_standard_error": float(error.max()),
    }


class Heldout:
    """The held-out split of a fleet, and the batch of it that the step at hand has seen."""

    def __init__(
        self,
        network: Fleet | Single,
        split: Split,
        *,
        dense_correct: Tensor,
        runs: Sequence[Run],
        recipe: Recipe,
        batch: int,
        folds: Folds | None = None,
    ) -> None:
        device, size = split.labels.device, (len(runs), batch)
        self.network, self.split, self.precision = network, split, recipe.precision
        self.dense_correct = dense_correct.to(device)
        self.refresh = torch.tensor([run.method.refresh for run in runs])
        followers = [run.method for run in runs if run.method.multipliers_on is not None]
        self.by_batch = any(method.estimator != "pass" for method in followers)
        self.order = torch.zeros(len(runs), len(split), dtype=torch.int64, device=device)
        self.place = torch.zeros((), dtype=torch.int64, device=device)
        self.batch = Outcomes(
            torch.zeros(size, device=device),
            torch.zeros(size, dtype=torch.bool, device=device),
            torch.full(size, -1, device=device),
            torch.zeros(size, dtype=torch.int64, device=device),
        )
        within = split.inputs.device == device
        self.replay = Replay(self._next, device=device, graph=bool(recipe.graph) and within)
        self.passes = (self.refresh > 0).nonzero().flatten().to(device)  # the runs that take them
        self.told = (recipe, runs, folds)

    def draw(self, order: Callable[[Run], Tensor], runs: Sequence[Run], step: int) -> None:
        """Before an epoch: in which order its batches are taken, from `step` on."""
        if not self.by_batch:
            return
        for i, run in enumerate(runs):
            self.order[i].copy_(order(run))
        self.place.fill_(step)

    def before_step(self, plan: Plan, state: State, step: int, *, awake: Tensor) -> None:
        """What the step number `step` since the end of pruning needs: a batch, or passes that are due.

        awake: bool [runs]; multipliers of the others stay.
        """
        if self.by_batch:
            self.replay()
        due = (self.refresh > 0) & (step % self.refresh.clamp_min(1) == 0)
        if bool(due.any()):
            predicted, losses = self._pass()
            constraint.follow_pass_(
                plan,
                state,
                losses,
                predicted == self.split.labels,
                self.split.groups,
                dense_correct=self.dense_correct,
                due=due.to(losses.device) & awake,
            )

    def _pass(self) -> tuple[Tensor, Tensor]:
        """Predicted classes and cross-entropies of all samples [runs, N]; zeros of runs that take none."""
        if self.copies is None:
            return self.answers()
        copy_runs_(self.copies, self.network, self.passes)
        predicted, losses = (
            found.new_zeros(self.network.runs, found.shape[1]).index_copy(0, self.passes, found)
            for found in self.answers()
        )
        return predicted, losses

    @cached_property
    def answers(self) -> Answers | FoldAnswers:
        recipe, runs, folds = self.told
        if folds is not None:
            return FoldAnswers(self.network, self.split, recipe, runs=runs, folds=folds)
        return Answers(self.network if self.copies is None else self.copies, self.split, recipe)

    @cached_property
    def copies(self) -> Fleet | None:
        """Of the runs that take passes, where those are not all."""
        _, runs, folds = self.told
        if folds is not None or not isinstance(self.network, Fleet) or len(self.passes) == len(runs):
            return None
        sample = self.split.at(torch.arange(1, device=self.passes.device))
        same = next(self.network.parameters()).dtype  # only its shape matters
        return of_runs(self.network, self.passes, sample_input=sample.to(same))

    @torch.no_grad()
    def _next(self) -> None:
        """Evaluate the next batch of every run."""
        runs, batch = self.batch.losses.shape
        places = (self.place * batch + torch.arange(batch, device=self.place.device)) % len(self.split)
        index = self.order.index_select(1, places)
        inputs = self.split.at(index.flatten())
        with evaluating(self.network), autocast(inputs.device, self.precision):
            logits = self.network(inputs.view(runs, batch, *inputs.shape[1:]))
        labels = self.split.labels[index]
        self.batch.losses.copy_(cross_entropies(logits, labels))
        self.batch.correct.copy_(logits.argmax(-1) == labels)
        self.batch.groups.copy_(self.split.groups[index])
        assert self.batch.sample is not None
        self.batch.sample.copy_(index)
        self.place.add_(1)
