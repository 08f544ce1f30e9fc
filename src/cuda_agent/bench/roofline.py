"""Classifies a task by the least bytes and operations of its graph against the device's limits."""

from __future__ import annotations

from cuda_agent.core.bench import RooflineClass
from cuda_agent.core.enums import Precision
from cuda_agent.core.inspection import LeastWork, Roofline

#: The time in µs that any call takes for its launches. Less work than that doesn't determine the time.
LATENCY_US = 10.0


def bound(work: LeastWork, limits: Roofline | None, precision: Precision) -> RooflineClass | None:
    """Returns `latency` where memory and arithmetic at their limits both take less than LATENCY_US, else the slower of
    both. Returns None where the device's limits are unknown."""
    if limits is None:
        return None
    memory_us = work.bytes / limits.bandwidth_gb_s / 1e3
    product = {Precision.FP32: limits.fp32_tflops, Precision.TF32: limits.tf32_tflops}.get(
        precision, limits.half_tflops
    )
    compute_us = work.product_flops / (product or limits.fp32_tflops) / 1e6
    compute_us += work.other_flops / limits.fp32_tflops / 1e6
    if max(memory_us, compute_us) < LATENCY_US:
        return "latency"
    return "memory" if memory_us >= compute_us else "compute"
