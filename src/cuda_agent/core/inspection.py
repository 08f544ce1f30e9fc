"""What limits a candidate: for whoever makes it faster, never a verdict."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cuda_agent.core.enums import Device
from cuda_agent.core.record import Record

Limit = Literal["memory", "compute", "latency"]


class KernelCode(Record):
    """One function as the compiler made it. `mix`: share of its instructions by class, a static count: what stands in a
    loop counts once."""

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
    #: of the global loads and stores, how many have each width, in bits.
    access_bits: dict[int, int] = Field(default_factory=dict)


class KernelRun(Record):
    """One kernel of a call as it ran. Percentages are of what the hardware sustains at the most; those that only Nsight
    Compute knows are None without it. `occupancy_percent` is what was achieved, else what registers, shared memory and
    block size allow (`occupancy_is_bound`)."""

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
    #: transactions of 32 bytes per request of a warp: 4 is the best for 4-byte elements, 16 for 16-byte ones.
    sectors_per_load: float | None = None
    sectors_per_store: float | None = None
    #: reason -> cycles that a warp waits for it per instruction issued.
    stalls: dict[str, float] = Field(default_factory=dict)
    limit: Limit | None = None
    why: str = ""


class Roofline(Record):
    """Measured on this device: a large copy (both directions counted), square matrix products."""

    bandwidth_gb_s: float
    fp32_tflops: float
    tf32_tflops: float | None = None
    half_tflops: float | None = None


class Work(Record):
    """What one call can't do without, from shapes and the reference's graph: bytes of each input, weight and output,
    operations of products, and of all else at one operation an element."""

    bytes: int
    product_flops: int
    other_flops: int


class InspectReport(Record):
    """`source` says where the numbers of the run come from: Nsight Compute's counters, or counted bytes and operations
    over the time of events. `limit` is that of the whole call, with its numbers in `why`."""

    device: Device
    source: Literal["nsight-compute", "counted"]
    code: tuple[KernelCode, ...] = ()
    kernels: tuple[KernelRun, ...] = ()
    latency_us: float | None = None
    busy_us: float | None = None
    work: Work | None = None
    roofline: Roofline | None = None
    memory_share: float | None = None
    compute_share: float | None = None
    limit: Limit | None = None
    why: str = ""
    #: the compiler on loops (cpu): vectorised or not, `file:line: …`.
    loops: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
