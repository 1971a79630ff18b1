"""Which batch norm reads which layer: a filter that has lost its last weight takes its norm along.

A filter of zeros makes a channel of zeros, and its norm turns that into its own bias, one value at every
pixel. Convolutions of such constants are constants, which the next norm removes; in 16 bits they cost digits
on the way, and where a channel sees nothing else its norm multiplies rounding by 1 / √eps. With scale and
shift of these norms at zero the channel is gone: in training, in evaluation, in every precision and after an
export. The paper does so: the active parameters of its table of architectures are counted without them.
"""

from __future__ import annotations

from collections import Counter

from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, _ConvNd | nn.Linear | _BatchNorm) or super().is_leaf_module(
            m, module_qualified_name
        )


def norms_after(model: nn.Module) -> dict[str, str]:
    """Weight of a layer -> the batch norm that reads the layer, where both are called once.

    None are found in a model that cannot be traced, nor in a fleet: ask the model that it was made of.
    """
    try:
        graph = _Tracer().trace(model)
    except Exception:  # whatever a user's forward does with what is not a tensor
        return {}
    calls = [node for node in graph.nodes if node.op == "call_module"]
    once = {name for name, times in Counter(str(node.target) for node in calls).items() if times == 1}
    found = {}
    for node in calls:
        before = node.args[0] if node.args else node.kwargs.get("input")
        if not isinstance(before, fx.Node) or before.op != "call_module":
            continue
        names = layer, norm = str(before.target), str(node.target)
        if {*names} <= once and _pair(model.get_submodule(layer), model.get_submodule(norm)):
            found[f"{layer}.weight"] = norm
    return found


def _pair(layer: nn.Module, norm: nn.Module) -> bool:
    """Whether the norm has a channel for every row of the layer's weight."""
    if isinstance(layer, _ConvTransposeNd) or not isinstance(layer, _ConvNd | nn.Linear):
        return False
    if not isinstance(norm, _BatchNorm) or not norm.affine:
        return False
    return len(layer.weight) == norm.num_features
