"""y = alpha x + beta y, in float32: the smallest task that the published workspace's layout can be tried on."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, alpha: float, beta: float) -> None:
        super().__init__()
        self.alpha = alpha
        self.beta = beta

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.alpha * x + self.beta * y


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(4096, 4096), torch.randn(4096, 4096)]


def get_init_inputs() -> list[float]:
    return [2.0, -0.5]
