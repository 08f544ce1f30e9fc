import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x, y):
        return torch.relu(x * self.scale + y)


def get_inputs():
    return [torch.randn(65, 513), torch.randn(65, 513)]


def get_init_inputs():
    return [513]
