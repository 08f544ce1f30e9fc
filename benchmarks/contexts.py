"""What a process waits for its CUDA context, alone and beside others: `tasks filter` starts thousands.

python3 benchmarks/contexts.py                # 1, 8 and 16 at a time, as they come and with small contexts
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from common import arguments, failed, run, save, table

from cuda_agent.core.enums import Device
from cuda_agent.judge.worker.runner import SMALL_CONTEXT

PROGRAM = """
import sys, time
import torch
sys.stdin.readline()
begin = time.perf_counter()
torch.zeros(1, device="cuda")
torch.cuda.synchronize()
print(time.perf_counter() - begin, flush=True)
sys.stdin.readline()
"""
VARIANTS = {"as it comes": {}, "small": SMALL_CONTEXT}


def seconds(at_a_time: int, environment: dict[str, str]) -> tuple[list[float], float]:
    """(of each process, of all together), from a common start."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | environment,
        )
        for _ in range(at_a_time)
    ]  # fmt: skip
    time.sleep(2.0 + 0.5 * at_a_time)
    begin = time.perf_counter()

    def one(process: subprocess.Popen[str]) -> float:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        return float(process.stdout.readline() or "nan")

    with ThreadPoolExecutor(at_a_time) as pool:
        each = list(pool.map(one, processes))
    whole = time.perf_counter() - begin
    for process in processes:
        process.communicate("end\n")
    return each, whole


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--at-a-time", type=int, nargs="+", default=[1, 8, 16])
    options = parser.parse_args()
    if options.device not in (None, Device.CUDA):
        failed("CUDA contexts need --device cuda")
    rows, found = [], []
    for count in options.at_a_time:
        for name, environment in VARIANTS.items():
            each, whole = seconds(count, environment)
            found.append({"at_a_time": count, "variant": name, "seconds": each, "whole_s": whole})
            rows.append(
                [str(count), name, f"{statistics.median(each):.2f}", f"{whole:.2f}", f"{60 * count / whole:.0f}"]
            )
    print(table(["at a time", "contexts", "median s", "all s", "a minute"], rows))
    print(f"raw samples: {save('contexts', options, Device.CUDA, {'runs': found})}")
    return 0


if __name__ == "__main__":
    run(main)
