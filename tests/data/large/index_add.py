"""Rows added at places of a tensor of 3 GiB: no slice of the tensor may be addressed with the places of the whole."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return torch.index_add(x, 0, index, source)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(196608, 4096), torch.randint(0, 196608, (65536,)), torch.randn(65536, 4096)]


def get_init_inputs() -> list[int]:
    return []
