"""From sources to the verdict with a real compiler: an honest kernel passes, a wrong one and a broken one don't."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Phase, Verdict
from cuda_agent.core.records import Candidate, Task, VerifyReport, Violation
from cuda_agent.judge import case
from cuda_agent.judge.case import Case
from cuda_agent.judge.profile import roofline
from cuda_agent.judge.profile.profile import Profiled
from cuda_agent.judge.session import JudgeSession
from cuda_agent.judge.verify.trials import Verification
from cuda_agent.reward import reward
from cuda_agent.workers.process import Fault, WorkerFault
from cuda_agent.workers.requests import FaultKind
from cuda_agent.workspace.descendants import descendants
from judge_specimens import eager_only

pytestmark = pytest.mark.integration

TASK = Task(
    name="add_relu",
    source="""
import torch, torch.nn as nn
class Model(nn.Module):
    def forward(self, x, y):
        return torch.relu(x * 2 + y) * 0.5
def get_inputs():
    return [torch.randn(256, 1024), torch.randn(256, 1024)]
def get_init_inputs():
    return []
""",
)

MODEL = """
import torch.nn as nn
import cuda_extension

CONFIG = {"add_relu": 0}


class ModelNew(nn.Module):
    def forward(self, x, y):
        return cuda_extension.add_relu_forward(x, y, CONFIG["add_relu"])
"""

KERNEL = """
#include <cstdint>

extern "C" void add_relu_launcher(float* out, const float* x, const float* y, int64_t n, int config) {
    const int64_t grain = config == 1 ? 1 << 12 : 1 << 15;
#pragma omp parallel for schedule(static)
    for (int64_t begin = 0; begin < n; begin += grain) {
        const int64_t end = begin + grain < n ? begin + grain : n;
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) {
            const float v = x[i] * 2 + y[i];
            out[i] = (v > 0 ? v : 0) * 0.5f;
        }
    }
}
"""

BINDING = """
#include <torch/types.h>
#include <torch/csrc/utils/pybind.h>
#include "../binding_registry.h"

extern "C" void add_relu_launcher(float* out, const float* x, const float* y, int64_t n, int config);

static torch::Tensor add_relu_forward(torch::Tensor x, torch::Tensor y, int config) {
    auto out = torch::empty_like(x);
    add_relu_launcher(out.data_ptr<float>(), x.data_ptr<float>(), y.data_ptr<float>(), x.numel(), config);
    return out;
}

void register_add_relu(pybind11::module& m) { m.def("add_relu_forward", &add_relu_forward); }
REGISTER_BINDING(add_relu, register_add_relu);
"""


def candidate(kernel: str = KERNEL, model: str = MODEL) -> Candidate:
    files = {"model_new.py": model, "kernels/add_relu.cpp": kernel, "kernels/add_relu_binding.cpp": BINDING}
    return Candidate(files=files)


@pytest.fixture(scope="module")
def session() -> Iterator[JudgeSession]:
    with JudgeSession(TASK, JudgeOptions(device=Device.CPU, timing_budget_s=0.8)) as opened:
        opened.admit()
        yield opened


@pytest.fixture(scope="module")
def untimed() -> Iterator[JudgeSession]:
    # Some of its candidates are timed, for what becomes of that and not for their times.
    with JudgeSession(TASK, JudgeOptions(device=Device.CPU, timing_budget_s=0.5)) as opened:
        eager_only(opened).admit()
        yield opened


@pytest.mark.alone
def test_an_honest_kernel_passes_with_times(session: JudgeSession) -> None:
    evaluation = session.evaluate(candidate())
    assert evaluation.verdict is Verdict.PASSED, evaluation.reason + evaluation.log_tail
    assert evaluation.candidate_digest == candidate().digest
    assert evaluation.build is not None and evaluation.build.library_digest
    assert evaluation.verify is not None and evaluation.verify.passed
    assert {"fresh", "in_place", "new_storage", "magnitudes"} <= {t.kind for t in evaluation.verify.trials}
    assert evaluation.profile is not None and {"eager", "compile"} <= set(evaluation.profile.baselines)
    assert set(evaluation.durations_s) == {"guard", "build", "verify", "profile"}


@pytest.mark.alone
def test_a_time_beyond_the_hardware_is_quarantined(session: JudgeSession, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = roofline.Hardware("a slow one", bandwidth=1e6)
    monkeypatch.setattr(roofline, "hardware", lambda device, precision: slow)
    evaluation = session.evaluate(candidate())
    assert evaluation.verdict is Verdict.QUARANTINED and "3 MB of inputs and outputs" in evaluation.reason
    assert evaluation.profile is not None and reward(evaluation).value == -1


def test_verification_alone_never_passes(untimed: JudgeSession) -> None:
    evaluation = untimed.verify(candidate())
    assert evaluation.verdict is Verdict.TIMING_VOID
    assert evaluation.phase is Phase.VERIFY
    assert evaluation.verify is not None and evaluation.verify.passed


@pytest.mark.alone
def test_a_disturbed_timing_is_taken_again(untimed: JudgeSession, monkeypatch: pytest.MonkeyPatch) -> None:
    disturbed, timed = Fault(Verdict.TIMING_VOID, "others computed", FaultKind.FOREIGN_LOAD), case.profile_candidate
    workers: list[int] = []
    to_come = [Profiled(fault=disturbed)]

    def once(*arguments: Any, **more: Any) -> Profiled:
        workers.append(arguments[1].worker.pid)
        return to_come.pop() if to_come else timed(*arguments, **more)

    monkeypatch.setattr(case, "profile_candidate", once)
    evaluation = untimed.evaluate(candidate())
    assert evaluation.verdict is Verdict.PASSED and evaluation.reason == ""
    assert "timed again: others computed" in evaluation.notes and len(set(workers)) == 2
    to_come += [Profiled(fault=disturbed)] * case.ATTEMPTS
    evaluation = untimed.evaluate(candidate())
    assert evaluation.verdict is Verdict.TIMING_VOID and evaluation.phase is Phase.PROFILE and not to_come
    # What an earlier attempt found isn't said of a later one that ends before.
    to_come += [Profiled(fault=disturbed)]
    verify, crashed = Case._verify_in, Fault(Verdict.CRASHED, "it died", FaultKind.DIED)

    def dies_later(self: Case, verification: Verification) -> VerifyReport:
        if not to_come:
            raise WorkerFault(crashed)
        return verify(self, verification)

    monkeypatch.setattr(Case, "_verify_in", dies_later)
    evaluation = untimed.evaluate(candidate())
    assert (evaluation.verdict, evaluation.phase) == (Verdict.CRASHED, Phase.VERIFY)
    assert evaluation.verify is None and "profile" not in evaluation.durations_s


@pytest.mark.alone
def test_a_clock_convicts_when_it_speaks_twice(untimed: JudgeSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU; whatever else a timing finds convicts at once."""
    clock, output = (
        Violation(rule=rule, layer="timing", detail=f"by its {rule}") for rule in ("clock", "timed_output")
    )
    timed, to_come = case.profile_candidate, list[tuple[Violation, ...]]()

    def instead(*arguments: Any, **more: Any) -> Profiled:
        return Profiled(violations=to_come.pop()) if to_come else timed(*arguments, **more)

    monkeypatch.setattr(case, "profile_candidate", instead)
    to_come += [(clock,)]
    evaluation = untimed.evaluate(candidate())
    assert evaluation.verdict is Verdict.PASSED and "timed again: by its clock" in evaluation.notes
    assert not evaluation.violations
    for found in ([(clock,), (clock,)], [(clock, output)]):
        to_come += found
        evaluation = untimed.evaluate(candidate())
        assert evaluation.verdict is Verdict.VIOLATION and evaluation.violations == found[0] and not to_come


def test_a_wrong_kernel_is_incorrect(untimed: JudgeSession) -> None:
    evaluation = untimed.evaluate(candidate(KERNEL.replace("* 0.5f", "* 0.51f")))
    assert evaluation.verdict is Verdict.INCORRECT
    assert evaluation.phase is Phase.VERIFY
    assert evaluation.profile is None
    assert "trial" in evaluation.reason


def test_a_kernel_that_does_not_compile(untimed: JudgeSession) -> None:
    evaluation = untimed.evaluate(candidate(KERNEL.replace("float v =", "flaot v =")))
    assert evaluation.verdict is Verdict.BUILD_FAILED
    assert "flaot" in evaluation.log_tail
    assert evaluation.build is not None and not evaluation.build.succeeded


def test_a_kernel_that_writes_through_a_null_pointer(untimed: JudgeSession) -> None:
    evaluation = untimed.evaluate(
        candidate(KERNEL.replace("const int64_t grain", "out = nullptr;\n    const int64_t grain"))
    )
    assert evaluation.verdict is Verdict.CRASHED
    assert "SIGSEGV" in evaluation.reason


def test_torch_compute_in_python_is_a_violation(untimed: JudgeSession) -> None:
    model = MODEL.replace(
        "return cuda_extension",
        "import torch\n        return torch.relu(x * 2 + y) * 0.5\n        return cuda_extension",
    )
    evaluation = untimed.evaluate(candidate(model=model))
    assert evaluation.verdict is Verdict.VIOLATION
    assert evaluation.violations


@pytest.mark.alone
def test_screening_times_every_setting_and_names_what_failed(session: JudgeSession) -> None:
    configs = [{"add_relu": 0}, {"add_relu": 1}]
    report = session.screen(candidate(), configs)
    assert [time is not None for time in report.latency_us] == [True, True], report.failures
    without = session.screen(
        candidate(model=MODEL.replace('CONFIG["add_relu"]', "0").replace("CONFIG", "OTHER")), configs
    )
    assert without.latency_us == (None, None)
    assert "CONFIG" in without.failures[0]


def test_one_worker_serves_screenings_and_no_verdict(untimed: JudgeSession) -> None:
    configs = [{"add_relu": 0}, {"add_relu": 1}]
    broken = candidate(kernel=KERNEL.replace("* 0.5f", "* (config == 1 ? 0.6f : 0.5f)"))
    dying = candidate(model=MODEL.replace("        return", "        __import__('os')._exit(3)\n        return"))
    assert untimed.screen(candidate(), configs).failures == {}
    (worker,) = untimed.next_screener()
    assert "differs from the first" in untimed.screen(broken, configs).failures[1], "another library of the same name"
    assert untimed.screen(candidate(), configs).failures == {} and untimed.next_screener() == (worker,)
    assert "exited with code 3" in untimed.screen(dying, configs).failures[0]
    assert untimed.screen(candidate(), configs).failures == {}
    (another,) = untimed.next_screener()
    assert not worker.alive and another.alive
    assert untimed.verify(candidate()).verify is not None
    assert not another.alive and another not in untimed.next_screener()


def test_nothing_is_left_behind() -> None:
    with JudgeSession(TASK, JudgeOptions(device=Device.CPU)) as opened:
        eager_only(opened).reference  # noqa: B018
        directory: Path = opened.directory
        assert named(directory)
    assert not directory.exists()
    assert not named(directory)


def named(directory: Path) -> list[int]:
    """Our descendants whose command line names the session's folder; another session may be at work beside it."""
    found = []
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            if str(directory).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


INTERRUPTED = """
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.records import Task
from cuda_agent.judge.session import JudgeSession
from cuda_agent.judge.verify.trials import Verification
source = '''SOURCE'''
with JudgeSession(Task(name="add_relu", source=source), JudgeOptions(device="cpu")) as session:
    session.reference
    print(session.directory, flush=True)
    while True:
        session.admit()
        session.admitted = False
"""


def test_an_interrupt_leaves_no_process_and_no_file() -> None:
    script = INTERRUPTED.replace("SOURCE", TASK.source)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        directory = Path(process.stdout.readline().strip())
        assert directory.exists()
        started = descendants(process.pid)
        assert started
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) in (-signal.SIGINT, 1, 130)
    deadline = time.monotonic() + 10
    while any(_runs(pid) for pid in started) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in started if _runs(pid)]
    assert not directory.exists()


def _runs(pid: int) -> bool:
    """Whether it is there and no zombie that its new parent is about to reap."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
