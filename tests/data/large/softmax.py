"""A softmax over long rows: 4 GiB in, 4 GiB out."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(16384, 65536)]


def get_init_inputs() -> list[object]:
    return []
