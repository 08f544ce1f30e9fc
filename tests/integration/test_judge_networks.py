"""Networks at PyTorch's default initialisation are judged, though their answers hardly depend on their inputs."""

from __future__ import annotations

import pytest

from cuda_agent.core.enums import Device
from network_specimens import NETWORKS, check_network

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("name", NETWORKS)
def test_wrong_candidates_are_noticed(name: str) -> None:
    check_network(name, Device.CPU, NETWORKS[name])
