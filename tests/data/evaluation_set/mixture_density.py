"""Log-likelihood of a value under a mixture of Gaussians given by a network's heads."""

import torch
import torch.nn.functional as F
from torch import nn

ROWS, WIDTH, PARTS = 24, 16, 5


class Model(nn.Module):
    def __init__(self, width: int, parts: int) -> None:
        super().__init__()
        self.weights = nn.Linear(width, parts)
        self.means = nn.Linear(width, parts)
        self.spreads = nn.Linear(width, parts)

    def forward(self, state: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        log_weight = torch.log_softmax(self.weights(state), dim=-1)
        spread = F.softplus(self.spreads(state)) + 1e-3
        z = (value - self.means(state)) / spread
        return torch.logsumexp(log_weight - 0.5 * z * z - torch.log(spread), dim=-1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, WIDTH), torch.randn(ROWS, 1)]


def get_init_inputs() -> list[float]:
    return [WIDTH, PARTS]
