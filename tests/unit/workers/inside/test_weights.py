"""Redrawn weights: nothing trivial stays, tied stays tied, the same seed gives the same values."""

import pytest
import torch

from cuda_agent.core.errors import TaskError
from cuda_agent.workers.inside.task.taskmodule import load_task_module, make_init_inputs, make_model
from cuda_agent.workers.inside.task.weights import redraw, state_metas

SOURCE = """
import torch
import torch.nn as nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(4)
        self.scale = nn.Parameter(torch.full((3,), 5.0, dtype=torch.bfloat16))
        self.register_buffer("table", torch.arange(4.0))
        self.register_buffer("hidden", torch.ones(2), persistent=False)
    def forward(self, x):
        return self.norm(x)
def get_inputs():
    return [torch.rand(4, 4)]
def get_init_inputs():
    return []
"""


@pytest.fixture
def model():
    task = load_task_module(SOURCE, "weights")
    return make_model(task, make_init_inputs(task), "cpu", 0)


def test_redraw(model):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    pointers = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    redraw(model, 7)
    state = model.state_dict()
    for name in ("embed.weight", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var", "scale"):
        assert not torch.equal(before[name], state[name]), name
        assert state[name].float().std() > 0
    for name in ("table", "norm.num_batches_tracked"):
        assert torch.equal(before[name], state[name])
    assert torch.equal(model.hidden, torch.ones(2))
    assert model.head.weight is model.embed.weight
    assert pointers == {name: tensor.data_ptr() for name, tensor in state.items()}
    assert (state["norm.running_var"] >= 0.5).all() and not model.training
    assert state["scale"].float().mean().sub(5).abs() < 2


def test_deterministic(model):
    redraw(model, 7)
    first = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    redraw(model, 8)
    assert not torch.equal(first["embed.weight"], model.state_dict()["embed.weight"])
    redraw(model, 7)
    assert all(torch.equal(tensor, first[name]) for name, tensor in model.state_dict().items())


def test_stranger_is_refused():
    with pytest.raises(TaskError):
        redraw(torch.nn.Linear(2, 2), 0)


def test_state_metas(model):
    assert state_metas(model)["scale"].dtype == "bfloat16" and "hidden" not in state_metas(model)


def test_constructor_that_seeds_itself():
    text = SOURCE.replace("        super().__init__()", "        super().__init__()\n        torch.manual_seed(0)")
    task = load_task_module(text, "seeded")
    one, other = (make_model(task, make_init_inputs(task), "cpu", seed) for seed in (1, 2))
    assert torch.equal(one.embed.weight, other.embed.weight)
    redraw(other, 3)
    assert not torch.equal(one.embed.weight, other.embed.weight)
