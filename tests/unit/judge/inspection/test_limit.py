"""Which limit is named, from counted work and the measured roofline."""

from __future__ import annotations

import pytest

from cuda_agent.core.inspection import LeastWork, Roofline
from cuda_agent.judge.inspection.limit import occupancy_bound, of_call

H200 = Roofline(bandwidth_gb_s=4300, fp32_tflops=50, tf32_tflops=430, half_tflops=780)
SM = {"max_threads": 2048, "registers": 65536, "shared_bytes": 233472, "max_blocks": 32}


def test_memory() -> None:
    work = LeastWork(bytes=1_610_612_736, product_flops=0, other_flops=134_217_728)
    named = of_call(work, H200, busy_us=400, latency_us=410, precision="tf32")
    assert named.limit == "memory"
    assert named.memory_share == pytest.approx(0.936, abs=0.01)
    assert "4,027 GB/s, 94% of the measured 4,300" in named.why


def test_compute_by_precision() -> None:
    work = LeastWork(bytes=201_326_592, product_flops=2 * 4096**3, other_flops=0)
    assert of_call(work, H200, busy_us=400, latency_us=405, precision="tf32").limit == "compute"
    # The same time is past what float32 without tensor cores can do, and idle for bfloat16.
    assert of_call(work, H200, busy_us=3000, latency_us=3005, precision="fp32").limit == "compute"
    assert of_call(work, H200, busy_us=400, latency_us=405, precision="bf16").limit == "latency"


def test_latency_for_launches_and_for_too_little_in_flight() -> None:
    work = LeastWork(bytes=40_000_000, product_flops=0, other_flops=1)
    launches = of_call(work, H200, busy_us=10, latency_us=100, precision="tf32")
    assert launches.limit == "latency"
    assert "busy for only 10.0 of 100.0 us" in launches.why
    slow = of_call(work, H200, busy_us=100, latency_us=105, precision="tf32")
    assert slow.limit == "latency"
    assert "neither memory nor arithmetic" in slow.why


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "percent"),
    [(256, 32, 0, 100), (256, 64, 0, 50), (1024, 64, 4096, 50), (128, 16, 100_000, 12.5), (32, 16, 0, 50),
     (0, 16, 0, None), (256, 255, 0, 12.5), (128, 32, 220_000, 6.25)],
)  # fmt: skip
def test_occupancy(threads: int, registers: int, shared: int, percent: float | None) -> None:
    assert occupancy_bound(threads, registers, shared, SM) == percent
