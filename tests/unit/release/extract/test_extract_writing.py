"""Submodules as tasks: what they were made of, how they are called, and whether the text computes the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from cuda_agent.core.enums import Device
from cuda_agent.core.errors import TaskError
from cuda_agent.release.extract.calls import ForwardCall, draw, metas
from cuda_agent.release.extract.exchange import ExtractionJob
from cuda_agent.release.extract.inside.callspec import Matcher, describe
from cuda_agent.release.extract.worker import answer
from cuda_agent.workers.inside.task.taskmodule import load_task_module

MODEL = '''
"""A model."""
from __future__ import annotations
import collections, copy, functools
import torch
import torch.nn as nn
import torch.nn.functional as F
from dataclasses import dataclass

WIDTH = 8
TABLE = {"relu": F.relu, "tanh": torch.tanh}

def unused():
    return Model

@dataclass
class Settings:
    width: int = WIDTH
    act: str = "tanh"

def chosen(name):
    return TABLE[name]

class Gate(nn.Module):
    def __init__(self, settings: Settings, layer, *rest, scale=1.0):
        super().__init__()
        self.act, self.scale = chosen(settings.act), scale
        self.inner = nn.Linear(settings.width, settings.width, bias=False)

    def forward(self, x, pair, *, mask=None, factor=1.0):
        a, b = pair
        return self.act(self.inner(x) * a + b) * factor * self.scale, [x]

class Other(nn.Module):
    def __init__(self, power):
        super().__init__()
        self.power = power

    def forward(self, x):
        return x.abs() ** (1.0 / self.power)

class Local(nn.Module):
    def __init__(self):
        super().__init__()

        class Inside(nn.Module):
            def forward(self, x):
                return x * 2

        self.inside = Inside()

    def forward(self, x):
        for _ in range(40):
            x = x + 1
        return self.inside(x)

# Made before anybody looks.
NORM = nn.LayerNorm(8)

class Things:
    def __init__(self, one):
        self.one = one

class Kept(nn.Module):
    def forward(self, x, things):
        return x + things.one

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gates = nn.ModuleList(Gate(Settings(), i, "a", scale=0.5) for i in range(3))
        self.powers = nn.ModuleList([Other(2), Other(2), Other(3)])
        named = collections.OrderedDict(up=nn.Linear(8, 16), act=nn.GELU("tanh"), down=nn.Linear(16, 8))
        self.net = nn.Sequential(named)
        self.low = nn.Linear(8, 8).to(torch.bfloat16)
        self.local, self.kept = Local(), Kept()
        self.norm = copy.deepcopy(NORM)
        self.gates.append(copy.deepcopy(self.gates[0]))
        self.scripted = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
        self.tampered = nn.Linear(8, 8)
        self.tampered.weight = nn.Parameter(torch.ones(8, 8).double().float()[:, :8].t())
        self.tampered.bias = None

    def forward(self, x):
        for gate in self.gates:
            x = gate(x, (x, x * 2), mask=None, factor=0.5)[0]
        for power in self.powers:
            x = power(x)
        x = self.net(x) + self.low(x.to(torch.bfloat16)).float()
        x = self.tampered(self.norm(x))
        return self.scripted(self.local(self.kept(x, Things(x))))

def get_inputs():
    return [torch.randn(4, 6, 8)]

def get_init_inputs():
    return []
'''


def job(source: str, top: int) -> ExtractionJob:
    return ExtractionJob(source=source, name="mine", folders=(), device=Device.CPU, seed=0, top=top, operators=12)


@pytest.fixture(scope="module")
def taken() -> dict[str, Any]:
    found = answer(job(MODEL, top=20))
    assert found.findings is not None, found
    return found.findings.model_dump(mode="json")


def task(taken: dict[str, Any], kind: str, number: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = [one for one in taken["tasks"] if one["kind"] == kind][number]
    return found


def test_equal_layers_are_one_task(taken: dict[str, Any]) -> None:
    gate = task(taken, "Gate")
    # The last one is a copy.
    assert gate["paths"] == ["gates.0", "gates.1", "gates.2", "gates.3"] and gate["calls"] == 4
    assert gate["weights"] == 1 and "the model's own" in gate["origin"]
    shares = [one["share"] for one in taken["tasks"]]
    assert sum(shares) <= 1.0 and shares == sorted(shares, reverse=True)


def test_the_same_class_that_computes_something_else_is_another(taken: dict[str, Any]) -> None:
    paths = sorted(one["paths"] for one in taken["tasks"] if one["kind"] == "Other")
    assert paths == [["powers.0", "powers.1"], ["powers.2"]]


def test_its_own_source_comes_with_all_that_it_needs_and_no_more(taken: dict[str, Any]) -> None:
    source = task(taken, "Gate")["source"]
    for needed in ("WIDTH = 8", "TABLE = ", "@dataclass\nclass Settings", "def chosen", "class Gate"):
        assert needed in source
    for other in ("class Other", "def unused", "functools", "collections"):
        assert other not in source
    assert "Gate(Settings(width=8, act='tanh'), 0, 'a', scale=0.5)" in source
    assert "def forward(self, x, pair_0, pair_1):" in source
    assert "self.module(x, (pair_0, pair_1), mask=None, factor=0.5)" in source
    load_task_module(source, "again")


def test_containers_and_conversions(taken: dict[str, Any]) -> None:
    net = task(taken, "Sequential")["source"]
    assert "collections.OrderedDict([('up', nn.Linear(in_features=8, out_features=16))" in net
    assert "nn.GELU(approximate='tanh')" in net
    assert ".to(torch.bfloat16)" in next(t for t in taken["tasks"] if t["paths"] == ["low"])["source"]


def test_what_is_no_task_says_why(taken: dict[str, Any]) -> None:
    reasons = {one["kind"]: one["reason"] for one in taken["left_out"]}
    assert "more than --operators 12" in reasons["Local"]
    assert "defined inside a function" in reasons["Inside"]
    assert "its argument things is a Things" in reasons["Kept"]
    assert any("it was changed after its construction" in one["reason"] for one in taken["left_out"])


def test_a_copied_layer_is_made_again_from_its_attributes(taken: dict[str, Any]) -> None:
    assert "nn.LayerNorm(normalized_shape=(8,))" in task(taken, "LayerNorm")["source"]


def test_calls_that_aren_t_the_same_are_noticed() -> None:
    x, y = torch.zeros(2, 3), torch.zeros(3)
    spec, tensors = describe([x, None, 0.5], {"pair": (y, True), "inf": float("inf")})
    matcher = Matcher(spec, metas(tensors))
    kwargs: dict[str, Any] = {"pair": (y, True), "inf": float("inf")}
    assert matcher.tensors([x, None, 0.5], kwargs) == [x, y]
    laid = matcher.tensors([torch.zeros(3, 2).t(), None, 0.5], kwargs)
    assert laid is not None and laid[0].is_contiguous()
    for args, other in (
        ([x, None], kwargs),
        ([x, None, 0.6], kwargs),
        ([x, None, 1], kwargs),
        ([torch.zeros(2, 4), None, 0.5], kwargs),
        ([x.double(), None, 0.5], kwargs),
        ([x, x, 0.5], kwargs),
        ([x, None, 0.5], {**kwargs, "pair": (y, 1)}),
        ([x, None, 0.5], {**kwargs, "pair": (y,)}),
        ([x, None, 0.5], {"pair": (y, True)}),
        ([x, None, 0.5], {**kwargs, "inf": object()}),
    ):
        assert matcher.tensors(args, other) is None, (args, other)
    with pytest.raises(TaskError):
        describe([x], {"cache": object()})


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.full((2, 3), 2.0), "torch.full((2, 3), 2.0, dtype=torch.float32)"),
        (torch.arange(5).expand(2, 5), "torch.arange(0, 5, dtype=torch.int64).expand((2, 5)).contiguous()"),
        (torch.ones(4, 4, dtype=torch.bool).tril(), "torch.ones((4, 4), dtype=torch.bool).tril(0)"),
        (torch.tensor([[1, 7], [3, 3]]), "torch.randint(1, 8, (2, 2), dtype=torch.int64)"),
        (torch.full((3, 3), float("-inf")).triu(1), "torch.where(torch.ones((3, 3), dtype=torch.bool).tril(0), 0.0, "),
        (torch.tensor([0.0, 2.0, 1.0]), "(torch.rand((3,)) * 2)"),
    ],
)
def test_patterns_of_inputs_are_kept(tensor: Any, text: str) -> None:
    drawn = draw(tensor)
    assert drawn.startswith(text)
    again = eval(drawn)
    assert again.shape == tensor.shape and again.dtype == tensor.dtype


def test_layouts_of_inputs_are_kept() -> None:
    torch.manual_seed(0)
    x = (torch.randn(4, 8, 6) * 3 + 5).transpose(1, 2)
    again = eval(draw(x))
    assert again.shape == x.shape and again.stride() == x.stride()
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert eval(draw(image)).stride() == image.stride()


def test_parameters_have_names_of_their_own() -> None:
    class Odd(nn.Module):
        def forward(self, torch: Any, *rest: Any) -> Any:
            return torch

    x = torch.zeros(1)
    spec, tensors = describe([x, x, x], {"lambda": {"a b": x}})
    text = ForwardCall(Odd(), spec, len(tensors))
    assert len(set(text.parameters)) == 4 and all(name.isidentifier() for name in text.parameters)
    assert "torch" not in text.parameters
    spec, tensors = describe([x], {})
    assert ForwardCall(nn.Linear(1, 1), spec, len(tensors)).parameters == ["input_"], "no candidate may name a builtin"


def test_a_model_that_fails_says_so() -> None:
    source = MODEL.replace("return self.scripted(", "raise RuntimeError('no such thing')\n        return x, (")
    failed = answer(job(source, top=5))
    assert failed.findings is None and "no such thing" in failed.cause
