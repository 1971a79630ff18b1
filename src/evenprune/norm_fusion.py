"""Find norm, sum and activation in the graph of a widened network, and make them one call of NormAct."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import fx, nn
from torch.nn import functional as F

from evenprune.fused_norm import Act, NormAct

_ACT_MODULES: dict[type[nn.Module], Act] = {nn.ReLU: "relu", nn.ReLU6: "relu6"}
_ACT_CALLS: dict[Callable[..., Any] | str, Act] = {
    F.relu: "relu",
    F.relu_: "relu",
    torch.relu: "relu",
    torch.relu_: "relu",
    "relu": "relu",
    "relu_": "relu",
    F.relu6: "relu6",
}
_SUMS = (operator.add, torch.add)
_READERS = (nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.MaxPool2d)


def fuse(graph: fx.Graph, tree: nn.Module) -> None:
    """Change graph and tree in place. What is computed stays the same, apart from rounding."""
    for node in list(graph.nodes):
        if node.op == "call_module" and type(tree.get_submodule(str(node.target))) is nn.BatchNorm2d:
            _fuse_one(graph, tree, node)
    for node in list(graph.nodes):
        if _is_fused(node, tree):
            _split_uses(graph, tree, node)
    graph.lint()


def _fuse_one(graph: fx.Graph, tree: nn.Module, norm: fx.Node) -> None:
    """The norm, and what follows it if nobody else looks at what lies between, or changes what it reads."""
    chain, told = [norm], dict[str, Any]()
    after = _follower(norm, tree)
    if after is not None and _plain_sum(after):
        told["residual"] = next(source for source in after.args if source is not norm)
        chain.append(after)
    after = _follower(chain[-1], tree)
    act = None if after is None else _act_of(after, tree)
    if after is not None and act is not None:
        told["act"] = act
        chain.append(after)
    NormAct.become(cast(nn.BatchNorm2d, tree.get_submodule(str(norm.target))))
    with graph.inserting_after(chain[-1]):
        one = graph.call_module(str(norm.target), norm.args, {**norm.kwargs, **told})
    chain[-1].replace_all_uses_with(one)
    for gone in reversed(chain):
        graph.erase_node(gone)


def _follower(node: fx.Node, tree: nn.Module) -> fx.Node | None:
    """Its only user, unless something in between may change tensors in place: all of it moves down there."""
    if len(node.users) != 1:
        return None
    user, between = next(iter(node.users)), node.next
    while between is not user:
        if not _only_reads(between, tree):
            return None
        between = between.next
    return user


def _only_reads(node: fx.Node, tree: nn.Module) -> bool:
    """Whether it surely leaves its inputs as they are; activations and functions may not."""
    return node.op == "call_module" and isinstance(tree.get_submodule(str(node.target)), _READERS)


def _plain_sum(node: fx.Node) -> bool:
    """Of the norm and another tensor, without a factor."""
    if node.op != "call_function" or node.target not in _SUMS:
        return False
    two = len(node.args) == 2 and all(isinstance(source, fx.Node) for source in node.args)
    return two and node.args[0] is not node.args[1] and not node.kwargs


def _act_of(node: fx.Node, tree: nn.Module) -> Act | None:
    if node.op == "call_module":
        return _ACT_MODULES.get(type(tree.get_submodule(str(node.target))))
    return _ACT_CALLS.get(node.target) if node.op in ("call_function", "call_method") else None


def _is_fused(node: fx.Node, tree: nn.Module) -> bool:
    return node.op == "call_module" and isinstance(tree.get_submodule(str(node.target)), NormAct)


def _split_uses(graph: fx.Graph, tree: nn.Module, node: fx.Node) -> None:
    """A result that a later norm takes as its residual, and others as their input, is handed out twice."""
    later = [user for user in node.users if _is_fused(user, tree) and user.kwargs.get("residual") is node]
    if len(later) != 1 or len(node.users) < 2 or not all(_only_reads(user, tree) for user in node.users):
        return  # the two share their memory: nobody may write to it
    node.kwargs = {**node.kwargs, "twice": True}
    with graph.inserting_after(node):
        second = graph.call_function(operator.getitem, (node, 1))
        first = graph.call_function(operator.getitem, (node, 0))
    for user in list(node.users):
        if user not in (first, second):
            user.replace_input_with(node, second if user is later[0] else first)
