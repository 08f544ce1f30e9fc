"""Measures the parts of the judge's time in a burst and their scatter, which bounds the lies that a clock can detect.

    .venv/bin/python benchmarks/clock.py                       # A/A, 3 evaluations of each kernel
    .venv/bin/python benchmarks/clock.py --kernels "5 µs" --count 10

The table has µs for each program. `burst` is the time of that request less the time of its events, `deliver` the time
of that request, `rest` the time of copies, wiping and samples. Each is a median with the 10th to 90th percentile over
rounds. `outside` is their sum for each call, less `waited`, the waiting that the worker reports; verdicts about clocks
use it. Some raw samples have the amount of a worker's memory in huge pages, which grows with its age.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from common import arguments, chosen_device, run, save, table

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.judge.profile.programs import Programs
from cuda_agent.judge.profile.rounds import Rounds
from cuda_agent.judge.stability import KERNELS, same_twice
from cuda_agent.workers.channel import name_of
from cuda_agent.workers.requests import WorkerRequest
from cuda_agent.workspace.descendants import descendants

PARTS = ("burst", "deliver", "rest", "outside", "waited")


class Watch:
    """Records every burst of the rounds while it is open: its program and the µs of its parts."""

    def __init__(self) -> None:
        self.bursts: list[dict[str, Any]] = []
        self._asked: dict[str, float] = {}
        ask, burst = Programs.ask, Rounds._burst

        def timed_ask(programs: Programs, name: str, request: WorkerRequest[Any], **named: Any) -> Any:
            begin = time.perf_counter_ns()
            try:
                return ask(programs, name, request, **named)
            finally:
                self._asked[name_of(request)] = (time.perf_counter_ns() - begin) / 1e3

        def timed_burst(rounds: Rounds, name: str) -> Any:
            self._asked = {}
            made, samples = burst(rounds, name)
            if made is not None:
                events, calls = sum(made.event_us), len(made.event_us)
                ran, delivered = self._asked["RunBurst"], self._asked["DeliverOutputs"]
                parts = {"burst": ran - events, "deliver": delivered, "rest": made.wall_us - ran - delivered}
                parts |= {"outside": made.outside_us, "waited": made.waited_us, "wall": made.wall_us}
                parts["median_us"] = made.median_us
                if len(self.bursts) % 64 < 4:
                    parts["huge_kib"] = huge_kib(rounds.programs.worker(name).pid)
                self.bursts.append({"program": name, "calls": calls, "event_us": events / calls, **parts})
            return made, samples

        self.patches = (mock.patch.object(Programs, "ask", timed_ask), mock.patch.object(Rounds, "_burst", timed_burst))

    def __enter__(self) -> Watch:
        for patch in self.patches:
            patch.start()
        return self

    def __exit__(self, *_error: object) -> None:
        for patch in self.patches:
            patch.stop()


def huge_kib(pid: int) -> int:
    """Returns the KiB of a worker's memory in huge pages."""
    total = 0
    for each in (pid, *descendants(pid)):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines():
                if line.startswith(("AnonHugePages:", "FilePmdMapped:", "ShmemPmdMapped:")):
                    total += int(line.split()[1])
    return total


def said(values: Sequence[float]) -> str:
    ordered = sorted(values)
    low, middle, high = (ordered[int(share * (len(ordered) - 1))] for share in (0.1, 0.5, 0.9))
    return f"{middle:,.1f} [{low:,.1f}, {high:,.1f}]"


def rows_of(label: str, bursts: Sequence[dict[str, Any]]) -> list[list[str]]:
    programs = defaultdict(list)
    for burst in bursts:
        programs[burst["program"]].append(burst)
    return [
        [label, name, str(len(found)), str(found[-1]["calls"]), said([one["event_us"] for one in found])]
        + [said([one[part] for one in found]) for part in PARTS]
        for name, found in programs.items()
    ]


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--count", type=int, default=3, help="evaluations of each kernel, a fresh worker each")
    parser.add_argument("--kernels", nargs="+", help="only these, by label such as '5 µs'")
    parser.add_argument("--budget", type=float, default=4.0, help="seconds of one evaluation's rounds")
    options = parser.parse_args()
    device: Device = chosen_device(options.device)
    judge = JudgeOptions(device=device, timing_budget_s=options.budget)
    rows, whole = list[list[str]](), dict[str, Any]()
    for kernel in KERNELS[device]:
        if options.kernels is not None and kernel.label not in options.kernels:
            continue
        with same_twice(kernel, judge) as once, Watch() as watch:
            ratios = [(sample.ratio, sample.low, sample.high) for sample in (once() for _ in range(options.count))]
        rows += rows_of(kernel.label, watch.bursts)
        whole[kernel.label] = {"ratios": ratios, "bursts": watch.bursts}
        shown = ", ".join(f"{value:.4f} [{low:.4f}, {high:.4f}]" for value, low, high in ratios if value is not None)
        print(f"{kernel.label}: {shown}", flush=True)
    print("\n" + table(["kernel", "program", "bursts", "calls", "events a call", *PARTS], rows))
    print(f"raw samples: {save('clock', options, device, {'kernels': whole})}")
    return 0


if __name__ == "__main__":
    run(main)
