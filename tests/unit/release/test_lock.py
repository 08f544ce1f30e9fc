"""The stack lock: what it holds, how it reads, how a difference is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cuda_agent.cli.main import run, with_file
from cuda_agent.core.errors import LockMismatch, StoreError, UsageError
from cuda_agent.release.lock import StackLock, check_locked, read_lock


@pytest.fixture(scope="module")
def here() -> StackLock:
    return read_lock()


def changed(lock: StackLock, section: str, **values: object) -> StackLock:
    return lock.model_copy(update={section: {**getattr(lock, section), **values}})


def test_it_comes_back_the_same(here: StackLock, tmp_path: Path) -> None:
    path = tmp_path / "stack.lock"
    here.save(path)
    assert StackLock.load(path).differences(here) == ()
    assert check_locked(path) == StackLock.load(path)


def test_it_holds_what_times_depend_on_and_no_machine(here: StackLock) -> None:
    text = here.to_yaml()
    for word in ("cpu_cores", "torch:", "cudnn", "driver", "-march=native", "max-autotune", "judge:"):
        assert word in text
    assert "uuid" not in text and str(Path.cwd()) not in text and "-isystem" not in text


def test_every_difference_is_named_with_both_values(here: StackLock, tmp_path: Path) -> None:
    gpu = {"name": "NVIDIA H200", "power_limit_w": 700.0}
    other = changed(changed(here, "hardware", gpus=[gpu], cpu_cores=3), "software", python="3.9.1")
    other.save(tmp_path / "other.lock")
    with pytest.raises(LockMismatch) as error:
        check_locked(tmp_path / "other.lock")
    said = str(error.value)
    assert "gpus.count is " in said and "gpus[0].name is " in said and "locked 'NVIDIA H200'" in said
    assert f"cpu_cores is {here.hardware['cpu_cores']}, locked 3" in said
    assert f"python is '{here.software['python']}', locked '3.9.1'" in said
    assert len(other.differences(here)) >= 4


@pytest.mark.parametrize("text", ["", "- 1\n", "a: [", "schema_version: 7\n", "schema_version: 1\nhardware: 3\n"])
def test_what_is_no_lock(tmp_path: Path, text: str) -> None:
    path = tmp_path / "stack.lock"
    path.write_text(text)
    with pytest.raises(StoreError):
        StackLock.load(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cuda-agent lock"):
        StackLock.load(tmp_path / "stack.lock")
    with pytest.raises(UsageError):
        StackLock.load(tmp_path)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["judge", "DIR", "--locked"], ["judge", "DIR", "--locked=stack.lock"]),
        (["judge", "--locked", "DIR"], ["judge", "--locked=stack.lock", "DIR"]),
        (["judge", "--locked", "h200.lock", "DIR"], ["judge", "--locked=h200.lock", "DIR"]),
        (["judge", "--locked=any", "DIR"], ["judge", "--locked=any", "DIR"]),
        (["judge", "--", "--locked"], ["judge", "--", "--locked"]),
    ],
)
def test_the_option_with_and_without_a_file(given: list[str], read: list[str]) -> None:
    assert with_file(given) == read


def test_commands_refuse_on_another_stack(
    here: StackLock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["lock"]) == 0
    changed(here, "hardware", cpu_cores=99).save(tmp_path / "other.lock")
    capsys.readouterr()
    assert run(["lock", "--locked", "--out", "again.lock"]) == 0
    for command in (["judge", "."], ["optimize", "task.py"], ["replay", "RUN"], ["tasks", "stats", "DIR"], ["doctor"]):
        assert run([*command, "--locked", "other.lock"]) == 11
        assert "locked 99" in capsys.readouterr().err
    assert run(["judge", ".", "--json", "--locked=other.lock"]) == 11
    assert json.loads(capsys.readouterr().out)["error"]["exit_code"] == 11
    assert run(["judge", ".", "--locked=no.lock"]) == 2


def test_lock_says_what_it_changes(here: StackLock, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "stack.lock"
    changed(here, "software", torch="1.0").save(path)
    assert run(["lock", "--out", str(path)]) == 0
    assert "locked '1.0'" in capsys.readouterr().err
    assert StackLock.load(path).differences(here) == ()
