"""MobileNetV2: inverted residual blocks (1×1 widen, 3×3 depthwise, 1×1 narrow)."""

from __future__ import annotations

from torch import Tensor, nn

from evenprune.models.basic_block import initialise

# (expansion, output channels, blocks, stride of the first block)
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
LAST_CHANNELS = 1280


def convolution(inputs: int, outputs: int, size: int, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution, batch-norm, ReLU6."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(inplace=True),
    )


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int, *, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        widen = [convolution(inputs, hidden, 1)] if expansion != 1 else []
        self.conv = nn.Sequential(
            *widen,
            convolution(hidden, hidden, 3, stride=stride, groups=hidden),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.conv(images)
        return images + features if self.residual else features


class MobileNetV2(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(*feature_layers())
        linear = nn.Linear(LAST_CHANNELS, num_classes)
        self.classifier = nn.Sequential(nn.Dropout(0.2), linear)
        initialise(self)
        nn.init.normal_(linear.weight, std=0.01)
        nn.init.zeros_(linear.bias)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images).mean((2, 3)))
        return logits


def feature_layers() -> list[nn.Module]:
    channels = 32
    layers: list[nn.Module] = [convolution(3, channels, 3, stride=2)]
    for expansion, outputs, blocks, first_stride in STAGES:
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            layers.append(InvertedResidual(channels, outputs, stride=stride, expansion=expansion))
            channels = outputs
    return [*layers, convolution(channels, LAST_CHANNELS, 1)]


def mobilenet_v2(num_classes: int = 1000) -> MobileNetV2:
    return MobileNetV2(num_classes)
