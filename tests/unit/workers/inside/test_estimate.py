"""What a call is estimated to hold, from shapes alone."""

from __future__ import annotations

import pytest

from cuda_agent.workers.inside.task.estimate import estimated_bytes
from cuda_agent.workers.inside.task.taskmodule import load_task_module, unload_task_module

GIB = 1 << 30
SOURCE = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16384, 16384, bias=False)
        self.rnn = nn.LSTM(64, 64)

    def forward(self, x):
        return FORWARD


def get_inputs():
    return [torch.randn(SHAPE)]


def get_init_inputs():
    return []
"""


def estimate(forward: str, shape: str) -> tuple[int, int, int]:
    task = load_task_module(SOURCE.replace("FORWARD", forward).replace("SHAPE", shape), forward[:9])
    try:
        return estimated_bytes(task)
    finally:
        unload_task_module(task)


@pytest.mark.parametrize(
    ("forward", "shape", "held"),
    [
        # Inputs, outputs, and the rest without the weights of 1 GiB.
        ("torch.sin(x)", "1 << 29", (2, 2, 0)),
        ("torch.sin(torch.sin(torch.sin(x)))", "1 << 29", (2, 2, 2)),
        ("self.linear(x).sum()", "65536, 16384", (4, 0, 4)),
        ("x.view(-1, 4)[1:].relu_()", "1 << 29", (2, 2, 0)),
        ("(x.argmax(1), x[0])", "65536, 16384", (4, 0, 0)),
        ("torch.softmax(x @ x.t(), 1) @ x", "32768, 64", (0, 0, 8)),
    ],
)
def test_a_call_holds(forward: str, shape: str, held: tuple[int, int, int]) -> None:
    inputs, outputs, rest = estimate(forward, shape)
    assert (round(inputs / GIB), round(outputs / GIB), round((rest - GIB) / GIB)) == held


def test_what_only_values_tell_is_not_estimated() -> None:
    with pytest.raises(Exception, match=r"item"):
        estimate("x[: int(x.sum())]", "8")
