"""Margin between a query's distance to a positive and to a negative example."""

import torch
import torch.nn.functional as F
from torch import nn

ROWS, WIDTH = 32, 16


class Model(nn.Module):
    def __init__(self, width: int, margin: float) -> None:
        super().__init__()
        self.embed = nn.Linear(width, width, bias=False)
        self.margin = margin

    def forward(self, query: torch.Tensor, good: torch.Tensor, bad: torch.Tensor) -> torch.Tensor:
        q, g, b = self.embed(query), self.embed(good), self.embed(bad)
        near = F.pairwise_distance(q, g)
        far = F.pairwise_distance(q, b)
        return F.relu(near - far + self.margin).mean()


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, WIDTH) for _ in range(3)]


def get_init_inputs() -> list[float]:
    return [WIDTH, 0.3]
