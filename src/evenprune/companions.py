"""The companions of a cross-fitted run: who they are, and what a family answers to the training samples.

A run whose multipliers follow the folds has a companion for each fold: the same method, sparsity and seed,
pruned from the dense model of the fold, trained without the fold. They are a family, with one set of
multipliers: every sample is answered by the companion that never saw it, and the gaps of all these answers
move the multipliers of the run and of its companions alike.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from evenprune.fleet import Fleet, Single
from evenprune.folds import Folds
from evenprune.predict import Predictions, autocast, cross_entropies, evaluating, predict
from evenprune.recipe import Recipe, Run, Split
from evenprune.replay import Replay


def family_of(run: Run) -> Run:
    """What a run and its companions share: all but the fold, and which iterate is kept."""
    return replace(run, method=replace(run.method, keep="last", keep_on=None), without=None)


def companions_of(run: Run, folds: Folds) -> list[Run]:
    """By fold."""
    return [replace(family_of(run), without=fold) for fold in range(folds.count)]


def with_companions(asked: Sequence[Run], folds: Folds | None) -> tuple[Run, ...]:
    """The runs that were asked for; then the companions of those that are cross-fitted, each once."""
    crossed = [run for run in asked if run.method.cross_fitted]
    if folds is None or not crossed:
        return tuple(asked)
    added = dict.fromkeys(companion for run in crossed for companion in companions_of(run, folds))
    return (*asked, *added)


def dense_models(runs: Sequence[Run], model: nn.Module, folds: Folds | None) -> list[nn.Module]:
    """The dense model that each run starts from and learns from: without a fold, that of the fold."""
    return [
        model if run.without is None or folds is None or not folds.models else folds.models[run.without]
        for run in runs
    ]


def samples_of(folds: Folds) -> list[Tensor]:
    """By fold, the ids of its samples."""
    return [(folds.of.cpu() == fold).nonzero().flatten() for fold in range(folds.count)]


def pooled(folds: Folds, train: Split, recipe: Recipe) -> Predictions:
    """What the dense models answer to the training samples: each of them those of its own fold."""
    own = samples_of(folds)
    ask = partial(
        predict, device=train.labels.device, batch_size=recipe.evaluate_batch, precision=recipe.precision
    )
    pairs = zip(folds.models, own, strict=True)
    found = [ask(copy.deepcopy(model), _part(train, index)) for model, index in pairs]
    back = torch.argsort(torch.cat(own))
    predictions, losses = (torch.cat([getattr(f, n) for f in found])[back] for n in ("predictions", "losses"))
    return Predictions(train.labels.cpu(), predictions, train.groups.cpu(), losses)


def _part(split: Split, index: Tensor) -> Split:
    columns = {name: getattr(split, name) for name in ("inputs", "labels", "groups")}
    return replace(split, **{name: t.index_select(0, index.to(t.device)) for name, t in columns.items()})


class FoldAnswers:
    """The answers of every family to all training samples: sample by sample, of the run that never saw it.

    All companions answer at once, each the samples of the fold that it trains without: a pass over the
    training samples costs as much as one over a fold.
    """

    def __init__(
        self, network: Fleet | Single, split: Split, recipe: Recipe, *, runs: Sequence[Run], folds: Folds
    ) -> None:
        device = split.labels.device
        self.network, self.split, self.precision = network, split, recipe.precision
        families = list(dict.fromkeys(family_of(run) for run in runs if run.method.cross_fitted))
        place = {family: line for line, family in enumerate(families)}
        lines = [place.get(family_of(run), 0) for run in runs]
        self.line = torch.tensor(lines, device=device)  # [runs]; of those without a family nothing is read
        most = int(torch.bincount(folds.of).max())
        self.batches = -(-most // recipe.evaluate_batch)
        self.batch = -(-most // self.batches)
        asked, target = _questions(runs, lines, folds, width=self.batches * self.batch)
        self.asked, self.target = asked.to(device), target.to(device)
        double = any(p.dtype == torch.float64 for p in network.parameters())
        cells = len(families) * len(split) + 1
        self.losses = torch.zeros(cells, dtype=torch.float64 if double else torch.float32, device=device)
        self.predicted = torch.zeros(cells, dtype=torch.int64, device=device)
        self.place = torch.zeros((), dtype=torch.int64, device=device)
        within = split.inputs.device == device
        self.replay = Replay(self._next, device=device, graph=bool(recipe.graph) and within)

    def __call__(self) -> tuple[Tensor, Tensor]:
        """Predicted classes and cross-entropies [runs, N]: a row holds the answers of the run's family."""
        self.place.zero_()
        with evaluating(self.network):
            for _ in range(self.batches):
                self.replay()
        found = (self.predicted, self.losses)
        predicted, losses = (cells[:-1].view(-1, len(self.split))[self.line] for cells in found)
        return predicted, losses

    @torch.no_grad()
    def _next(self) -> None:
        places = self.place * self.batch + torch.arange(self.batch, device=self.place.device)
        index, target = (t.index_select(1, places) for t in (self.asked, self.target))  # [runs, batch]
        inputs = self.split.at(index.flatten())
        with autocast(inputs.device, self.precision):
            logits = self.network(inputs.view(*index.shape, *inputs.shape[1:]))
        losses = cross_entropies(logits, self.split.labels[index])
        self.predicted.index_copy_(0, target.flatten(), logits.argmax(-1).flatten())
        self.losses.index_copy_(0, target.flatten(), losses.flatten())
        self.place.add_(1)


def _questions(
    runs: Sequence[Run], lines: Sequence[int], folds: Folds, *, width: int
) -> tuple[Tensor, Tensor]:
    """The samples that each run is asked in a pass, and the cells of the answers. [runs, width] each

    Cell line · N + n is the answer of a family to sample n. Runs that are no companions, and companions with
    a small fold, are asked sample 0 to fill the batch; the last cell takes what they say.
    """
    size, samples, own = (len(runs), width), len(folds.of), samples_of(folds)
    asked, target = torch.zeros(size, dtype=torch.int64), torch.full(size, (max(lines) + 1) * samples)
    for place, (run, line) in enumerate(zip(runs, lines, strict=True)):
        if run.method.cross_fitted and run.without is not None:
            index = own[run.without]
            asked[place, : len(index)] = index
            target[place, : len(index)] = line * samples + index
    return asked, target
