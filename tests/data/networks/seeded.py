"""An Elman network whose first state is random."""

import torch


class Model(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.own = torch.nn.Linear(width, width)
        self.before = torch.nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.steps(x, torch.randn(x.shape[1], x.shape[2], device=x.device))

    def steps(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        for step in x:
            state = torch.tanh(self.own(step) + self.before(state))
        return state


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(4, 32, 64)]


def get_init_inputs() -> list[int]:
    return [64]
