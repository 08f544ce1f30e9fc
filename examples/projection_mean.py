"""Projection averaged over its features, in float32: y = mean(W x + b) for each token.

A pooled score, as reward and value heads compute it. The weights are positive on average, as those of a trained head
whose features agree.
"""

import torch
from torch import nn

ON_GPU = torch.cuda.is_available()
TOKENS, HIDDEN, FEATURES = (16384, 4096, 8192) if ON_GPU else (512, 768, 1024)


class Model(nn.Module):
    def __init__(self, hidden: int, features: int) -> None:
        super().__init__()
        self.projection = nn.Linear(hidden, features)
        nn.init.normal_(self.projection.weight, mean=1.0 / hidden**0.5, std=1.0 / hidden**0.5)
        nn.init.normal_(self.projection.bias, mean=0.5, std=0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.projection(x).mean(dim=-1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(TOKENS, HIDDEN)]


def get_init_inputs() -> list[int]:
    return [HIDDEN, FEATURES]
