"""A classifier of depthwise-separable convolutions."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, sizes, classes):
        super().__init__()
        layers, channels = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()], 16
        for outputs, stride in sizes:
            layers += [
                nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False),
                nn.BatchNorm2d(channels), nn.ReLU(),
                nn.Conv2d(channels, outputs, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            ]  # fmt: skip
            channels = outputs
        self.layers = nn.Sequential(*layers, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(channels, classes))

    def forward(self, images):
        return self.layers(images)


def get_inputs():
    return [torch.rand(2, 3, 64, 64)]


def get_init_inputs():
    return [[(32, 1), (64, 2), (64, 1), (96, 2), (96, 1), (128, 2), *[(128, 1)] * 5, (192, 2), (192, 1)], 100]
