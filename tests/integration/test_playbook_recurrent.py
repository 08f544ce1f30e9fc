"""Recurrent layers of all kinds: the playbook's program for the CPU against torch, in one build."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.errors import NotCovered
from cuda_agent.playbook.proposal import propose
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


def test_too_wide_for_registers_names_the_users_operator() -> None:
    graph = graph_of(nn.LSTM(8, 1100), [torch.randn(3, 2, 8)])
    assert "recurrent" in propose(graph, Device.CPU, Precision.FP32).skills
    with pytest.raises(NotCovered, match=r"aten\.lstm\.input \(more hidden units"):
        propose(graph, Device.CUDA, Precision.FP32)
