"""Convolution module of a speech encoder, in float32: gated linear unit over the channels, then a depthwise convolution
over time and SiLU.

(a, b) = halves of x's channels;  y = silu(depthwise(a * sigmoid(b)))
"""

import torch
import torch.nn.functional as F
from torch import nn

ON_GPU = torch.cuda.is_available()
BATCH, CHANNELS, LENGTH, KERNEL = (64, 512, 4096, 15) if ON_GPU else (8, 256, 1024, 15)


class Model(nn.Module):
    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(channels, channels, kernel, padding=kernel // 2, groups=channels)
        nn.init.normal_(self.depthwise.weight, std=2.0 / kernel**0.5)
        nn.init.normal_(self.depthwise.bias, std=0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.depthwise(F.glu(x, dim=1)))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, 2 * CHANNELS, LENGTH)]


def get_init_inputs() -> list[int]:
    return [CHANNELS, KERNEL]
