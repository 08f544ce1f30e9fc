"""Layer norm followed by exact GELU, in float32: y = gelu(layer_norm(x) * weight + bias) over the last dimension."""

import torch
import torch.nn.functional as F
from torch import nn

ON_GPU = torch.cuda.is_available()
TOKENS, HIDDEN = (49152, 6144) if ON_GPU else (2048, 2048)


class Model(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        nn.init.normal_(self.norm.weight, mean=1.0, std=0.2)
        nn.init.normal_(self.norm.bias, std=0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.norm(x))


def get_inputs() -> list[torch.Tensor]:
    return [2.0 * torch.randn(TOKENS, HIDDEN) + 0.5]


def get_init_inputs() -> list[int]:
    return [HIDDEN]
