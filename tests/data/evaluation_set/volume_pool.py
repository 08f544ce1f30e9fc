"""Features of a scan: 3-D convolution, average pooling, ELU, mean over the volume."""

import torch
from torch import nn

BATCH, CHANNELS, SIZE = 2, 2, 10


class Model(nn.Module):
    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(channels, filters, 3)
        self.pool = nn.AvgPool3d(2)
        self.act = nn.ELU()

    def forward(self, scan: torch.Tensor) -> torch.Tensor:
        return self.act(self.pool(self.conv(scan))).mean(dim=(2, 3, 4))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE, SIZE)]


def get_init_inputs() -> list[float]:
    return [CHANNELS, 4]
