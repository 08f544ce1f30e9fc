"""The playbook's scatters on a GPU, every setting against torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.core.enums import Device
from playbook_scatters import check_scatters

pytestmark = pytest.mark.gpu


def test_every_way_agrees_with_torch(tmp_path: Path) -> None:
    check_scatters(Device.CUDA, tmp_path)
