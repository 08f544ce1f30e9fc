"""SwiGLU feed-forward block, in bfloat16: y = down(silu(gate(x)) * up(x)), without biases."""

import torch
import torch.nn.functional as F
from torch import nn

ON_GPU = torch.cuda.is_available()
TOKENS, HIDDEN, INNER = (8192, 4096, 11008) if ON_GPU else (256, 1024, 2816)


class Model(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, inner, bias=False, dtype=torch.bfloat16)
        self.up = nn.Linear(hidden, inner, bias=False, dtype=torch.bfloat16)
        self.down = nn.Linear(inner, hidden, bias=False, dtype=torch.bfloat16)
        nn.init.normal_(self.gate.weight, std=1.5 / hidden**0.5)
        nn.init.normal_(self.up.weight, std=1.5 / hidden**0.5)
        nn.init.normal_(self.down.weight, std=0.25 / inner**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(TOKENS, HIDDEN, dtype=torch.bfloat16)]


def get_init_inputs() -> list[int]:
    return [HIDDEN, INNER]
