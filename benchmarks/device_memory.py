"""Measures the peak of a GPU's memory by step of a verdict: `python benchmarks/device_memory.py TASK.py…`.

Each task is judged alone, in a process of its own, with its own `Model` as the candidate: admission, verification,
timing. Meanwhile the driver is asked every 20 ms for the memory that the GPU has in use, less what was in use before.
The processes' contexts count too. The allowed peak is the reference's own + 2 × (inputs + outputs) + 2 GiB. What was
measured is saved after each task, also where a task fails, takes too long, or the benchmark is cut off.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from common import save, table

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import CudaAgentError
from cuda_agent.core.records import Candidate, Task
from cuda_agent.judge import JudgeSession
from cuda_agent.judge.profile.profile import profile_candidate
from cuda_agent.judge.verify.trials import Verification
from cuda_agent.workers.buffers import extent_bytes

GIB = 1 << 30
#: seconds between two samples.
SAMPLE_S = 0.02
#: what differs between lines of one step.
_COUNT = re.compile(r" \d+|,.*")
_LIBRARY = "libnvidia-ml.so.1"
#: a candidate that computes what the reference computes. The guard, which would refuse it, isn't asked.
_SAME = "\n\nclass ModelNew(Model):\n    pass\n"


@dataclasses.dataclass
class Peaks:
    """What one task's verdict held on the device, in GiB. `steps` has the peak of each step, in order."""

    task: str
    inputs_gib: float = 0.0
    outputs_gib: float = 0.0
    reference_gib: float = 0.0
    steps: dict[str, float] = dataclasses.field(default_factory=dict)
    oracle_way: str = ""
    seconds: float = 0.0
    #: why it has no verdict.
    failed: str = ""

    @property
    def allowed_gib(self) -> float:
        return self.reference_gib + 2 * (self.inputs_gib + self.outputs_gib) + 2

    @property
    def worst(self) -> str:
        """The step with the highest peak."""
        return max(self.steps, key=lambda step: self.steps[step], default="")

    @property
    def holds(self) -> bool:
        return not self.failed and bool(self.worst) and self.steps[self.worst] <= self.allowed_gib


class Device0:
    """The memory of the first GPU by the driver's management library, which starts no context."""

    class _Memory(ctypes.Structure):
        _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))

    def __init__(self) -> None:
        self._library, self._handle = ctypes.CDLL(_LIBRARY), ctypes.c_void_p()
        self._check(self._library.nvmlInit_v2())
        self._check(self._library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self._handle)))

    def used_gib(self) -> float:
        memory = self._Memory()
        self._check(self._library.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory)))
        return float(memory.used) / GIB

    def _check(self, status: int) -> None:
        if status:
            raise SystemExit(f"{_LIBRARY} returned {status}")


class Limits(NamedTuple):
    """How long a task may take, and its timing."""

    task_s: float
    timing_s: float
    eager_only: bool


def judge(file: Path, limits: Limits) -> None:
    """Judges a task, and prints each step and what is learned as lines of JSON."""

    def tell(**facts: Any) -> None:
        print(json.dumps(facts), flush=True)

    task = Task(name=file.stem, source=file.read_text())
    options = JudgeOptions(device=Device.CUDA, timing_budget_s=limits.timing_s)
    with JudgeSession(task, options, progress=lambda phase, text: tell(step=phase, text=text)) as session:
        session.baselines.eager_only = limits.eager_only
        spec = session.reference.spec
        inputs, outputs = (sum(map(extent_bytes, metas)) / GIB for metas in (spec.inputs, spec.outputs))
        tell(inputs_gib=inputs, outputs_gib=outputs, reference_gib=spec.peak_bytes / GIB)
        session.admit()
        with session.process(Candidate(files={"model_new.py": task.source + _SAME}), None) as process:
            floor = session.floor()
            verified = Verification(session, process, floor).run()
            tell(oracle_way=verified.oracle_way)
            wrong = next((trial.reason for trial in verified.trials if not trial.passed), "")
            if wrong:
                tell(failed=f"verification: {wrong}")
                return
            process.release()
            session.reference.release()
            timed = profile_candidate(session, process, verified, floor=floor, torch_computes=True)
            if timed.report is None:
                reasons = [one.detail for one in timed.violations] + ([timed.fault.reason] if timed.fault else [])
                tell(failed=f"timing: {'; '.join(reasons)}")


def measure(file: Path, limits: Limits, found: Peaks) -> None:
    """Fills in what one task's verdict holds, while it is judged."""
    device, begin = Device0(), time.monotonic()
    before, step, done = device.used_gib(), ["start"], threading.Event()

    def watch() -> None:
        while not done.wait(SAMPLE_S):
            used = device.used_gib() - before
            found.steps[step[0]] = max(found.steps.get(step[0], 0.0), used)

    budget = ["--timing-budget", str(limits.timing_s), *(["--eager-only"] if limits.eager_only else [])]
    watcher = threading.Thread(target=watch, daemon=True)
    with tempfile.TemporaryFile("w+") as said:
        command = [sys.executable, __file__, "--judge", str(file), *budget]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True)
        ends = threading.Timer(limits.task_s, process.terminate)
        try:
            ends.start()
            watcher.start()
            assert process.stdout is not None
            for line in process.stdout:
                facts = json.loads(line)
                if "step" in facts:
                    step[0] = ": ".join(filter(None, (facts["step"], _COUNT.sub("", facts["text"]))))
                else:
                    vars(found).update(facts)
            code = process.wait()
        finally:
            # A judge that is ended takes its workers with it.
            ends.cancel()
            process.terminate()
            process.wait()
            done.set()
            found.seconds = time.monotonic() - begin
        said.seek(0)
        last = [line.strip() for line in said if line.strip()][-1:]
    if code and not found.failed:
        late = found.seconds >= limits.task_s
        found.failed = f"took more than {limits.task_s:.0f} s" if late else " ".join(last)[:300] or f"exit code {code}"
    # Its memory is the next task's baseline.
    end = time.monotonic() + 20
    while device.used_gib() > before + 0.1 and time.monotonic() < end:
        time.sleep(0.2)


def show(rows: list[Peaks]) -> None:
    header = ["task", "in and out", "reference's own", "allowed", "peak", "in step", "oracle", "holds"]

    def gib(number: float) -> str:
        return f"{number:.1f}"

    cells = [
        [
            row.task, gib(row.inputs_gib + row.outputs_gib), gib(row.reference_gib), gib(row.allowed_gib),
            gib(row.steps.get(row.worst, 0.0)), row.worst, row.oracle_way,
            "yes" if row.holds else f"NO {row.failed}".strip(),
        ]
        for row in rows
    ]  # fmt: skip
    print(table(header, cells), flush=True)


def run(files: list[Path], limits: Limits, keep: Callable[[list[Peaks]], None]) -> list[Peaks]:
    """Measures the tasks one after the other. `keep` is called after each, and at the end in any case."""
    rows: list[Peaks] = []
    try:
        for file in files:
            rows.append(Peaks(file.stem))
            measure(file, limits, rows[-1])
            show(rows[-1:])
            for step, peak in rows[-1].steps.items():
                print(f"  {peak:6.1f} GiB  {step}", flush=True)
            keep(rows)
    except BaseException as error:
        rows[-1].failed = rows[-1].failed or f"cut off: {type(error).__name__} {error}".strip()
        raise
    finally:
        keep(rows)
        show(rows)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", type=Path, help="task files")
    parser.add_argument("--out", type=Path, help="file for the peaks (JSON), default in runs/bench")
    parser.add_argument("--task-limit", type=float, default=240.0, help="most seconds of a task")
    parser.add_argument("--timing-budget", type=float, default=2.0, help="most seconds of a task's rounds")
    parser.add_argument("--eager-only", action="store_true", help="don't time torch.compile, whose preparation is long")
    parser.add_argument("--judge", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    limits = Limits(options.task_limit, options.timing_budget, options.eager_only)
    # A benchmark that is cut off saves what it has.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.judge:
        try:
            judge(options.tasks[0], limits)
        except CudaAgentError as error:
            sys.exit(str(error))
        return 0

    def keep(rows: list[Peaks]) -> None:
        judged = [dataclasses.asdict(row) | {"allowed_gib": row.allowed_gib, "holds": row.holds} for row in rows]
        save("device_memory", options, Device.CUDA, {"tasks": judged})

    return 0 if all(row.holds for row in run(options.tasks, limits, keep)) else 1


if __name__ == "__main__":
    sys.exit(main())
