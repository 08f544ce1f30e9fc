"""Attention by cosine similarity, with one temperature for each head."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, HEADS, TOKENS, WIDTH = 2, 4, 16, 8


class Model(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        q = F.normalize(query, dim=-1)
        k = F.normalize(key, dim=-1)
        weights = torch.softmax(torch.matmul(q, k.transpose(-2, -1)) * self.temperature, dim=-1)
        return torch.matmul(weights, value)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, HEADS, TOKENS, WIDTH) for _ in range(3)]


def get_init_inputs() -> list[float]:
    return [HEADS]
