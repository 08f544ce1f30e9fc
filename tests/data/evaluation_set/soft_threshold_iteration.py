"""Three steps of iterative shrinkage for sparse coding."""

import torch
import torch.nn.functional as F
from torch import nn

ROWS, SIGNAL, CODE = 16, 20, 30


class Model(nn.Module):
    def __init__(self, signal: int, code: int, penalty: float) -> None:
        super().__init__()
        self.encode = nn.Linear(signal, code, bias=False)
        self.inhibit = nn.Linear(code, code, bias=False)
        self.penalty = penalty

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        drive = self.encode(signal)
        code = F.softshrink(drive, self.penalty)
        for _ in range(2):
            code = F.softshrink(drive + self.inhibit(code), self.penalty)
        return code


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, SIGNAL)]


def get_init_inputs() -> list[float]:
    return [SIGNAL, CODE, 0.05]
