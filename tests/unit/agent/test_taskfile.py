from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.agent.taskfile import load_task
from cuda_agent.core.errors import TaskError, UsageError

GOOD = "class Model: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ...\n"


def test_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "my_task.py"
    path.write_text(GOOD)
    task = load_task(path)
    assert (task.name, task.source) == ("my_task", GOOD)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (b"class Model(:\n", "line 1: syntax error"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"x = 1\n", "doesn't define Model, get_inputs, get_init_inputs"),
        (GOOD.replace("Model", "Net").encode(), "doesn't define Model"),
        (b"a\0b", "syntax error"),
    ],
)
def test_bad_sources(tmp_path: Path, source: bytes, says: str) -> None:
    path = tmp_path / "t.py"
    path.write_bytes(source)
    with pytest.raises(TaskError, match=says) as caught:
        load_task(path)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "source",
    [
        "from x import Model, get_inputs, get_init_inputs\n",
        "from x import *\n",
        GOOD.replace("class Model: ...", "try:\n    from y import Model\nexcept ImportError:\n    Model = None"),
    ],
)
def test_names_may_be_bound_in_other_ways(tmp_path: Path, source: str) -> None:
    path = tmp_path / "t.py"
    path.write_text(source)
    assert load_task(path).source == source


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such task file"):
        load_task(tmp_path / "none.py")
    with pytest.raises(UsageError, match="is a folder"):
        load_task(tmp_path)
