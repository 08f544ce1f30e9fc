"""Router: the two best experts for every token, their weights renormalised, and the load of each."""

import torch
import torch.nn.functional as F
from torch import nn

TOKENS, WIDTH, EXPERTS = 32, 16, 8


class Model(nn.Module):
    def __init__(self, width: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.chosen = chosen

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        p = F.softmax(self.gate(x), dim=-1)
        best, _ = torch.topk(p, self.chosen, dim=-1)
        return best / best.sum(dim=-1, keepdim=True), p.mean(dim=0)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(TOKENS, WIDTH)]


def get_init_inputs() -> list[float]:
    return [WIDTH, EXPERTS, 2]
