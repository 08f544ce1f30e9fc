"""Two linear layers with tanh between them, added to what came in and normalised."""

import torch
from torch import nn

ROWS, WIDTH = 32, 64


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = torch.tanh(self.first(x))
        return self.norm(x + self.second(inner))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, WIDTH)]


def get_init_inputs() -> list[float]:
    return [WIDTH]
