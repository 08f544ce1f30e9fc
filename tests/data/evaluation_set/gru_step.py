"""One step of a gated recurrent unit, written out."""

import torch
from torch import nn

ROWS, INPUT, STATE = 16, 12, 20


class Model(nn.Module):
    def __init__(self, inputs: int, state: int) -> None:
        super().__init__()
        self.reset = nn.Linear(inputs + state, state)
        self.update = nn.Linear(inputs + state, state)
        self.propose = nn.Linear(inputs + state, state)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        both = torch.cat([x, h], dim=-1)
        r = torch.sigmoid(self.reset(both))
        z = torch.sigmoid(self.update(both))
        n = torch.tanh(self.propose(torch.cat([x, r * h], dim=-1)))
        return (1.0 - z) * n + z * h


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, INPUT), torch.randn(ROWS, STATE)]


def get_init_inputs() -> list[float]:
    return [INPUT, STATE]
