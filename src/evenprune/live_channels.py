"""Which channels of a pruned network are left: a filter that reads nothing takes bias and batch norm along.

A filter whose weights are gone, or read only channels that are gone, makes a channel of zeros. Its norm would
turn that into its own bias, one value at every pixel of every image, and layers behind it might see nothing
else: they stand still. In training such norms give their bias. In evaluation they multiply by 1 / √eps = 316
what the value moved since the running mean was taken, or was rounded by, and the next ones by 316 again; in
16 bits their gradients are rounding. With scale and shift at zero the channel is gone: in training and in
evaluation, in every precision and copy of the model.

    a channel of a convolution is left    if a weight that is left reads a channel that is left
    a feature of a linear layer           the same, if a norm is behind it (a flattened channel is many)
    of a norm, a pooling, a ReLU          if that of its input is (what keeps zeros at zero)
    of a sum                              if that of one of its terms is
    of a product                          if those of all its factors are (as of squeeze and excitation)
    of a concatenation                    if it is in its part
    of anything else                      always

The paper's table of active parameters leaves out the norms of filters without weights, too.
"""

from __future__ import annotations

import copy
import functools
import operator
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.pooling import _AdaptiveAvgPoolNd, _AdaptiveMaxPoolNd, _AvgPoolNd, _MaxPoolNd

_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
_ACTS = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Hardswish, nn.Tanh)
_POOLS = (_AdaptiveAvgPoolNd, _AdaptiveMaxPoolNd, _AvgPoolNd, _MaxPoolNd)
_KEEP_ZEROS = (*_ACTS, *_POOLS, nn.Identity, _DropoutNd)
_FEATURES = (nn.Linear, nn.BatchNorm1d, nn.Identity, _DropoutNd)  # of [batch, features] they make the same
_ACT_CALLS = (
    *(F.relu, F.relu_, F.relu6, F.leaky_relu, F.elu, F.gelu, F.silu, F.hardswish, F.tanh, F.dropout),
    *(torch.relu, torch.relu_, torch.tanh, "relu", "relu_", "tanh"),
)
_POOL_CALLS = (F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, F.adaptive_max_pool2d)
_CALLS_KEEP_ZEROS = (*_ACT_CALLS, *_POOL_CALLS)
_SUMS = (operator.add, torch.add, "add")  # as += is traced, too
_PRODUCTS = (operator.mul, torch.mul, "mul")
_JOINS = (torch.cat, torch.concat, torch.concatenate)
_FLATTENS = (torch.flatten, "flatten")


@dataclass(frozen=True)
class Step:
    """How the channels of one value of the network depend on those of others."""

    value: str
    sources: tuple[str, ...]
    weight: str | None = None  # of a convolution or a linear layer
    groups: int = 1
    product: bool = False  # of its sources, not their sum
    widths: tuple[int, ...] = ()  # of a concatenation: the channels of each source
    goes: tuple[str, ...] = ()  # parameters that go with the channel: a bias, a norm's scale and shift


def steps_of(model: nn.Module, *, dims: int | None = None) -> tuple[Step, ...]:
    """In the order of the computation; none for a model that cannot be traced (of a fleet, ask the model).

    dims: of the network's inputs, with the batch; where it is not given, linear layers that read these (and
    not a flattened value) are taken to read [batch, features].
    """
    hooked = {name for name, m in model.named_modules() if m._forward_hooks or m._forward_pre_hooks}
    if any(list(model.get_submodule(name).children()) for name in hooked):
        return ()  # what comes out of a part of the network may be something else
    try:
        with torch.random.fork_rng(devices=[]):
            graph = fx.Tracer().trace(_bare(model))
    except Exception:  # whatever a user's forward does with what is not a tensor
        return ()
    times = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    flat, widths, steps = set[str](), dict[str, int](), list[Step]()
    for node in graph.nodes:
        if _is_flat(node, model, flat, dims):
            flat.add(node.name)
        if (width := _width(node, model, widths, flat)) is not None:
            widths[node.name] = width
        step = None if str(node.target) in hooked else _step(node, model, times, flat, widths)
        steps += [] if step is None else [step]
    changed = {str(node.args[0]) for node in graph.nodes if _changes_its_input(node)}
    read = {str(node.target) for node in graph.nodes if node.op == "get_attr"}
    return tuple(step for step in steps if step.value not in changed and not read & {*step.goes})


def _bare(model: nn.Module) -> nn.Module:
    """A copy to be traced, without hooks: nothing of the model itself may change."""
    bare = copy.deepcopy(model).eval()
    for module in bare.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    return bare


def _calls(node: fx.Node, known: Collection[object]) -> bool:
    """Whether it calls one of these functions or methods; modules may bear the same names."""
    return node.op in ("call_function", "call_method") and node.target in known


def _module(node: fx.Node, model: nn.Module) -> nn.Module | None:
    return model.get_submodule(str(node.target)) if node.op == "call_module" else None


def _inputs(node: fx.Node) -> tuple[fx.Node, ...]:
    """The values that a step reads: two of a sum or product, else one; none where it is not that simple."""
    if node.op not in ("call_function", "call_method", "call_module"):
        return ()
    both = _calls(node, (*_SUMS, *_PRODUCTS))
    terms = node.args if both else node.args[:1] or (node.kwargs.get("input"),)
    found = tuple(term for term in terms if isinstance(term, fx.Node))
    return found if len(found) == 1 + both else ()


def _is_flat(node: fx.Node, model: nn.Module, flat: Collection[str], dims: int | None) -> bool:
    """Whether a value is known to be [batch, features]."""
    if node.op == "placeholder":
        return dims in (None, 2)
    module = _module(node, model)
    same = _calls(node, (*_SUMS, *_PRODUCTS, *_ACT_CALLS)) or isinstance(module, (*_FEATURES, *_ACTS))
    same, inputs = same or bool(_parts(node)), _parts(node) or _inputs(node)
    return _flattens(node, module) or bool(same and inputs and all(i.name in flat for i in inputs))


def _width(node: fx.Node, model: nn.Module, widths: Mapping[str, int], flat: Collection[str]) -> int | None:
    """How many channels a value has, if that is known."""
    module, inputs = _module(node, model), _parts(node) or _inputs(node)
    if type(module) is nn.Linear:
        return module.out_features if node.name in flat else None
    if isinstance(module, _BatchNorm):
        return module.num_features
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return module.out_channels
    found = [widths[value.name] for value in inputs if value.name in widths]
    if not found or len(found) < len(inputs):
        return None
    if _parts(node):
        return sum(found)
    same = _keeps_zeros(node, model, flat) or _calls(node, (*_SUMS, *_PRODUCTS))
    return found[0] if same and len({*found}) == 1 else None


def _keeps_zeros(node: fx.Node, model: nn.Module, flat: Collection[str]) -> bool:
    """Channel by channel; poolings of flat values go along the features."""
    module = _module(node, model)
    if isinstance(module, _POOLS) or _calls(node, _POOL_CALLS):
        return not any(value.name in flat for value in _inputs(node))
    return isinstance(module, _KEEP_ZEROS) or _calls(node, _CALLS_KEEP_ZEROS)


def _parts(node: fx.Node) -> tuple[fx.Node, ...]:
    """The values that a concatenation along the channels joins; none of anything else."""
    if not _calls(node, _JOINS) or not node.args or (*node.args[1:], *node.kwargs.values()) != (1,):
        return ()
    parts = tuple(node.args[0]) if isinstance(node.args[0], list | tuple) else ()
    nodes = tuple(part for part in parts if isinstance(part, fx.Node))
    return nodes if len(nodes) == len(parts) else ()


def _flattens(node: fx.Node, module: nn.Module | None) -> bool:
    if isinstance(module, nn.Flatten):
        return (module.start_dim, module.end_dim) == (1, -1)
    return _calls(node, _FLATTENS) and node.args[1:] == (1,) and not node.kwargs


def _changes_its_input(node: fx.Node) -> bool:
    """Methods such as add_, but not relu_."""
    named = node.op == "call_method" and str(node.target).endswith("_")
    return named and node.target not in _CALLS_KEEP_ZEROS and bool(node.args)


def _step(
    node: fx.Node,
    model: nn.Module,
    times: Mapping[str, int],
    flat: Collection[str],
    widths: Mapping[str, int],
) -> Step | None:
    module, inputs = _module(node, model), _parts(node) or _inputs(node)
    sources = tuple(value.name for value in inputs)
    if len({source in flat for source in sources}) != 1:  # none; or their channels lie in other dimensions
        return None
    if _parts(node):
        wide = tuple(widths[source] for source in sources if source in widths)
        return Step(node.name, sources, widths=wide) if len(wide) == len(sources) else None
    if type(module) in _LAYERS:
        return _layer_step(node, sources, model, times, flat)
    if isinstance(module, _BatchNorm):
        name = str(node.target)
        return Step(node.name, sources, goes=scale_and_shift(name)) if times[name] == 1 else None
    if _flattens(node, module):
        readers = [type(_module(reader, model)) for reader in node.users]
        return Step(node.name, sources) if set(readers) == {nn.Linear} else None
    product = _calls(node, _PRODUCTS)
    keeps = product or _calls(node, _SUMS) or _keeps_zeros(node, model, flat)
    return Step(node.name, sources, product=product) if keeps else None


def _layer_step(
    node: fx.Node, sources: tuple[str, ...], model: nn.Module, times: Mapping[str, int], flat: Collection[str]
) -> Step | None:
    """Of a convolution or linear layer; without a norm behind it, a bias stays, and so does its channel."""
    name = str(node.target)
    module, norm = model.get_submodule(name), _norm_behind(node, model)
    if type(module) is nn.Linear and (norm is None or node.name not in flat):
        return None
    if module.bias is not None and (norm is None or times[name] > 1):
        return None
    goes = () if module.bias is None else (f"{name}.bias",)
    return Step(node.name, sources, weight=f"{name}.weight", groups=getattr(module, "groups", 1), goes=goes)


def _norm_behind(node: fx.Node, model: nn.Module) -> nn.Module | None:
    """The norm that alone sees a value, as it is or after what keeps zeros at zero."""
    while len(node.users) == 1:
        (node,) = node.users
        module = _module(node, model)
        if isinstance(module, _BatchNorm):
            return module
        if not isinstance(module, _KEEP_ZEROS) and not _calls(node, _CALLS_KEEP_ZEROS):
            return None
    return None


def scale_and_shift(norm: str) -> tuple[str, str]:
    return f"{norm}.weight", f"{norm}.bias"


def left(steps: Sequence[Step], links: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameter that goes with channels -> which of these are left [runs, channels]; if anything is known.

    `links` of a layer's weight: whether a filter has a weight for an input [runs, filters, inputs].
    """
    values: dict[str, Tensor] = {}  # those that are not in it are left in all channels
    parameters: dict[str, Tensor] = {}
    for step in steps:
        known = [values[source] for source in step.sources if source in values]
        if step.weight is not None:
            if step.weight not in links:
                continue
            channels = _read(links[step.weight], known[0] if known else None, step.groups)
        elif step.widths and known:
            parts = [
                values.get(source, known[0].new_ones(len(known[0]), width))
                for source, width in zip(step.sources, step.widths, strict=True)
            ]
            channels = torch.cat(parts, dim=1)
        elif step.product and known:  # whatever the other factor is
            channels = functools.reduce(torch.logical_and, known)
        elif len(known) == len(step.sources):
            channels = functools.reduce(torch.logical_or, known)
        else:
            continue
        values[step.value] = channels
        parameters |= dict.fromkeys(step.goes, channels)
    return parameters


def _read(links: Tensor, inputs: Tensor | None, groups: int) -> Tensor:
    """Which filters read a channel that is left. [runs, filters]"""
    if inputs is None:
        return links.any(2)
    runs, filters, own = links.shape
    inputs = inputs.repeat_interleave(own * groups // inputs.shape[1], dim=1)  # pixels of flattened channels
    of_groups = inputs.reshape(runs, groups, -1).repeat_interleave(filters // groups, dim=1)
    return (links & of_groups).any(2)
