import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.sizes = {}

    def forward(self, x, y):
        if x.shape not in self.sizes:
            self.sizes[x.shape] = x.numel()
        return cuda_extension.scaled_relu(x, y, self.scale)
