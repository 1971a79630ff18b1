"""The residual block of two 3×3 convolutions that CifarResNet-56 and ResNet-34 are made of."""

from __future__ import annotations

from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut; the shortcut is a 1×1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = shortcut(inputs, outputs, stride)

    def forward(self, images: Tensor) -> Tensor:
        kept = images if self.downsample is None else self.downsample(images)
        features = self.relu(self.bn1(self.conv1(images)))
        summed: Tensor = self.relu(self.bn2(self.conv2(features)) + kept)
        return summed


def shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False),
        nn.BatchNorm2d(outputs),
    )


def stage(inputs: int, outputs: int, *, blocks: int, stride: int) -> nn.Sequential:
    """`blocks` blocks in a row; the first one changes the width and the resolution."""
    first = BasicBlock(inputs, outputs, stride)
    return nn.Sequential(first, *(BasicBlock(outputs, outputs) for _ in range(blocks - 1)))


def initialise(model: nn.Module) -> None:
    """He initialisation by fan-out for convolutions; batch-norm starts as the identity (its default)."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
