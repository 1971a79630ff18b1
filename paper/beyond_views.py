"""One dense model and one training, seen by several groupings and with several numbers of held-out samples.

What groups a sample is in, and how many of the held-out samples are looked at, changes neither the images nor
what a model answers to them: a view relabels and selects, and nothing is evaluated again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from evenprune.predict import Predictions
from evenprune.recipe import Split
from paper.beyond_cells import Cell
from paper.beyond_splits import looked_at
from paper.runner import Start


@dataclass(frozen=True)
class Grouping:
    """One way to put the samples into groups."""

    names: tuple[str, ...]
    of: Mapping[str, Tensor]  # split -> [N] group ids, of all its samples


@dataclass(frozen=True)
class View:
    """The dense model and the data as runs of one grouping and one number of held-out samples see them."""

    start: Start
    of: Mapping[str, Tensor]  # split -> group ids of the samples that are seen
    kept: Tensor  # places of the held-out samples that are looked at

    def answers(self, whole: Mapping[str, Predictions]) -> dict[str, Predictions]:
        """What was answered to all samples of every split, as seen from here."""
        return {name: _seen(answers, self.of[name], self.kept, name) for name, answers in whole.items()}


@dataclass
class Views:
    """All views of one dense model, each made when it is asked for."""

    whole: Start  # with all held-out samples
    groupings: Mapping[str, Grouping]
    made: dict[tuple[str, float | None], View] = field(default_factory=dict)

    def of(self, cell: Cell) -> View:
        return self._made(cell.groups, cell.heldout_used)

    def refuse_sizes(self, sizes: Mapping[str, Iterable[float]]) -> None:
        """Before anything is trained: by groups, numbers of held-out samples that there are not."""
        for groups, own in sizes.items():
            for used in own:
                self._made(groups, used)

    def _made(self, groups: str, used: float | None) -> View:
        if (groups, used) not in self.made:
            self.made[groups, used] = view(self.whole, self.groupings[groups], used)
        return self.made[groups, used]


def view(whole: Start, grouping: Grouping, used: float | None) -> View:
    kept = torch.from_numpy(looked_at(grouping.of["heldout"], used))
    of = {name: ids[kept] if name == "heldout" else ids for name, ids in grouping.of.items()}
    splits = {name: _split(split, of[name], kept, name) for name, split in whole.data.evaluate.items()}
    answers = {name: _seen(told, of[name], kept, name) for name, told in whole.answers.items()}
    data = replace(
        whole.data,
        train=splits["train"],
        evaluate=splits,
        reference=answers["train"].reference(grouping.names),
    )
    return View(replace(whole, data=data, answers=answers), of, kept)


def _split(split: Split, groups: Tensor, kept: Tensor, name: str) -> Split:
    if name == "heldout" and len(kept) < len(split):
        split = replace(split, inputs=split.inputs[kept], labels=split.labels[kept])
    return replace(split, groups=groups)  # the inputs are shared


def _seen(answers: Predictions, groups: Tensor, kept: Tensor, name: str) -> Predictions:
    if name == "heldout" and len(kept) < len(answers.labels):
        picked = [t[kept] for t in (answers.labels, answers.predictions, answers.losses)]
        return Predictions(picked[0], picked[1], groups, picked[2])
    return replace(answers, groups=groups)
