"""ResNet-34: four stages of 3, 4, 6 and 3 basic blocks for images of about 224×224."""

from __future__ import annotations

from torch import Tensor, nn

from evenprune.models.basic_block import initialise, stage


class ResNet34(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = stage(64, 64, blocks=3, stride=1)
        self.layer2 = stage(64, 128, blocks=4, stride=2)
        self.layer3 = stage(128, 256, blocks=6, stride=2)
        self.layer4 = stage(256, 512, blocks=3, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, num_classes)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        features = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        features = self.layer2(self.layer1(features))
        features = self.layer4(self.layer3(features))
        logits: Tensor = self.fc(self.avgpool(features).flatten(1))
        return logits


def resnet34(num_classes: int = 1000) -> ResNet34:
    return ResNet34(num_classes)
