"""Feed-forward layer with the square of a relu, scaled by a learned gain."""

import torch
import torch.nn.functional as F
from torch import nn

TOKENS, WIDTH = 24, 16


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.up(x))
        return self.down(h * h) * self.gain


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(TOKENS, WIDTH)]


def get_init_inputs() -> list[float]:
    return [WIDTH]
