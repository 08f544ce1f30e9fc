"""Recurrent layers of all kinds: the playbook's program for the CPU against torch, in one build."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.errors import NotCovered
from cuda_agent.playbook.proposal import propose
from cuda_agent.playbook.skills.recurrent.skill import CONFIGS, STEPWISE
from playbook_harness import graph_of
from playbook_recurrent import check_networks

pytestmark = pytest.mark.integration


def test_every_kind_agrees_with_torch(tmp_path: Path) -> None:
    check_networks(Device.CPU, tmp_path)


@pytest.mark.parametrize(
    "network", [nn.LSTM(8, 16, proj_size=4), nn.GRU(8, 16).double()], ids=["projections", "double"]
)
def test_elsewhere_it_is_not_covered(network: nn.Module) -> None:
    graph = graph_of(network, [torch.randn(3, 2, 8, dtype=next(network.parameters()).dtype)])
    for device in Device:
        with pytest.raises(NotCovered, match="only float32 without projections"):
            propose(graph, device, Precision.FP32)


@pytest.mark.parametrize(
    ("hidden", "batch", "ways"),
    [
        (1100, 2, {"steps": STEPWISE}),
        (64, 2, {"64": CONFIGS}),
        (64, 16, {"64": CONFIGS, "steps": STEPWISE}),
        (512, 64, {"steps": STEPWISE, "512": CONFIGS}),
    ],
    ids=["too wide for registers", "few rows", "many rows", "many products"],
)
def test_ways_through_the_steps(hidden: int, batch: int, ways: dict[str, int]) -> None:
    graph = graph_of(nn.LSTM(8, hidden), [torch.randn(3, batch, 8)])
    assert "recurrent" in propose(graph, Device.CPU, Precision.FP32).skills
    proposal = propose(graph, Device.CUDA, Precision.TF32)
    (tunable,) = (name for name in proposal.tunables if name.startswith("recurrent"))
    assert proposal.tunables[tunable] == sum(ways.values())
    assert {f"kernels/recurrent_{'steps_0' if way == 'steps' else f'0_{way}'}.cu" for way in ways} == {
        name for name in proposal.files if "/recurrent" in name
    }
    binding = proposal.files["kernels/fused_binding.cpp"]
    assert ("sums.data_ptr(), sizes, 1, config_" in binding) == ("steps" in ways)
    first, *rest = ways
    assert (f"config_{tunable} - {ways[first]}, stream" in binding) == bool(rest)
    called = {"steps": "launch_recurrent_steps_0", "64": "launch_recurrent_0_64"}.get(first)
    assert not rest or f"config_{tunable} < {ways[first]} ? {called}(" in binding
