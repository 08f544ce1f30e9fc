"""Radial basis functions of the distances between two sets of points."""

import torch
from torch import nn

LEFT, RIGHT, WIDTH = 24, 20, 8


class Model(nn.Module):
    def __init__(self, gamma: float) -> None:
        super().__init__()
        self.gamma = gamma

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        distances = torch.cdist(left, right)
        return torch.exp(-self.gamma * distances * distances)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(LEFT, WIDTH), torch.randn(RIGHT, WIDTH)]


def get_init_inputs() -> list[float]:
    return [0.5]
