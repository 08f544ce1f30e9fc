"""Networks at PyTorch's default initialisation under TF32, whose rounding hides more than that of float32."""

from __future__ import annotations

import pytest

from cuda_agent.core.enums import Device
from network_specimens import NETWORKS, check_network

pytestmark = [pytest.mark.gpu, pytest.mark.integration]


@pytest.mark.parametrize("name", NETWORKS)
def test_wrong_candidates_are_noticed(name: str) -> None:
    check_network(name, Device.CUDA)
