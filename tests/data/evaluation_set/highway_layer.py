"""Highway layer: a gate chooses between a transformed and the original input."""

import torch
import torch.nn.functional as F
from torch import nn

ROWS, WIDTH = 24, 16


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.transform = nn.Linear(width, width)
        self.gate = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        g = torch.sigmoid(self.gate(x))
        t = F.mish(self.transform(x))
        return torch.lerp(x, t, g)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, WIDTH)]


def get_init_inputs() -> list[float]:
    return [WIDTH]
