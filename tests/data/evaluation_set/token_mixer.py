"""One block of an MLP mixer: across tokens, then across channels, each with a residual."""

import torch
from torch import nn

BATCH, TOKENS, WIDTH = 2, 12, 16


class Model(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm_tokens = nn.LayerNorm(width)
        self.norm_width = nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.along = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.across(self.norm_tokens(x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.norm_width(x))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, TOKENS, WIDTH)]


def get_init_inputs() -> list[float]:
    return [TOKENS, WIDTH]
