"""The channels-last plan of convolutions: layouts of its buffers, and where there is none."""

from __future__ import annotations

import pytest
import torch
from library_cases import LAST_CASES
from library_kernels import graph_of
from torch import nn

from cuda_agent.core.enums import Device, Precision
from cuda_agent.playbook.algebra import library, rewrite
from cuda_agent.playbook.plan import Options, Step
from cuda_agent.playbook.planner import plan
from cuda_agent.playbook.proposal import proposals


def steps_of(module: nn.Module, inputs: list[torch.Tensor]) -> tuple[Step, ...]:
    graph = rewrite(graph_of(module, inputs), library_calls=[library.expose_bias, library.channels_last]).graph
    return plan(graph, Device.CUDA, Precision.TF32, Options(channels_last=True))[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_between_convolutions_channels_stay_innermost(dtype: torch.dtype) -> None:
    steps = steps_of(*LAST_CASES["residual"](dtype))
    assert [step.skill for step in steps] == ["pointwise", *["convolution", "pointwise"] * 4]
    *inner, last = [buffer.meta for step in steps for buffer in step.outputs]
    assert all(meta.strides[1] == 1 for meta in inner)
    assert last.strides == (18432, 2304, 48, 1)


def test_weights_are_derived_in_the_engines_order() -> None:
    module, inputs = LAST_CASES["residual"](torch.float32)
    rewritten = rewrite(graph_of(module, inputs), library_calls=[library.channels_last])
    assert rewritten.derive is not None
    derived = [item.meta for item in rewritten.graph.inputs if item.name.startswith("derived_")]
    assert [meta.strides[1] for meta in derived] == [1, 1, 1]


def test_inputs_that_lie_so_already_are_not_copied() -> None:
    module, (x,) = LAST_CASES["residual"](torch.float32)
    steps = steps_of(module, [x.contiguous(memory_format=torch.channels_last)])
    assert steps[0].skill == "convolution"


def test_a_second_plan_only_where_it_differs() -> None:
    module, inputs = LAST_CASES["residual"](torch.float32)
    graph = graph_of(module, inputs)
    default, other = proposals(graph, Device.CUDA, Precision.TF32)
    assert (default.plan.channels_last, other.plan.channels_last) == (False, True)
    assert len(proposals(graph, Device.CPU, Precision.TF32)) == 1
    odd = graph_of(nn.Conv2d(3, 7, 3), [torch.randn(2, 3, 9, 9)])
    assert len(proposals(odd, Device.CUDA, Precision.TF32)) == 1
