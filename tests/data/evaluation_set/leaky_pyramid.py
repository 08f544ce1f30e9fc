"""Two scales of a feature pyramid: the coarse one is pooled, convolved, brought back and added."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, CHANNELS, SIZE = 2, 8, 16


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fine = nn.Conv2d(channels, channels, 3, padding=1)
        self.coarse = nn.Conv2d(channels, channels, 3, padding=1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fine = F.leaky_relu(self.fine(x), 0.1)
        coarse = F.leaky_relu(self.coarse(self.pool(x)), 0.1)
        return fine + F.interpolate(coarse, scale_factor=2.0)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs() -> list[float]:
    return [CHANNELS]
