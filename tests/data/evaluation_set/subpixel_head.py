"""Super-resolution head: convolution, pixel shuffle, PReLU, and a last convolution."""

import torch
from torch import nn

BATCH, CHANNELS, SIZE = 2, 8, 8


class Model(nn.Module):
    def __init__(self, channels: int, factor: int) -> None:
        super().__init__()
        self.expand = nn.Conv2d(channels, channels * factor * factor, 3, padding=1)
        self.shuffle = nn.PixelShuffle(factor)
        self.act = nn.PReLU()
        self.last = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.act(self.shuffle(self.expand(x))))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs() -> list[float]:
    return [CHANNELS, 2]
