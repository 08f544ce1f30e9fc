"""Element-wise: 6 GiB in, 6 GiB out."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(x)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(24576, 65536)]


def get_init_inputs() -> list[object]:
    return []
