"""A classifier of inverted residuals: depthwise convolutions between pointwise ones, activations cut at 6."""

import torch
from torch import nn


def convolution(inputs, outputs, kernel, stride=1, groups=1):
    return [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]


class Inverted(nn.Module):
    def __init__(self, inputs, outputs, stride, factor):
        super().__init__()
        hidden = inputs * factor
        layers = [*convolution(inputs, hidden, 1), nn.ReLU6()] if factor > 1 else []
        layers += [*convolution(hidden, hidden, 3, stride, hidden), nn.ReLU6(), *convolution(hidden, outputs, 1)]
        self.layers = nn.Sequential(*layers)
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, x):
        return x + self.layers(x) if self.is_residual else self.layers(x)


class Model(nn.Module):
    def __init__(self, stages, classes):
        super().__init__()
        layers, channels = [*convolution(3, 16, 3, 2), nn.ReLU6()], 16
        for factor, outputs, repeats, stride in stages:
            for index in range(repeats):
                layers.append(Inverted(channels, outputs, stride if index == 0 else 1, factor))
                channels = outputs
        layers += [*convolution(channels, 160, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        self.layers = nn.Sequential(*layers, nn.Linear(160, classes))

    def forward(self, images):
        return self.layers(images)


def get_inputs():
    return [torch.rand(2, 3, 64, 64)]


def get_init_inputs():
    return [[(1, 8, 1, 1), (6, 12, 2, 2), (6, 16, 3, 2), (6, 24, 4, 2), (6, 32, 3, 1), (6, 48, 3, 2)], 100]
