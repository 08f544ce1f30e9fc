"""A plain classifier: 16 convolutions without norms and three linear layers."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, stages, classes):
        super().__init__()
        layers, channels = [], 3
        for width, depth in stages:
            for _ in range(depth):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.head = nn.Sequential(
            nn.Linear(4 * channels, 256),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(256, 256),
            nn.ReLU(),
            nn.Linear(256, classes),
        )

    def forward(self, images):
        return self.head(self.features(images))


def get_inputs():
    return [torch.rand(2, 3, 64, 64)]


def get_init_inputs():
    return [[(16, 2), (32, 2), (48, 4), (64, 4), (64, 4)], 100]
