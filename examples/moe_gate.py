"""Gate of a mixture of experts with a probability threshold, in float32.

p = softmax(W x + b) over the experts;  an expert keeps what lies above half of the uniform share, and the kept weights
are normalised again:  k = relu(p - 1 / (2 * experts));  y = k / sum(k).
"""

import torch
from torch import nn

ON_GPU = torch.cuda.is_available()
TOKENS, HIDDEN, EXPERTS = (131072, 4096, 64) if ON_GPU else (4096, 1024, 64)


class Model(nn.Module):
    def __init__(self, hidden: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(hidden, experts)
        nn.init.normal_(self.router.weight, std=2.0 / hidden**0.5)
        nn.init.normal_(self.router.bias, std=0.5)
        self.cutoff = 0.5 / experts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        probability = torch.softmax(self.router(x), dim=-1)
        kept = torch.relu(probability - self.cutoff)
        return kept / kept.sum(dim=-1, keepdim=True)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(TOKENS, HIDDEN)]


def get_init_inputs() -> list[int]:
    return [HIDDEN, EXPERTS]
