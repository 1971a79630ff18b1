"""CifarResNet-56: three stages of nine basic blocks (16, 32, 64 channels) for 32×32 images."""

from __future__ import annotations

from torch import Tensor, nn

from evenprune.models.basic_block import initialise, stage


class CifarResNet(nn.Module):
    """ResNet for small images, with 1×1 convolutions as shortcuts; depth = 6 · blocks + 2."""

    def __init__(self, blocks: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = stage(16, 16, blocks=blocks, stride=1)
        self.layer2 = stage(16, 32, blocks=blocks, stride=2)
        self.layer3 = stage(32, 64, blocks=blocks, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(64, num_classes)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        features = self.relu(self.bn1(self.conv1(images)))
        features = self.layer3(self.layer2(self.layer1(features)))
        logits: Tensor = self.fc(self.avgpool(features).flatten(1))
        return logits


def cifar_resnet56(num_classes: int = 100) -> CifarResNet:
    return CifarResNet(blocks=9, num_classes=num_classes)
