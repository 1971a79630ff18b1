"""Architectures: sizes, parameter names of the public checkpoints, output shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from evenprune.models import cifar_resnet56, mlp, mobilenet_v2, resnet34, small_cnn


@pytest.mark.parametrize(
    ("build", "parameters", "tensors"),
    [
        # Parameters as published for the public checkpoints; tensors: 57, 52 and 36 convolutions with norms.
        (lambda: cifar_resnet56(10), 855_770, 344),
        (lambda: cifar_resnet56(100), 861_620, 344),
        (lambda: mobilenet_v2(1000), 3_504_872, 314),
        (lambda: resnet34(1000), 21_797_672, 218),
    ],
)
def test_sizes(build: Any, parameters: int, tensors: int) -> None:
    model = build()
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert len(model.state_dict()) == tensors


@pytest.mark.parametrize(
    ("build", "shapes"),
    [
        (
            cifar_resnet56,
            {
                "conv1.weight": (16, 3, 3, 3),
                "bn1.running_mean": (16,),
                "layer1.8.conv2.weight": (16, 16, 3, 3),
                "layer2.0.downsample.0.weight": (32, 16, 1, 1),
                "layer2.0.downsample.1.num_batches_tracked": (),
                "layer3.8.bn2.bias": (64,),
                "fc.weight": (100, 64),
            },
        ),
        (
            mobilenet_v2,
            {
                "features.0.0.weight": (32, 3, 3, 3),
                "features.1.conv.0.0.weight": (32, 1, 3, 3),
                "features.1.conv.1.weight": (16, 32, 1, 1),
                "features.1.conv.2.bias": (16,),
                "features.2.conv.0.0.weight": (96, 16, 1, 1),
                "features.2.conv.1.0.weight": (96, 1, 3, 3),
                "features.17.conv.3.running_var": (320,),
                "features.18.1.weight": (1280,),
                "classifier.1.bias": (1000,),
            },
        ),
        (
            resnet34,
            {
                "conv1.weight": (64, 3, 7, 7),
                "layer1.2.bn2.weight": (64,),
                "layer2.0.downsample.0.weight": (128, 64, 1, 1),
                "layer3.5.conv1.weight": (256, 256, 3, 3),
                "layer4.2.conv2.weight": (512, 512, 3, 3),
                "fc.weight": (1000, 512),
            },
        ),
    ],
)
def test_parameter_names(build: Any, shapes: dict[str, tuple[int, ...]]) -> None:
    state = build().state_dict()
    assert {name: tuple(state[name].shape) for name in shapes} == shapes


def test_first_block_has_no_shortcut_layer() -> None:
    assert not any(name.startswith("layer1.0.downsample") for name in resnet34(7).state_dict())


@pytest.mark.parametrize(
    ("build", "features", "classes"),
    [
        (lambda: cifar_resnet56(7), (3, 32, 32), 7),
        (lambda: mobilenet_v2(5), (3, 64, 64), 5),
        (lambda: resnet34(3), (3, 64, 64), 3),
        (small_cnn, (1, 8, 8), 10),
        (lambda: small_cnn((4, 5, 6), num_classes=2, in_channels=3), (3, 8, 8), 2),
        (lambda: mlp(12, (9,), 4), (12,), 4),
    ],
)
def test_outputs(build: Any, features: tuple[int, ...], classes: int) -> None:
    torch.manual_seed(0)
    model = build()
    logits = model(torch.randn(2, *features))
    assert logits.shape == (2, classes)
    logits.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_mlp_without_hidden_layers_is_linear() -> None:
    assert len(mlp(3, (), 2)) == 1
