"""Style transfer: instance norm, then a scale and shift made from a style vector."""

import torch
from torch import nn

BATCH, CHANNELS, SIZE, STYLE = 2, 8, 12, 16


class Model(nn.Module):
    def __init__(self, channels: int, style: int) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm2d(channels)
        self.to_scale = nn.Linear(style, channels)
        self.to_shift = nn.Linear(style, channels)

    def forward(self, maps: torch.Tensor, style: torch.Tensor) -> torch.Tensor:
        scale = self.to_scale(style)[:, :, None, None]
        shift = self.to_shift(style)[:, :, None, None]
        return self.norm(maps) * scale + shift


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE), torch.randn(BATCH, STYLE)]


def get_init_inputs() -> list[float]:
    return [CHANNELS, STYLE]
