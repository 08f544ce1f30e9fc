"""Adaptive layer norm of a diffusion transformer, in bfloat16, computed in float32.

h = x + gate * branch;  y = layer_norm(h) * (1 + scale) + shift.  gate, scale and shift come from the conditioning, one
vector for each sample. Returns y, which enters the next branch, and h.
"""

import torch
import torch.nn.functional as F
from torch import nn

ON_GPU = torch.cuda.is_available()
BATCH, TOKENS, HIDDEN = (8, 4096, 3072) if ON_GPU else (4, 1024, 1024)


class Model(nn.Module):
    def __init__(self, hidden: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.hidden = hidden
        self.eps = eps

    def forward(
        self,
        x: torch.Tensor,
        branch: torch.Tensor,
        gate: torch.Tensor,
        scale: torch.Tensor,
        shift: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        h = x.float() + gate.float() * branch.float()
        y = F.layer_norm(h, (self.hidden,), eps=self.eps) * (1.0 + scale.float()) + shift.float()
        return y.to(x.dtype), h.to(x.dtype)


def get_inputs() -> list[torch.Tensor]:
    tokens = [torch.randn(BATCH, TOKENS, HIDDEN, dtype=torch.bfloat16) for _ in range(2)]
    conditioning = [0.5 * torch.randn(BATCH, 1, HIDDEN, dtype=torch.bfloat16) for _ in range(3)]
    return tokens + conditioning


def get_init_inputs() -> list[int]:
    return [HIDDEN]
