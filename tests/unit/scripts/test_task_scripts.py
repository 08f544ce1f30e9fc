"""The scripts around the data set: what several GPUs found comes together, and a suite has its levels."""

from __future__ import annotations

import gzip
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from cuda_agent.core.enums import Device
from cuda_agent.core.lines import append
from cuda_agent.core.stack import Stack
from cuda_agent.tasks.filter.measurements import Journal, read_all, read_measured, stack_for
from cuda_agent.tasks.filter.records import Checked
from cuda_agent.tasks.records import DatasetTask, Measurement
from task_candidates import candidate

ROOT = Path(__file__).parents[3]
STACK = stack_for(Stack(python="3.12", cpu="a", cpu_cores=1, cuda_agent="1"), Device.CUDA)


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def packed(path: Path, tasks: list[DatasetTask]) -> Path:
    text = "".join(task.model_dump_json() + "\n" for task in tasks)
    path.write_bytes(gzip.compress(text.encode()))
    return path


def test_what_each_gpu_found_comes_together_and_is_known_elsewhere(tmp_path: Path) -> None:
    filtering = script("filter_gpus")
    tasks = [candidate(f"t{number}", f"return x + {number}", number) for number in range(3)]
    source = packed(tmp_path / "candidates.jsonl.gz", tasks)
    first, second = tmp_path / "first", tmp_path / "second"
    filtering.prepare(first, source, [])
    for number in (0, 1):
        (first / f"gpu{number}").mkdir()
        journal = Journal(first / f"gpu{number}", STACK)
        journal.add(Measurement(task_key=tasks[number].task.key, finding=None, eager_us=2000.0))
    journal.add_checked(Checked(task_key=tasks[2].task.key))
    filtering.collect(first)
    archive = filtering.pack(first, tmp_path / "out")
    filtering.prepare(second, source, [archive])
    filtering.prepare(second, source, [archive])
    (measured,) = read_all(second)
    assert set(measured.by_key) == {task.task.key for task in tasks[:2]}
    assert set(Journal(second, STACK).checked) == {tasks[2].task.key}


def test_a_suite_has_its_levels(tmp_path: Path) -> None:
    picking = script("pick_suite")
    tasks = picking.read(ROOT / "data" / "suite250.jsonl.gz")
    assert len(tasks) == 250 and picking.pick(tasks) == tasks
    picking.unpack(tasks, tmp_path)
    assert [len(list((tmp_path / f"level{level}").glob("*.py"))) for level in (1, 2, 3)] == [100, 100, 50]
    with pytest.raises(SystemExit, match="are wanted"):
        picking.pick(tasks[:50])


def test_a_sample_is_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path / "candidates.jsonl", script("pick_suite").read(ROOT / "data" / "suite250.jsonl.gz")[:30])
    monkeypatch.setattr(sys, "argv", ["show_sample.py", str(tmp_path / "candidates.jsonl"), "--count", "5"])
    assert script("show_sample").main() == 0
    said = capsys.readouterr().out
    assert said.startswith("# 5 tasks") and said.count("```python") == 5 and "get_init_inputs():" not in said


def test_what_was_measured_holds_under_another_docstring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = [candidate(f"t{number}", f"return x + {number}", number) for number in range(2)]
    new = [candidate("other words", "return x + 0"), candidate("t1", "return x + 2")]
    journal = Journal(tmp_path, STACK)
    for task in old:
        journal.add(Measurement(task_key=task.task.key, finding=None, eager_us=2000.0))
    append(tmp_path / "old.jsonl", old)
    append(tmp_path / "new.jsonl", new)
    names = [str(tmp_path / name) for name in ("old.jsonl", "new.jsonl", journal.path.name, "out.jsonl")]
    monkeypatch.setattr(sys, "argv", ["carry_measurements.py", *names[:3], "--out", names[3]])
    assert script("carry_measurements").main() == 0
    carried = read_measured(Path(names[3]))
    assert set(carried.by_key) == {new[0].task.key} and carried.stack == STACK
