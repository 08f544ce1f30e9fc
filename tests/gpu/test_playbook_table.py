"""Generated CUDA kernels of every element-wise operator with a lowering on special values, and of odd rows."""

from __future__ import annotations

import pytest
import torch

from cuda_agent.core.enums import Device
from playbook_batches import compared
from playbook_rows import CASES, check_rows
from playbook_table import DTYPES, check_table

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values_agree_with_eager(dtype: str) -> None:
    check_table(Device.CUDA, (dtype,))


def test_rows_agree_with_eager() -> None:
    for name, found in zip(CASES, compared(list(CASES.values()), Device.CUDA), strict=True):
        for ours, eager, exact in found:
            check_rows(name, ours, eager, exact)
