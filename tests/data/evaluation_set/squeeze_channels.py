"""Channel attention: the mean of each map passes two layers and scales the map."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, CHANNELS, SIZE = 2, 16, 10


class Model(nn.Module):
    def __init__(self, channels: int, ratio: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(channels, channels // ratio, 1)
        self.up = nn.Conv2d(channels // ratio, channels, 1)
        self.act = nn.SiLU()

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        context = F.adaptive_avg_pool2d(maps, 1)
        return maps * torch.sigmoid(self.up(self.act(self.down(context))))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs() -> list[float]:
    return [CHANNELS, 4]
