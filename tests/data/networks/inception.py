"""A classifier of parallel branches without norms, whose outputs are concatenated."""

import torch
from torch import nn


class Branches(nn.Module):
    def __init__(self, channels, width):
        super().__init__()
        self.one = nn.Conv2d(channels, width, 1)
        self.three = nn.Sequential(nn.Conv2d(channels, width, 1), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, padding=1))
        self.five = nn.Sequential(
            nn.Conv2d(channels, width // 2, 1), nn.ReLU(), nn.Conv2d(width // 2, width, 5, padding=2)
        )
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(channels, width, 1))

    def forward(self, x):
        return torch.relu(torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], 1))


class Model(nn.Module):
    def __init__(self, widths, classes):
        super().__init__()
        layers, channels = [nn.Conv2d(3, 32, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 32
        for index, width in enumerate(widths):
            layers.append(Branches(channels, width))
            channels = 5 * width
            if index % 3 == 2:
                layers.append(nn.MaxPool2d(3, 2, 1))
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.4))
        self.head = nn.Linear(channels, classes)

    def forward(self, images):
        return self.head(self.features(images))


def get_inputs():
    return [torch.rand(2, 3, 64, 64)]


def get_init_inputs():
    return [[8, 12, 16, 16, 20, 20, 24, 24, 28], 100]
