"""Upsampling step of a segmentation decoder, in float32: a transposed convolution gates the skip connection.

u = conv_transpose(x), twice as high and wide;  y = u + skip * sigmoid(gain * u + offset), with one gain and one offset
for each channel.
"""

import torch
from torch import nn

ON_GPU = torch.cuda.is_available()
BATCH, CHANNELS, FILTERS, SIZE = (64, 128, 64, 64) if ON_GPU else (8, 64, 32, 48)


class Model(nn.Module):
    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(channels, filters, kernel_size=4, stride=2, padding=1)
        nn.init.normal_(self.up.weight, std=0.5 / channels**0.5)
        nn.init.normal_(self.up.bias, std=0.2)
        self.gain = nn.Parameter(1.0 + 0.2 * torch.randn(filters, 1, 1))
        self.offset = nn.Parameter(0.2 * torch.randn(filters, 1, 1))

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        u = self.up(x)
        return u + skip * torch.sigmoid(self.gain * u + self.offset)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE), torch.randn(BATCH, FILTERS, 2 * SIZE, 2 * SIZE)]


def get_init_inputs() -> list[int]:
    return [CHANNELS, FILTERS]
