"""Names the limit of a call or a kernel: memory, compute, or neither (latency, too little work in flight)."""

from dataclasses import dataclass

from cuda_agent.core.assets import word_lists
from cuda_agent.core.enums import Precision
from cuda_agent.core.graph import Graph, base_name, refs
from cuda_agent.core.inspection import LeastWork, Limit, Roofline
from cuda_agent.judge.inspection.counters import Counters, named_stalls

#: share of the sustained rate from which a unit counts as the limit (Nsight Compute's own rule of thumb).
BOUND = 0.6
#: share of a call's time below which the device is idle for most of the call.
BUSY = 0.5


@dataclass(frozen=True)
class Named:
    """A named limit, in fields of `InspectReport`. `memory_share` and `compute_share` are the parts of the roofline
    that were reached."""

    limit: Limit
    why: str
    memory_share: float
    compute_share: float


def other_flops(graph: Graph) -> int:
    """Counts operations besides products: one for each element written or, where that is more, each element read."""
    shapes = {given.name: given.meta.numel for given in graph.inputs}
    uncounted = frozenset().union(*word_lists(__file__).values())
    total = 0
    for node in graph.nodes:
        out = node.outputs[0] if node.outputs else None
        size = out.numel if out is not None else 0
        shapes[node.name] = size
        if base_name(node.op) not in uncounted:
            total += max([size, *(shapes.get(name, 0) for name in refs(node.args))])
    return total


def of_call(work: LeastWork, roofline: Roofline, busy_us: float, latency_us: float, *, precision: Precision) -> Named:
    """Names the limit from counted work and the time in which the device was busy. `busy_us` is `latency_us` where it
    isn't known."""
    memory, compute = (least_us / busy_us for least_us in work.least_us(roofline, precision))
    said = (
        f"{work.bytes / 1e6:,.1f} MB in {busy_us:,.1f} us is {work.bytes / busy_us / 1e3:,.0f} GB/s, {memory:.0%} of "
        f"the measured {roofline.bandwidth_gb_s:,.0f}; "
        f"{(work.product_flops + work.other_flops) / 1e9:,.2f} Gflop is {compute:.0%} of the measured peak"
    )
    if busy_us < BUSY * latency_us:
        idle = f"the device is busy for only {busy_us:,.1f} of {latency_us:,.1f} us: launches and gaps decide; {said}"
        return Named("latency", idle, memory, compute)
    if max(memory, compute) >= BOUND:
        return Named("memory" if memory >= compute else "compute", said, memory, compute)
    why = (
        f"neither memory nor arithmetic is near its limit: {said}. More is moved than must be, or too little in flight"
    )
    return Named("latency", why, memory, compute)


def of_kernel(counters: Counters) -> tuple[Limit | None, str]:
    """Names the limit from Nsight Compute's percentages. It is None where they are missing."""
    memory, compute, dram = counters.memory_percent, counters.compute_percent, counters.dram_percent
    if memory is None or compute is None:
        return None, ""
    occupancy = "" if counters.occupancy_percent is None else f", occupancy {counters.occupancy_percent:.0f} %"
    stalls = ", ".join(named_stalls(counters.stalls))
    said = f"memory {memory:.0f} %, compute {compute:.0f} %{occupancy}" + (f"; stalls: {stalls}" if stalls else "")
    if max(memory, compute, dram or 0.0) < 100 * BOUND:
        return "latency", said
    # A streaming kernel also keeps its load units busy, so device memory near its limit decides.
    if (dram or 0.0) >= 100 * BOUND or memory > compute:
        where = "" if dram is None or dram >= 100 * BOUND else " (in the caches: device memory is below)"
        return "memory", said + where
    return "compute", said


def occupancy_bound(threads: int, registers: int, shared_bytes: int, facts: dict[str, int]) -> float | None:
    """Returns the percentage of a multiprocessor's warps that registers, shared memory and block size allow. `facts`
    has max_threads, registers, shared_bytes and max_blocks of one multiprocessor. None stands for an impossible
    block."""
    if threads <= 0:
        return None
    warps = -(-threads // 32)
    # The hardware allocates registers to warps in units of 256.
    per_warp = -(-max(registers, 1) * 32 // 256) * 256
    blocks = min(
        facts["max_blocks"],
        facts["max_threads"] // (warps * 32),
        facts["registers"] // (per_warp * warps),
        # The system reserves 1 KiB of shared memory for each block.
        facts["shared_bytes"] // (shared_bytes + 1024),
    )
    return 100.0 * blocks * warps * 32 / facts["max_threads"]
