"""A large output is measured in one pass as torch's passes measure it."""

from __future__ import annotations

import time

import pytest
import torch

from cuda_agent.judge.verify.compare import _Sums, measure
from cuda_agent.judge.verify.onepass import ONE_PASS

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_one_pass(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    count = (1 << 24) + 4096 * 3 + 77
    oracle = torch.randn(count, dtype=torch.float64, device="cuda")
    c, e, p = ((oracle + 1e-3 * torch.randn_like(oracle)).to(dtype) for _ in range(3))
    end = time.monotonic() + 60
    while ONE_PASS._library is None and not ONE_PASS.given_up and time.monotonic() < end:
        measure(c, e, p, oracle, atol=1e-3, rtol=1e-3)
        time.sleep(0.2)
    assert ONE_PASS._library is not None and not ONE_PASS.given_up
    sums = _Sums(1e-30, 1e-3, 1e-3)
    assert sums.add_in_one_pass(c, e, p, oracle) and ONE_PASS._trusted
    mine = measure(c, e, p, oracle, atol=1e-3, rtol=1e-3)
    monkeypatch.setattr(ONE_PASS, "given_up", True)
    theirs = measure(c, e, p, oracle, atol=1e-3, rtol=1e-3)
    for name in ("max_abs_error", "max_rel_error", "beyond", "excuse"):
        assert getattr(mine, name) == pytest.approx(getattr(theirs, name), rel=1e-5), name
    for name in ("candidate", "eager"):
        ours, other = getattr(mine, name), getattr(theirs, name)
        assert (ours.whole, ours.block) == pytest.approx((other.whole, other.block), rel=1e-9), name
    monkeypatch.setattr(ONE_PASS, "given_up", False)
    c[4097] = float("nan")
    assert measure(c, e, p, oracle, atol=1e-3, rtol=1e-3).failure
