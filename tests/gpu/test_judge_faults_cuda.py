"""Faults of whole workspaces on a GPU: each has its verdict, the next evaluation is right, nothing stays on the GPU."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.judge.case import Case
from cuda_agent.judge.session import JudgeSession
from cuda_agent.pool.pool import Pool
from cuda_agent.workspace.descendants import descendants
from fault_specimens import HONEST, faults, faulty, small_axpby

pytestmark = [pytest.mark.gpu, pytest.mark.integration, pytest.mark.alone]

OPTIONS = JudgeOptions(
    device=Device.CUDA, timing_budget_s=0.5, trials=2, call_timeout_s=8.0, host_memory_mib=8192, compiler_jobs=4
)


@pytest.fixture(scope="module")
def session() -> Iterator[JudgeSession]:
    with JudgeSession(small_axpby(), OPTIONS) as opened:
        opened.admit()
        opened.baselines.wait()
        yield opened


@pytest.mark.parametrize("name", faults(Device.CUDA))
def test_each_fault_has_its_verdict_and_the_next_is_right(
    session: JudgeSession, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = faults(Device.CUDA)[name]
    with monkeypatch.context() as patch:
        if fault.past_guard:
            patch.setattr(Case, "_convict", lambda *_: None)
        if fault.killed:
            patch.setattr(session, "progress", _kill_at_the_second_trial)
        evaluation = session.evaluate(faulty(fault, Device.CUDA))
    assert evaluation.verdict in fault.verdicts, evaluation.reason
    assert evaluation.phase is fault.phase
    assert fault.words in evaluation.reason + evaluation.log_tail
    after = session.evaluate(faulty(HONEST, Device.CUDA))
    assert after.verdict is Verdict.PASSED, after.reason


def _kill_at_the_second_trial(phase: str, text: str) -> None:
    if phase == "verify" and text.startswith("trial 2"):
        for pid in descendants(os.getpid()):
            with contextlib.suppress(OSError):
                if "cuda_extension.so" in Path(f"/proc/{pid}/maps").read_text():
                    os.kill(pid, signal.SIGKILL)


def test_a_pool_judges_many_and_leaves_nothing() -> None:
    broken = faulty(faults(Device.CUDA)["illegal_address"], Device.CUDA)
    with Pool(OPTIONS, sessions=1) as pool:
        futures = [
            pool.submit(small_axpby("2, 4096"), faulty(HONEST, Device.CUDA, 1)),
            pool.submit(small_axpby("2, 4096"), broken),
            pool.submit(small_axpby("3, 4096"), faulty(HONEST, Device.CUDA, 2)),
            pool.submit(small_axpby("2, 4096"), faulty(HONEST, Device.CUDA, 3)),
        ]
        verdicts = [future.result(timeout=500).verdict for future in futures]
        helpers = [host.helper.pid for host in pool.hosts]
    assert verdicts == [Verdict.PASSED, Verdict.CRASHED, Verdict.PASSED, Verdict.PASSED]
    assert not any(pid and Path(f"/proc/{pid}").exists() for pid in helpers)
