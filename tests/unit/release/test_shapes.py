"""The same task at another batch size."""

from __future__ import annotations

import pytest
import torch

from cuda_agent.core.errors import TaskError
from cuda_agent.core.graph import TensorMeta
from cuda_agent.core.records import Task
from cuda_agent.release.shapes import batch_size, resized_task, sizes_to_try
from cuda_agent.workers.inside.task.taskmodule import load_task_module, make_inputs

SOURCE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, table, labels, factor):
        return x
def get_inputs():
    return INPUTS
def get_init_inputs():
    return []
"""
INPUTS = "[torch.randn(4, 3), torch.randn(7, 4), torch.randint(0, 9, (4,)), 2.0]"


def drawn(size: int, inputs: str = INPUTS) -> list[object]:
    task = resized_task(Task(name="t", source=SOURCE.replace("INPUTS", inputs)), 4, size)
    return make_inputs(load_task_module(task.source, task.name), "cpu", 1)


@pytest.mark.parametrize("size", [1, 3, 5, 9])
def test_what_has_as_many_rows_gets_others(size: int) -> None:
    x, table, labels, factor = drawn(size)
    assert isinstance(x, torch.Tensor) and isinstance(table, torch.Tensor) and isinstance(labels, torch.Tensor)
    assert x.shape == (size, 3) and labels.shape == (size,) and table.shape == (7, 4) and factor == 2.0
    assert len(x.unique()) == x.numel()


def test_named_inputs_and_offsets() -> None:
    (x,) = drawn(5, "{'x': torch.randn(4, 3)}")
    assert isinstance(x, torch.Tensor) and x.shape == (5, 3)
    with pytest.raises(TaskError, match="offsets"):
        drawn(5, "[torch.randn(4, 3), torch.arange(4)]")
    assert drawn(2, "[torch.randn(4, 3), torch.arange(4)]")[1].tolist() == [0, 1]  # type: ignore[attr-defined]


def meta(*shape: int) -> TensorMeta:
    return TensorMeta(shape=shape, dtype="float32", strides=tuple(1 for _ in shape))


def test_sizes() -> None:
    assert batch_size([meta(), meta(8, 2)]) == 8
    assert batch_size([meta()]) is None
    assert sizes_to_try(8, (), ()) == (1, 9)
    assert sizes_to_try(1, (), (7,)) == (2, 7)
    assert sizes_to_try(8, (3, 8), (3,)) == (3,)
