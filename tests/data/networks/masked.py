"""Attention with an optional mask, which the task doesn't pass."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.project = nn.Linear(width, 3 * width)

    def forward(self, x, mask=None, *, scale: float = 1.0):
        q, k, v = self.project(x).chunk(3, -1)
        scores = scale * q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(mask, float("-inf"))
        return torch.softmax(scores, -1) @ v


def get_inputs():
    return [torch.randn(4, 64, 48)]


def get_init_inputs():
    return [48]
