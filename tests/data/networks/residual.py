"""A residual classifier of 101 layers with bottlenecks at torch's default initialisation."""

import torch
from torch import nn


class Bottleneck(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        out = 4 * width
        self.reduce = nn.Sequential(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.spatial = nn.Sequential(
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.expand = nn.Sequential(nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out))
        self.shortcut = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        return torch.relu(self.expand(self.spatial(self.reduce(x))) + self.shortcut(x))


class Model(nn.Module):
    def __init__(self, depths, width, classes):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        blocks, channels = [], width
        for stage, depth in enumerate(depths):
            for index in range(depth):
                blocks.append(Bottleneck(channels, width << stage, 2 if stage and not index else 1))
                channels = 4 * (width << stage)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, images):
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


def get_inputs():
    return [torch.rand(2, 3, 64, 64)]


def get_init_inputs():
    return [[3, 4, 23, 3], 16, 100]
