"""Many runs of one model as one network: `widen`, `load_`, `extract`, `of_runs`; `single` for any model.

A fleet takes [runs, batch, *features] and gives [runs, batch, classes]. Its parameters and buffers have the
names of the original model, and `parameter.unflatten(0, (runs, -1))` separates the runs in any memory format
(`parameter.view(runs, -1)` while it is contiguous).
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast

import torch
from torch import Tensor, fx, nn

from evenprune.norm_fusion import fuse
from evenprune.wide_layers import part
from evenprune.widening import Rewriter, Shapes, where

State = Mapping[str, Tensor]
ModuleT = TypeVar("ModuleT", bound=nn.Module)
_CHECK_BATCH = 4
_CHECK_ERROR = 1e-7  # relative, in float64: far above rounding, far below any real difference


class CannotWiden(ValueError):
    """The model cannot be turned into many in one; the message names every layer and reason."""


class Fleet(nn.Module):
    """`runs` models of one architecture in the same kernels. Made by `widen`."""

    runs: int

    def __init__(
        self, tree: nn.Module, program: Callable[..., Tensor], *, template: nn.Module, runs: int
    ) -> None:
        super().__init__()
        for name, child in tree.named_children():
            self.add_module(name, child)
        # Not registered: the template is no part of the state, and the program is plain code.
        self.__dict__.update(_template=template, _program=program, runs=runs)

    def forward(self, inputs: Tensor) -> Tensor:
        """[runs, batch, *features] -> [runs, batch, classes]"""
        return cast(Tensor, self.__dict__["_program"](self, inputs))

    def extra_repr(self) -> str:
        return f"runs={self.runs}"


class Single(nn.Module):
    """One run of any model behind the interface of a fleet. It shares the model's parameters and buffers."""

    runs: int = 1

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.__dict__["_model"] = model
        for registry in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            self.__dict__[registry] = getattr(model, registry)  # the same names and tensors, no prefix

    def forward(self, inputs: Tensor) -> Tensor:
        """[1, batch, *features] -> [1, batch, classes]"""
        return cast(Tensor, self.__dict__["_model"](inputs.squeeze(0))).unsqueeze(0)

    def train(self, mode: bool = True) -> Single:
        self.__dict__["_model"].train(mode)
        return super().train(mode)


def single(model: nn.Module) -> Single:
    """The interface of a fleet for one run of any model; the model itself, not a copy."""
    return Single(model)


def widen(model: nn.Module, n: int, *, sample_input: Tensor, check: bool = True) -> Fleet:
    """A fleet of `n` runs that all start with the weights of `model`.

    `sample_input` is a batch [batch, *features] of a single run; only its shape, dtype and device matter.
    Raises CannotWiden, naming every layer that is not understood, or when the fleet computes something else
    than `n` separate models do.
    """
    if n < 1:
        raise ValueError(f"n = {n}: a fleet has at least one run.")
    if sample_input.ndim < 2 or not sample_input.is_floating_point():
        shape = tuple(sample_input.shape)
        raise CannotWiden(f"sample_input is {sample_input.dtype} {shape}; pass floats [batch, *features].")
    _raise_problems(model, _state_problems(model))
    traced = _trace(model)
    shapes = _shapes(traced, sample_input)
    rewriter = Rewriter(copy.deepcopy(model), n, shapes)
    rewriter.rewrite(list(traced.graph.nodes))
    problems = rewriter.problems or _unused_problems(model, rewriter.swapped)
    _raise_problems(model, problems)
    fuse(rewriter.graph, rewriter.tree)
    program = type(fx.GraphModule(rewriter.tree, rewriter.graph)).forward
    fleet = Fleet(rewriter.tree, program, template=copy.deepcopy(model), runs=n)
    fleet.train(model.training)
    if check:
        _check(fleet, sample_input)
    return fleet


@torch.no_grad()
def load_(fleet: Fleet | Single, source: nn.Module | State | Sequence[nn.Module | State]) -> None:
    """Load weights and buffers: of one model into all runs, or of a sequence of models into a run each."""
    sources = list(source) if isinstance(source, Sequence) else [source] * fleet.runs
    if len(sources) != fleet.runs:
        raise ValueError(f"{len(sources)} models for a fleet of {fleet.runs}: give one, or one per run.")
    states = [given.state_dict() if isinstance(given, nn.Module) else given for given in sources]
    own = fleet.state_dict(keep_vars=True)
    problems = [_mismatch(own, state, run, fleet.runs) for run, state in enumerate(states)]
    if any(problems):
        raise ValueError("These do not fit into the fleet: " + "; ".join(filter(None, problems)))
    for run, state in enumerate(states):
        for name, tensor in own.items():
            target = part(tensor, run, fleet.runs)
            target.copy_(state[name].reshape(target.shape))


def _mismatch(own: State, state: State, run: int, runs: int) -> str:
    """What keeps a state from being loaded into a run; empty if nothing does."""
    names = sorted(set(own) ^ set(state))
    if names:
        return f"run {run}: {names[:5]} only on one side"
    wrong = [name for name in own if part(own[name], run, runs).numel() != state[name].numel()]
    return f"run {run}: {wrong[0]} has shape {tuple(state[wrong[0]].shape)}" if wrong else ""


@torch.no_grad()
def extract(fleet: Fleet | Single, run: int) -> nn.Module:
    """A new model of the original architecture with the weights and buffers of one run, on its device."""
    if not 0 <= run < fleet.runs:
        raise IndexError(f"run {run} of a fleet of {fleet.runs}: give 0 … {fleet.runs - 1}.")
    if isinstance(fleet, Single):
        return copy.deepcopy(cast(nn.Module, fleet.__dict__["_model"]))
    model = copy.deepcopy(cast(nn.Module, fleet.__dict__["_template"]))
    wide = fleet.state_dict()
    state = {
        name: part(wide[name], run, fleet.runs).reshape(tensor.shape).clone()
        for name, tensor in model.state_dict().items()
    }
    some = next(iter(state.values()))
    model.to(device=some.device)
    model.load_state_dict(state, assign=True)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(fleet.get_parameter(name).requires_grad)
    return model.train(fleet.training)


def of_runs(network: Fleet | Single, members: Tensor, *, sample_input: Tensor) -> Fleet:
    """A fleet of copies, a run for each place in `members`, with the weights that these runs have now.

    `sample_input` is a batch of one run. Raises CannotWiden where the network cannot be widened.
    """
    one = extract(network, 0)
    one.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # as it was when it was widened
    wide = widen(one, len(members), sample_input=sample_input, check=False)
    if any(t.ndim == 4 and not t.is_contiguous() for t in network.state_dict().values()):
        wide.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in the stub
    copy_runs_(wide, network, members)
    return wide.eval()


@torch.no_grad()
def copy_runs_(wide: Fleet, network: Fleet | Single, members: Tensor) -> None:
    """Give a fleet `of_runs` the weights and buffers that the network's runs have now."""
    held = network.state_dict()
    for name, tensor in wide.state_dict().items():
        copy_parts_(tensor, held[name], members, runs=network.runs)


def copy_parts_(target: Tensor, source: Tensor, members: Tensor, *, runs: int) -> None:
    """The parts of some of `runs` runs, side by side; a count of batches is one for all of them."""
    chosen = source.unflatten(0, (runs, -1))[members] if source.ndim else source  # type: ignore[no-untyped-call]
    target.copy_(chosen.reshape(target.shape))


def _trace(model: nn.Module) -> fx.GraphModule:
    """The graph of the model, the same in training and in evaluation."""
    try:
        training = fx.symbolic_trace(copy.deepcopy(model).train())
        evaluation = fx.symbolic_trace(copy.deepcopy(model).eval())
    except Exception as error:
        raise CannotWiden(
            f"{type(model).__name__} cannot be traced ({error}). Branches and loops on values, and work "
            "outside of tensors, cannot be widened; such models train one run at a time."
        ) from error
    inputs = [node.name for node in training.graph.nodes if node.op == "placeholder"]
    problems = [] if len(inputs) == 1 else [f"forward takes {inputs}; only a single tensor can be widened"]
    if training.code != evaluation.code:
        problems.append(
            "forward does other things in training than in evaluation; use nn.Dropout for dropout"
        )
    _raise_problems(model, problems)
    return evaluation


def _shapes(traced: fx.GraphModule, sample_input: Tensor) -> dict[fx.Node, tuple[int, ...]]:
    """Shapes of all values; every one must begin with the batch, whatever its size."""
    features = sample_input.shape[1:]
    seen = []
    for batch in (_CHECK_BATCH, _CHECK_BATCH + 1):
        shapes = Shapes(traced)
        try:
            with torch.no_grad():
                shapes.run(sample_input.new_zeros(batch, *features))
        except Exception as error:
            raise CannotWiden(
                f"The model fails on a batch of {batch} × {tuple(features)}: {error}"
            ) from error
        seen.append(shapes.of)
    first, second = seen
    lost = [
        f"{where(node)}: a result of shape {shape} does not begin with the batch"
        for node, shape in first.items()
        if node.op not in ("get_attr", "output")
        and (*shape[:1], *second[node][:1]) != (_CHECK_BATCH, _CHECK_BATCH + 1)
    ]
    _raise_problems(traced, lost)
    return first


def _state_problems(model: nn.Module) -> list[str]:
    names: dict[int, list[str]] = {}
    for name, tensor in (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ):
        names.setdefault(id(tensor), []).append(name)
    problems = [
        f"{' and '.join(same)}: tied, one tensor with two names" for same in names.values() if same[1:]
    ]
    for name, module in model.named_modules():
        if module._forward_hooks or module._forward_pre_hooks:
            problems.append(f"{name or 'the model'}: has forward hooks; remove them")
    return problems


def _unused_problems(model: nn.Module, swapped: set[str]) -> list[str]:
    owners = Counter(
        name.rpartition(".")[0] for name, _ in (*model.named_parameters(), *model.named_buffers())
    )
    return [
        f"{owner or 'the model itself'}: {count} parameters or buffers that forward uses in no layer"
        for owner, count in owners.items()
        if owner not in swapped
    ]


def _raise_problems(model: nn.Module, problems: list[str]) -> None:
    if problems:
        raise CannotWiden(f"{type(model).__name__} cannot be widened:\n  " + "\n  ".join(problems))


@torch.no_grad()
def _check(fleet: Fleet, sample_input: Tensor) -> None:
    """Compare a copy of the fleet with separate, different models, in training and in evaluation."""
    generator = torch.Generator().manual_seed(0)  # the caller's random numbers stay as they are
    wide = _without_dropout(copy.deepcopy(fleet).double())
    models = [
        _without_dropout(_disturbed(extract(fleet, run), generator).double()) for run in range(fleet.runs)
    ]
    load_(wide, models)
    shape = (fleet.runs, _CHECK_BATCH, *sample_input.shape[1:])
    inputs = torch.randn(shape, generator=generator, dtype=torch.float64).to(sample_input.device)
    for training in (True, False):
        together = wide.train(training)(inputs)
        for run, model in enumerate(models):
            apart = model.train(training)(inputs[run])
            _compare(together[run], apart, run=run, what=f"outputs, training={training}")
            for name, buffer in extract(wide, run).named_buffers():
                _compare(buffer, model.get_buffer(name), run=run, what=f"buffer {name}")


def _compare(together: Tensor, apart: Tensor, *, run: int, what: str) -> None:
    scale = max(1.0, float(apart.abs().max())) if apart.numel() else 1.0
    same = together.shape == apart.shape
    error = float((together - apart).abs().max()) / scale if same and apart.numel() else 0.0
    if not same or not error <= _CHECK_ERROR:
        raise CannotWiden(
            f"The widened network and separate models disagree: run {run}, {what}, shapes "
            f"{tuple(together.shape)} and {tuple(apart.shape)}, relative difference {error:.2g}."
        )


@torch.no_grad()
def _disturbed(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """Change all weights and statistics a little, so that no two runs are alike."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            noise = torch.rand(tensor.shape, generator=generator, dtype=torch.float32).to(tensor)
            tensor.mul_(0.75 + 0.5 * noise).add_(0.01 * noise)
    return model


def _without_dropout(model: ModuleT) -> ModuleT:
    """Dropout draws other numbers in the fleet than in separate models: it is left out of the comparison."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    return model
