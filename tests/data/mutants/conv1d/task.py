import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels, outer):
        super().__init__()
        self.conv = nn.Conv1d(channels, outer, 3, padding=1)

    def forward(self, x):
        return self.conv(x)


def get_inputs():
    return [torch.randn(4, 6, 131)]


def get_init_inputs():
    return [6, 9]
