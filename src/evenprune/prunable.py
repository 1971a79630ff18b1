"""Which parameters of a model may be pruned, and the shape of each in a single run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

_NORMS: tuple[type[nn.Module], ...] = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


@dataclass(frozen=True)
class Layer:
    """One prunable parameter: its shape in a single run, and which dimension of it is the input."""

    name: str
    shape: tuple[int, ...]
    input_dim: int | None  # None: an N:M pattern has no meaning here

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def prunable_names(
    model: nn.Module, *, keep: Sequence[str], exclude: Sequence[str], include: Sequence[str]
) -> list[str]:
    """Names of the prunable parameters, in the order in which the model registers them."""
    everything = [name for name, _ in model.named_parameters()]
    _check_rules(everything, keep=keep, patterns=(*exclude, *include))
    by_rule = [name for name in everything if _is_weight(model, name)]
    ends = {by_rule[0 if end == "first" else -1] for end in keep} if by_rule else set()
    chosen = (set(by_rule) - ends) | {name for name in everything if matches(name, include)}
    names = [name for name in everything if name in chosen and not matches(name, exclude)]
    if not names:
        raise ValueError(
            f"Nothing to prune in {type(model).__name__}: biases, norms, the layers {tuple(keep)} and "
            f"exclude = {tuple(exclude)} are left out. Pass keep=() or name layers in include."
        )
    return names


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether the parameter, or a module that holds it, has a name that matches a pattern."""
    parts = name.split(".")
    holders = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
    return any(fnmatchcase(holder, pattern) for pattern in patterns for holder in holders)


def layer_of(model: nn.Module, name: str, *, runs: int) -> Layer:
    """The parameter as one run sees it; a widened model holds `runs` of them."""
    owner = _owner(model, name)
    shape = tuple(model.get_parameter(name).shape)
    if shape[0] % runs:
        raise ValueError(f"{name} of shape {shape} does not divide into {runs} runs: widen the model first.")
    widened_linear = isinstance(owner, nn.Linear) and len(shape) == 3  # [runs, out, in]
    shape = shape[1:] if widened_linear else (shape[0] // runs, *shape[1:])
    return Layer(name, shape, _input_dim(owner, shape))


def _input_dim(owner: nn.Module, shape: tuple[int, ...]) -> int | None:
    if isinstance(owner, nn.modules.conv._ConvTransposeNd) or len(shape) < 2:
        return None
    return 1 if isinstance(owner, nn.modules.conv._ConvNd) else len(shape) - 1


def _is_weight(model: nn.Module, name: str) -> bool:
    if isinstance(_owner(model, name), (*_NORMS, *_EMBEDDINGS)) or name.endswith("bias"):
        return False
    return model.get_parameter(name).ndim >= 2


def _owner(model: nn.Module, name: str) -> nn.Module:
    return model.get_submodule(name.rpartition(".")[0])


def _check_rules(names: Sequence[str], *, keep: Sequence[str], patterns: Sequence[str]) -> None:
    problems = [
        f"keep has {end!r}: only 'first' and 'last' are rules; name other layers in exclude"
        for end in keep
        if end not in ("first", "last")
    ]
    problems += [f"no parameter matches {p!r}" for p in patterns if not any(matches(n, (p,)) for n in names)]
    if problems:
        raise ValueError("; ".join(problems) + f". The model has: {', '.join(names)}.")
