"""Attention weights: softmax(scores * scale + mask) over long rows, with an additive mask that holds -inf.

The mask is causal, so row i keeps its first LENGTH - QUERIES + i + 1 keys.
"""

import math

import torch
from torch import nn

ON_GPU = torch.cuda.is_available()
HEADS, QUERIES, LENGTH = (16, 2048, 8192) if ON_GPU else (4, 512, 2048)
HEAD_DIM = 64


class Model(nn.Module):
    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.scale = 1.0 / math.sqrt(head_dim)

    def forward(self, scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.softmax(scores * self.scale + mask, dim=-1)


def get_inputs() -> list[torch.Tensor]:
    # Products of query and key before scaling; large enough that a few keys take most of the weight.
    scores = 3.0 * math.sqrt(HEAD_DIM) * torch.randn(1, HEADS, QUERIES, LENGTH)
    mask = torch.full((QUERIES, LENGTH), float("-inf")).triu(LENGTH - QUERIES + 1)
    return [scores, mask]


def get_init_inputs() -> list[int]:
    return [HEAD_DIM]
