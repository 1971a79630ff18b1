"""Masks: choose which weights go, keep them at zero, count what is left; and the sparsity schedule.

Every parameter is seen as [runs, weights]: a plain model is one run, a widened model many. A filter that
reads nothing takes its bias, and scale and shift of its norm, along (live_channels.py).
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from evenprune.live_channels import Step, left, steps_of
from evenprune.prunable import Layer, layer_of, matches, prunable_names

Scope = Literal["layer", "global"]
Pattern = tuple[int, int]  # (kept, of): (2, 4) keeps 2 of every 4 neighbours along the input dimension
Sparsity = float | Sequence[float] | Tensor
Number = TypeVar("Number", float, Tensor)

# s · n may land a hair above the whole number it stands for (0.07 · 100 = 7.000000000000001).
# The product is lowered by this share of itself before it is rounded up.
_ROUNDING = 1e-12


class SparsityNotReachable(ValueError):
    """No mask has the sparsity that was asked for; the message says what can be had."""


@dataclass(frozen=True)
class LayerCount:
    name: str
    size: int  # of one run
    left: tuple[int, ...]  # one per run


@dataclass(frozen=True)
class Summary:
    """What is left, per layer and in total; sizes are those of one run."""

    layers: tuple[LayerCount, ...]
    unprunable: int
    runs: int
    silent: tuple[int, ...]  # biases, and scales and shifts of norms, that went with their channels, per run

    @property
    def prunable(self) -> int:
        return sum(layer.size for layer in self.layers)

    @property
    def prunable_left(self) -> tuple[int, ...]:
        return tuple(sum(layer.left[run] for layer in self.layers) for run in range(self.runs))

    @property
    def left(self) -> tuple[int, ...]:
        """All parameters that are left in each run, those that are never pruned included."""
        pairs = zip(self.prunable_left, self.silent, strict=True)
        return tuple(left + self.unprunable - silent for left, silent in pairs)

    def __str__(self) -> str:
        rows = [
            *self.layers,
            LayerCount("prunable", self.prunable, self.prunable_left),
            LayerCount("all parameters", self.prunable + self.unprunable, self.left),
        ]
        width = max(len(row.name) for row in rows)
        return "\n".join(_line(row, width) for row in rows)


def _line(row: LayerCount, width: int) -> str:
    low, high = min(row.left), max(row.left)
    left = f"{high:,}" if low == high else f"{low:,}–{high:,}"
    return f"{row.name:<{width}}  {row.size:>12,}  {left:>12} left  {1 - high / row.size:>7.2%} pruned"


def schedule(epoch: int, *, final: Number, initial: float = 0.0, last: int) -> Number:
    """Sparsity at the start of `epoch`: s_f + (s_i − s_f)(1 − t/T)³ for t = 0…T; T = 0 prunes at once."""
    if epoch < 0 or last < 0:
        raise ValueError(f"epoch = {epoch} and last = {last} must not be negative.")
    if epoch >= last:
        return final
    remaining: float = (1 - epoch / last) ** 3
    return final + (initial - final) * remaining


def pruned_count(sparsity: float, size: int) -> int:
    """k = ceil(s · n), not fooled by the rounding of the product."""
    return math.ceil(sparsity * size * (1 - _ROUNDING))


def choose(scores: Tensor, alive: Tensor, count: Tensor) -> Tensor:
    """Which weights stay: all but the `count` lowest scores of each run; the dead are the first to go.

    `scores`, `alive` and the result are [runs, n], `count` is [runs]. Of equal scores the earlier one goes,
    so the count is met exactly.
    """
    return _rank(_dead_first(scores, alive)) >= count.unsqueeze(-1)


def spare_pattern(scores: Tensor, alive: Tensor, *, pattern: Pattern, input_dim: int) -> Tensor:
    """Raise to +∞ the scores of the `kept` best of every `of` neighbours along the input dimension.

    `scores` and `alive` are [runs, *shape]. What stays finite may be pruned in any order and number
    without breaking the pattern; with all of it gone the pattern is complete.
    """
    kept, of = pattern
    moved = _dead_first(scores, alive).movedim(input_dim + 1, -1)
    spared = _rank(moved.reshape(*moved.shape[:-1], -1, of)) >= of - kept
    return scores.masked_fill(spared.reshape(moved.shape).movedim(-1, input_dim + 1), math.inf)


def _dead_first(scores: Tensor, alive: Tensor) -> Tensor:
    """Scores with −∞ for the dead, and for nobody else."""
    return scores.clamp_min(torch.finfo(scores.dtype).min).masked_fill(~alive, -math.inf)


def _rank(scores: Tensor) -> Tensor:
    """0 for the lowest score along the last dimension, 1 for the next, …"""
    order = scores.argsort(dim=-1, stable=True)
    places = torch.arange(scores.shape[-1], device=scores.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, places)


class Masks(nn.Module):
    """One boolean buffer per prunable parameter, True where the weight lives.

    Being a module, it has `state_dict`, deepcopy and `.to(device)`. It holds no reference to the model.
    """

    def __init__(
        self, layers: Sequence[Layer], *, runs: int, unprunable: int, steps: Sequence[Step] = ()
    ) -> None:
        super().__init__()
        self.layers = tuple(layers)
        self.runs = runs
        self.unprunable = unprunable
        self.steps = tuple(steps)  # how channels depend on each other
        self._kept: list[Tensor] = []  # the masks as numbers
        self._followed: list[tuple[Tensor, int]] = []  # the masks that these were, and in which version

    @classmethod
    def of(
        cls,
        model: nn.Module,
        *,
        runs: int = 1,
        keep: Sequence[Literal["first", "last"]] = ("first", "last"),
        exclude: Sequence[str] = (),
        include: Sequence[str] = (),
        steps: Sequence[Step] | None = None,
    ) -> Masks:
        """Masks of all ones for the prunable parameters of `model`.

        Biases, norms and embeddings are never pruned, nor are the first and the last layer (`keep`), nor
        what matches a name or glob pattern in `exclude` (of a parameter, or of a module that holds it).
        What matches `include` is prunable in spite of those rules; `exclude` has the last word. But its bias,
        and scale and shift of its norm, go with a filter that reads nothing; `steps` says which, where it is
        not to be found in the model: of a fleet, steps_of the model it was made of.
        """
        names = prunable_names(model, keep=keep, exclude=exclude, include=include)
        others = [parameter for name, parameter in model.named_parameters() if name not in set(names)]
        unprunable = sum(parameter.numel() for parameter in others) // runs
        layers = [layer_of(model, name, runs=runs) for name in names]
        found = steps_of(model) if steps is None else steps
        free = {n for n in _untied(model) if n not in names and not matches(n, exclude)}
        goes = [step for step in found if free.issuperset(step.goes)]
        masks = cls(layers, runs=runs, unprunable=unprunable, steps=goes)
        for name in names:
            ones = torch.ones_like(model.get_parameter(name), dtype=torch.bool, requires_grad=False)
            masks.register_buffer(_key(name), ones)
        return masks

    def __getstate__(self) -> dict[str, Any]:
        """Copies begin with versions of their own."""
        return {**self.__dict__, "_kept": [], "_followed": []}

    def __getitem__(self, name: str) -> Tensor:
        """The mask of a parameter, in the parameter's own shape."""
        return cast(Tensor, self._buffers[_key(name)])  # get_buffer is slow, and this runs at every step

    @torch.no_grad()
    def prune_(
        self,
        model: nn.Module,
        sparsity: Sparsity,
        *,
        scope: Scope = "layer",
        pattern: Pattern | None = None,
        scores: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Raise the sparsity (one number, or one per run), then apply the masks.

        The lowest scores go: |w|, or `scores` by parameter name. k = ceil(s · n) weights are gone
        afterwards, of every layer or (`scope="global"`) of all layers together. Pruned weights never return.
        """
        self.check_reachable(sparsity, scope=scope, pattern=pattern)
        wanted = sparsity_per_run(sparsity, self.runs)
        sizes = [layer.size for layer in self.layers]
        flat = self._scores(model, scores, pattern)  # per layer: [runs, n]
        alive = [self._per_run(layer).flatten(1) for layer in self.layers]
        if scope == "global":
            flat, alive = [torch.cat(flat, dim=1)], [torch.cat(alive, dim=1)]
        chosen = []
        for score, living in zip(flat, alive, strict=True):
            count = torch.tensor([pruned_count(s, score.shape[1]) for s in wanted], device=score.device)
            chosen.append(choose(score, living, count))
        parts = torch.split(torch.cat(chosen, dim=1), sizes, dim=1)
        for layer, mask in zip(self.layers, parts, strict=True):
            self[layer.name].copy_(mask.reshape(self[layer.name].shape))
        self.apply_(model)

    @torch.no_grad()
    def apply_(self, model: nn.Module) -> None:
        """Set pruned weights to zero, in place; call it after each optimizer step. No wait for the device."""
        if self.layers:
            weights = self._parameters_of(model, [*self._names(), *self._followers])
            torch._foreach_mul_(weights, self._factors(weights))

    def kept(self) -> dict[str, Tensor]:
        """Every mask by the name of its parameter: of the weights, and, flat, of what goes with filters."""
        weights = {name: self[name] for name in self._names()}
        return weights | {name: channels.flatten() for name, channels in self._channels().items()}

    def _channels(self) -> dict[str, Tensor]:
        """Parameter that goes with filters -> which of its channels are left. [runs, channels]"""
        weights = {step.weight for step in self.steps}
        links = {
            layer.name: self._per_run(layer).unsqueeze(-1).flatten(3).any(3)
            for layer in self.layers
            if layer.name in weights
        }
        return left(self.steps, links)

    @functools.cached_property
    def _followers(self) -> list[str]:
        """The parameters that go with filters."""
        return list(self._channels())

    def _factors(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """The masks in type and layout of the weights: pairs of a kind go into one kernel, not one per layer.

        They stay where they are, for graphs that read them, and follow the masks when these have changed, as
        told by their versions: write masks by operations of torch, not through `.data` or NumPy.
        """
        masks = [self[name] for name in self._names()]
        if torch.is_inference_mode_enabled() or masks[0].is_inference():  # they have no versions
            return self._shaped(weights)
        if not _same(self._followed, masks):
            if [_kind(kept) for kept in self._kept] != [_kind(weight) for weight in weights]:
                self._kept = [torch.empty_like(weight, requires_grad=False) for weight in weights]
            torch._foreach_copy_(self._kept, self._shaped(weights))
            self._followed = [(mask, mask._version) for mask in masks]
        return self._kept

    def _shaped(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """Biases of a fleet may have a dimension of runs."""
        return [mask.reshape(w.shape) for mask, w in zip(self.kept().values(), weights, strict=True)]

    def check_reachable(
        self, sparsity: Sparsity, *, scope: Scope = "layer", pattern: Pattern | None = None
    ) -> None:
        """Raise SparsityNotReachable, with every reason, if `prune_` could not do it. Prunes nothing."""
        wanted = sparsity_per_run(sparsity, self.runs)
        summary = self.summary()
        together = LayerCount("all layers", summary.prunable, summary.prunable_left)
        problems = self._pattern_problems(pattern, max(wanted)) if pattern else []
        for unit in summary.layers if scope == "layer" else (together,):
            problems += _count_problems(unit, [pruned_count(s, unit.size) for s in wanted])
        if problems:
            shown = ", ".join(f"{s:.6g}" for s in sorted(set(wanted)))
            raise SparsityNotReachable(
                f"Sparsity {shown} is not reachable:\n  " + "\n  ".join(problems) + "\n"
                "Ask for a sparsity within these bounds, or leave those layers out with exclude."
            )

    def summary(self) -> Summary:
        left = self._left().tolist()
        counts = [LayerCount(layer.name, layer.size, tuple(left[i])) for i, layer in enumerate(self.layers)]
        gone = [channels.logical_not().sum(1) for channels in self._channels().values()]
        silent = torch.stack(gone).sum(0).tolist() if gone else [0] * self.runs
        return Summary(tuple(counts), unprunable=self.unprunable, runs=self.runs, silent=tuple(silent))

    @property
    def sparsity(self) -> Tensor:
        """Share of the prunable weights that is gone in each run. [runs]"""
        return 1 - self._left().sum(0).double() / sum(layer.size for layer in self.layers)

    def extract(self, run: int) -> Masks:
        """The masks of one run, for the single model."""
        single = Masks(self.layers, runs=1, unprunable=self.unprunable, steps=self.steps)
        for layer in self.layers:
            single.register_buffer(_key(layer.name), self._per_run(layer)[run].clone())
        return single

    def _left(self) -> Tensor:
        return torch.stack(
            [self._per_run(layer).flatten(1).sum(1) for layer in self.layers]
        )  # [layers, runs]

    def _per_run(self, layer: Layer) -> Tensor:
        return self[layer.name].reshape(self.runs, *layer.shape)

    def _names(self) -> list[str]:
        return [layer.name for layer in self.layers]

    def _parameters_of(self, model: nn.Module, names: Sequence[str]) -> list[Tensor]:
        parameters = dict(model.named_parameters())
        absent = [name for name in names if name not in parameters]
        if absent:
            raise ValueError(
                f"{type(model).__name__} has no parameters {absent[:3]} ({len(absent)} in all). "
                "Pass the model that the masks were made for, without a wrapper around it."
            )
        return [parameters[name] for name in names]

    def _scores(
        self, model: nn.Module, scores: Mapping[str, Tensor] | None, pattern: Pattern | None
    ) -> list[Tensor]:
        """Per layer [runs, n]: what is lowest goes first."""
        flat = []
        weights = self._parameters_of(model, self._names())
        for layer, parameter in zip(self.layers, weights, strict=True):
            score = parameter.abs() if scores is None else scores[layer.name]
            score = score.reshape(self.runs, *layer.shape)
            if pattern is not None and layer.input_dim is not None:
                alive = self._per_run(layer)
                score = spare_pattern(score, alive, pattern=pattern, input_dim=layer.input_dim)
            flat.append(score.flatten(1))
        return flat

    def _pattern_problems(self, pattern: Pattern, highest: float) -> list[str]:
        kept, of = pattern
        if not 0 < kept < of:
            raise ValueError(f"pattern = {pattern} must be (kept, of) with 0 < kept < of, such as (2, 4).")
        problems = [f"{kept}:{of} reaches {1 - kept / of:.6g} at most"] if highest > 1 - kept / of else []
        for layer in self.layers:
            inputs = 1 if layer.input_dim is None else layer.shape[layer.input_dim]
            if layer.input_dim is None or inputs % of:
                problems.append(f"{layer.name}: {inputs} inputs do not divide into {of}s, so only 0")
                continue
            alive = self._per_run(layer).movedim(layer.input_dim + 1, -1)
            if int(alive.reshape(-1, of).sum(-1).min()) < kept:
                problems.append(f"{layer.name}: some {of} neighbours have fewer than {kept} left already")
        return problems


def _untied(model: nn.Module) -> set[str]:
    """Names of the parameters that have one name only."""
    every = list(model.named_parameters(remove_duplicate=False))
    times = Counter(id(parameter) for _, parameter in every)
    return {name for name, parameter in every if times[id(parameter)] == 1}


def _count_problems(unit: LayerCount, counts: list[int]) -> list[str]:
    """Why `counts[run]` of the unit's weights cannot be gone; empty if they can."""
    problems = []
    if max(counts) >= unit.size:
        highest = (unit.size - 1) / unit.size
        problems.append(f"{unit.name}: all {unit.size} weights would go; at most {highest:.6g} leaves one")
    gone = [unit.size - left for left in unit.left]
    early = [run for run, count in enumerate(counts) if count < gone[run]]
    if early:
        share = f"{gone[early[0]]} of {unit.size} weights ({gone[early[0]] / unit.size:.6g})"
        problems.append(f"{unit.name}: {share} are gone already in run {early[0]} and never return")
    return problems


def sparsity_per_run(sparsity: Sparsity, runs: int) -> list[float]:
    """One value in [0, 1) per run. A float32 tensor is read to seven digits: 0.925 means 0.925."""
    if isinstance(sparsity, Tensor):
        digits = {torch.float64: 17, torch.float32: 7}.get(sparsity.dtype)
        if digits is None:
            raise TypeError(f"sparsity is a tensor of {sparsity.dtype}: give float64 or float32.")
        values = [float(f"{value:.{digits}g}") for value in sparsity.detach().reshape(-1).tolist()]
    else:
        values = [float(s) for s in sparsity] if isinstance(sparsity, Sequence) else [float(sparsity)]
    if len(values) not in (1, runs):
        raise ValueError(f"sparsity has {len(values)} values for {runs} runs: give one, or one per run.")
    wrong = [value for value in values if not 0 <= value < 1]
    if wrong:
        raise SparsityNotReachable(f"Sparsity {wrong} is not reachable: give values in [0, 1).")
    return values * runs if len(values) == 1 else values


def _same(followed: Sequence[tuple[Tensor, int]], masks: Sequence[Tensor]) -> bool:
    """Whether these are the masks that were followed, unchanged since. Looks at no values."""
    return len(followed) == len(masks) and all(
        before is mask and version == mask._version
        for (before, version), mask in zip(followed, masks, strict=True)
    )


def _kind(weight: Tensor) -> tuple[torch.dtype, torch.device, torch.Size, tuple[int, ...]]:
    return weight.dtype, weight.device, weight.shape, weight.stride()


def _key(name: str) -> str:
    return name.replace(".", "/")  # a buffer's name must not hold a dot
