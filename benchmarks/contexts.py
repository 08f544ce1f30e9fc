"""Measures how long a process waits for its CUDA context and for its end. Each worker of the judge has a context.

    python3 benchmarks/contexts.py                # 1, 4 and 10 at a time, with defaults and with the judge's settings

It prints the seconds of each process from a common start until the driver's start, its context and torch's first
kernel, and from SIGKILL until its end. `a minute` is the rate of contexts that are made and ended one after the other.
`beside` is the number of idle contexts of the same kind (`--beside 0 20 40`, one at a time).
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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from common import arguments, failed, run, save, table

from cuda_agent.core.enums import Device
from cuda_agent.workers.buffers import SMALL_CONTEXT

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


class Process:
    """A process that has imported torch and waits for the request to make its context."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | environment,
        )  # fmt: skip

    def started(self) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            failed("a process didn't start")

    def make(self) -> list[float]:
        """Returns the seconds of the phases until its first kernel."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        found: list[float] = json.loads(self._process.stdout.readline() or "[]")
        return found or failed("a process has no context")

    def end(self) -> float:
        begin = time.perf_counter()
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        return time.perf_counter() - begin


@contextmanager
def processes(count: int, environment: dict[str, str]) -> Iterator[list[Process]]:
    found = [Process(environment) for _ in range(count)]
    try:
        for process in found:
            process.started()
        yield found
    finally:
        for process in found:
            process.end()


def seconds(at_a_time: int, environment: dict[str, str]) -> tuple[list[list[float]], float, float]:
    """Returns the seconds of each process by phase, until the last is ready, and until the last has ended."""
    with processes(at_a_time, environment) as mine, ThreadPoolExecutor(at_a_time) as pool:
        begin = time.perf_counter()
        made = list(pool.map(Process.make, mine))
        whole = time.perf_counter() - begin
        begin = time.perf_counter()
        ended = list(pool.map(Process.end, mine))
        gone = time.perf_counter() - begin
    return [[*phases, last] for phases, last in zip(made, ended, strict=True)], whole, gone


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--at-a-time", type=int, nargs="+", default=[1, 4, 10])
    parser.add_argument("--beside", type=int, nargs="*", default=[])
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    if options.device not in (None, Device.CUDA):
        failed("CUDA contexts need --device cuda")
    cases = [(0, count, name) for count in options.at_a_time for name in VARIANTS]
    cases += [(others, 1, name) for others in options.beside for name in VARIANTS]
    tries = cases * options.repeats
    random.shuffle(tries)
    found: list[dict[str, Any]] = []
    # The judge does this too, so that the device stays initialised.
    with processes(1, {}) as (kept,):
        kept.make()
        for others, count, name in tries:
            with processes(others, VARIANTS[name]) as alive:
                for process in alive:
                    process.make()
                each, whole, gone = seconds(count, VARIANTS[name])
            facts = {"beside": others, "at_a_time": count, "variant": name}
            found.append(facts | {"seconds": each, "whole_s": whole, "gone_s": gone})
    rows = []
    for others, count, name in cases:
        mine = [one for one in found if (one["beside"], one["at_a_time"], one["variant"]) == (others, count, name)]
        phases = zip(*(values for one in mine for values in one["seconds"]), strict=True)
        whole, gone = (statistics.median(one[key] for one in mine) for key in ("whole_s", "gone_s"))
        medians = [f"{statistics.median(values):.3f}" for values in phases]
        a_minute = f"{60 * count / (whole + gone):.0f}"
        rows.append([str(others), str(count), name, *medians, f"{whole:.2f}", f"{gone:.2f}", a_minute])
    columns = ["beside", "at a time", "contexts", *PHASES, "all made, s", "all gone, s", "a minute"]
    print(table(columns, rows))
    print(f"raw samples: {save('contexts', options, Device.CUDA, {'runs': found})}")
    return 0


if __name__ == "__main__":
    run(main)
