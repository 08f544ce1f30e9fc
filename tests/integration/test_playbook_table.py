"""Generated C++ kernels of every element-wise operator with a lowering on special values, against eager."""

from __future__ import annotations

import pytest

from cuda_agent.core.enums import Device
from playbook_table import DTYPES, check_table

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("dtypes", [DTYPES[at : at + 2] for at in range(0, len(DTYPES), 2)], ids="-".join)
def test_special_values_agree_with_eager(dtypes: tuple[str, ...]) -> None:
    check_table(Device.CPU, dtypes)
