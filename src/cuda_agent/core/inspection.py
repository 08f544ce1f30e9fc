"""The records of `inspect`: they say what limits a candidate, and are no verdict."""

from typing import Literal

from pydantic import Field

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.record import Record

Limit = Literal["memory", "compute", "latency"]


class KernelCode(Record):
    """One compiled function. `mix` is the share of its instructions by class; it is a static count, so an instruction
    in a loop counts once."""

    symbol: str
    name: str
    source: str
    registers: int | None = None
    shared_bytes: int | None = None
    stack_bytes: int | None = None
    spill_store_bytes: int | None = None
    spill_load_bytes: int | None = None
    instructions: int = 0
    mix: dict[str, float] = Field(default_factory=dict)
    #: Width in bits -> the number of global loads and stores that have it.
    access_bits: dict[int, int] = Field(default_factory=dict)


class KernelRun(Record):
    """The runs of one kernel in a call. Percentages are of the hardware's sustained peak; those that only Nsight
    Compute measures are None without it. `occupancy_percent` is the achieved one, or the bound by registers, shared
    memory and block size (`occupancy_is_bound`)."""

    symbol: str
    name: str
    launches: float
    time_us: float
    share: float
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    occupancy_percent: float | None = None
    occupancy_is_bound: bool = False
    dram_gb_s: float | None = None
    dram_percent: float | None = None
    memory_percent: float | None = None
    compute_percent: float | None = None
    #: Transactions of 32 bytes per request of a warp: 4 is the best for 4-byte elements, 16 for 16-byte ones.
    sectors_per_load: float | None = None
    sectors_per_store: float | None = None
    #: A reason -> the cycles that a warp waits for it per issued instruction.
    stalls: dict[str, float] = Field(default_factory=dict)
    limit: Limit | None = None
    why: str = ""


class Roofline(Record):
    """Limits measured on this device: a large copy (both directions counted) and square matrix products."""

    bandwidth_gb_s: float
    fp32_tflops: float
    tf32_tflops: float | None = None
    half_tflops: float | None = None

    def product_tflops(self, precision: Precision) -> float:
        """Returns the limit of float32 products at a precision policy, or of float32 where that isn't measured."""
        known = {Precision.FP32: self.fp32_tflops, Precision.TF32: self.tf32_tflops}
        return known.get(precision, self.half_tflops) or self.fp32_tflops


class LeastWork(Record):
    """The least work of a call, from shapes and the reference's graph."""

    bytes: int
    """Bytes of each input, weight and output."""
    product_flops: int
    """Operations of products."""
    other_flops: int
    """One operation per element of other operators."""

    def least_us(self, limits: Roofline, precision: Precision) -> tuple[float, float]:
        """Returns the µs that memory and arithmetic take at their limits."""
        products_us = self.product_flops / limits.product_tflops(precision) / 1e6
        return self.bytes / limits.bandwidth_gb_s / 1e3, products_us + self.other_flops / limits.fp32_tflops / 1e6


class InspectReport(Record):
    """What limits a candidate. `source` says whether the numbers are Nsight Compute's counters, or counted bytes and
    operations over the time of events. `limit` is that of the whole call, with its numbers in `why`."""

    device: Device
    source: Literal["nsight-compute", "counted"]
    code: tuple[KernelCode, ...] = ()
    kernels: tuple[KernelRun, ...] = ()
    latency_us: float | None = None
    busy_us: float | None = None
    work: LeastWork | None = None
    roofline: Roofline | None = None
    memory_share: float | None = None
    compute_share: float | None = None
    limit: Limit | None = None
    why: str = ""
    #: The compiler's remarks on loops (cpu): vectorised or not, `file:line: …`.
    loops: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
