"""A classifier whose layers take the outputs of all layers before them."""

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, channels, growth):
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth), nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, x):
        return torch.cat([x, self.layers(x)], 1)


class Model(nn.Module):
    def __init__(self, depths, growth, classes):
        super().__init__()
        channels = 2 * growth
        layers = [
            nn.Conv2d(3, channels, 7, 2, 3, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        ]
        for stage, depth in enumerate(depths):
            if stage:
                layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels // 2, 1, bias=False)]
                layers.append(nn.AvgPool2d(2))
                channels //= 2
            for _ in range(depth):
                layers.append(Layer(channels, growth))
                channels += growth
        self.features = nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU())
        self.head = nn.Linear(channels, classes)

    def forward(self, images):
        return self.head(self.features(images).mean((2, 3)))


def get_inputs():
    return [torch.rand(2, 3, 64, 64)]


def get_init_inputs():
    return [[6, 12, 24, 16], 8, 100]
