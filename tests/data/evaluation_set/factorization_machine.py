"""Second-order interactions of a factorization machine: half of (square of sums minus sum of squares)."""

import torch
from torch import nn

ROWS, FIELDS, WIDTH = 16, 12, 8


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, factors: torch.Tensor) -> torch.Tensor:
        total = factors.sum(dim=1)
        squares = (factors * factors).sum(dim=1)
        return 0.5 * (total * total - squares).sum(dim=-1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, FIELDS, WIDTH)]


def get_init_inputs() -> list[float]:
    return []
