"""Depthwise convolution, pointwise convolution, batch norm, hard swish."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, CHANNELS, SIZE = 2, 8, 16


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.pointwise = nn.Conv2d(channels, 2 * channels, 1, bias=False)
        self.norm = nn.BatchNorm2d(2 * channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.hardswish(self.norm(self.pointwise(self.depthwise(x))))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs() -> list[float]:
    return [CHANNELS]
