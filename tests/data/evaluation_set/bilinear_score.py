"""Score of pairs by a bilinear form, squashed."""

import torch
from torch import nn

ROWS, LEFT, RIGHT = 24, 12, 10


class Model(nn.Module):
    def __init__(self, left: int, right: int) -> None:
        super().__init__()
        self.form = nn.Parameter(torch.randn(left, right) / left**0.5)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.einsum("ni,ij,nj->n", a, self.form, b))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, LEFT), torch.randn(ROWS, RIGHT)]


def get_init_inputs() -> list[float]:
    return [LEFT, RIGHT]
