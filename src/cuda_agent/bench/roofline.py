"""What bounds a task: by the bytes and operations that its graph can't do without, against what the device reaches."""

from __future__ import annotations

from cuda_agent.core.bench import RooflineClass
from cuda_agent.core.enums import Precision
from cuda_agent.core.inspection import Roofline, Work

#: µs that a call takes on any device for its launches alone: work that needs less isn't what its time goes into.
LATENCY_US = 10.0


def bound(work: Work, limits: Roofline | None, precision: Precision) -> RooflineClass | None:
    """`latency` where memory and arithmetic at their limits both take less than LATENCY_US, else what takes longer.
    None where the device's limits aren't known."""
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
