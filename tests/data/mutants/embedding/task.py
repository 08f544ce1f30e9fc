import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.randn(24, width))

    def forward(self, tokens):
        return self.table(tokens) * 3.0 + self.places


def get_inputs():
    return [torch.randint(0, 500, (17, 24))]


def get_init_inputs():
    return [500, 67]
