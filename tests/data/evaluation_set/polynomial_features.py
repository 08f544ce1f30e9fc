"""Powers of a projection up to the fourth, mixed by learned coefficients (Horner's scheme)."""

import torch
from torch import nn

ROWS, WIDTH = 32, 16


class Model(nn.Module):
    def __init__(self, width: int, degree: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, width)
        self.coefficients = nn.Parameter(torch.randn(degree, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.project(x)
        result = z * self.coefficients[0] + self.coefficients[1]
        result = result * z + self.coefficients[2]
        return result * z + self.coefficients[3]


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, WIDTH)]


def get_init_inputs() -> list[float]:
    return [WIDTH, 4]
