import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        value, gate = x.chunk(2, dim=-1)
        return value * F.gelu(gate)


def get_inputs():
    return [torch.randn(60, 450)]


def get_init_inputs():
    return []
