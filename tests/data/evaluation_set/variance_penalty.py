"""Penalty on channels whose deviation over the batch falls below one."""

import torch
import torch.nn.functional as F
from torch import nn

ROWS, WIDTH = 32, 24


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.project(x)
        deviation = torch.sqrt(z.var(dim=0) + 1e-4)
        return F.relu(1.0 - deviation).mean()


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, WIDTH)]


def get_init_inputs() -> list[float]:
    return [WIDTH]
