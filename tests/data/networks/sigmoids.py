"""A sum over thousands of sigmoids, which is nearly the same for all inputs."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.linear = nn.Linear(width, hidden)

    def forward(self, x):
        return torch.sigmoid(self.linear(x)).sum(1, keepdim=True)


def get_inputs():
    return [torch.randn(64, 256)]


def get_init_inputs():
    return [256, 8192]
