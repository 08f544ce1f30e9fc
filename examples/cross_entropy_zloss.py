"""Cross-entropy over a large vocabulary with z-loss, in float32, one loss for each token.

l = logsumexp(logits);  loss = l - logits[target] + 1e-4 * l^2.  Unreduced, since the trainer weights the tokens.
"""

import torch
import torch.nn.functional as F
from torch import nn

ON_GPU = torch.cuda.is_available()
TOKENS, VOCABULARY = (4096, 65536) if ON_GPU else (128, 32768)


class Model(nn.Module):
    def __init__(self, z_weight: float = 1e-4) -> None:
        super().__init__()
        self.z_weight = z_weight

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(logits, target, reduction="none")
        return loss + self.z_weight * torch.logsumexp(logits, dim=-1).square()


def get_inputs() -> list[torch.Tensor]:
    return [4.0 * torch.randn(TOKENS, VOCABULARY), torch.randint(0, VOCABULARY, (TOKENS,))]


def get_init_inputs() -> list[float]:
    return [1e-4]
