"""Rotary position embedding of queries and keys with grouped heads, in bfloat16, turned in float32.

Each head is split into halves (a, b) and turned by the angle of its position:
(a, b) -> (a * cos - b * sin, b * cos + a * sin).
"""

import torch
from torch import nn

ON_GPU = torch.cuda.is_available()
BATCH, HEADS, KEY_HEADS, LENGTH, HEAD_DIM = (8, 32, 8, 4096, 128) if ON_GPU else (2, 16, 4, 2048, 64)


class Model(nn.Module):
    def __init__(self, length: int, head_dim: int, base: float = 10000.0) -> None:
        super().__init__()
        frequency = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        angle = torch.outer(torch.arange(length, dtype=torch.float32), frequency)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x.float().chunk(2, dim=-1)
        turned = torch.cat((a * self.cos - b * self.sin, b * self.cos + a * self.sin), dim=-1)
        return turned.to(x.dtype)

    def forward(self, query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.rotate(query), self.rotate(key)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, heads, LENGTH, HEAD_DIM, dtype=torch.bfloat16) for heads in (HEADS, KEY_HEADS)]


def get_init_inputs() -> list[int]:
    return [LENGTH, HEAD_DIM]
