"""Measures the time of one turn: build, verify and profile after an edit, and the published procedure in the same run.

    .venv/bin/python benchmarks/turn.py                                     # median of 20, the published one 3 times
    .venv/bin/python benchmarks/turn.py --device cpu --count 3 --published 1
    .venv/bin/python benchmarks/turn.py --sizes "1, 128" --steps            # and the seconds of each step
    .venv/bin/python benchmarks/turn.py --limit-s 500                       # begin no turn after 500 s

Each turn is one evaluation in an open session, like an agent's: the changed files are compiled, a fresh worker verifies
the candidate, and it is timed beside the baselines. There are --pause seconds between turns. The published procedure
(`published.py`) compiles everything after any edit. The targets are for the first size.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from common import arguments, chosen_device, failed, run, save, table

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.errors import DeviceError
from cuda_agent.core.records import Candidate, Evaluation, Task
from cuda_agent.judge.session import JudgeSession
from cuda_agent.workspace.layout import fixed_files
from fault_specimens import HONEST, SMALL, faulty, small_axpby

PUBLISHED = Path(__file__).with_name("published.py")
SIZES = {Device.CUDA: (SMALL, "4096, 4096"), Device.CPU: (SMALL, "1024, 1024")}
CASES = ("kernel", "binding", "unchanged")
#: the most seconds of a turn, and the least factor by which it is faster than the published procedure.
MOST_SECONDS = {Device.CUDA: {"kernel": 3.0, "binding": 7.0, "unchanged": 2.0}, Device.CPU: {}}
LEAST_TIMES = {Device.CUDA: {"kernel": 10.0}, Device.CPU: {"kernel": 4.0}}
PHASES = ("build", "verify", "profile", "rest", "total")

Seconds = dict[str, float]


def edited(case: str, device: Device, mark: int) -> Candidate:
    """Returns the honest candidate after an edit that isn't in any cache."""
    files = dict(faulty(HONEST, device).files)
    if case != "unchanged":
        name = next(
            name for name in files if name.startswith("kernels/") and ("binding" in name) == (case == "binding")
        )
        files[name] += f'\nextern "C" int edit_{mark}() {{ return {mark}; }}\n'
    return Candidate(files=files)


class Steps:
    """Turns progress into seconds by step. The time between two messages belongs to the first."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self._last: tuple[str, float] | None = None

    def __call__(self, phase: str, text: str) -> None:
        now = time.perf_counter()
        if self._last is not None:
            self.seconds[self._last[0]].append(now - self._last[1])
        words = text.split(" ")
        label = words[0] if words[0] in ("round", "trial") else text
        self._last = (f"{phase}: {label}" if phase else label, now)

    def report(self, turns: int) -> str:
        rows = [
            [name, f"{sum(found) / turns:.3f}", f"{len(found) / turns:.1f}"] for name, found in self.seconds.items()
        ]
        return table(["step", "s a turn", "times a turn"], rows)


def ours(task: Task, device: Device, options: argparse.Namespace) -> tuple[dict[str, list[Seconds]], Steps]:
    """Returns case -> one sample for each turn. Raises TaskError and the other errors of a session."""
    judge = JudgeOptions(device=device, compiler_jobs=min(4, os.cpu_count() or 1))
    samples: dict[str, list[Seconds]] = {case: [] for case in CASES}
    steps, mark = Steps(), int(time.time())
    with JudgeSession(task, judge) as session:
        session.admit()
        # This is needed once for each task; the precompiled header once for each machine.
        checked(session.evaluate(edited("unchanged", device, 0), stop=options.stop))
        session.progress = steps
        for index in range(options.count):
            if time.monotonic() > options.end:
                print(f"time limit: {index} of {options.count} turns of each case were made", file=sys.stderr)
                break
            for case in CASES:
                steps("", "pause")
                time.sleep(options.pause)
                candidate = edited(case, device, mark + index)
                begin = time.perf_counter()
                steps("", "before the guard")
                evaluation = checked(session.evaluate(candidate, stop=options.stop))
                steps("", "after the turn")
                samples[case].append(seconds(evaluation, time.perf_counter() - begin))
                print(f"{case} {index}: {samples[case][-1]}", file=sys.stderr, flush=True)
    return samples, steps


def checked(evaluation: Evaluation) -> Evaluation:
    if evaluation.verdict is not Verdict.PASSED:
        failed(f"an honest candidate is {evaluation.verdict.value}: {evaluation.reason}\n{evaluation.log_tail[-1000:]}")
    return evaluation


def seconds(evaluation: Evaluation, total: float) -> Seconds:
    spent = evaluation.durations_s
    found = {"build": spent["guard"] + spent["build"], "verify": spent["verify"], "profile": spent["profile"]}
    return found | {"rest": total - sum(found.values()), "total": total}


def published(task: Task, device: Device, count: int) -> list[Seconds]:
    """Runs the three commands in a separate workspace. Raises DeviceError where one fails."""
    if shutil.which("ninja") is None:
        raise DeviceError("torch.utils.cpp_extension.load needs ninja", "apt install ninja-build, or pip install ninja")
    samples = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fixed = {path: fixed_files()[path] for path in ("binding.cpp", "binding_registry.h")}
        for path, text in {"model.py": task.source, **fixed, **edited("unchanged", device, 0).files}.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
        for index in range(count):
            samples.append({step: command(step, folder, device) for step in ("build", "verify", "profile")})
            samples[-1] |= {"rest": 0.0, "total": sum(samples[-1].values())}
            print(f"published {index}: {samples[-1]}", file=sys.stderr, flush=True)
    return samples


def command(step: str, folder: Path, device: Device) -> float:
    # A compiled baseline from the disk would not be part of the published procedure's time.
    cache = folder / "cache" / str(time.time_ns())
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(cache), "TRITON_CACHE_DIR": str(cache / "triton")}
    begin = time.perf_counter()
    call = [sys.executable, str(PUBLISHED), step, str(folder), device.value]
    done = subprocess.run(call, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise DeviceError(f"The published {step} failed", "See its output", detail=done.stderr[-2000:])
    return time.perf_counter() - begin


def medians(samples: list[Seconds]) -> Seconds:
    return {phase: statistics.median(sample[phase] for sample in samples) for phase in PHASES}


def rows_of(size: str, found: dict[str, list[Seconds]]) -> list[list[str]]:
    theirs = medians(found["published"])["total"] if found["published"] else None
    rows = []
    for case, samples in found.items():
        if samples:
            middle = medians(samples)
            ratio = f"{theirs / middle['total']:.1f}×" if theirs and case != "published" else "—"
            cells = [f"{middle[phase]:.2f}" for phase in PHASES]
            rows.append([f"{size.replace(', ', ' × ')}: {case}", str(len(samples)), *cells, ratio])
    return rows


def missed(device: Device, found: dict[str, list[Seconds]]) -> list[str]:
    """Returns the targets that weren't met."""
    total = {case: medians(samples)["total"] for case, samples in found.items() if samples}
    said = [
        f"{case}: {total[case]:.2f} s, at most {most} s allowed"
        for case, most in MOST_SECONDS[device].items()
        if total[case] > most
    ]
    for case, least in LEAST_TIMES[device].items():
        if "published" in total and total["published"] < least * total[case]:
            said.append(f"{case}: {total['published'] / total[case]:.1f} times cheaper, at least {least} wanted")
    return said


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--count", type=int, default=20, help="turns of each case")
    parser.add_argument("--published", type=int, default=3, help="turns of the published procedure")
    parser.add_argument("--sizes", nargs="*", help='shapes of the tensors, such as "1, 128"')
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two turns, for the policy's thinking")
    parser.add_argument(
        "--stop",
        choices=("decided", "settled"),
        default="decided",
        help="when rounds end; an agent's Profile uses decided",
    )
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="begin no turn after this many seconds")
    parser.add_argument("--steps", action="store_true", help="print the seconds of each step")
    options = parser.parse_args()
    device = chosen_device(options.device)
    options.end = time.monotonic() + options.limit_s
    whole: dict[str, Any] = {}
    rows: list[list[str]] = []
    problems: list[str] = []
    for place, size in enumerate(options.sizes or SIZES[device]):
        task = small_axpby(size)
        theirs = published(task, device, options.published)
        found, steps = ours(task, device, options)
        found["published"] = theirs
        whole[size] = {"turns": found, "steps": steps.seconds}
        rows += rows_of(size, found)
        if place == 0:
            problems = missed(device, found)
        if options.steps:
            print(f"\n{size}\n{steps.report(options.count * len(CASES))}")
    print("\n" + table(["turn", "turns", *(f"{phase} s" for phase in PHASES), "published / ours"], rows))
    print(f"raw samples: {save('turn', options, device, {'sizes': whole})}")
    if problems:
        failed("; ".join(problems))
    return 0


if __name__ == "__main__":
    run(main)
