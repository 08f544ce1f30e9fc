"""Makes a candidate's calls from files, for `Inspect`; its arguments are the folder and `--counters` or `--roofline`.

It reads FOLDER/call.json like `once`, and prints one line of JSON: times of events, kernels with their launches from
CUPTI, the resources of a multiprocessor; with `--roofline` also the device's measured limits. With `--counters` (under
Nsight Compute) it makes one call between the profiler's marks. The worker could forge all of it.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from cuda_agent.core.enums import Device
from cuda_agent.workers.buffers import synchronize
from cuda_agent.workers.inside.cupti import CuptiUnavailable, busy_ns, record
from cuda_agent.workers.inside.once import load_call, read_call, run_to_the_end
from cuda_agent.workers.inside.runner import Program, Runner
from cuda_agent.workers.requests.candidate import INSPECTED

_WARM_S, _CALLS, _RECORDED = 0.3, 15, 3
_L2_TIMES = 3


def main() -> None:
    run_to_the_end(_calls)


def _calls(arguments: list[str]) -> int:
    folder, options = Path(arguments[0]), arguments[1:]
    call = read_call(folder)
    device = Device(call["device"])
    # Before the candidate's code is loaded.
    roofline = measure_roofline(device) if "--roofline" in options else None
    program, inputs = load_call(folder, call)
    runner = Runner(device.value)
    if "--counters" in options:
        runner.warmup(program, [inputs], calls=2)
        torch.cuda.cudart().cudaProfilerStart()
        with torch.no_grad():
            program(*inputs)
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()
        return 0
    runner.warmup(program, [inputs], calls=3, seconds=_WARM_S)
    flush = _L2_TIMES * int(torch.cuda.get_device_properties(0).L2_cache_size) if runner.is_cuda else 0
    times = [runner.time_once(program, inputs, flush_bytes=flush) for _ in range(_CALLS)]
    found: dict[str, Any] = {"latency_us": statistics.median(times), "roofline": roofline}
    if runner.is_cuda:
        found |= {"multiprocessor": _multiprocessor(), **_kernels(program, inputs, flush)}
    sys.stdout.write(f"\n{INSPECTED}{json.dumps(found)}\n")
    return 0


def _kernels(program: Program, inputs: Any, flush_bytes: int) -> dict[str, Any]:
    """Returns the kernels of a call, as means over several: [name, launches, µs, grid, block, registers, shared bytes],
    the longest first, and `busy_us`. Returns nulls where CUPTI isn't available."""
    scratch = torch.empty(max(flush_bytes, 1), dtype=torch.uint8, device="cuda")
    sums: dict[str, list[Any]] = {}
    busy = 0.0
    try:
        for _ in range(_RECORDED):
            scratch.zero_()
            torch.cuda.synchronize()
            with torch.no_grad():
                spans = record(lambda: program(*inputs))
            busy += busy_ns(spans) / 1e3 / _RECORDED
            for span in spans:
                row = sums.setdefault(span.name or span.kind, [0.0, 0.0, span.launch])
                row[0] += 1 / _RECORDED
                row[1] += (span.end_ns - span.start_ns) / 1e3 / _RECORDED
    except CuptiUnavailable as error:
        return {"kernels": None, "busy_us": None, "kernels_error": str(error)}
    rows = [[name, launches, us, launch] for name, (launches, us, launch) in sums.items()]
    return {"kernels": sorted(rows, key=lambda row: -row[2])[:50], "busy_us": busy}


def _multiprocessor() -> dict[str, int]:
    facts = torch.cuda.get_device_properties(0)
    return {
        "max_threads": int(facts.max_threads_per_multi_processor),
        "registers": int(facts.regs_per_multiprocessor),
        "shared_bytes": int(facts.shared_memory_per_multiprocessor),
        "max_blocks": 32,
    }


def measure_roofline(device: Device) -> dict[str, float]:
    """Measures `core.inspection.Roofline` in this process."""
    cuda = device is Device.CUDA
    try:
        found = {"bandwidth_gb_s": copy_gb_s(device, 1 << (28 if cuda else 26)), "fp32_tflops": _tflops(device)}
        if cuda:
            found |= {"tf32_tflops": _tflops(device, tf32=True), "half_tflops": _tflops(device, torch.bfloat16)}
        return found
    finally:
        if cuda:
            torch.cuda.empty_cache()


def copy_gb_s(device: Device, elements: int) -> float:
    """Returns the GB/s that the best of several copies of float32 elements read and wrote."""
    source = torch.ones(elements, dtype=torch.float32, device=device.value)
    target = torch.empty_like(source)
    return float(2 * source.nbytes / _best_s(lambda: target.copy_(source), device) / 1e9)


def _tflops(device: Device, dtype: Any = torch.float32, *, tf32: bool = False) -> float:
    """Returns the Tflop/s of the best of several square products."""
    size = 8192 if device is Device.CUDA else 1024
    torch.backends.cuda.matmul.allow_tf32 = tf32
    a, b = (torch.randn(size, size, device=device.value).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    try:
        return 2 * size**3 / _best_s(lambda: torch.mm(a, b, out=out), device) / 1e12
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def _best_s(work: Callable[[], Any], device: Device) -> float:
    work()
    best = float("inf")
    for _ in range(5):
        synchronize(device)
        begin = time.perf_counter()
        work()
        synchronize(device)
        best = min(best, time.perf_counter() - begin)
    return best
