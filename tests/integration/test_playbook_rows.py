"""Generated C++ kernels of rows with infinities, NaN, large numbers and large gaps against eager."""

from __future__ import annotations

import pytest

from cuda_agent.core.enums import Device
from playbook_batches import compared
from playbook_rows import CASES, check_rows

pytestmark = pytest.mark.integration


def test_rows_agree_with_eager() -> None:
    for name, found in zip(CASES, compared(list(CASES.values()), Device.CPU), strict=True):
        for ours, eager, exact in found:
            check_rows(name, ours, eager, exact)
