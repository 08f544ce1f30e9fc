"""The filter with real processes on the CPU: each rule, hostile tasks, a kill and what comes after it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cuda_agent.core.enums import Device
from cuda_agent.tasks.filter.measurements import Measurements, read_all
from cuda_agent.tasks.filter.options import FilterOptions
from cuda_agent.tasks.filter.run import Filtered, filter_folder, read_candidates
from cuda_agent.tasks.records import Measurement, Rule
from task_candidates import BROKEN, GOOD, HOSTILE, write_candidates

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

_OPTIONS = {"device": "cpu", "window_ms": (1e-4, 1e6), "limit_s": 60.0, "host_memory_mib": 3000, "workers": 1}


def run(folder: Path, **changes: object) -> Filtered:
    return filter_folder(folder, FilterOptions.parse({**_OPTIONS, **changes}), lambda _text: None)


def by_name(folder: Path) -> dict[str, Measurement]:
    (measured,) = read_all(folder)
    assert measured.stack.settings["device"] == Device.CPU
    names = {task.task.key: task.task.name for task in read_candidates(folder)}
    return {names[key]: one for key, one in measured.by_key.items()}


@pytest.fixture(scope="module")
def filtered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Filtered, dict[str, Measurement]]:
    """One run over all of them, since its processes take longest to start; hostile ones come before those that follow
    the rules or break one; in a process that another one had before, wherever that kept every rule."""
    folder = tmp_path_factory.mktemp("filtered")
    broken = {name: forward for name, (_, forward) in BROKEN.items()}
    write_candidates(folder, {**HOSTILE, **GOOD, **broken, "last": "return torch.tanh(x)"})
    return run(folder, limit_s=10.0, tasks_a_process=3), by_name(folder)


def test_each_rule_has_its_finding(filtered: tuple[Filtered, dict[str, Measurement]]) -> None:
    done, measured = filtered
    found = {name: one for name, one in measured.items() if name in {*GOOD, *BROKEN}}
    said = {name: one.finding.rule.value if one.finding else None for name, one in found.items()}
    assert said == dict.fromkeys(GOOD) | {name: rule for name, (rule, _) in BROKEN.items()}, found
    assert done.passed == sum(one.passed for one in measured.values())
    assert done.asked == len(measured) == len({*GOOD, *BROKEN, *HOSTILE, "last"})
    good = found["linear_relu"]
    assert good.eager_low_us is not None and good.eager_us is not None and good.eager_high_us is not None
    assert 0 < good.eager_low_us <= good.eager_us <= good.eager_high_us
    assert good.graph_hash and good.graph_operators and good.peak_memory_bytes


def test_a_run_whose_time_is_over_begins_nothing(tmp_path: Path) -> None:
    write_candidates(tmp_path, GOOD)
    options = FilterOptions.parse(_OPTIONS)
    done = filter_folder(tmp_path, options, lambda _text: None, stop_after_s=0.0)
    assert (done.asked, done.waiting, done.passed) == (0, len(GOOD), 0)
    assert not by_name(tmp_path)


def test_hostile_tasks_end_and_the_rest_goes_on(filtered: tuple[Filtered, dict[str, Measurement]]) -> None:
    _, found = filtered
    assert {*HOSTILE, "last"} <= set(found)
    assert found["last"].passed and found["writes"].passed
    assert not found["forks"].passed and not found["kills"].passed
    assert found["leaves"].finding is not None and found["leaves"].finding.rule is Rule.RUNS
    assert not list(Path("/tmp").glob("[0-7]"))


def test_a_killed_filter_goes_on_where_it_was(tmp_path: Path) -> None:
    """SIGKILL at some moment; then no task is asked twice, and none is missing."""
    forwards = {f"early_{i}": "raise ValueError('no')" for i in range(4)} | {"good": "return torch.sigmoid(x)"}
    tasks = write_candidates(tmp_path, forwards)
    code = (
        "import sys; from pathlib import Path; from cuda_agent.tasks.filter.options import FilterOptions;"
        "from cuda_agent.tasks.filter.run import filter_folder;"
        f"filter_folder(Path({str(tmp_path)!r}), FilterOptions.parse({_OPTIONS!r}), print)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    end = time.monotonic() + 300
    while time.monotonic() < end and not any(one.by_key for one in _whole(tmp_path)):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (before,) = read_all(tmp_path)
    path = before.path
    path.write_bytes(path.read_bytes() + b'{"task_key": "half')
    done = run(tmp_path, window_ms=(1e5, 1e6))
    (after,) = read_all(tmp_path)
    assert done.known == len(before.by_key) >= 1
    assert set(after.by_key) == {task.task.key for task in tasks}
    assert all(after.by_key[key] == one for key, one in before.by_key.items())
    assert len(path.read_text().splitlines()) == 1 + len(tasks)
    good = by_name(tmp_path)["good"]
    assert good.eager_us and good.finding and good.finding.rule is Rule.EAGER_TIME and "outside" in good.finding.detail


def _whole(folder: Path) -> list[Measurements]:
    found: list[Measurements] = []
    for path in folder.glob("measurements-*.jsonl"):
        if b"\n" in path.read_bytes():
            found += read_all(folder)
    return found
