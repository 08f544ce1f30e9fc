"""The filter on a GPU: its forks start CUDA, each rule of the device, times that an idle judge finds again."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.core.enums import Device
from cuda_agent.core.lines import append
from cuda_agent.tasks.captured import task_workers
from cuda_agent.tasks.filter.measurements import read_measured
from cuda_agent.tasks.filter.options import FilterOptions
from cuda_agent.tasks.filter.run import filter_folder
from cuda_agent.tasks.inside.requests import (
    CheckAnswers,
    CompareCompiled,
    CompileTask,
    GraphTask,
    OpenTask,
    RunTask,
)
from cuda_agent.tasks.records import DatasetTask, Measurement, Rule
from cuda_agent.workspace.sandbox import sandbox_facts
from task_candidates import BROKEN, candidate, write_candidates

pytestmark = [pytest.mark.gpu, pytest.mark.alone, pytest.mark.timeout(600)]

#: 2 GiB in and out: about a millisecond on an H200.
_ROWS = 1 << 21


def run(folder: Path, tasks: list[DatasetTask], **changes: object) -> dict[str, Measurement]:
    append(folder / "candidates.jsonl", tasks)
    options = FilterOptions.parse({"device": "cuda", "window_ms": (1e-3, 1e6), "tasks_a_process": 3, **changes})
    done = filter_folder(folder, options, lambda _text: None)
    assert not done.left
    by_key = read_measured(done.path).by_key
    return {task.task.name: by_key[task.task.key] for task in tasks}


def test_a_task_has_the_device_in_a_fork() -> None:
    task = candidate("linear", "return torch.relu(self.linear(x))").task
    with task_workers(Device.CUDA, sandbox_facts().level) as start:
        for _ in range(2):
            worker = start()
            opening = OpenTask(
                task=task, seed=1, device=Device.CUDA, memory_bytes=1 << 30, device_bytes=4 << 30, threads=2
            )
            worker.request(opening, timeout_s=60)
            ran = worker.request(RunTask(), timeout_s=60)
            assert ran.peak_memory_bytes, ran
            assert worker.request(GraphTask(), timeout_s=60).graph
            for request in (CheckAnswers(floor=5e-4), CompileTask(), CompareCompiled()):
                assert worker.request(request, timeout_s=120).finding is None
            worker.kill()


def test_each_rule_on_the_gpu(tmp_path: Path) -> None:
    forwards = {name: forward for name, (_, forward) in BROKEN.items() if name not in ("without_bound", "own_noise")}
    tasks = write_candidates(tmp_path / "unused", {"good": "return torch.relu(self.linear(x))", **forwards})
    tasks.append(candidate("too_large", "return torch.relu(self.linear(x))", 100, rows=_ROWS))
    found = run(tmp_path, tasks, limit_s=40.0, memory_mib=1024, workers=8)
    said = {name: one.finding.rule.value if one.finding else None for name, one in found.items()}
    expected = {name: BROKEN[name][0] for name in forwards}
    assert said == {"good": None, "too_large": "memory", **expected}


def test_a_fault_on_the_device_harms_nobody_else(tmp_path: Path) -> None:
    bad = "return x[torch.full((4,), 10**6, device=x.device)]"
    tasks = [candidate("asserts", bad), *(candidate(f"good_{i}", f"return x.relu() + {i}", i + 1) for i in range(6))]
    found = run(tmp_path, tasks, workers=4)
    assert found["asserts"].finding is not None and found["asserts"].finding.rule is Rule.RUNS
    assert all(found[f"good_{i}"].passed for i in range(6))


def test_times_are_those_of_an_idle_machine(tmp_path: Path) -> None:
    """The same tasks with many lanes and with one, several in a process and each in its own."""
    tasks = [candidate(f"t{i}", f"return torch.sigmoid(x) + {i}", i, rows=_ROWS) for i in range(8)]
    busy = run(tmp_path / "busy", tasks, lanes=6)
    idle = run(tmp_path / "idle", tasks, lanes=1, workers=1, tasks_a_process=1)
    for name in busy:
        mine, theirs = busy[name].eager_us, idle[name].eager_us
        assert mine and theirs and abs(mine / theirs - 1) < 0.10, (name, mine, theirs)
