"""Smoothness of a signal: Huber loss between steps and a prediction of them."""

import torch
import torch.nn.functional as F
from torch import nn

ROWS, STEPS = 8, 64


class Model(nn.Module):
    def __init__(self, delta: float) -> None:
        super().__init__()
        self.delta = delta

    def forward(self, signal: torch.Tensor, predicted: torch.Tensor) -> torch.Tensor:
        steps = torch.diff(signal, dim=1)
        return F.huber_loss(steps, predicted, delta=self.delta)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, STEPS), torch.randn(ROWS, STEPS - 1)]


def get_init_inputs() -> list[float]:
    return [0.7]
