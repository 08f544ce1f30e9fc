"""Image descriptor: convolution, generalised mean pooling over the map, unit length."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, CHANNELS, SIZE = 4, 8, 16


class Model(nn.Module):
    def __init__(self, channels: int, power: float = 3.0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 2 * channels, kernel_size=3)
        self.power = power

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        maps = self.conv(image).clamp(min=1e-6)
        pooled = maps.pow(self.power).mean(dim=(2, 3)).pow(1.0 / self.power)
        return F.normalize(pooled, dim=1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs() -> list[float]:
    return [CHANNELS]
