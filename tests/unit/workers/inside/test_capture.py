"""Capture: the graph computes what `forward` computes, and is written in the forms that it promises."""

import pytest
import torch
from torch.utils._pytree import tree_leaves

from capture_modules import CASES, source
from cuda_agent.core.errors import TaskError
from cuda_agent.core.graph import Graph, ValueKind
from cuda_agent.workers.inside.graph.capture import capture
from cuda_agent.workers.inside.graph.errorfloor import largest_reduction
from cuda_agent.workers.inside.task.pytree import flatten, tensor_meta
from cuda_agent.workers.inside.task.taskmodule import (
    load_task_module,
    make_init_inputs,
    make_inputs,
    make_model,
    run_forward,
)
from cuda_agent.workers.inside.task.weights import redraw
from graph_interpreter import interpret


def load(text, name="case"):
    task = load_task_module(text, name)
    model = make_model(task, make_init_inputs(task), "cpu", 0)
    redraw(model, 1)
    return task, model, make_inputs(task, "cpu", 2)


def graph_of(name):
    task, model, inputs = load(CASES[name], name)
    return capture(model, inputs, task)


def layout(meta):
    """Type, shape and strides; a dimension of one element has no stride to speak of."""
    return meta.dtype, [(size, stride) for size, stride in zip(meta.shape, meta.strides, strict=True) if size > 1]


@pytest.mark.parametrize("name", CASES)
def test_graph_computes_forward(name):
    task, model, inputs = load(CASES[name], name)
    graph = capture(model, inputs, task)
    assert Graph.from_json(graph.to_json()) == graph
    leaves = tree_leaves(make_inputs(task, "cpu", 2))
    expected = run_forward(task, model, inputs)
    with torch.no_grad():
        found = interpret(graph, leaves, {**model.state_dict(), **dict(model.named_buffers())})
    (spec, tensors), (found_spec, found_tensors) = flatten(expected), flatten(found)
    assert spec == found_spec
    metas = {item.name: item.meta for item in graph.inputs} | {node.name: node.outputs[0] for node in graph.nodes}
    assert [layout(tensor_meta(tensor)) for tensor in tensors] == [layout(metas[name]) for name in graph.outputs]
    for one, other in zip(tensors, found_tensors, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
    for node in graph.nodes:
        assert "device" not in node.kwargs and "memory_format" not in node.kwargs


def names(graph):
    return sorted({node.op.split(".")[1] for node in graph.nodes if node.op != "getitem"})


def test_operators_stay_whole():
    assert names(graph_of("gelu_mlp")) == ["gelu", "linear"]
    assert names(graph_of("layer_norm_gelu")) == ["gelu", "layer_norm"]
    assert names(graph_of("conv_bn_silu")) == ["batch_norm", "conv2d", "silu"]
    assert names(graph_of("masked_softmax")) == ["masked_fill", "mul", "softmax"]
    assert "scaled_dot_product_attention" in names(graph_of("attention"))
    assert {"cross_entropy_loss", "logsumexp"} <= set(names(graph_of("cross_entropy_z")))
    assert names(graph_of("fold")) == ["col2im", "relu"]


def test_casts_and_metas_are_explicit():
    graph = graph_of("rms_norm_upcast")
    casts = [node for node in graph.nodes if node.op == "aten._to_copy.default"]
    assert [cast.outputs[0].dtype for cast in casts] == ["float32", "bfloat16"]
    assert graph.nodes[-1].outputs[0].dtype == "bfloat16"


def test_inputs_and_state():
    graph = graph_of("buffers")
    kinds = {item.target: item.kind for item in graph.inputs if item.target}
    assert kinds["kept"] is ValueKind.BUFFER and kinds["lost"] is ValueKind.CONSTANT
    assert set(graph.state) == {"kept"} and graph.state_parameters == ()
    assert [item.position for item in graph_of("scalar_between").inputs] == [0, 2]
    tied = graph_of("tied")
    assert set(tied.state_parameters) == {"embed.weight", "head.weight"} and len(tied.inputs) == 2
    assert tied.init_signature == "(self, eps=1e-06)"


def test_large_constants_have_no_values():
    task, model, inputs = load(
        source("return x + self.big", "self.big = torch.ones(100, 100)", "torch.randn(100, 100)")
    )
    constant = next(item for item in capture(model, inputs, task).inputs if item.kind is ValueKind.CONSTANT)
    assert constant.values is None and constant.target == "big"


@pytest.mark.parametrize(
    "forward",
    [
        "return x[x > 0]",
        "return x * float(x.sum())",
        "return x if x.sum() > 0 else -x",
        "self.count += 1\nreturn x * self.count",
    ],
)
def test_refusals(forward):
    task, model, inputs = load(source(forward, "self.register_buffer('count', torch.zeros(1))", "torch.randn(4)"))
    with pytest.raises(TaskError, match="can't be captured") as caught:
        capture(model, inputs, task)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "operator"),
    [
        ("return torch.bincount(x.long().abs())", "aten.bincount.default"),
        ("return torch.linalg.inv(x.view(2, 2))", "aten._linalg_check_errors.default"),
    ],
)
def test_a_refusal_names_the_operator_and_its_line(line, operator):
    task, model, inputs = load(source(line, "", "torch.randn(4)"))
    with pytest.raises(TaskError) as caught:
        capture(model, inputs, task)
    assert operator in str(caught.value) and f": {line}" in str(caught.value)


def test_values_that_are_no_tensors_are_kept():
    text = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, scale, sizes, mask=None, *, kind="a"):
        return x * scale
def get_inputs():
    return [torch.randn(4), 3, [1, 2]]
def get_init_inputs():
    return []
"""
    task, model, inputs = load(text)
    graph = capture(model, inputs, task)
    assert graph.fixed == {"scale": "3", "sizes": "[1, 2]", "mask": "None", "kind": "'a'"}


def test_error_floor():
    assert largest_reduction(graph_of("gelu_mlp")) == 32
    assert largest_reduction(graph_of("conv_bn_silu")) == 27
    assert largest_reduction(graph_of("layer_norm_gelu")) == 16
    assert largest_reduction(graph_of("rotary")) == 1
    assert largest_reduction(graph_of("einsum")) == 4
    assert largest_reduction(graph_of("cross_entropy_z")) == 120
