"""Part of a generator: transposed convolution, batch norm, leaky relu, transposed convolution, tanh."""

import torch
from torch import nn

BATCH, LATENT, SIZE = 2, 16, 4


class Model(nn.Module):
    def __init__(self, latent: int) -> None:
        super().__init__()
        self.up1 = nn.ConvTranspose2d(latent, 8, 4, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.act = nn.LeakyReLU(0.2)
        self.up2 = nn.ConvTranspose2d(8, 3, 4, stride=2, padding=1)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        h = self.act(self.norm(self.up1(z)))
        return torch.tanh(self.up2(h))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, LATENT, SIZE, SIZE)]


def get_init_inputs() -> list[float]:
    return [LATENT]
