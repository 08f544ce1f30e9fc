"""A simple recurrent network of 256 steps, written as a loop, whose state is made in `forward`."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.hidden = hidden
        self.step = nn.Linear(inputs + hidden, hidden)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, x):
        state = torch.zeros(x.shape[0], self.hidden, device=x.device)
        for t in range(x.shape[1]):
            state = torch.tanh(self.step(torch.cat([x[:, t], state], 1)))
        return self.head(state)


def get_inputs():
    return [torch.randn(8, 256, 32)]


def get_init_inputs():
    return [32, 64, 16]
