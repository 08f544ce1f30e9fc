"""Projection, RMS norm and SiLU, in float32: p = W x + b;  y = silu(weight * p / sqrt(mean(p^2) + eps))."""

import torch
import torch.nn.functional as F
from torch import nn

ON_GPU = torch.cuda.is_available()
TOKENS, HIDDEN, FEATURES = (16384, 4096, 4096) if ON_GPU else (512, 768, 1024)


class Model(nn.Module):
    def __init__(self, hidden: int, features: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, features)
        nn.init.normal_(self.linear.weight, std=hidden**-0.5)
        nn.init.normal_(self.linear.bias, std=0.2)
        self.weight = nn.Parameter(1.0 + 0.2 * torch.randn(features))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        p = self.linear(x)
        normed = p * torch.rsqrt(p.pow(2).mean(-1, keepdim=True) + self.eps)
        return F.silu(normed * self.weight)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(TOKENS, HIDDEN)]


def get_init_inputs() -> list[int]:
    return [HIDDEN, FEATURES]
