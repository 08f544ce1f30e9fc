import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(features, features))
        self.bias = nn.Parameter(torch.empty(features))

    def forward(self, x):
        return cuda_extension.project(x, self.weight, self.bias).t()
