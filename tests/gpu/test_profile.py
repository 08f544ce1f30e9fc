"""Timing on a real GPU: runner, flags and graphs in this process, rounds with real workers. Skips without one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.records import Candidate, OutputErrors, Task, TrialReport, VerifyReport
from cuda_agent.judge.profile.baselines import Baselines, compile_cache
from cuda_agent.judge.profile.clocks import read_clocks
from cuda_agent.judge.profile.profile import Profiled, profile_candidate
from cuda_agent.judge.sharing import Sharing
from cuda_agent.judge.verify.candidate import CandidateProcess
from cuda_agent.judge.verify.reference import Reference
from cuda_agent.judge.verify.trials import Secrets
from cuda_agent.workers.gpulock import gpu_uuid
from cuda_agent.workers.inside.baselines import BaselineSet
from cuda_agent.workers.inside.runner import Runner
from cuda_agent.workers.process import WorkerSettings
from cuda_agent.workers.roles import BASELINE, REFERENCE
from cuda_agent.workers.supply import WorkerSupply
from cuda_agent.workspace.sandbox import sandbox_facts

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

SOURCE = """
import torch
class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)
    def forward(self, x):
        y = torch.nn.functional.silu(self.linear(x))
        return y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)
def get_inputs():
    return [torch.rand(4096, 1024)]
def get_init_inputs():
    return [1024]
"""

HEAD = """
import torch
class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)
        self.calls = 0
    def right(self, x):
        y = torch.nn.functional.silu(self.linear(x))
        return y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)
"""
HONEST = HEAD + "    forward = right\n"
SIDE_STREAM = (
    HEAD
    + """
    def forward(self, x):
        if not hasattr(self, "side"):
            self.side = torch.cuda.Stream()
            self.heavy = torch.rand(4096, 4096, device=x.device)
        with torch.cuda.stream(self.side):
            y = self.right(x)
            for _ in range(3):
                torch.mm(self.heavy, self.heavy)
        return y
"""
)
LAZY_WHEN_TIMED = (
    HEAD
    + """
    def forward(self, x):
        self.calls += 1
        if self.calls > 6:
            return self.last.clone()
        self.last = self.right(x)
        return self.last
"""
)


@pytest.mark.alone
def test_runner_measures_the_device_and_not_only_the_launch() -> None:
    runner = Runner("cuda")
    x = torch.rand(4096, 4096, device="cuda")
    torch.backends.cuda.matmul.allow_tf32 = False
    runner.warmup(torch.mm, [(x, x)], calls=3)
    times = runner.run(torch.mm, [(x, x), (x, x)], flush_bytes=180 << 20)
    assert all(500 < t < 20_000 for t in times.event_us), times
    assert 500 < runner.queue(torch.mm, [(x, x)], 10) < 20_000
    busy = runner.busy(torch.mm, [(x, x)])
    assert busy is None or 500 < busy < 20_000
    assert (runner.peak_memory(torch.mm, (x, x)) or 0) >= x.nbytes


def test_every_form_agrees_and_takes_new_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    baselines = BaselineSet(SOURCE, "toy", Device.CUDA, Precision.TF32)
    plain = [one for one in baselines.planned() if not one.baseline.frozen]
    names = [one.name for one in plain]
    assert names == ["eager", "compile", "eager_tf32", "compile_tf32", "graphs_tf32"]
    for one in plain:
        baselines.prepare(one)
    x = torch.rand(4096, 1024, device="cuda")
    baselines.load_weights({"linear.weight": torch.randn(1024, 1024), "linear.bias": torch.randn(1024)})
    with torch.no_grad():
        expected = baselines.program("eager")(x)
        kept = [baselines.program("graphs_tf32")(x + i) for i in range(3)]
        for name in names:
            torch.testing.assert_close(baselines.program(name)(x), expected, atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(kept[0], expected, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize(("elements", "left_out"), [(1 << 29, True), (1 << 12, False)])
def test_a_graph_that_copies_longer_than_the_host_launches_is_left_out(
    elements: int, left_out: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    source = (
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x.relu().sum(1)\n"
        f"def get_inputs():\n    return [torch.randn({elements // 64}, 64)]\ndef get_init_inputs():\n    return []\n"
    )
    baselines = BaselineSet(source, "copied", Device.CUDA, Precision.TF32)
    _, compiled, graphs = [one for one in baselines.planned() if not one.baseline.frozen]
    baselines.prepare(compiled)
    assert bool(baselines.outlasted(graphs, 4.8e12)) is left_out


def test_clocks_are_read() -> None:
    reading = read_clocks(gpu_uuid(Device.CUDA))
    assert reading is not None and reading.values["sm_mhz"] > 0


class Bench:
    """A reference and baselines that several candidates are timed against."""

    def __init__(self, directory: Path) -> None:
        self.task = Task(name="toy", source=SOURCE)
        self.options = JudgeOptions(device=Device.CUDA, timing_budget_s=10.0, seed=1)
        self.secrets, self.sharing = Secrets(1), Sharing()
        self.workers = WorkerSupply(WorkerSettings(Device.CUDA, sandbox_facts().level, 65536), directory)
        self.reference = Reference(self.workers.start(REFERENCE), self.task, Precision.TF32, timeout_s=120)
        folder = compile_cache(self.task)
        self.baselines = Baselines(self.task, self.options, partial(self.workers.start, BASELINE), folder)
        self.baselines.begin()
        self.reference.load(3)

    def progress(self, phase: str, text: str) -> None: ...

    def time(self, source: str) -> Profiled:
        process = CandidateProcess(self.workers.candidate(), self.reference, timeout_s=120)
        errors = OutputErrors(candidate_error=2e-4, eager_error=2e-4, max_abs_error=1e-3)
        trial = TrialReport(kind="fresh", passed=True, outputs=(errors,) * len(self.reference.spec.outputs))
        try:
            process.load(Candidate(files={"model_new.py": source}), None)
            process.release()
            self.reference.release()
            return profile_candidate(
                self, process, VerifyReport(passed=True, trials=(trial,)), floor=5e-4, torch_computes=True
            )
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


@pytest.mark.alone
def test_honest_candidate_gets_a_report(bench: Bench) -> None:
    found = bench.time(HONEST)
    assert found.violations == () and found.fault is None and found.report is not None, found
    report = found.report
    assert report.failed_baselines == {} and set(report.baselines) == {
        "eager", "compile", "eager_tf32", "compile_tf32", "graphs_tf32",
    }  # fmt: skip
    assert report.candidate.witness_low_us is not None and report.candidate.peak_memory_bytes
    assert report.candidate.waited_us is not None and 0 < report.candidate.waited_us < 100
    assert report.candidate.latency_us == pytest.approx(report.candidate.event_us, rel=0.05), "the witness agrees"
    assert report.ratios["eager"].value == pytest.approx(1.0, abs=0.05), "the candidate is eager itself"
    assert report.clocks["sm_mhz_before"] > 0 and report.rounds >= 5


@pytest.mark.alone
def test_work_beside_the_clock_is_convicted(bench: Bench) -> None:
    found = bench.time(SIDE_STREAM)
    assert "clock" in [violation.rule for violation in found.violations], found


@pytest.mark.alone
def test_stale_outputs_are_convicted(bench: Bench) -> None:
    found = bench.time(LAZY_WHEN_TIMED)
    assert [violation.rule for violation in found.violations] == ["timed_output"], found
