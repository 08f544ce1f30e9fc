"""SwiGLU feed-forward block, in bfloat16: y = down(silu(gate(x)) * up(x)), without biases."""

import torch
import torch.nn.functional as F
from torch import nn

ON_GPU = torch.cuda.is_available()
TOKENS, HIDDEN, INNER = (8192, 4096, 11008) if ON_GPU else (512, 1024, 2816)


class Model(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, inner, bias=False, dtype=torch.bfloat16)
        self.up = nn.Linear(hidden, inner, bias=False, dtype=torch.bfloat16)
        self.down = nn.Linear(inner, hidden, bias=False, dtype=torch.bfloat16)
        for layer in (self.gate, self.up, self.down):
            nn.init.normal_(layer.weight, std=1.5 / layer.in_features**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(TOKENS, HIDDEN, dtype=torch.bfloat16)]


def get_init_inputs() -> list[int]:
    return [HIDDEN, INNER]
