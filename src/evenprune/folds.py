"""Folds of the training samples: cross-fitting, so that every sample can serve as a held-out one.

A method with `multipliers_on="folds"` moves its multipliers by ψ measured on all training samples, each of
them answered by models that never saw it: a dense model that was trained without its fold, and a companion
run that is pruned from that dense model and trains without the fold as well. fit() adds the companions.

    of = folds.assign(train.groups, 4)
    apart = [Run(method=methods.nft(), sparsity=0.0, without=k) for k in range(4)]
    dense = fit(untrained, replace(data, folds=Folds(of)), runs=apart, recipe=dense_recipe)
    data = replace(data, folds=Folds(of, tuple(one.model for one in dense)))
    fit(model, data, runs=[Run(method=methods.ceag(…, multipliers_on="folds", estimator="pass", refresh=88))])
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor, nn

from evenprune.tally import InputProblems


@dataclass(frozen=True)
class Folds:
    """The fold of every training sample; and dense models, number k trained without fold k.

    Runs without a fold start from its model; if there are no models, from the one that fit() is given.
    """

    of: Tensor  # [N] int64, 0 … K − 1
    models: tuple[nn.Module, ...] = ()

    @property
    def count(self) -> int:
        return int(self.of.max()) + 1 if len(self.of) else 0


def assign(groups: Tensor | Sequence[int], count: int, *, seed: int = 0) -> Tensor:
    """A fold for every sample, [N]: of each group (or class), all folds have as many, give or take one.

    So have they of all samples together. Samples without a group (−1) are shared out like one more group.
    """
    ids = _as_ids(groups)
    wrong = _misdealt(ids, count)
    if wrong or ids is None:
        raise InputProblems(wrong)
    shuffled = torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))
    by_group = shuffled[torch.argsort(ids[shuffled], stable=True)]
    of = torch.empty(len(ids), dtype=torch.int64)
    of[by_group] = torch.arange(len(ids)) % count  # dealt out like cards, group after group
    return of


def _as_ids(groups: Tensor | Sequence[int]) -> Tensor | None:
    """The groups as a tensor; None where they are no numbers."""
    try:
        return torch.as_tensor(groups).cpu()
    except (TypeError, ValueError, RuntimeError):
        return None


def _misdealt(ids: Tensor | None, count: int) -> list[str]:
    """Why there can be no such folds."""
    found = []
    if ids is None:
        found.append("groups are no numbers; give ids of shape [N], −1 where a group is not known.")
    elif ids.ndim != 1 or ids.is_floating_point():
        found.append(f"groups are {ids.dtype} {list(ids.shape)}; give ids of shape [N].")
    if isinstance(count, bool) or not isinstance(count, Integral):
        found.append(f"count is {count!r}, a {type(count).__name__}; give how many folds, such as 4.")
    elif not found and ids is not None and not 2 <= count <= len(ids):
        found.append(f"{count} folds of {len(ids)} samples; give 2 to {len(ids)}.")
    return found


def problems(folds: Folds, *, samples: int, batch: int) -> Iterator[str]:
    """What is wrong with the folds of so many training samples."""
    of, models = folds.of, len(folds.models)
    if of.dtype != torch.int64 or of.ndim != 1 or len(of) != samples:
        yield (
            f"folds.of is {of.dtype} {list(of.shape)} for {samples} training samples; "
            "give an int64 per sample, as folds.assign does."
        )
        return
    if samples and (int(of.min()) < 0 or folds.count < 2):
        yield f"folds.of has values from {int(of.min())} to {int(of.max())}; give 0 … K − 1, K at least 2."
        return
    sizes = torch.bincount(of).tolist()
    for fold, size in enumerate(sizes):
        if not size:
            yield f"fold {fold} of {len(sizes)} has no samples; number the folds without gaps."
        elif samples - size < batch:
            yield (
                f"without fold {fold} there are {samples - size} training samples, fewer than one batch of "
                f"{batch}. Lower recipe.batch_size, or make more folds."
            )
    if models not in (0, len(sizes)):
        yield f"there are {len(sizes)} folds and {models} models of them; give one for each, in order."


def misfits(folds: Folds, model: nn.Module) -> Iterator[str]:
    """Fold models that cannot be one each: given twice, or of other weights than the model has."""
    own = _shapes(model)
    for fold, other in enumerate(folds.models):
        if any(other is known for known in (model, *folds.models[:fold])):
            yield (
                f"the model of fold {fold} is the dense model itself, or that of another fold; give each "
                "fold one that was trained without it."
            )
        found = _shapes(other)
        apart = sorted(name for name in own | found if own.get(name) != found.get(name))
        if apart:
            shown = ", ".join(apart[:3]) + (" …" if len(apart) > 3 else "")
            yield f"the model of fold {fold} is no copy of the dense model: {shown} differ in name or shape."


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
