"""A classifier that squeezes channels before it expands them, and ends in a convolution, not a linear layer."""

import torch
from torch import nn


class Fire(nn.Module):
    def __init__(self, channels, squeezed, expanded):
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.one = nn.Conv2d(squeezed, expanded, 1)
        self.three = nn.Conv2d(squeezed, expanded, 3, padding=1)

    def forward(self, x):
        x = torch.relu(self.squeeze(x))
        return torch.cat([torch.relu(self.one(x)), torch.relu(self.three(x))], 1)


class Model(nn.Module):
    def __init__(self, sizes, classes):
        super().__init__()
        layers, channels = [nn.Conv2d(3, 32, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True)], 32
        for index, (squeezed, expanded) in enumerate(sizes):
            layers.append(Fire(channels, squeezed, expanded))
            channels = 2 * expanded
            if index in (2, 6):
                layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
        self.layers = nn.Sequential(
            *layers, nn.Dropout(0.5), nn.Conv2d(channels, classes, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )

    def forward(self, images):
        return self.layers(images)


def get_inputs():
    return [torch.rand(2, 3, 96, 96)]


def get_init_inputs():
    return [[(8, 32), (8, 32), (16, 64), (16, 64), (24, 96), (24, 96), (32, 128), (32, 128)], 100]
