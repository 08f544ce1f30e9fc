"""Suites from where they lie, and parts of them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from bench_records import problem

from cuda_agent.bench.suite import mixed, problem_of, read_suite, select
from cuda_agent.core.errors import UsageError
from cuda_agent.core.records import Task
from cuda_agent.tasks.records import DatasetTask

SOURCE = "class Model: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ...\n"


def folder(path: Path) -> Path:
    for name in ("level1/1_one.py", "level1/12_twelve.py", "level2/1_uno.py", "level1/_shared.py"):
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# {name}\n{SOURCE}")
    return path


def ids(*places: str | Path) -> list[str]:
    return [problem.entry.id for problem in read_suite([str(place) for place in places])]


def test_a_folder_with_levels(tmp_path: Path) -> None:
    problems = read_suite([str(folder(tmp_path))])
    assert [(p.entry.id, p.entry.level) for p in problems] == [
        ("level1-1_one", "1"),
        ("level1-12_twelve", "1"),
        ("level2-1_uno", "2"),
    ]
    assert problems[1].task.name == "12_twelve"

    def chosen(**how: object) -> list[str]:
        return [p.entry.id for p in select(problems, **how)]  # type: ignore[arg-type]

    assert chosen(levels=["2"]) == ["level2-1_uno"]
    assert chosen(ids=["1"]) == ["level1-1_one", "level2-1_uno"]
    assert chosen(ids=["*_u*", "12"]) == ["level1-12_twelve", "level2-1_uno"]
    assert chosen(limit=1) == ["level1-1_one"]
    with pytest.raises(UsageError, match="no level 3"):
        chosen(levels=["3"])
    with pytest.raises(UsageError, match="nine"):
        chosen(ids=["1", "nine"])


def test_what_runs_left_in_the_folder_is_no_task(tmp_path: Path) -> None:
    place = folder(tmp_path)
    for manifest in ("runs/bench-1/bench.json", "level1/runs/one/manifest.json"):
        workspace = (place / manifest).parent / "tasks/one/workspace/model_new.py"
        workspace.parent.mkdir(parents=True)
        workspace.write_text(SOURCE)
        (place / manifest).write_text("{}")
    assert ids(place) == ["level1-1_one", "level1-12_twelve", "level2-1_uno"]


def test_files_and_equal_names(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same.py").write_text(f"# {name}\n{SOURCE}")
    one, two = tmp_path / "a/same.py", tmp_path / "b/same.py"
    assert ids(one, two) == ["same", "same-2"]
    assert ids(one, one) == ["same"], "the same task once"
    assert ids(one, two, two) == ["same", "same-2"], "also the second"


def test_names_in_any_script_and_a_file_that_isnt_there(tmp_path: Path) -> None:
    for name in ("größe", "行列 積", "\u202e[red]", "ü" * 80):
        (tmp_path / f"{name}.py").write_text(f"# {name}\n{SOURCE}")
    found = ids(tmp_path)
    assert {"größe", "行列_積", "red"} < set(found) and all(len(name.encode()) <= 100 for name in found)
    with pytest.raises(UsageError, match=r"No such suite: suite/gone\.py"):
        ids("suite/gone.py")


def test_what_is_no_suite(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no task"):
        ids(tmp_path)
    (tmp_path / "tasks.txt").write_text("")
    with pytest.raises(UsageError, match="isn't a suite"):
        ids(tmp_path / "tasks.txt")


def test_a_broken_file_is_a_task(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def (:")
    assert ids(tmp_path) == ["broken"]


def test_a_published_data_set(tmp_path: Path) -> None:
    rows = {
        "ops": ['["relu"]', '["gelu"]'],
        "data_source": ["torch#1", "torch#1"],
        "code": [SOURCE, "# 2\n" + SOURCE],
        "name": ["one", "two"],
    }
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "train.parquet")
    for place in (tmp_path, tmp_path / "train.parquet"):
        problems = read_suite([str(place)])
        found = [(p.entry.id, p.entry.origin, p.entry.operators) for p in problems]
        assert found == [("level1-one", "torch#1", ("relu",)), ("level1-two", "torch#1", ("gelu",))]


def test_an_evaluation_set_with_levels(tmp_path: Path) -> None:
    rows = {"code": [SOURCE], "name": ["7_Some Task"], "level": [2]}
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "level_2.parquet")
    (found,) = read_suite([str(tmp_path / "level_2.parquet")])
    assert (found.entry.id, found.entry.level) == ("level2-7_Some_Task", "2")


def test_lines(tmp_path: Path) -> None:
    task = Task(name="t", source=SOURCE, origin="torch#2")
    (tmp_path / "composed.jsonl").write_text(
        DatasetTask(task=task, ops=("relu",), composer="x", number=0).model_dump_json() + "\n"
    )
    (tmp_path / "tasks.jsonl").write_text(task.model_dump_json() + "\n")
    (tmp_path / "composed.jsonl.gz").write_bytes(gzip.compress((tmp_path / "composed.jsonl").read_bytes()))
    assert ids(tmp_path / "tasks.jsonl") == ["t"]
    assert ids(tmp_path / "composed.jsonl") == ids(tmp_path / "composed.jsonl.gz") == ["level2-t"]


def test_an_id_is_a_folders_name() -> None:
    assert problem_of(Task(name="../../etc: a", source="")).entry.id == "etc_a"
    assert problem_of(Task(name="..", source="")).entry.id == "task"
    assert problem("x" * 300).entry.id == "x" * 100


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such suite"):
        read_suite([str(tmp_path / "missing")])
    with pytest.raises(UsageError, match=r"has no task"):
        read_suite([str(tmp_path)])


def test_levels_are_mixed_evenly(tmp_path: Path) -> None:
    for level, count in (("level1", 4), ("level2", 2), ("level3", 1)):
        (tmp_path / level).mkdir()
        for number in range(1, count + 1):
            (tmp_path / level / f"{number}_task.py").write_text(SOURCE)
    problems = read_suite([str(tmp_path)])
    assert [p.entry.id for p in mixed(problems)] == [
        "level1-1_task", "level2-1_task", "level1-2_task", "level3-1_task", "level1-3_task", "level2-2_task",
        "level1-4_task",
    ]  # fmt: skip
    assert mixed(problems[:4]) == problems[:4], "of one level as they come"
