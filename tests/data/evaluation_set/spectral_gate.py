"""Gate of a spectrogram denoiser: a mask from a small bottleneck scales each frequency band."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, FRAMES, BANDS = 4, 32, 48


class Model(nn.Module):
    def __init__(self, bands: int, narrow: int) -> None:
        super().__init__()
        self.shrink = nn.Linear(bands, narrow)
        self.grow = nn.Linear(narrow, bands)

    def forward(self, spectrum: torch.Tensor) -> torch.Tensor:
        mask = torch.sigmoid(self.grow(F.relu(self.shrink(spectrum))))
        return spectrum * mask


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, FRAMES, BANDS)]


def get_init_inputs() -> list[float]:
    return [BANDS, BANDS // 4]
