"""Batch norms of channels that stand still are settled before every evaluation.

Where pruning leaves a filter only inputs that are constant, its channel is one value c at every pixel of
every image. In training its norm gives its bias, since c - mean = 0. In evaluation it gives
bias + weight · (c - running mean) / √(running variance + eps): the variance has gone to zero, so what c moved
since, or was rounded by, is multiplied by 1 / √eps = 316, and by 316 again where such channels follow one
another. With a weight of zero the norm gives its bias there too, in every precision and copy of the model.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

STILL = 1e-6  # of eps: normalised, such a channel moves by a thousandth


@torch.no_grad()
def settle_(network: nn.Module) -> None:
    """Zero the weights of norms whose channels have not moved for so long that their variance is gone.

    That takes some 250 steps at the usual momentum. No gradient reaches these weights while the channel
    stands still; one that moves again has a gradient again. No wait for the device.
    """
    for norm in network.modules():
        if isinstance(norm, _BatchNorm) and norm.affine and norm.running_var is not None:
            norm.weight.masked_fill_(norm.running_var < STILL * norm.eps, 0.0)
