"""Feed-forward block with exact GELU, in float32: y = W2 gelu(W1 x + b1) + b2."""

import torch
import torch.nn.functional as F
from torch import nn

ON_GPU = torch.cuda.is_available()
TOKENS, HIDDEN, INNER = (8192, 2048, 8192) if ON_GPU else (512, 512, 2048)


class Model(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(hidden, inner)
        self.fc2 = nn.Linear(inner, hidden)
        for layer in (self.fc1, self.fc2):
            nn.init.normal_(layer.weight, std=1.4 / layer.in_features**0.5)
            nn.init.normal_(layer.bias, std=0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(TOKENS, HIDDEN)]


def get_init_inputs() -> list[int]:
    return [HIDDEN, INNER]
