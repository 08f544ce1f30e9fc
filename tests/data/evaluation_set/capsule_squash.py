"""Capsules: a vector keeps its direction, and its length is squashed below one."""

import torch
from torch import nn

BATCH, CAPSULES, WIDTH = 8, 10, 16


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        s = self.project(x)
        squared = s.square().sum(dim=-1, keepdim=True)
        return squared / (1.0 + squared) * s / torch.sqrt(squared + 1e-8)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CAPSULES, WIDTH)]


def get_init_inputs() -> list[float]:
    return [WIDTH]
