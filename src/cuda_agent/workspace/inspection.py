"""Writes an inspection as text, for the command in a workspace and for the agent's tool."""

from __future__ import annotations

from collections.abc import Iterator

from cuda_agent.core.inspection import InspectReport, KernelCode, KernelRun

_MOST_KERNELS = 12
_MOST_FUNCTIONS = 20
_ADVICE = {
    "memory": "move fewer bytes (fuse, keep in registers or shared memory, smaller types), or wider and better aligned "
    "accesses; near 100 % it is finished",
    "compute": "do fewer operations, or use tensor cores where the precision policy allows it",
    "latency": "more in flight: more blocks or warps, independent loads per thread; fewer launches, fewer barriers",
}


def say_inspection(report: InspectReport) -> str:
    """Returns lines: the limit, then the kernels by their time, then the compiled functions."""
    return "\n".join(
        [
            *_limit(report),
            *_ran(report),
            *_compiled(report),
            *([f"loops (g++): {len(report.loops)}", *(f"  {line}" for line in report.loops)] if report.loops else []),
            *(f"note: {note}" for note in report.notes),
        ]
    )


def _limit(report: InspectReport) -> Iterator[str]:
    if report.limit is None:
        yield "The limit can't be named: no run was measured."
        return
    name = {"memory": "memory-bound", "compute": "compute-bound", "latency": "latency-bound"}[report.limit]
    yield f"{name} ({report.source}): {report.why}."
    yield f"What helps: {_ADVICE[report.limit]}."


def _ran(report: InspectReport) -> Iterator[str]:
    if report.latency_us is None:
        return
    busy = f", the device busy for {report.busy_us:,.1f}" if report.busy_us is not None else ""
    yield f"One call: {report.latency_us:,.1f} us{busy}.{' Kernels by time:' if report.kernels else ''}"
    for kernel in report.kernels[:_MOST_KERNELS]:
        yield f"  {kernel.time_us:>10,.1f} us {kernel.share:>4.0%}  {kernel.name}"
        details = ", ".join(_details(kernel))
        if details:
            yield f"      {details}"
        if kernel.why:
            yield f"      {kernel.limit}-bound: {kernel.why}"
    if len(report.kernels) > _MOST_KERNELS:
        yield f"  and {len(report.kernels) - _MOST_KERNELS} more"


def _details(kernel: KernelRun) -> Iterator[str]:
    if kernel.launches > 1.01:
        yield f"{kernel.launches:g} launches"
    if kernel.grid and kernel.block:
        yield f"grid {_sizes(kernel.grid)}, block {_sizes(kernel.block)}"
    if kernel.occupancy_percent is not None:
        yield f"occupancy {'at most ' if kernel.occupancy_is_bound else ''}{kernel.occupancy_percent:.0f} %"
    if kernel.dram_gb_s is not None:
        yield f"device memory {kernel.dram_gb_s:,.0f} GB/s"
    if kernel.sectors_per_load is not None:
        yield f"{kernel.sectors_per_load:.1f} sectors a load request"
    if kernel.sectors_per_store is not None:
        yield f"{kernel.sectors_per_store:.1f} a store request"


def _sizes(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


def _compiled(report: InspectReport) -> Iterator[str]:
    if report.code:
        yield "Compiled code (each instruction is counted once, however often it runs):"
    for code in report.code[:_MOST_FUNCTIONS]:
        yield f"  {code.name} ({code.source})"
        yield f"      {', '.join(_code(code))}"
    if len(report.code) > _MOST_FUNCTIONS:
        yield f"  and {len(report.code) - _MOST_FUNCTIONS} more"


def _code(code: KernelCode) -> Iterator[str]:
    if code.registers is not None:
        yield f"{code.registers} registers, {code.shared_bytes or 0} B shared"
        spilled = (code.spill_store_bytes or 0) + (code.spill_load_bytes or 0)
        if spilled:
            yield f"SPILLS {code.spill_store_bytes} B stores, {code.spill_load_bytes} B loads"
        else:
            yield f"no spills{f', {code.stack_bytes} B of stack' if code.stack_bytes else ''}"
    if code.instructions:
        yield f"{code.instructions} instructions: " + " ".join(
            f"{name} {share:.0%}" for name, share in code.mix.items()
        )
    if code.access_bits:
        yield "global accesses " + " ".join(f"{count}x{bits} bit" for bits, count in code.access_bits.items())
