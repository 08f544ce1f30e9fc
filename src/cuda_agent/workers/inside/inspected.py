"""Makes a candidate's calls from files, for `Inspect`: `python -m cuda_agent.workers.inside.inspected FOLDER
[--counters]`.

It reads FOLDER/call.json like `once`, and prints one line of JSON: times of events, kernels with their launches from
CUPTI, the resources of a multiprocessor; with `roofline` in the call, also the device's measured limits. With
`--counters` (under Nsight Compute) it makes one call between the profiler's marks. The worker could forge all of it.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MARK = "INSPECTED "
_WARM_S, _CALLS, _RECORDED = 0.3, 15, 3
_L2_TIMES = 3


def main(arguments: list[str]) -> int:
    folder, counters = Path(arguments[0]), "--counters" in arguments
    call = json.loads((folder / "call.json").read_text())
    import torch

    from cuda_agent.workers.inside.runner import Runner

    cuda = call["device"] == "cuda"
    roofline = _roofline(torch, cuda) if call.get("roofline") and not counters else None
    program, inputs = _load(folder, call)
    runner = Runner(call["device"])
    if counters:
        runner.warmup(program, [inputs], calls=2)
        torch.cuda.cudart().cudaProfilerStart()
        with torch.no_grad():
            program(*inputs)
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()
        return 0
    runner.warmup(program, [inputs], calls=3, seconds=_WARM_S)
    flush = _L2_TIMES * int(torch.cuda.get_device_properties(0).L2_cache_size) if cuda else 0
    times = [runner.time_once(program, inputs, flush_bytes=flush) for _ in range(_CALLS)]
    found: dict[str, Any] = {"latency_us": statistics.median(times), "roofline": roofline}
    if cuda:
        found |= {"multiprocessor": _multiprocessor(torch), **_kernels(program, inputs, flush)}
    sys.stdout.write(f"\n{MARK}{json.dumps(found)}\n")
    return 0


def _load(folder: Path, call: dict[str, Any]) -> tuple[Callable[..., Any], Any]:
    from cuda_agent.core.enums import Device
    from cuda_agent.workers.inside.candidate import LoadedCandidate
    from cuda_agent.workers.inside.main import Context
    from cuda_agent.workers.inside.once import read_tensor
    from cuda_agent.workers.inside.task.pytree import unflatten
    from cuda_agent.workers.requests.candidate import LoadCandidate
    from cuda_agent.workers.requests.lifecycle import Start

    context = Context()
    context.start(Start(device=call["device"]))
    candidate = LoadedCandidate(context)
    candidate.load(LoadCandidate(library=call["library"], model=call["model"], init=call["init"]))
    device = Device(call["device"])
    candidate.model.load_state_dict({name: read_tensor(folder, wire, device) for name, wire in call["state"].items()})
    return candidate.model, unflatten(
        call["inputs_spec"], [read_tensor(folder, wire, device) for wire in call["inputs"]]
    )


def _kernels(program: Callable[..., Any], inputs: Any, flush_bytes: int) -> dict[str, Any]:
    """Returns the kernels of a call, as means over several: [name, launches, µs, grid, block, registers, shared bytes],
    the longest first, and `busy_us`. Returns nulls where CUPTI isn't available."""
    import torch

    from cuda_agent.workers.inside.cupti import CuptiUnavailable, busy_ns, record

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


def _multiprocessor(torch: Any) -> dict[str, int]:
    facts = torch.cuda.get_device_properties(0)
    return {
        "max_threads": int(facts.max_threads_per_multi_processor),
        "registers": int(facts.regs_per_multiprocessor),
        "shared_bytes": int(facts.shared_memory_per_multiprocessor),
        "max_blocks": 32,
    }


def measure_roofline(cuda: bool) -> dict[str, float]:
    """Measures `core.inspection.Roofline` in this process."""
    import torch

    try:
        return _roofline(torch, cuda)
    finally:
        if cuda:
            torch.cuda.empty_cache()


def _roofline(torch: Any, cuda: bool) -> dict[str, float]:
    """Measures GB/s of a copy, both directions counted, and Tflop/s of square products: the best of several."""
    device = "cuda" if cuda else "cpu"
    source = torch.ones((1 << 28) if cuda else (1 << 26), dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    seconds = _best(torch, lambda: target.copy_(source), cuda)
    found = {"bandwidth_gb_s": 2 * source.nbytes / seconds / 1e9}
    size = 8192 if cuda else 1024

    def product(dtype: Any, tf32: bool) -> float:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        try:
            return float(2 * size**3 / _best(torch, lambda: torch.mm(a, b, out=out), cuda) / 1e12)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False

    found["fp32_tflops"] = product(torch.float32, False)
    if cuda:
        found |= {"tf32_tflops": product(torch.float32, True), "half_tflops": product(torch.bfloat16, False)}
    return found


def _best(torch: Any, work: Callable[[], Any], cuda: bool) -> float:
    work()
    best = float("inf")
    for _ in range(5):
        if cuda:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        if cuda:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
    return best


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except BaseException as error:  # noqa: BLE001 - the boundary to the candidate's code
        sys.stderr.write(f"{type(error).__name__}: {error}\n"[:4096])
        code = 3
    sys.stdout.flush()
    sys.stderr.flush()
    # This avoids the interpreter's end, where a candidate's exit handlers would run.
    os._exit(code)
