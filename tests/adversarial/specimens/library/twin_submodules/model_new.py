import cuda_extension
import torch
import torch.nn as nn


class Stage(nn.Module):
    def forward(self, x, y, scale):
        return cuda_extension.scaled_relu(x, y, scale)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.stages = nn.ModuleList([Stage()])

    def forward(self, x, y):
        for stage in self.stages:
            x = stage(x, y, self.scale)
        return x
