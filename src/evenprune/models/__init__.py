"""The architectures of the paper and two small ones, with the parameter names of the public checkpoints."""

from evenprune.models.cifar_resnet import CifarResNet, cifar_resnet56
from evenprune.models.mlp import mlp
from evenprune.models.mobilenet_v2 import MobileNetV2, mobilenet_v2
from evenprune.models.resnet34 import ResNet34, resnet34
from evenprune.models.small_cnn import SmallCNN, small_cnn

__all__ = [
    "CifarResNet",
    "MobileNetV2",
    "ResNet34",
    "SmallCNN",
    "cifar_resnet56",
    "mlp",
    "mobilenet_v2",
    "resnet34",
    "small_cnn",
]
