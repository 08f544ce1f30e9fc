"""Entropy of the rows of an attention map, with future positions masked."""

import torch
from torch import nn

HEADS, TOKENS, WIDTH = 4, 16, 8


class Model(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.scale = width**-0.5
        self.register_buffer("future", torch.ones(tokens, tokens).triu(1).bool())

    def forward(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        scores = (query @ key.mT) * self.scale
        scores = scores.masked_fill(self.future, float("-inf"))
        p = scores.softmax(dim=-1)
        return -(p * torch.log(p + 1e-9)).sum(dim=-1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(HEADS, TOKENS, WIDTH), torch.randn(HEADS, TOKENS, WIDTH)]


def get_init_inputs() -> list[float]:
    return [TOKENS, WIDTH]
