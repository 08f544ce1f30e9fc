"""The hash of an operator graph: what it is blind to, and what it tells apart."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from cuda_agent.core.graph import Graph, Node, Ref, TensorMeta
from cuda_agent.tasks.decontaminate.graphhash import graph_hash, graph_operators
from cuda_agent.workers.inside.graph.capture import capture
from cuda_agent.workers.inside.task.taskmodule import load_task_module


def _graph(model: nn.Module, *inputs: torch.Tensor) -> Graph:
    source = "from torch.nn import Module as Model\ndef get_inputs(): ...\ndef get_init_inputs(): ..."
    return capture(model.eval(), list(inputs), load_task_module(source, "task"))


class _Function(nn.Module):
    def __init__(self, function, **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *inputs: torch.Tensor):
        return self.function(*inputs)


def _hash(function, *inputs: torch.Tensor) -> str:
    return graph_hash(_graph(_Function(function), *inputs))


X, Y = torch.randn(4, 6), torch.randn(4, 6)


def test_sizes_numbers_and_spelling_mean_nothing() -> None:
    first = graph_hash(_graph(nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.1), nn.LayerNorm(8)), X))
    layer, norm = nn.Linear(5, 3), nn.LayerNorm(3)

    class Spelled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift, self.matrix, self.gain = norm.bias, layer.weight, norm.weight
            self.bias = layer.bias

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            wide = F.leaky_relu(F.linear(values, self.matrix, self.bias))
            return F.layer_norm(wide, (3,), self.gain, self.shift, 1e-3)

    assert graph_hash(_graph(Spelled(), torch.randn(9, 2, 5))) == first


def test_order_sharing_and_dead_code_mean_nothing() -> None:
    first = _hash(lambda x, y: torch.sin(x) + torch.cos(y), X, Y)
    assert _hash(lambda x, y: torch.cos(x) + torch.sin(y), X, Y) == first

    def shared(x: torch.Tensor) -> torch.Tensor:
        torch.tanh(x)
        e = torch.exp(x)
        return e * torch.sigmoid(e)

    assert _hash(shared, X) == _hash(lambda x: torch.sigmoid(x.exp()) * x.exp(), X)


def test_views_and_float_casts_mean_nothing() -> None:
    first = _hash(lambda x: torch.relu(x).sum(1), X)
    assert _hash(lambda x: torch.relu(x.unsqueeze(0).double()).squeeze(0).sum(1), X) == first


def test_a_number_may_stand_on_either_side_and_be_a_tensor() -> None:
    first = _hash(lambda x: 1.0 - torch.sigmoid(x), X)
    assert _hash(lambda x: torch.sub(1.0, torch.sigmoid(x)), X) == first
    assert _hash(lambda x: torch.tensor(3.0) - torch.sigmoid(x), X) == first
    assert _hash(lambda x: torch.sigmoid(x) - 1.0, X) != first


def test_what_differs() -> None:
    hashes = [
        _hash(lambda x: torch.relu(x), X),
        _hash(lambda x: torch.tanh(x), X),
        _hash(lambda x: torch.tanh(torch.relu(x)), X),
        _hash(lambda x: torch.relu(torch.tanh(x)), X),
        _hash(lambda x: x * x, X),
        _hash(lambda x, y: x * y, X, Y),
        _hash(lambda x, y: x / y, X, Y),
        _hash(lambda x: (x / 2.0) / x, X),
        _hash(lambda x: x.max(1).values, X),
        _hash(lambda x: x.max(1).indices, X),
        _hash(lambda x: x.sum(1), X),
        _hash(lambda x: x.sum((0, 1)), X),
        _hash(lambda x: F.gelu(x), X),
        _hash(lambda x: F.gelu(x, approximate="tanh"), X),
        graph_hash(_graph(nn.Conv1d(4, 4, 3), torch.randn(1, 4, 9))),
        graph_hash(_graph(nn.Conv2d(4, 4, 3), torch.randn(1, 4, 9, 9))),
        graph_hash(_graph(nn.Linear(6, 6), X)),
        graph_hash(_graph(nn.Linear(6, 6, bias=False), X)),
    ]
    assert len(set(hashes)) == len(hashes)


def test_where_a_value_is_used_counts() -> None:
    first = _hash(lambda x, y: torch.exp(x) * (torch.exp(x) + torch.exp(y)), X, Y)
    assert _hash(lambda x, y: torch.exp(y) * (torch.exp(x) + torch.exp(y)), X, Y) == first
    assert _hash(lambda x, y: torch.exp(x) * (torch.exp(y) + torch.exp(y)), X, Y) != first


def test_a_graph_from_nowhere() -> None:
    """The process that captures isn't trusted."""
    meta = TensorMeta(shape=(2,), dtype="float32", strides=(1,))
    node = Node(name="a", op="sin", args=(Ref(ref="b"), [Ref(ref="a")]), outputs=(meta,))
    view = Node(name="b", op="aten.view.default", args=(Ref(ref="nobody"),), outputs=(None,))
    graphs = [Graph(inputs=(), nodes=nodes, outputs=("b", "c")) for nodes in ((), (node,), (node, view), (view, node))]
    assert {len(graph_hash(graph)) for graph in graphs} == {64} and graph_operators(graphs[1]) == ("sin",)


def test_operators_by_their_base_name() -> None:
    graph = _graph(_Function(lambda x, y: F.relu(x @ y.T)), X, Y)
    assert graph_operators(graph) == ("matmul", "permute", "relu")
