"""Measures evaluations per minute through the pool, with an empty cache and with a filled one.

    .venv/bin/python benchmarks/throughput.py                                  # 4 tasks, 8 candidates each
    .venv/bin/python benchmarks/throughput.py --device cpu --tasks 2 --candidates 3
    .venv/bin/python benchmarks/throughput.py --gpus 0 1 --repeats 2           # all GPUs, and the first alone

Every candidate of every task is honest and has different sources. All are submitted at once, task by task. Cold means
that everything is compiled, including the precompiled header and the baselines. Warm means a new pool with the same
candidates. The clock runs from the first submission to the last result and includes the start of the pool; the second
rate leaves out the time before the first result. With several GPUs, runs with all of them alternate with runs on the
first alone, with the same cache. With --stop settled, every ratio is known to ±1 %, as for a final verdict.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from common import arguments, chosen_device, failed, run, save, table

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.records import Candidate, Evaluation, Task
from cuda_agent.pool.pool import Pool
from fault_specimens import HONEST, faulty, small_axpby

DEFAULTS = {Device.CUDA: (4, 8), Device.CPU: (2, 4)}


def workload(device: Device, tasks: int, candidates: int) -> list[tuple[Task, Candidate]]:
    """Returns tasks of different sizes, and candidates with different sources."""
    return [
        (small_axpby(f"{rows + 1}, 4096"), faulty(HONEST, device, mark=rows * candidates + index + 1))
        for rows in range(tasks)
        for index in range(candidates)
    ]


def measure(
    options: JudgeOptions, work: Sequence[tuple[Task, Candidate]], gpus: Sequence[str], log: Path | None
) -> dict[str, Any]:
    """Returns the seconds from the first submission to each result, and the durations of the evaluations. `log` gets
    the turns of the devices' queues."""
    begin, ends = time.perf_counter(), dict[int, float]()
    with Pool(options, gpus=gpus, log=log) as pool:

        def ended(index: int, _future: Future[Evaluation]) -> None:
            ends[index] = time.perf_counter() - begin
            print(f"{index}: after {ends[index]:.1f} s", file=sys.stderr, flush=True)

        futures = [pool.submit(task, candidate) for task, candidate in work]
        for index, future in enumerate(futures):
            future.add_done_callback(lambda done, index=index: ended(index, done))
        found = [future.result() for future in futures]
    bad = [evaluation for evaluation in found if evaluation.verdict is not Verdict.PASSED]
    if bad:
        failed(f"{len(bad)} of {len(found)} honest candidates failed, the first: {bad[0].verdict}: {bad[0].reason}")
    times = sorted(ends.values())
    return {
        "builders": len(pool.builders),
        "seconds": times,
        "durations_s": [evaluation.durations_s for evaluation in found],
        "a_minute": 60 * len(times) / times[-1],
        "a_minute_after_the_first": 60 * (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else None,
    }


def runs(gpus: Sequence[str], repeats: int) -> Iterator[tuple[str, Sequence[str]]]:
    """Returns the names and GPUs of the runs in order."""
    yield "cold", gpus
    for number in range(1, repeats + 1):
        again = f" {number}" if repeats > 1 else ""
        if len(gpus) > 1:
            yield f"warm, one GPU{again}", gpus[:1]
        yield f"warm{again}", gpus


def scaling(found: dict[str, Any]) -> float:
    """Returns the warm rate of all GPUs over that of one, from medians of the repeats."""
    warm: dict[str, float] = {
        name: one["a_minute_after_the_first"] for name, one in found.items() if name.startswith("warm")
    }
    alone = [rate for name, rate in warm.items() if "one GPU" in name]
    every = [rate for name, rate in warm.items() if "one GPU" not in name]
    return statistics.median(every) / statistics.median(alone)


def row(name: str, found: dict[str, Any]) -> list[str]:
    phases = [
        f"{statistics.median(spent[phase] for spent in found['durations_s']):.2f}"
        for phase in ("build", "verify", "profile")
    ]
    later = found["a_minute_after_the_first"]
    first, last = found["seconds"][0], found["seconds"][-1]
    rates = [f"{found['a_minute']:.1f}", "—" if later is None else f"{later:.1f}"]
    return [name, str(len(found["seconds"])), f"{first:.1f}", f"{last:.1f}", *rates, *phases]


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--tasks", type=int, help="tasks, each with its own baselines")
    parser.add_argument("--candidates", type=int, help="candidates of each task")
    parser.add_argument(
        "--stop",
        choices=("decided", "settled"),
        default="decided",
        help="when rounds end; an agent's Profile uses decided",
    )
    parser.add_argument("--gpus", nargs="*", default=[], help="UUIDs or numbers of GPUs")
    parser.add_argument("--turns", type=Path, help="file that gets a line for each turn of a device")
    parser.add_argument("--repeats", type=int, default=1, help="warm runs")
    options = parser.parse_args()
    device = chosen_device(options.device)
    tasks, candidates = options.tasks or DEFAULTS[device][0], options.candidates or DEFAULTS[device][1]
    judge = JudgeOptions(device=device, timing_stop=options.stop)
    work, found = workload(device, tasks, candidates), dict[str, Any]()
    with tempfile.TemporaryDirectory(prefix="cuda-agent-throughput-") as cache:
        os.environ["CUDA_AGENT_CACHE"] = cache
        for name, gpus in runs(options.gpus, options.repeats):
            found[name] = measure(judge, work, gpus, options.turns)
            print(f"{name}: {found[name]['a_minute']:.1f} a minute", flush=True)
            raw = save("throughput", options, device, {"runs": found})
    header = ["cache", "evaluations", "first after s", "all after s", "a minute", "a minute after the first"]
    medians = [f"median {phase} s" for phase in ("build", "verify", "profile")]
    print(table([*header, *medians], [row(name, measured) for name, measured in found.items()]))
    if len(options.gpus) > 1:
        print(f"\n{scaling(found):.2f} times the warm rate of one GPU, after the first result")
    devices, builders = max(1, len(options.gpus)), max(one["builders"] for one in found.values())
    print(
        f"\n{tasks} tasks, {candidates} candidates each; {builders} builders, {devices} devices, until {options.stop}"
    )
    print(f"raw samples: {raw}")
    return 0


if __name__ == "__main__":
    run(main)
