"""Convolution block of a detection backbone, in float32: y = silu(batch_norm(conv3x3(x))), batch norm in eval mode."""

import torch
import torch.nn.functional as F
from torch import nn

ON_GPU = torch.cuda.is_available()
BATCH, CHANNELS, FILTERS, SIZE = (128, 128, 256, 56) if ON_GPU else (8, 64, 64, 56)


class Model(nn.Module):
    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, kernel_size=3, padding=1, bias=False)
        nn.init.normal_(self.conv.weight, std=1.0 / (3.0 * channels**0.5))
        self.norm = nn.BatchNorm2d(filters)
        nn.init.normal_(self.norm.weight, mean=1.0, std=0.2)
        nn.init.normal_(self.norm.bias, std=0.2)
        nn.init.normal_(self.norm.running_mean, std=0.2)
        nn.init.uniform_(self.norm.running_var, 0.5, 1.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.norm(self.conv(x)))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs() -> list[int]:
    return [CHANNELS, FILTERS]
