"""Patches of an image as tokens, with a learned position added and a norm."""

import torch
from torch import nn

BATCH, CHANNELS, SIZE, PATCH, WIDTH = 2, 3, 16, 4, 24


class Model(nn.Module):
    def __init__(self, channels: int, size: int, patch: int, width: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(channels, width, patch, stride=patch)
        self.position = nn.Parameter(torch.randn(1, (size // patch) ** 2, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        tokens = self.cut(image).flatten(2).transpose(1, 2)
        return self.norm(tokens + self.position)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs() -> list[float]:
    return [CHANNELS, SIZE, PATCH, WIDTH]
