"""Rules that prepare library calls: where biases go, and linear layers of one input as one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch_graph import check, main_ops

from cuda_agent.playbook.algebra import library


def test_biases_leave_calls_before_kernels():
    silu = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.SiLU())
    result = check(silu, torch.randn(2, 3, 6, 6), library_calls=[library.expose_bias])
    assert [op for op in main_ops(result) if op != "reshape"] == ["conv2d", "add", "silu"]
    relu = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    assert main_ops(check(relu, torch.randn(2, 3, 6, 6), library_calls=[library.expose_bias])) == ["conv2d", "relu"]
    assert main_ops(check(nn.Linear(4, 3), torch.randn(2, 4), library_calls=[library.expose_bias])) == ["linear"]
    swish = nn.Sequential(nn.Linear(4, 3), nn.SiLU())
    assert main_ops(check(swish, torch.randn(2, 4), library_calls=[library.expose_bias])) == ["linear", "add", "silu"]
    half = check(swish.bfloat16(), torch.randn(2, 4).bfloat16(), library_calls=[library.expose_bias])
    assert main_ops(half) == ["linear", "silu"]


class Projections(nn.Module):
    """Queries, keys and values of one input, of which the keys have no bias."""

    def __init__(self, kv=16):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(32, 64), nn.Linear(32, kv, bias=False), nn.Linear(32, kv)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (-1, 8)).transpose(1, 2) for part in (self.q(x), self.k(x), self.v(x)))
        return q.sin(), k.cos(), v.exp()


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(32, 48, bias=False), nn.Linear(32, 48, bias=False)

    def forward(self, x):
        return F.silu(self.gate(x)) * self.up(x)


def test_projections_of_one_input_are_one_product():
    rules = [library.projections_side_by_side]
    result = check(Projections().bfloat16(), torch.randn(2, 5, 32).bfloat16(), library_calls=rules)
    assert main_ops(result).count("linear") == 1 and result.derive is not None
    assert [rule.rule for rule in result.applied] == ["projections_side_by_side"]
    # In float32 libraries choose other engines for each; rows of 12 begin anywhere.
    assert main_ops(check(Projections(), torch.randn(2, 5, 32), library_calls=rules)).count("linear") == 3


def test_layers_before_an_element_wise_kernel_are_joined_only_where_a_plan_asks_for_it():
    x = torch.randn(2, 5, 32).bfloat16()
    apart = check(Gated().bfloat16(), x, library_calls=[library.projections_side_by_side])
    assert main_ops(apart).count("linear") == 2
    joined = check(Gated().bfloat16(), x, library_calls=[library.linears_side_by_side])
    assert main_ops(joined).count("linear") == 1


def test_layers_that_are_returned_or_of_several_inputs_stay_apart():
    class Returned(Gated):
        def forward(self, x):
            return self.gate(x), self.up(x)

    class Two(Gated):
        def forward(self, x):
            return self.gate(x).sin() + self.up(x.cos()).sin()

    for module in (Returned(), Two()):
        x = torch.randn(2, 5, 32).bfloat16()
        assert main_ops(check(module.bfloat16(), x, library_calls=[library.linears_side_by_side])).count("linear") == 2
