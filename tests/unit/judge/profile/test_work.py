"""The processor time of threads, read from outside, against events that say less."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from cuda_agent.core.enums import Device
from cuda_agent.judge.profile import timing, work
from cuda_agent.judge.profile.bursts import Burst, Round, Work
from cuda_agent.judge.profile.work import ThreadTimes

CALLS = 10


def burst(claimed_us: float, calling_us: float, helping_us: float = 0.0, *, overhead_us: float = 50.0) -> Burst:
    """A burst of calls that say `claimed_us` each. The other times are sums over the burst, without its overhead."""
    run_us = max(calling_us + 2 * overhead_us, helping_us)
    return Burst((claimed_us,) * CALLS, run_us + 5000.0, 0.0, Work(calling_us + overhead_us, helping_us, run_us))


def rounds(candidate: Burst) -> list[Round]:
    eager, null = burst(100.0, 1000.0), burst(0.2, 0.0)
    return [Round({"candidate": candidate, "eager": eager}, null) for _ in range(7)]


def said(candidate: Burst) -> str | None:
    return work.disagreement(rounds(candidate), "candidate", ["eager"])


@pytest.mark.parametrize(
    "honest",
    [
        burst(200.0, 2000.0),
        # Others took the processor, so that the events are longer than the work.
        burst(900.0, 2000.0),
        # Another thread works, or spins until the request ends.
        burst(200.0, 100.0, 2000.0),
        burst(5.0, 50.0, 100.0),
        Burst((200.0,) * CALLS, 7000.0),
    ],
)
def test_events_that_hold_the_work_are_believed(honest: Burst) -> None:
    assert said(honest) is None
    found = timing.timing(rounds(honest), "candidate", device=Device.CPU, trusted=["eager"])
    assert found.latency_us == pytest.approx(found.event_us)


@pytest.mark.parametrize("lying", [burst(10.0, 2000.0), burst(10.0, 50.0, 2100.0), burst(150.0, 2000.0)])
def test_events_that_say_less_than_the_work_are_a_lie_and_do_not_pay(lying: Burst) -> None:
    assert "busiest thread" in (said(lying) or "")
    found = timing.timing(rounds(lying), "candidate", device=Device.CPU, trusted=["eager"])
    assert found.latency_us == pytest.approx(200.0)


def test_a_small_lie_is_not_convicted_but_does_not_pay_either() -> None:
    lying = burst(190.0, 2000.0)
    assert said(lying) is None
    assert timing.timing(rounds(lying), "candidate", device=Device.CPU, trusted=["eager"]).latency_us > 199


def _spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_work_is_found_in_any_thread_also_in_one_that_has_ended() -> None:
    accounts = ThreadTimes(os.getpid())
    thread = threading.Thread(target=_spin, args=(0.05,))
    thread.start()
    thread.join()
    found = accounts.until_now(1.0)
    if found is None:
        pytest.skip("this system doesn't account for threads")
    assert found.helping_us > 40_000 > found.calling_us
    accounts = ThreadTimes(os.getpid())
    _spin(0.1)
    found = accounts.until_now(1.0)
    assert found is not None and found.calling_us > 80_000
    assert ThreadTimes(None).until_now(1.0) is None


def test_work_is_found_in_a_process_that_began_meanwhile() -> None:
    accounts = ThreadTimes(os.getpid())
    code = "import sys, time\nwhile time.process_time() < 0.2: pass\nprint(); sys.stdout.flush(); sys.stdin.read()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = accounts.until_now(1.0)
        process.kill()
    assert found is None or found.calling_us > 150_000
