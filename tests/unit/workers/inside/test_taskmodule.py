"""Task source -> module, models, inputs; pytrees; every failure as one line."""

import dataclasses
import inspect
import math
from collections import namedtuple

import pytest
import torch

from cuda_agent.core.errors import TaskError
from cuda_agent.workers.inside.task import pytree, taskmodule

GOOD = """
import torch
import torch.nn as nn
class Model(nn.Module):
    def __init__(self, hidden, eps: float = 1e-6):
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)
        self.eps = eps
    def forward(self, x, scale):
        return self.linear(x) * scale + self.eps
def get_inputs():
    return [torch.rand(4, 8), 2.0]
def get_init_inputs():
    return [8]
"""


def load(source=GOOD):
    return taskmodule.load_task_module(source, "good")


def test_whole_way():
    task = load()
    init = taskmodule.make_init_inputs(task)
    model = taskmodule.make_model(task, init, "cpu", 1)
    inputs = taskmodule.make_inputs(task, "cpu", 2)
    output = taskmodule.run_forward(task, model, inputs)
    assert output.shape == (4, 8) and not model.training
    assert inputs[1] == 2.0
    assert torch.equal(taskmodule.make_inputs(task, "cpu", 2)[0], inputs[0])
    assert not torch.equal(taskmodule.make_inputs(task, "cpu", 3)[0], inputs[0])
    assert "self.linear(x)" in inspect.getsource(task.Model)


def test_signatures():
    task = load()
    assert taskmodule.init_signature(task.Model) == "(self, hidden, eps=1e-06)"
    assert taskmodule.forward_parameters(task.Model) == ("x", "scale")
    other = load(GOOD.replace("eps: float = 1e-6", "eps=torch.pi * object().__hash__()"))
    assert taskmodule.init_signature(other.Model).startswith("(self, hidden, eps=")
    assert taskmodule.init_signature(load(GOOD.replace("1e-6", "torch.float32")).Model) == "(self, *args, **kwargs)"


def test_defaults_of_forward():
    class Optional:
        def forward(self, x, mask=None, dtype=torch.float32, *rest, size=(1, 2), must): ...

    assert taskmodule.forward_defaults(Optional) == {"mask": "None", "dtype": "None", "size": "(1, 2)", "must": "None"}
    assert taskmodule.forward_parameters(Optional) == ("x", "mask", "dtype")


@pytest.mark.parametrize(
    ("value", "args", "kwargs"),
    [
        ("[8]", (8,), {}),
        ("[]", (), {}),
        ("{'hidden': 8}", (), {"hidden": 8}),
        ("[[], {'hidden': 8}]", (), {"hidden": 8}),
        ("[[1, 2], {'a': 3}]", ([1, 2], {"a": 3}), {}),
    ],
)
def test_init_inputs(value, args, kwargs):
    init = taskmodule.make_init_inputs(load(GOOD.replace("return [8]", f"return {value}")))
    assert (init.args, init.kwargs) == (args, kwargs)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("class Model", "class Model(", "line 4"),
        ("class Model(nn.Module)", "class Other(nn.Module)", "has no class `Model`"),
        ("class Model(nn.Module)", "class Model", "no subclass"),
        ("def get_inputs", "def other_inputs", "no function `get_inputs`"),
        ("def get_init_inputs", "def other", "no function `get_init_inputs`"),
        ("import torch.nn as nn", "import not_there_at_all", "isn't installed"),
        ("import torch.nn as nn", "import torch.nn as nn\nexit(3)", "SystemExit"),
        ("return [torch.rand(4, 8), 2.0]", "raise ValueError('no\\nway')", "raised ValueError (line 12): no way"),
        ("return [torch.rand(4, 8), 2.0]", "return [1, 2]", "no tensors"),
        ("return [torch.rand(4, 8), 2.0]", "return 7", "returned int"),
        ("return [torch.rand(4, 8), 2.0]", "return [torch.rand(4, 8), object()]", "object"),
        ("return [torch.rand(4, 8), 2.0]", "return [torch.rand(4, 9), 2.0]", "Model.forward raised RuntimeError"),
        ("return [8]", "return ['x']", "Model(...) raised"),
    ],
)
def test_failures_are_one_line(old, new, words):
    with pytest.raises(TaskError) as caught:
        task = load(GOOD.replace(old, new))
        model = taskmodule.make_model(task, taskmodule.make_init_inputs(task), "cpu", 0)
        taskmodule.run_forward(task, model, taskmodule.make_inputs(task, "cpu", 0))
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has CUDA")
def test_needs_cuda():
    with pytest.raises(TaskError, match="needs CUDA"):
        taskmodule.make_inputs(load(GOOD.replace("torch.rand(4, 8)", "torch.rand(4, 8).cuda()")), "cpu", 0)


def test_dict_inputs_follow_forward():
    task = load(GOOD.replace("[torch.rand(4, 8), 2.0]", "{'x': torch.rand(4, 8), 'scale': 3.0}"))
    assert taskmodule.make_inputs(task, "cpu", 0)[1] == 3.0
    task = load(GOOD.replace("[torch.rand(4, 8), 2.0]", "{'y': torch.rand(4, 8)}"))
    with pytest.raises(TaskError, match="doesn't match forward"):
        taskmodule.make_inputs(task, "cpu", 0)


def test_pytree_there_and_back():
    a, b = torch.rand(2), torch.arange(3)
    value = [a, (b, None, {"k": [1, 2.5, True, "s", -math.inf]}), torch.float16]
    spec, tensors = pytree.flatten(value)
    back = pytree.unflatten(spec, tensors)
    assert tensors[0] is a and tensors[1] is b and back[1][1:] == value[1][1:] and back[2] is torch.float16
    assert math.isnan(pytree.unflatten(*pytree.flatten(math.nan)))
    assert pytree.tensor_paths(pytree.flatten([a, {"m": (b,)}])[0]) == ["[0]", "[1]['m'][0]"]


def test_pytree_classes_become_tuples():
    point = namedtuple("Point", "x y")

    @dataclasses.dataclass
    class Output:
        loss: object
        logits: object

    spec, tensors = pytree.flatten([point(torch.zeros(1), 2), Output(None, torch.ones(1))])
    assert spec["list"][0]["note"] == "Point" and spec["list"][1]["note"] == "Output" and len(tensors) == 2
    assert pytree.unflatten(spec, tensors)[0][1] == 2


@pytest.mark.parametrize(
    "value", [object(), {1: 2}, torch.zeros(2, dtype=torch.complex64), torch.eye(2).to_sparse(), [0] * 5000]
)
def test_pytree_refuses(value):
    with pytest.raises(TaskError):
        pytree.flatten(value)


@pytest.mark.parametrize("spec", [{}, {"t": 3}, {"t": -1}, {"list": 3}, {"dtype": "nn"}, 7])
def test_malformed_spec(spec):
    with pytest.raises(TaskError):
        pytree.unflatten(spec, [])


def test_own_seeds_dont_fix_the_draws():
    task = load(GOOD.replace("    return [torch.rand", "    torch.manual_seed(0)\n    return [torch.rand"))
    first, second = (taskmodule.make_inputs(task, "cpu", seed)[0] for seed in (1, 2))
    assert not torch.equal(first, second) and torch.manual_seed(0) is torch.default_generator
    assert torch.initial_seed() == 0
