"""Many candidates through one pool: right verdicts whatever their order, faults that stay where they are, nothing left
behind. Real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.errors import TaskError, UsageError, WorkerError
from cuda_agent.core.records import Candidate, Task
from cuda_agent.pool.pool import Pool
from cuda_agent.workspace.descendants import descendants
from fault_specimens import small_axpby
from published_workspace import axpby_candidate

pytestmark = pytest.mark.integration

OPTIONS = JudgeOptions(device=Device.CPU, timing_budget_s=0.5, trials=2, call_timeout_s=30.0)


def task(columns: int) -> Task:
    return small_axpby(f"1, {columns}")


def candidate(old: str = "", new: str = "") -> Candidate:
    files = dict(axpby_candidate(Device.CPU).files)
    assert old in files["kernels/axpby.cpp"]
    files["kernels/axpby.cpp"] = files["kernels/axpby.cpp"].replace(old, new)
    return Candidate(files=files)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(OPTIONS, sessions=2) as opened:
        yield opened


@pytest.mark.alone
def test_each_candidate_gets_its_own_verdict(pool: Pool) -> None:
    futures = {
        "honest": pool.submit(task(128), candidate()),
        "wrong": pool.submit(task(128), candidate("beta * y", "1.01f * beta * y")),
        "broken": pool.submit(task(128), candidate("#pragma", "#error no\n#pragma")),
        "crashing": pool.submit(task(128), candidate("(void)config;", "*(volatile int*)8 = config;")),
        "unknown_task": pool.submit(Task(name="bad", source="class Model: pass"), candidate()),
        "other_task": pool.submit(task(96), candidate()),
        "only_verified": pool.submit(task(128), candidate(), with_profile=False),
    }
    with pytest.raises(TaskError, match="bad"):
        futures.pop("unknown_task").result(timeout=300)
    verdicts = {name: future.result(timeout=300).verdict for name, future in futures.items()}
    assert verdicts == {
        "honest": Verdict.PASSED,
        "wrong": Verdict.INCORRECT,
        "broken": Verdict.BUILD_FAILED,
        "crashing": Verdict.CRASHED,
        "other_task": Verdict.PASSED,
        "only_verified": Verdict.TIMING_VOID,
    }
    assert futures["other_task"].result().task_key == task(96).key


def test_a_host_opens_each_of_its_tasks_once(tmp_path: Path) -> None:
    tasks, log = (task(128), task(96)), tmp_path / "turns.jsonl"
    with Pool(OPTIONS, sessions=1, builders=1, log=log) as opened:
        futures = [opened.submit(one, candidate(), with_profile=False) for one in tasks for _ in range(2)]
        assert {future.result(timeout=300).verdict for future in futures} == {Verdict.TIMING_VOID}
    assert log.read_text().count('"kind": "stay"') == len(tasks)


@pytest.mark.alone
def test_a_device_host_that_is_killed_is_replaced(pool: Pool) -> None:
    pool.submit(task(128), candidate()).result(timeout=300)
    host = pool.hosts[0].helper
    first = host.pid
    assert first is not None
    hanging = pool.submit(task(128), candidate("(void)config;", "for (volatile bool on = true; on;) {}"))
    while not hanging.running():
        time.sleep(0.05)
    time.sleep(1.0)
    os.kill(first, signal.SIGKILL)
    with pytest.raises(WorkerError, match="device host"):
        hanging.result(timeout=60)
    assert pool.submit(task(128), candidate()).result(timeout=300).verdict is Verdict.PASSED
    assert host.pid != first


def test_close_ends_everything() -> None:
    pool = Pool(OPTIONS)
    done = pool.submit(task(128), candidate(), with_profile=False)
    assert done.result(timeout=300).verdict is Verdict.TIMING_VOID
    waiting = [
        pool.submit(task(128), candidate("(void)config;", "for (volatile bool on = true; on;) {}")) for _ in range(3)
    ]
    cancelled = waiting.pop()
    assert cancelled.cancel()
    while not waiting[0].running():
        time.sleep(0.05)
    folder = Path(pool._folder)
    helpers = [helper.pid for helper in (*pool.builders.all, pool.hosts[0].helper)]
    started = [pid for helper in helpers if helper for pid in (helper, *descendants(helper))]
    begin = time.monotonic()
    pool.close()
    assert time.monotonic() - begin < 20
    for future in waiting:
        with pytest.raises((WorkerError, CancelledError)):
            future.result(timeout=0)
    assert not folder.exists()
    assert len(started) > 4
    assert not [command(pid) for pid in started if command(pid)]
    with pytest.raises(WorkerError, match="closed"):
        pool.submit(task(128), candidate())


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


KILLED = """
import os, signal, sys
sys.path[:0] = SYSPATH
from test_judge_pool import OPTIONS, Pool, candidate, task
if __name__ == "__main__":
    pool = Pool(OPTIONS)
    pool.submit(task(128), candidate(), with_profile=False).result()
    pool.submit(task(128), candidate("(void)config;", "for (volatile bool on = true; on;) {}"))
    from cuda_agent.workspace.descendants import descendants
    print(*descendants(os.getpid()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_pools_processes_end_with_their_parent(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED.replace("SYSPATH", repr([path for path in sys.path if path])))
    done = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, timeout=300, check=False)
    started = [int(word) for word in done.stdout.split()]
    assert done.returncode == -signal.SIGKILL and started
    end = time.monotonic() + 20
    while any(command(pid) for pid in started) and time.monotonic() < end:
        time.sleep(0.1)
    assert not [command(pid) for pid in started if command(pid)]


def test_impossible_pools() -> None:
    with pytest.raises(UsageError, match="cpu"):
        Pool(OPTIONS, gpus=("0",))
    with pytest.raises(UsageError, match="builder"):
        Pool(OPTIONS, builders=0)
