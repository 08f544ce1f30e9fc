"""What a process waits for its CUDA context and for its end, alone and beside others: each worker of the judge has one.

    python3 benchmarks/contexts.py                # 1, 4 and 10 at a time, as they come and as the judge makes its own

Seconds of each process from a common start: the driver's start, its context, torch's first kernel; and from SIGKILL
until it is gone. `a minute`: contexts made and ended, one after the other.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from common import arguments, failed, run, save, table

from cuda_agent.core.enums import Device
from cuda_agent.judge.buffers import SMALL_CONTEXT

PROGRAM = """
import ctypes, json, sys, time
import torch
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
print("ready", flush=True)
sys.stdin.readline()
marks = [time.perf_counter()]
assert cuda.cuInit(0) == 0
marks.append(time.perf_counter())
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
marks.append(time.perf_counter())
torch.zeros(1, device="cuda")
torch.cuda.synchronize()
marks.append(time.perf_counter())
print(json.dumps([b - a for a, b in zip(marks, marks[1:])]), flush=True)
sys.stdin.readline()
"""
VARIANTS: dict[str, dict[str, str]] = {
    "as it comes": {},
    "small": SMALL_CONTEXT,
    "short queues": {"CUDA_SCALE_LAUNCH_QUEUES": "0.25x"},
}
PHASES = ("driver's start", "context", "first kernel", "end")


def seconds(at_a_time: int, environment: dict[str, str]) -> tuple[list[list[float]], float, float]:
    """(of each process by phase, of all together until the last is ready, until the last is gone)."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | environment,
        )
        for _ in range(at_a_time)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            failed("a process didn't start")

    def make(process: subprocess.Popen[str]) -> list[float]:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        found: list[float] = json.loads(process.stdout.readline() or "[]")
        return found or failed("a process has no context")

    def end(process: subprocess.Popen[str]) -> float:
        begin = time.perf_counter()
        process.send_signal(signal.SIGKILL)
        process.wait()
        return time.perf_counter() - begin

    with ThreadPoolExecutor(at_a_time) as pool:
        begin = time.perf_counter()
        made = list(pool.map(make, processes))
        whole = time.perf_counter() - begin
        begin = time.perf_counter()
        ended = list(pool.map(end, processes))
        gone = time.perf_counter() - begin
    return [[*phases, last] for phases, last in zip(made, ended, strict=True)], whole, gone


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--at-a-time", type=int, nargs="+", default=[1, 4, 10])
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    if options.device not in (None, Device.CUDA):
        failed("CUDA contexts need --device cuda")
    kept = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert kept.stdin is not None
    # As the judge does, so that the device stays initialised.
    kept.stdin.write("go\n")
    kept.stdin.flush()
    cases = [(count, name) for count in options.at_a_time for name in VARIANTS] * options.repeats
    random.shuffle(cases)
    found = []
    for count, name in cases:
        each, whole, gone = seconds(count, VARIANTS[name])
        found.append({"at_a_time": count, "variant": name, "seconds": each, "whole_s": whole, "gone_s": gone})
    kept.kill()
    rows = []
    for count in options.at_a_time:
        for name in VARIANTS:
            mine = [one for one in found if one["at_a_time"] == count and one["variant"] == name]
            phases = zip(*(values for one in mine for values in one["seconds"]), strict=True)
            whole, gone = (statistics.median(one[key] for one in mine) for key in ("whole_s", "gone_s"))
            medians = [f"{statistics.median(values):.3f}" for values in phases]
            rows.append(
                [str(count), name, *medians, f"{whole:.2f}", f"{gone:.2f}", f"{60 * count / (whole + gone):.0f}"]
            )
    print(table(["at a time", "contexts", *PHASES, "all made, s", "all gone, s", "a minute"], rows))
    print(f"raw samples: {save('contexts', options, Device.CUDA, {'runs': found})}")
    return 0


if __name__ == "__main__":
    run(main)
