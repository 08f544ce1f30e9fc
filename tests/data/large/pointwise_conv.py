"""A 1x1 convolution: 4 GiB in, 4 GiB out."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(64, 64, kernel_size=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(16, 64, 1024, 1024)]


def get_init_inputs() -> list[object]:
    return []
