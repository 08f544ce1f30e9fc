"""The kernel of the one-pass comparison compiles for Hopper, once however many want it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cuda_agent.core.stack import find_nvcc
from cuda_agent.judge.verify.onepass import library

pytestmark = pytest.mark.integration


@pytest.mark.skipif(find_nvcc() is None, reason="nvcc is missing")
def test_it_compiles_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path))
    library.cache_clear()
    with ThreadPoolExecutor(3) as threads:
        made = set(threads.map(lambda _: library.__wrapped__("9.0"), range(3)))
    assert len(made) == 1 and made.pop().stat().st_size > 10_000
    assert len(list((tmp_path / "onepass").iterdir())) == 2, "the library and its lock"
