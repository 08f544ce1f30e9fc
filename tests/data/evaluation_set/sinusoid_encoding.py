"""Fourier features of coordinates, projected."""

import torch
from torch import nn

POINTS, DIMENSIONS, WAVES, WIDTH = 40, 3, 6, 16


class Model(nn.Module):
    def __init__(self, dimensions: int, waves: int, width: int) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.randn(dimensions, waves))
        self.out = nn.Linear(2 * waves, width)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        phase = torch.matmul(points, self.frequencies)
        waves = torch.cat([torch.sin(phase), torch.cos(phase)], dim=-1)
        return self.out(waves)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(POINTS, DIMENSIONS)]


def get_init_inputs() -> list[float]:
    return [DIMENSIONS, WAVES, WIDTH]
