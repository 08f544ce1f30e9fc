"""Timing rounds with real workers on the CPU: an honest candidate, and ones that lie about time or outputs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Precision, Verdict
from cuda_agent.core.records import Candidate, OutputErrors, Task, TrialReport, VerifyReport
from cuda_agent.judge.profile import rings
from cuda_agent.judge.profile.baselines import Baselines, compile_cache
from cuda_agent.judge.profile.profile import Profiled, profile_candidate
from cuda_agent.judge.profile.rounds import OTHERWISE
from cuda_agent.judge.sharing import Sharing
from cuda_agent.judge.verify.candidate import CandidateProcess
from cuda_agent.judge.verify.reference import Reference
from cuda_agent.judge.verify.trials import Secrets
from cuda_agent.workers.process import WorkerSettings
from cuda_agent.workers.roles import BASELINE, REFERENCE
from cuda_agent.workers.supply import WorkerSupply
from cuda_agent.workspace.sandbox import sandbox_facts

pytestmark = [pytest.mark.integration, pytest.mark.alone]

SOURCE = """
import torch
class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.rand(width))
    def forward(self, x):
        y = x
        for _ in range(8):
            y = torch.tanh(y * self.scale) + x
        return y, y.sum(dim=-1)
def get_inputs():
    return [torch.rand(512, 1024)]
def get_init_inputs():
    return [1024]
"""

HEAD = """
import time, threading
import torch
class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.rand(width))
        self.calls = 0
    def right(self, x):
        y = x
        for _ in range(8):
            y = torch.addcmul(x, torch.ones_like(x), torch.tanh(y * self.scale))
        return y, y.sum(dim=-1)
"""
HONEST = HEAD + "    forward = right\n"
LYING_CLOCK = (
    HEAD
    + """
    def forward(self, x):
        begin = time.perf_counter_ns()
        y = self.right(x)
        global passed
        passed += time.perf_counter_ns() - begin
        return y
passed, real = 0, time.perf_counter_ns
time.perf_counter_ns = lambda: real() - passed
"""
)
LAZY_WHEN_TIMED = (
    HEAD
    + """
    def forward(self, x):
        self.calls += 1
        if self.calls > 6:
            return self.last
        self.last = self.right(x)
        return self.last
"""
)
COARSE_WHEN_TIMED = (
    HEAD
    + """
    def forward(self, x):
        y, total = self.right(x)
        return y.bfloat16().float(), total
"""
)
OTHER_ORDER = (
    HEAD
    + """
    def forward(self, x):
        y, total = self.right(x)
        return y.t().contiguous().t(), total
"""
)
CRASHING = HEAD + "    def forward(self, x):\n        import os\n        os.abort()\n"


def verified(frozen: bool) -> VerifyReport:
    """What verification would have said of the honest candidate."""
    errors = OutputErrors(candidate_error=1e-7, eager_error=1e-7, max_abs_error=1e-6)
    trial = TrialReport(kind="fresh", passed=True, outputs=(errors,) * 2)
    return VerifyReport(passed=True, trials=(trial,), frozen=frozen)


class Bench:
    """A reference and baselines that several candidates are timed against."""

    def __init__(self, directory: Path) -> None:
        self.task = Task(name="toy", source=SOURCE)
        self.options = JudgeOptions(device=Device.CPU, timing_budget_s=1.2, seed=1, call_timeout_s=60)
        self.secrets, self.sharing = Secrets(1), Sharing()
        self.workers = WorkerSupply(WorkerSettings(Device.CPU, sandbox_facts().level, 8192), directory)
        self.reference = Reference(self.workers.start(REFERENCE), self.task, Precision.TF32, timeout_s=60)
        folder = compile_cache(self.task)
        self.baselines = Baselines(self.task, self.options, partial(self.workers.start, BASELINE), folder)
        self.baselines.begin()
        self.reference.load(3)

    def progress(self, phase: str, text: str) -> None: ...

    def time(self, source: str, *, frozen: bool = False) -> Profiled:
        process = CandidateProcess(self.workers.candidate(), self.reference, timeout_s=60)
        try:
            process.load(Candidate(files={"model_new.py": source}), None)
            process.release()
            self.reference.release()
            return profile_candidate(self, process, verified(frozen), floor=2e-6, torch_computes=True)
        finally:
            process.close()

    def close(self) -> None:
        self.baselines.close()
        self.workers.close()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_AGENT_CACHE", str(tmp_path_factory.mktemp("cache")))
        found = Bench(tmp_path_factory.mktemp("workers"))
        yield found
        found.close()


def test_honest_candidate_gets_a_report(bench: Bench) -> None:
    found = bench.time(HONEST)
    assert found.violations == () and found.fault is None and found.report is not None
    report = found.report
    assert set(report.baselines) == {"eager", "compile"} and report.failed_baselines == {}
    assert report.matched in report.baselines
    for record in (report.candidate, *report.baselines.values()):
        assert 50 < record.latency_us < 1e6 and record.queued_us is not None and record.witness_low_us is not None
    eager = report.ratios["eager"]
    assert eager.low <= eager.value <= eager.high and 0.1 < eager.value < 10
    assert report.rounds >= 5 and report.checked_outputs >= report.rounds


def test_outputs_that_lie_otherwise_are_copied_on_the_clock(bench: Bench) -> None:
    logs: list[float] = []
    # A copy is a tenth of the call, and so much a busy machine adds to either; most often the first pair says it.
    while len(logs) < 4 and statistics.fmean(logs or [0.0]) > -0.05:
        found = bench.time(OTHER_ORDER)
        assert found.violations == () and found.report is not None
        assert OTHERWISE in found.report.notes
        plain = bench.time(HONEST).report
        assert plain is not None and OTHERWISE not in plain.notes
        logs.append(math.log(found.report.ratios["eager"].value / plain.ratios["eager"].value))
    assert statistics.fmean(logs) < 0.0, logs


@pytest.mark.parametrize(
    ("source", "rule"),
    [(LYING_CLOCK, "clock"), (LAZY_WHEN_TIMED, "timed_output"), (COARSE_WHEN_TIMED, "timed_output")],
)
def test_liars_are_convicted(bench: Bench, source: str, rule: str) -> None:
    found = bench.time(source)
    # The processor time of the threads may say the same, and say it first on a busy machine.
    rules = {violation.rule for violation in found.violations}
    assert found.report is None and rules and rules <= {rule, "work"}, found


def test_a_large_task_has_a_ring_for_each_burst(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rings, "KEPT_SHARE", 0.0)
    report = bench.time(HONEST).report
    assert report is not None and {"eager", "compile"} <= set(report.baselines), report
    assert report.rounds >= 3 and "1 call per round" in report.notes
    assert OTHERWISE in (bench.time(OTHER_ORDER).report or report).notes
    for source, rule in ((LAZY_WHEN_TIMED, "timed_output"), (COARSE_WHEN_TIMED, "timed_output")):
        assert [violation.rule for violation in bench.time(source).violations] == [rule]
    fault = bench.time(CRASHING).fault
    assert fault is not None and fault.verdict is Verdict.CRASHED


def test_crash_is_the_candidates_fault(bench: Bench) -> None:
    found = bench.time(CRASHING)
    assert found.fault is not None and found.fault.verdict is Verdict.CRASHED
    assert bench.time(HONEST).report is not None, "the next one is unaffected"


def test_frozen_candidate_meets_a_frozen_baseline(bench: Bench) -> None:
    report = bench.time(HONEST, frozen=True).report
    assert report is not None and "frozen_tf32" in report.baselines


def test_a_form_far_behind_is_retired(bench: Bench) -> None:
    assert bench.time(HONEST, frozen=True).report is not None
    bench.baselines.retire("frozen_tf32", 2.5)
    report = bench.time(HONEST, frozen=True).report
    assert report is not None and "frozen_tf32" not in report.baselines
    assert "frozen_tf32" not in report.failed_baselines
    (said,) = [note for note in report.notes if note.startswith("frozen_tf32")]
    assert "2.5 times slower" in said
