"""How stable timings are on a real GPU, and whether a neighbour is noticed. Skips without one."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Precision
from cuda_agent.judge.profile import foreign_load
from cuda_agent.judge.profile import profile as profile_module
from cuda_agent.judge.profile.foreign_load import GpuProbe
from cuda_agent.judge.profile.roofline import hardware
from cuda_agent.judge.stability import KERNELS, same_twice, summarize

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.alone,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

NEIGHBOUR = """
import torch
x = torch.rand(4096, 4096, device="cuda")
x @ x
torch.cuda.synchronize()
print("ready", flush=True)
while True:
    for _ in range(20):
        x @ x
    torch.cuda.synchronize()
"""


@contextmanager
def neighbour() -> Iterator[None]:
    """Another process that keeps the GPU busy."""
    process = subprocess.Popen([sys.executable, "-c", NEIGHBOUR], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("kernel", KERNELS[Device.CUDA][:3], ids=lambda kernel: kernel.label)
def test_a_program_is_as_fast_as_itself(kernel: object) -> None:
    with same_twice(kernel, JudgeOptions(device=Device.CUDA, timing_budget_s=4.0)) as once:  # type: ignore[arg-type]
        found = summarize([once() for _ in range(4)])
    assert found.void == 0 and found.worst is not None and found.worst < 0.05, found


def test_a_neighbour_is_noticed_by_the_probe() -> None:
    def late_share() -> float:
        probe = GpuProbe()
        for _ in range(20):
            probe.look()
            time.sleep(0.005)
        return probe.late_share()

    assert late_share() < 0.05
    with neighbour():
        assert late_share() > 0.10


def test_a_neighbour_voids_the_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_load, "FOREIGN_PATIENCE_S", 1.0)
    with same_twice(KERNELS[Device.CUDA][1], JudgeOptions(device=Device.CUDA, timing_budget_s=3.0)) as once:
        assert once().void == ""
        with neighbour():
            assert "another program uses the GPU" in once().void
            # As if it had come after the look before the rounds.
            monkeypatch.setattr(profile_module, "wait_for_quiet", lambda device, uuid: None)
            assert "during the rounds another program" in once().void
        assert once().void == ""


def test_limits_of_the_device() -> None:
    found = hardware(Device.CUDA, Precision.TF32)
    assert found is not None and 1e11 < found.bandwidth < 1e13 and found.l2_bytes > 0
