"""A classifier of inverted residuals with squeeze and excitation (SiLU), as EfficientNet has them."""

import torch
from torch import nn


class Excite(nn.Module):
    def __init__(self, channels, squeezed):
        super().__init__()
        self.squeeze, self.expand = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)

    def forward(self, x):
        gate = nn.functional.silu(self.squeeze(x.mean((2, 3), keepdim=True)))
        return x * torch.sigmoid(self.expand(gate))


class Block(nn.Module):
    def __init__(self, inputs, outputs, kernel, stride, factor):
        super().__init__()
        hidden = inputs * factor
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, hidden, 1, bias=False), nn.BatchNorm2d(hidden, eps=1e-3), nn.SiLU(),
            nn.Conv2d(hidden, hidden, kernel, stride, kernel // 2, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden, eps=1e-3), nn.SiLU(), Excite(hidden, max(1, inputs // 4)),
            nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs, eps=1e-3),
        )  # fmt: skip
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, x):
        return x + self.layers(x) if self.is_residual else self.layers(x)


class Model(nn.Module):
    def __init__(self, stages, classes):
        super().__init__()
        layers, channels = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16, eps=1e-3), nn.SiLU()], 16
        for factor, outputs, repeats, stride, kernel in stages:
            for index in range(repeats):
                layers.append(Block(channels, outputs, kernel, stride if index == 0 else 1, factor))
                channels = outputs
        layers += [nn.Conv2d(channels, 160, 1, bias=False), nn.BatchNorm2d(160, eps=1e-3), nn.SiLU()]
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2))
        self.head = nn.Linear(160, classes)

    def forward(self, images):
        return self.head(self.features(images))


def get_inputs():
    return [torch.rand(2, 3, 64, 64)]


def get_init_inputs():
    return [
        [(1, 8, 1, 1, 3), (6, 12, 2, 2, 3), (6, 16, 2, 2, 5), (6, 24, 3, 2, 3), (6, 32, 3, 1, 5), (6, 48, 4, 2, 5)],
        100,
    ]
