import cuda_extension
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, y, scale):
        return cuda_extension.scaled_relu(x, y, scale)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.inner = Model()

    def forward(self, x, y):
        return self.inner(x, y, self.scale)
