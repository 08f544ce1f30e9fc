"""What a pool's actors and the process that asks them keep of libraries, over many builds. No cluster runs."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.records import Candidate, Task
from cuda_agent.judge import Case
from cuda_agent.judge.build import compiler
from cuda_agent.pool.cluster import RemoteHelper, RoleActor

OPTIONS = JudgeOptions(device=Device.CPU)
BYTES = 1000


class Builds:
    """A builder whose libraries are a thousand bytes, and a host that reads them from its own disk."""

    def __init__(self, builder: Path) -> None:
        self._builder = builder

    def build(self, case: Case) -> Case:
        number = case.task.name
        case.library = self._builder / "libraries" / number / "extension.so"
        case.library.parent.mkdir(parents=True)
        case.library.write_bytes(b"x" * BYTES)
        return case

    def judge(self, case: Case, with_profile: bool) -> int:
        assert case.library is not None
        return len(case.library.read_bytes())

    def close(self) -> None: ...


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RemoteHelper:
    """A helper of actors that are in this process."""
    ray = SimpleNamespace(get=lambda answer: answer, exceptions=SimpleNamespace(RayActorError=RuntimeError))
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "ray.exceptions", ray.exceptions)  # type: ignore[arg-type]
    role = RoleActor(lambda: Builds(tmp_path / "builder"))
    made = RemoteHelper(lambda: role, "actor", {}, WeakKeyDictionary())
    called: Any = SimpleNamespace(call=SimpleNamespace(remote=role.call))
    monkeypatch.setattr(made, "_get", lambda: called)
    return made


def case(number: int) -> Case:
    return Case(Task(name=str(number), source=f"# {number}"), OPTIONS, Candidate(files={"model_new.py": ""}))


def test_memory_and_files_stay_bounded_over_many_builds(
    helper: RemoteHelper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "_CACHE_LIMIT_BYTES", 5 * BYTES)
    for number in range(12):
        built = helper.call("build", case(number))
        assert sum(map(len, helper._parcels[built].values())) == BYTES
        # Another machine judges, so its file is missing there.
        built.library.unlink()
        assert helper.call("judge", built, True) == BYTES
        del built
        files = [path for path in (tmp_path / "builder").rglob("*") if path.is_file()]
        assert len(files) <= 5 and sum(path.stat().st_size for path in files) <= 5 * BYTES
    gc.collect()
    assert len(helper._parcels) == 0, "a library is held after its candidate was judged"


def test_a_candidate_that_waits_keeps_its_library(helper: RemoteHelper) -> None:
    waiting = [helper.call("build", case(number)) for number in range(4)]
    for built in waiting:
        built.library.unlink()
    assert [helper.call("judge", built, True) for built in waiting] == [BYTES] * 4
