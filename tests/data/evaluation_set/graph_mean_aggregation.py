"""Mean of the neighbours' features in a graph, by scattering along edges, then a linear layer."""

import torch
import torch.nn.functional as F
from torch import nn

NODES, EDGES, WIDTH = 20, 80, 16


class Model(nn.Module):
    def __init__(self, nodes: int, width: int) -> None:
        super().__init__()
        self.nodes = nodes
        self.mix = nn.Linear(2 * width, width)

    def forward(self, features: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        messages = features.index_select(0, source)
        total = torch.zeros_like(features).index_add(0, target, messages)
        ones = torch.ones(target.shape[0], 1)
        degree = torch.zeros(self.nodes, 1).index_add(0, target, ones).clamp(min=1)
        return F.elu(self.mix(torch.cat([features, total / degree], dim=1)))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(NODES, WIDTH), torch.randint(NODES, (EDGES,)), torch.randint(NODES, (EDGES,))]


def get_init_inputs() -> list[float]:
    return [NODES, WIDTH]
