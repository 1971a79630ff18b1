"""Layers that hold the weights of many runs, and the two ways in which many runs share one tensor.

rows    [runs, batch, *features]            what linear layers work on
images  [batch, runs · channels, *space]    what convolutions, norms and pooling work on
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evenprune import depthwise_conv, grouped_conv, pointwise_conv
from evenprune.grouped_conv import half_type

# A layer of many runs is the same layer with these numbers multiplied, its tensors side by side.
_MULTIPLIED: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Conv1d: ("in_channels", "out_channels", "groups"),
    nn.Conv2d: ("in_channels", "out_channels", "groups"),
    nn.Conv3d: ("in_channels", "out_channels", "groups"),
    nn.BatchNorm1d: ("num_features",),
    nn.BatchNorm2d: ("num_features",),
    nn.BatchNorm3d: ("num_features",),
    nn.InstanceNorm1d: ("num_features",),
    nn.InstanceNorm2d: ("num_features",),
    nn.InstanceNorm3d: ("num_features",),
    nn.GroupNorm: ("num_groups", "num_channels"),
}


def to_images(rows: Tensor) -> Tensor:
    """[runs, batch, channels, *space] -> [batch, runs · channels, *space]"""
    return rows.transpose(0, 1).flatten(1, 2)


def to_rows(images: Tensor, runs: int) -> Tensor:
    """[batch, runs · channels, *space] -> [runs, batch, channels, *space]"""
    batch, channels, *space = images.shape
    return images.reshape(batch, runs, channels // runs, *space).transpose(0, 1)


def reshape_features(rows: Tensor, features: Sequence[int]) -> Tensor:
    """Give every sample of every run another shape."""
    return rows.reshape(rows.shape[0], rows.shape[1], *features)


def part(wide: Tensor, run: int, runs: int) -> Tensor:
    """The part of one run in a parameter or buffer of many: a view, in any memory format."""
    return wide.unflatten(0, (runs, -1))[run] if wide.ndim else wide  # type: ignore[no-untyped-call]


class WideLinear(nn.Linear):
    """A linear layer per run: one batched product. Weight [runs, out, in], bias [runs, out]."""

    def __init__(self, layer: nn.Linear, runs: int) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.runs = layer.in_features, layer.out_features, runs
        self.weight = _stacked(layer.weight, runs)
        self.register_parameter("bias", None if layer.bias is None else _stacked(layer.bias, runs))

    def forward(self, input: Tensor) -> Tensor:
        flat = input.flatten(1, -2)  # [runs, batch · …, in]
        weight = self.weight.transpose(1, 2)
        product = torch.bmm(flat, weight) if self.bias is None else _affine(self.bias, flat, weight)
        return product.reshape(*input.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return f"runs={self.runs}, {super().extra_repr()}"


class WideConv2d(nn.Conv2d):
    """A convolution per run, as groups of one. Weight [runs · out, in, …], bias [runs · out]."""

    runs: int

    def forward(self, input: Tensor) -> Tensor:
        """By our kernels for depthwise, 1×1 or narrow layers where they serve; otherwise by cuDNN."""
        half, shape = half_type(input), self._shape()
        if self._plain():
            stride, pad = self.stride[0], int(self.padding[0])
            if depthwise_conv.serves(input, self.weight, stride, pad):
                return depthwise_conv.convolve(input.to(half), self.weight, self.bias, stride)
        if shape is not None:
            if pointwise_conv.serves(input, self.weight, shape):
                return pointwise_conv.convolve(input.to(half), self.weight, self.bias, shape.runs)
            if grouped_conv.serves(input, self.weight, shape):
                return grouped_conv.convolve(input.to(half), self.weight, self.bias, shape)
            if grouped_conv.has_many_channels(input, self.weight, shape):
                return grouped_conv.run_by_run(input.to(half), self.weight, self.bias, shape)
        return super().forward(input)

    def _plain(self) -> bool:
        """Square, neither dilated nor padded with anything but zeros."""
        sides = [{*self.kernel_size}, {*self.stride}, {*self.padding}]
        square = all(len(side) == 1 for side in sides) and not isinstance(self.padding, str)
        return square and {*self.dilation} == {1} and self.padding_mode == "zeros"

    def _shape(self) -> grouped_conv.Shape | None:
        """None unless it is as plain as the narrow kernels want it: one group per run."""
        if not self._plain() or self.groups != self.runs:
            return None
        return grouped_conv.Shape(self.kernel_size[0], self.stride[0], int(self.padding[0]), self.runs)


def _affine(bias: Tensor, flat: Tensor, weight: Tensor) -> Tensor:
    return torch.baddbmm(bias.unsqueeze(1), flat, weight)


class WideLayerNorm(nn.LayerNorm):
    """A layer-norm per run: the same statistics, scale and shift [runs, *normalized_shape]."""

    def __init__(self, layer: nn.LayerNorm, runs: int) -> None:
        nn.Module.__init__(self)
        self.normalized_shape, self.eps, self.runs = layer.normalized_shape, layer.eps, runs
        self.elementwise_affine = layer.elementwise_affine
        for name in ("weight", "bias"):
            own = getattr(layer, name)
            self.register_parameter(name, None if own is None else _stacked(own, runs))

    def forward(self, input: Tensor) -> Tensor:
        result = F.layer_norm(input, self.normalized_shape, eps=self.eps)
        between = [1] * (input.ndim - 1 - len(self.normalized_shape))
        if self.weight is not None:
            result = result * self.weight.reshape(self.runs, *between, *self.normalized_shape)
        if self.bias is not None:
            result = result + self.bias.reshape(self.runs, *between, *self.normalized_shape)
        return result


def can_widen(layer: nn.Module) -> bool:
    """Whether `widened` knows this layer. A subclass may compute anything, so only exact types count."""
    return type(layer) in _MULTIPLIED or type(layer) in (nn.Linear, nn.LayerNorm)


def widened(layer: nn.Module, runs: int) -> nn.Module:
    """The layer for `runs` runs, all with the weights of `layer`."""
    if isinstance(layer, nn.Linear):
        return WideLinear(layer, runs)
    if isinstance(layer, nn.LayerNorm):
        return WideLayerNorm(layer, runs)
    wide = copy.deepcopy(layer)
    if type(wide) is nn.Conv2d:
        wide.__class__ = WideConv2d
        wide.__dict__["runs"] = runs
    for attribute in _MULTIPLIED[type(layer)]:
        setattr(wide, attribute, getattr(layer, attribute) * runs)
    for name, parameter in layer.named_parameters():
        setattr(wide, name, _side_by_side(parameter, runs))
    for name, buffer in layer.named_buffers():
        if buffer.ndim:  # the count of batches is one for all runs
            setattr(wide, name, torch.cat([buffer] * runs))
    return wide


def _stacked(own: Tensor, runs: int) -> nn.Parameter:
    return nn.Parameter(torch.stack([own.detach()] * runs), requires_grad=own.requires_grad)


def _side_by_side(own: Tensor, runs: int) -> nn.Parameter:
    return nn.Parameter(torch.cat([own.detach()] * runs), requires_grad=own.requires_grad)
