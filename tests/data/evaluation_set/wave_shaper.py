"""Distortion of an audio signal: drive, soft clipping, and a low-pass filter as a 1-D convolution."""

import torch
from torch import nn

BATCH, SAMPLES = 4, 256


class Model(nn.Module):
    def __init__(self, taps: int, drive: float) -> None:
        super().__init__()
        self.drive = drive
        self.filter = nn.Conv1d(1, 1, taps, padding=taps // 2, bias=False)

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        shaped = torch.tanh(signal * self.drive)
        return self.filter(shaped)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, 1, SAMPLES)]


def get_init_inputs() -> list[float]:
    return [9, 2.5]
