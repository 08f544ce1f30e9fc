import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x, y):
        rows = x.view(-1, x.shape[-1]).contiguous()
        out = cuda_extension.scaled_relu(rows, y.reshape(rows.shape), self.scale)
        return out.view(x.shape)
