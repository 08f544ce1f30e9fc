"""Processor time of a candidate's processes outside its own bursts."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cuda_agent.judge.profile.idle_load import IdleLoad, processor_ns

IDLE = "import time; time.sleep(60)"
#: a thread of its own works, the first one sleeps.
THREAD = (
    "import threading, time\ndef work():\n  while True: pass\n"
    "threading.Thread(target=work, daemon=True).start()\ntime.sleep(60)"
)
#: a child that works, and is another one every tenth of a second.
CHILDREN = (
    "import subprocess, sys\nwhile True: subprocess.run([sys.executable, '-c', "
    "'import time; e = time.time() + 0.1\\nwhile time.time() < e: pass'])"
)


def refused(_clock: int) -> int:
    raise OSError("not permitted")


@contextmanager
def program(code: str) -> Iterator[IdleLoad]:
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            time.sleep(0.5)
            yield IdleLoad(process.pid)
        finally:
            process.kill()


@pytest.mark.parametrize("code", [THREAD, CHILDREN])
def test_work_beside_others_is_seen(code: str) -> None:
    with program(code) as idle_load:
        idle_load.look()
        for _ in range(3):
            time.sleep(0.3)
            with idle_load.busy():
                pass
            idle_load.look()
        assert "processor time" in (idle_load.verdict() or "")


@pytest.mark.parametrize("readable", [True, False], ids=["clock", "ticks"])
@pytest.mark.parametrize("code", [IDLE, THREAD])
def test_its_own_burst_is_its_own(code: str, readable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the system keeps the clocks of other processes to itself."""
    if not readable:
        monkeypatch.setattr(time, "clock_gettime_ns", refused)
    with program(code) as idle_load:
        idle_load.look()
        for _ in range(3):
            with idle_load.busy():
                time.sleep(0.3)
            idle_load.look()
        assert idle_load.verdict() is None


def test_a_process_that_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        assert processor_ns(process.pid) == 0
    idle_load = IdleLoad(process.pid)
    idle_load.look()
    with idle_load.busy():
        pass
    idle_load.look()
    assert idle_load.verdict() is None
