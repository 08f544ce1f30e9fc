"""Temporary folders: gone after their block, and removed by the next process where theirs was killed."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from cuda_agent.workspace.temporary import PREFIX, remove_stale, temporary_folder

KILLED = """
import os, signal
from cuda_agent.workspace.temporary import temporary_folder
with temporary_folder("judge") as folder:
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_gone_after_the_block_and_left_alone_during_it(tmp_path: Path) -> None:
    with temporary_folder("judge") as folder:
        (folder / "file").write_text("")
        assert remove_stale(tmp_path) == []
        with temporary_folder("judge") as other:
            assert other != folder
        assert (folder / "file").exists()
    assert not folder.exists()


def test_a_killed_process_folder_is_removed_by_the_next() -> None:
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, check=False)
    folder = Path(done.stdout.strip())
    assert folder.is_dir()
    with temporary_folder("shell"):
        assert not folder.exists()


def test_a_folder_without_a_lock_has_a_minute(tmp_path: Path) -> None:
    young, old = tmp_path / f"{PREFIX}young", tmp_path / f"{PREFIX}old"
    young.mkdir()
    old.mkdir()
    then = time.time() - 120
    os.utime(old, (then, then))
    assert remove_stale(tmp_path) == [old]
    assert young.exists()


def test_a_folder_that_is_removed_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock

    def late(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        assert len(remove_stale(tmp_path)) == 1
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with temporary_folder("judge") as folder:
        assert remove_stale(tmp_path) == [] and list(tmp_path.iterdir()) == [folder]
