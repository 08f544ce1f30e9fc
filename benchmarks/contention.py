"""Measures what slows a step of the judge beside other processes on one GPU: their contexts, memory, kernels or cores.

    python3 benchmarks/contention.py                # beside 0, 1 and 4 neighbours of each kind

A step allocates memory, computes on it and frees it, like each trial of a verification.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time

from common import arguments, failed, run, save, table

from cuda_agent.core.enums import Device

STEP = """
import json, sys, time
import torch
torch.zeros(1, device="cuda")
size, end, found = int(sys.argv[1]), time.monotonic() + float(sys.argv[2]), []
while time.monotonic() < end:
    marks = [time.perf_counter()]
    x = torch.empty(size // 4, device="cuda")
    marks.append(time.perf_counter())
    x.fill_(1.0).mul_(2.0)
    float(x.sum())
    marks.append(time.perf_counter())
    del x
    torch.cuda.empty_cache()
    marks.append(time.perf_counter())
    found.append([b - a for a, b in zip(marks, marks[1:])])
print(json.dumps(found))
"""
DRIVER = """
import ctypes, sys
cuda, context, place, size = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t(1 << 31)
def ask(name, *given):
    code = getattr(cuda, name)(*given)
    if code:
        sys.exit(f"{name}: error {code}")
ask("cuInit", 0)
def retain():
    ask("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    ask("cuCtxSetCurrent", context)
"""
#: what a neighbour repeats until it is ended.
NEIGHBOURS = {
    "contexts": DRIVER + """
while True:
    retain()
    ask("cuDevicePrimaryCtxRelease_v2", 0)
""",
    "memory": DRIVER + """
retain()
while True:
    ask("cuMemAlloc_v2", ctypes.byref(place), size)
    ask("cuMemFree_v2", place)
""",
    "kernels": DRIVER + """
retain()
ask("cuMemAlloc_v2", ctypes.byref(place), size)
while True:
    ask("cuMemsetD8_v2", place, 1, size)
    ask("cuCtxSynchronize")
""",
    "imports": """
import subprocess, sys
while True:
    subprocess.run([sys.executable, "-c", "import torch"])
""",
}  # fmt: skip
PHASES = ("taking memory", "computing", "giving it back")


def steps(kind: str, neighbours: int, mib: int, seconds: float) -> list[list[float]]:
    """Returns the seconds of each phase of each step."""
    beside = [
        subprocess.Popen([sys.executable, "-c", NEIGHBOURS[kind]], stderr=subprocess.PIPE, start_new_session=True)
        for _ in range(neighbours)
    ]
    try:
        time.sleep(2.0 if neighbours else 0.0)
        for process in beside:
            if process.poll() is not None:
                failed(f"{kind}: {(process.stderr.read() if process.stderr else b'').decode()[-200:]}")
        command = [sys.executable, "-c", STEP, str(mib << 20), str(seconds)]
        found: list[list[float]] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        return found
    finally:
        for process in beside:
            # This ends its child processes too.
            os.killpg(process.pid, signal.SIGKILL)
        for process in beside:
            process.wait()


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--neighbours", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--mib", type=int, default=4096, help="of a step")
    parser.add_argument("--seconds", type=float, default=3.0, help="of steps beside each")
    options = parser.parse_args()
    if options.device not in (None, Device.CUDA):
        failed("this measures a GPU: --device cuda")
    rows, found = [], []
    for kind, count in [("contexts", 0), *((kind, count) for kind in NEIGHBOURS for count in options.neighbours)]:
        samples = steps(kind, count, options.mib, options.seconds)
        found.append({"kind": kind, "neighbours": count, "seconds": samples})
        medians = [f"{1e3 * statistics.median(values):.1f}" for values in zip(*samples, strict=True)]
        rows.append([kind if count else "nobody", str(count), str(len(samples)), *medians])
    print(table(["beside", "so many", "steps", *(f"{phase}, ms" for phase in PHASES)], rows))
    print(f"raw samples: {save('contention', options, Device.CUDA, {'runs': found, 'mib': options.mib})}")
    return 0


if __name__ == "__main__":
    run(main)
