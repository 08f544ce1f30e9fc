"""Tower of a click predictor: batch norm, three layers, one logit."""

import torch
from torch import nn

ROWS, FIELDS = 48, 20


class Model(nn.Module):
    def __init__(self, fields: int) -> None:
        super().__init__()
        self.tower = nn.Sequential(
            nn.BatchNorm1d(fields),
            nn.Linear(fields, 64),
            nn.ReLU(),
            nn.Linear(64, 32),
            nn.ReLU(),
            nn.Linear(32, 1),
        )

    def forward(self, row: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.tower(row)).squeeze(-1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, FIELDS)]


def get_init_inputs() -> list[float]:
    return [FIELDS]
