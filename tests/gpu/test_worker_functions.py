"""Task modules, oracle, capture and variants on a GPU: the same answers as on the CPU."""

import pytest
import torch
from torch.utils._pytree import tree_leaves

from capture_modules import CASES, source
from cuda_agent.core.enums import Precision
from cuda_agent.workers.inside.graph.capture import capture
from cuda_agent.workers.inside.task.oracle import eager_at_precision, run_float64
from cuda_agent.workers.inside.task.pytree import flatten
from cuda_agent.workers.inside.task.taskmodule import load_task_module, make_init_inputs, make_inputs, make_model
from cuda_agent.workers.inside.task.variants import KINDS, properties, vary
from cuda_agent.workers.inside.task.weights import redraw

pytestmark = pytest.mark.gpu


def load(text, device="cuda"):
    task = load_task_module(text, "case")
    model = make_model(task, make_init_inputs(task), device, 0)
    redraw(model, 1)
    return task, model


def computing(graph):
    """The operators, less those that only arrange memory, in which devices differ."""
    arranging = ("view", "clone", "contiguous", "reshape", "transpose", "permute", "squeeze", "unsqueeze", "unflatten")
    return sorted(node.op for node in graph.nodes if not any(word in node.op for word in arranging))


def moved(inputs, device):
    return torch.utils._pytree.tree_map(lambda t: t.to(device) if isinstance(t, torch.Tensor) else t, inputs)


# These keep or create a tensor on the CPU, which on a GPU is the task's own error.
CPU_ONLY = {"buffers"}


@pytest.mark.parametrize("name", sorted(set(CASES) - CPU_ONLY))
def test_oracle_and_graph_agree_with_the_cpu(name):
    task, model = load(CASES[name])
    _, on_cpu = load(CASES[name], "cpu")
    on_cpu.load_state_dict(model.state_dict())
    inputs = make_inputs(task, "cpu", 2)
    oracle, expected = run_float64(model, moved(inputs, "cuda")), run_float64(on_cpu, inputs)
    assert oracle.precision == expected.precision == "float64", (oracle.reason, expected.reason)
    for one, other in zip(tree_leaves(oracle.value), tree_leaves(expected.value), strict=True):
        if isinstance(one, torch.Tensor):
            # CUDA's float64 kernels aren't wholly that: hardswish's 1/6 is a float, weight_norm's root is sqrtf.
            torch.testing.assert_close(one.cpu(), other, rtol=2e-7, atol=2e-7)
    graph, same = capture(model, moved(inputs, "cuda"), task), capture(on_cpu, inputs, task)
    assert computing(graph) == computing(same)


def test_inputs_are_drawn_on_the_device():
    task, _ = load(source("return x", "", "torch.rand(4, 8)"))
    (x,) = make_inputs(task, "cuda", 1)
    assert x.device.type == "cuda" and torch.equal(x, make_inputs(task, "cuda", 1)[0])
    task, _ = load(source("return x", "", "torch.rand(4, 8, generator=torch.Generator('cpu'), device='cpu')"))
    assert make_inputs(task, "cuda", 1)[0].device.type == "cuda"


@pytest.mark.parametrize("kind", KINDS)
def test_variants_on_the_device(kind):
    task, _ = load(source("return x", "", "torch.randn(64, 128)"))
    sets = [flatten(make_inputs(task, "cuda", seed))[1] for seed in range(3)]
    new = [tensor.clone() for tensor in sets[0]]
    assert vary(kind, new, properties(sets), 1, lambda: sets[0]).is_changed
    assert new[0].device.type == "cuda" and not torch.equal(new[0], sets[0][0])


def test_precision_policies_differ():
    torch.manual_seed(0)
    model, x = torch.nn.Linear(1024, 1024).cuda(), [torch.randn(256, 1024, device="cuda")]
    exact = run_float64(model, x).value

    def error(precision):
        return float((eager_at_precision(model, x, precision).double() - exact).norm() / exact.norm())

    assert error(Precision.FP32) < 1e-6 < 1e-5 < error(Precision.TF32) < 1e-3 < error(Precision.BF16)
