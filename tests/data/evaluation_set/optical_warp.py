"""Warps an image by a flow field and masks what came from outside."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, CHANNELS, SIZE = 2, 3, 12


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, image: torch.Tensor, flow: torch.Tensor) -> torch.Tensor:
        inside = (flow.abs() <= 1.0).all(dim=-1).unsqueeze(1)
        warped = F.grid_sample(image, flow, align_corners=False)
        return warped * inside


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE), torch.randn(BATCH, SIZE, SIZE, 2)]


def get_init_inputs() -> list[float]:
    return []
