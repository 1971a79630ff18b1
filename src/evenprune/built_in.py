"""Built-in experiments: data, a dense model trained on them, and settings that show what pruning does."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import SGD

from evenprune import methods
from evenprune.data import digits
from evenprune.models import small_cnn
from evenprune.recipe import Data, Recipe, Run, Split
from evenprune.reference import DenseReference
from evenprune.trackers import Hook
from evenprune.training import fit

DENSE = Recipe(epochs=40, pruning_epochs=0, batch_size=32, optimizer=partial(SGD, lr=0.05, momentum=0.9))


def dense_and_data(
    name: str, *, heldout_share: float = 0.0, folder: Path | None = None, hooks: Sequence[Hook] = ()
) -> tuple[nn.Module, dict[str, Any]]:
    """The trained dense model of a built-in experiment, and its splits. With a folder it is trained once.

    heldout_share: of the training samples of each class, held out from the dense model too.
    """
    model, splits = untrained_and_data(name, heldout_share=heldout_share)
    return trained(model, splits, folder=folder, hooks=hooks), splits


def untrained_and_data(name: str, *, heldout_share: float = 0.0) -> tuple[nn.Module, dict[str, Any]]:
    """The same before the dense model is trained: enough for all checks."""
    return BUILDERS[name](heldout_share)


def _digits(heldout_share: float) -> tuple[nn.Module, dict[str, Any]]:
    splits = digits.load_splits(heldout_share=heldout_share)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = small_cnn()
    return model, splits


def trained(
    model: nn.Module, splits: Mapping[str, Any], *, folder: Path | None = None, hooks: Sequence[Hook] = ()
) -> nn.Module:
    """The dense model of these splits, whose groups are one column. With a folder it is trained once."""
    inputs, labels, columns = splits["train"]
    (groups,) = columns.values()
    home = None if folder is None else folder / "dense"
    return train_dense(model, Split(inputs, labels, groups), folder=home, hooks=hooks)


def train_dense(
    model: nn.Module, train: Split, *, folder: Path | None = None, hooks: Sequence[Hook] = ()
) -> nn.Module:
    """A dense model is a run that prunes nothing: the same loop, the same checkpoints."""
    nothing = torch.zeros(len(train))
    names = [str(group) for group in range(int(train.groups.max()) + 1)]
    counted = DenseReference.from_outcomes(correct=nothing, losses=nothing, groups=train.groups, names=names)
    data = Data(train=train, reference=counted)
    runs = [Run(method=methods.nft(), sparsity=0.0)]
    with _one_thread():
        return fit(model, data, runs=runs, recipe=DENSE, folder=folder, hooks=hooks)[0].model


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """A network this small is fastest so, and its weights do not depend on the number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


Builder = Callable[[float], tuple[nn.Module, dict[str, Any]]]
BUILDERS: dict[str, Builder] = {"digits": _digits}
