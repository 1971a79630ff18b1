"""Rewrite the graph of a model so that every layer serves many runs; refuse what is not understood."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from evenprune.wide_layers import can_widen, reshape_features, to_images, to_rows, widened

Layout = Literal["images", "rows"]

# Same result in either layout: every value by itself.
ELEMENTWISE_MODULES = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus),
    *(nn.Sigmoid, nn.LogSigmoid, nn.Tanh, nn.Tanhshrink, nn.Softsign, nn.Hardswish, nn.Hardsigmoid),
    *(nn.Hardtanh, nn.Hardshrink, nn.Softshrink, nn.Threshold, nn.Identity, nn.Dropout),
)
ELEMENTWISE_FUNCTIONS = (
    *(F.relu, F.relu_, F.relu6, F.leaky_relu, F.elu, F.selu, F.celu, F.gelu, F.silu, F.mish, F.softplus),
    *(F.sigmoid, F.logsigmoid, F.tanh, F.hardswish, F.hardsigmoid, F.hardtanh, F.softsign),
    *(torch.relu, torch.relu_, torch.sigmoid, torch.tanh, torch.abs, torch.exp, torch.square, torch.sqrt),
    *(torch.clamp, torch.neg, operator.neg, torch.selu, torch.celu),
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.iadd, operator.imul),
    *(operator.isub, operator.pow, torch.add, torch.sub, torch.mul, torch.div, torch.pow),
)
ELEMENTWISE_METHODS = (
    *(
        "relu",
        "relu_",
        "sigmoid",
        "sigmoid_",
        "tanh",
        "tanh_",
        "abs",
        "exp",
        "square",
        "sqrt",
        "clamp",
        "neg",
    ),
    *("add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "pow", "contiguous", "clone"),
)
# Every channel by itself, over 1, 2 or 3 dimensions of space.
_POOLING = ("MaxPool", "AvgPool", "LPPool", "AdaptiveAvgPool", "AdaptiveMaxPool")
_PADDING = ("ZeroPad", "ReflectionPad", "ReplicationPad", "ConstantPad", "CircularPad")
CHANNELWISE_MODULES: dict[type[nn.Module], int] = {
    getattr(nn, f"{kind}{space}d"): space
    for kind in (*_POOLING, *_PADDING, "Dropout")
    for space in (1, 2, 3)
    if hasattr(nn, f"{kind}{space}d")
}
CHANNELWISE_FUNCTIONS: dict[Callable[..., Any], int] = {
    getattr(F, f"{kind}{space}d"): space
    for kind in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool")
    for space in (1, 2, 3)
}
REDUCTIONS = (torch.mean, torch.sum, torch.amax, torch.amin, "mean", "sum", "amax", "amin")
SOFTMAXES = (F.softmax, F.log_softmax, torch.softmax, torch.log_softmax, "softmax", "log_softmax")
SHAPES = ("view", "reshape", torch.reshape)
FLATTENS = (torch.flatten, "flatten")
SQUEEZES = (torch.squeeze, "squeeze")
STATIC = (operator.getitem, getattr, "size")


class _Refused(Exception):
    """Why one node cannot be widened."""


class Shapes(fx.Interpreter):
    """Runs a traced model and remembers the shape of every tensor on the way."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.of: dict[fx.Node, tuple[int, ...]] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.of[n] = tuple(result.shape)
        return result


@dataclass(frozen=True)
class Wide:
    """A value of the rewritten graph: the node that makes it, and how the runs lie in it."""

    node: fx.Node
    layout: Layout


@dataclass
class Rewriter:
    """Walks the nodes of one run's graph and writes the graph of all runs; swaps the layers of `tree`."""

    tree: nn.Module
    runs: int
    shapes: dict[fx.Node, tuple[int, ...]]  # of a single run
    graph: fx.Graph = field(default_factory=fx.Graph)
    values: dict[fx.Node, Wide] = field(default_factory=dict)
    swapped: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def rewrite(self, nodes: list[fx.Node]) -> None:
        for node in nodes:
            try:
                self._visit(node)
            except _Refused as reason:
                self.problems.append(f"{where(node)}: {reason}")
                self._pretend(node)

    def _visit(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self.values[node] = self._settled(node, Wide(self.graph.placeholder(node.name), "rows"))
        elif node.op == "output":
            self._output(node)
        elif node.op == "get_attr":
            raise _Refused("a parameter or buffer is used outside of a layer; put it in a torch.nn layer")
        elif not (node.op != "call_module" and node.target in STATIC and node not in self.shapes):
            self.values[node] = self._settled(node, self._call(node))

    def _call(self, node: fx.Node) -> Wide:
        if node.op == "call_module":
            return self._module(node, self.tree.get_submodule(str(node.target)))
        target = node.target
        if target in ELEMENTWISE_FUNCTIONS or target in ELEMENTWISE_METHODS:
            return self._elementwise(node)
        if callable(target) and target in CHANNELWISE_FUNCTIONS:
            return self._channelwise(node, CHANNELWISE_FUNCTIONS[target])
        if target is F.interpolate:
            return self._channelwise(node, len(self.shapes[node]) - 2)
        if target in SHAPES:
            return self._reshape(node)
        if target in REDUCTIONS:
            return self._reduce(node)
        if target in FLATTENS:
            first, last = _argument(node, 1, "start_dim", 0), _argument(node, 2, "end_dim", -1)
            return self._flatten(node, int(first), int(last))
        if target in SOFTMAXES or target in SQUEEZES:
            return self._along(node, _argument(node, 1, "dim", None))
        raise _Refused(_why_not(target))

    def _module(self, node: fx.Node, module: nn.Module) -> Wide:
        kind = type(module)
        if kind in ELEMENTWISE_MODULES:
            return self._copied(node, self._input(node).layout)
        if kind in CHANNELWISE_MODULES:
            return self._channelwise(node, CHANNELWISE_MODULES[kind])
        if isinstance(module, nn.Upsample):
            return self._channelwise(node, len(self.shapes[node]) - 2)
        if isinstance(module, nn.Flatten):
            return self._flatten(node, module.start_dim, module.end_dim)
        if isinstance(module, (nn.Softmax, nn.LogSoftmax)):
            function = F.softmax if isinstance(module, nn.Softmax) else F.log_softmax
            return self._dimension_call(node, function, module.dim)
        if not can_widen(module) and str(node.target) not in self.swapped:
            raise _Refused(f"{kind.__name__} is not a layer that can serve many runs")
        return self._layer(node, module)

    def _layer(self, node: fx.Node, module: nn.Module) -> Wide:
        """A layer with weights: swap it in the tree and call it in the layout it works on."""
        self._check_space(node, module)
        if getattr(module, "momentum", 0) is None:
            raise _Refused("momentum=None averages over a count of batches that all runs would share")
        if str(node.target) not in self.swapped:
            self.tree.set_submodule(str(node.target), widened(module, self.runs))
            self.swapped.add(str(node.target))
        on_rows = isinstance(module, (nn.Linear, nn.LayerNorm))
        return self._copied(node, "rows" if on_rows else "images")

    def _check_space(self, node: fx.Node, module: nn.Module) -> None:
        suffix = type(module).__name__[-2:]
        if suffix in ("1d", "2d", "3d"):
            ndim = len(self._input_shape(node))
            flat_batch_norm = isinstance(module, nn.BatchNorm1d) and ndim == 2
            if ndim != int(suffix[0]) + 2 and not flat_batch_norm:
                raise _Refused(f"its input has {ndim} dimensions; {type(module).__name__} without a batch?")

    def _channelwise(self, node: fx.Node, space: int) -> Wide:
        ndim = len(self._input_shape(node))
        if ndim != space + 2:
            raise _Refused(f"its input has {ndim} dimensions; expected batch, channels and {space} of space")
        return self._copied(node, "images")

    def _elementwise(self, node: fx.Node) -> Wide:
        """Tensors of equal channels meet as they are; others (gates, maps) as rows, where sizes broadcast."""
        inputs = node.all_input_nodes
        layouts = {self._value(source).layout for source in inputs}
        shapes = [self.shapes[source] for source in inputs]
        if len({len(shape) for shape in shapes}) != 1:
            raise _Refused(f"it combines values of shapes {shapes}; only tensors of equal dimensions")
        same = len(layouts) == 1 and len({shape[1] for shape in shapes}) == 1
        return self._copied(node, layouts.pop() if same else "rows")

    def _reduce(self, node: fx.Node) -> Wide:
        ndim = len(self._input_shape(node))
        dims = _dimensions(_argument(node, 1, "dim", None), ndim)
        if self._input(node).layout == "images" and min(dims) >= 2:
            return self._copied(node, "images")
        return self._replaced(node, [dim + 1 for dim in dims])

    def _along(self, node: fx.Node, dim: Any) -> Wide:
        dims = _dimensions(dim, len(self._input_shape(node)))
        return self._replaced(node, dims[0] + 1 if len(dims) == 1 else tuple(d + 1 for d in dims))

    def _dimension_call(self, node: fx.Node, function: Callable[..., Any], dim: Any) -> Wide:
        (only,) = _dimensions(dim, len(self._input_shape(node)))
        rows = self._as(self._input_node(node), "rows")
        return Wide(self.graph.call_function(function, (rows,), {"dim": only + 1}), "rows")

    def _flatten(self, node: fx.Node, first: int, last: int) -> Wide:
        ndim = len(self._input_shape(node))
        start, end = _dimensions((first, last), ndim)
        rows = self._as(self._input_node(node), "rows")
        return Wide(self.graph.call_function(torch.flatten, (rows, start + 1, end + 1)), "rows")

    def _reshape(self, node: fx.Node) -> Wide:
        features = self.shapes[node][1:]
        rows = self._as(self._input_node(node), "rows")
        tail = (-1,) if len(features) == 1 else features
        return Wide(self.graph.call_function(reshape_features, (rows, tail)), "rows")

    def _output(self, node: fx.Node) -> None:
        (result,) = node.args
        if not isinstance(result, fx.Node):
            raise _Refused(f"the model returns {type(result).__name__}; only a single tensor can be widened")
        self.graph.output(self._as(result, "rows"))

    def _copied(self, node: fx.Node, layout: Layout) -> Wide:
        """The same call on the widened inputs, brought to one layout."""
        return Wide(self.graph.node_copy(node, lambda source: self._as(source, layout)), layout)

    def _replaced(self, node: fx.Node, dim: Any) -> Wide:
        """The same call on rows, with another `dim`."""
        rest = {name: value for name, value in node.kwargs.items() if name not in ("dim", "input")}
        keep = {"keepdim": node.args[2]} if len(node.args) > 2 and node.target in REDUCTIONS else {}
        rows = self._as(self._input_node(node), "rows")
        kwargs = {**keep, **rest, "dim": dim}
        return Wide(self.graph.create_node(node.op, node.target, (rows,), kwargs), "rows")

    def _settled(self, node: fx.Node, wide: Wide) -> Wide:
        """Values with space are kept as images, flat ones as rows."""
        if node not in self.shapes:
            raise _Refused("its result is not one tensor")
        layout: Layout = "images" if len(self.shapes[node]) >= 3 and _has_channels(node, wide) else "rows"
        return Wide(self._converted(wide, layout), layout)

    def _as(self, source: fx.Node, layout: Layout) -> fx.Node:
        return self._converted(self._value(source), layout)

    def _converted(self, wide: Wide, layout: Layout) -> fx.Node:
        if wide.layout == layout:
            return wide.node
        if layout == "images":
            return self.graph.call_function(to_images, (wide.node,))
        return self.graph.call_function(to_rows, (wide.node, self.runs))

    def _value(self, source: fx.Node) -> Wide:
        if source not in self.values:
            raise _Refused(
                f"it uses {source.name}, a size or a part of a tensor, for something else than a shape"
            )
        return self.values[source]

    def _input_node(self, node: fx.Node) -> fx.Node:
        return node.all_input_nodes[0]

    def _input(self, node: fx.Node) -> Wide:
        return self._value(self._input_node(node))

    def _input_shape(self, node: fx.Node) -> tuple[int, ...]:
        return self.shapes[self._input_node(node)]

    def _pretend(self, node: fx.Node) -> None:
        """Go on behind a refused node, so that all problems are found at once."""
        if node in self.shapes:
            self.values[node] = Wide(self.graph.placeholder(f"refused_{node.name}"), "rows")


def _has_channels(node: fx.Node, wide: Wide) -> bool:
    """Inputs are brought to the image layout at once; later values stay as their layer made them."""
    return node.op == "placeholder" or wide.layout == "images"


def _argument(node: fx.Node, place: int, name: str, default: Any) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def _dimensions(dim: Any, ndim: int) -> tuple[int, ...]:
    """Dimensions counted from the front, the batch excluded."""
    dims = (dim,) if isinstance(dim, int) else tuple(dim or ())
    if not dims:
        raise _Refused("it names no dimension, so it would mix samples and runs; pass dim")
    counted = tuple(d % ndim for d in dims)
    if 0 in counted:
        raise _Refused("it works across the samples of a batch")
    return counted


def _why_not(target: Any) -> str:
    if target in (torch.cat, torch.concat, torch.concatenate):
        return "concatenation is not widened: the runs lie side by side in the channels"
    if target is F.dropout:
        return "F.dropout reads the training mode only once; use the layer nn.Dropout"
    return "this operation is not known to keep the runs apart"


def where(node: fx.Node) -> str:
    """The layer or operation that a node stands for, with the module that calls it."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    if node.op in ("call_module", "get_attr", "placeholder", "output"):
        return str(name)
    path = list(node.meta.get("nn_module_stack", {}) or [""])[-1]
    return f"{name}() in {path}" if path else f"{name}()"
