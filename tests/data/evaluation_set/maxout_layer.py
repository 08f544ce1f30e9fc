"""Maxout: the largest of several linear pieces, then layer norm."""

import torch
from torch import nn

ROWS, WIDTH, PIECES = 16, 24, 4


class Model(nn.Module):
    def __init__(self, width: int, pieces: int) -> None:
        super().__init__()
        self.pieces = pieces
        self.lin = nn.Linear(width, width * pieces)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        candidates = self.lin(x).view(x.shape[0], -1, self.pieces)
        return self.norm(candidates.amax(dim=-1))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, WIDTH)]


def get_init_inputs() -> list[float]:
    return [WIDTH, PIECES]
