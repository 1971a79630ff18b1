"""Three 3×3 convolutions for 8×8 digits: the network of the demo."""

from __future__ import annotations

from torch import Tensor, nn


class SmallCNN(nn.Module):
    def __init__(self, channels: tuple[int, int, int], num_classes: int, in_channels: int) -> None:
        super().__init__()
        first, second, third = channels
        self.conv1 = nn.Conv2d(in_channels, first, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(first)
        self.conv2 = nn.Conv2d(first, second, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(second)
        self.conv3 = nn.Conv2d(second, third, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(third)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(third, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.pool(self.relu(self.bn1(self.conv1(images))))
        features = self.pool(self.relu(self.bn2(self.conv2(features))))
        features = self.relu(self.bn3(self.conv3(features)))
        logits: Tensor = self.fc(self.avgpool(features).flatten(1))
        return logits


def small_cnn(
    channels: tuple[int, int, int] = (8, 12, 16), num_classes: int = 10, in_channels: int = 1
) -> SmallCNN:
    return SmallCNN(channels, num_classes, in_channels)
