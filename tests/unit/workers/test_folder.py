"""Folders of judges: gone after their judge, and removed by the next one where it was killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from cuda_agent.workers.folder import PREFIX, judge_folder, remove_stale

KILLED = """
import os, signal
from cuda_agent.workers.folder import judge_folder
with judge_folder() as folder:
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_gone_after_the_block_and_left_alone_during_it() -> None:
    with judge_folder() as folder:
        (folder / "file").write_text("")
        assert remove_stale() == []
        with judge_folder() as other:
            assert other != folder
        assert (folder / "file").exists()
    assert not folder.exists()


def test_a_killed_judges_folder_is_removed_by_the_next() -> None:
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, check=False)
    folder = Path(done.stdout.strip())
    assert folder.is_dir()
    with judge_folder():
        assert not folder.exists()


def test_a_folder_without_a_lock_has_a_minute(tmp_path: Path) -> None:
    young, old = tmp_path / f"{PREFIX}young", tmp_path / f"{PREFIX}old"
    young.mkdir()
    old.mkdir()
    then = time.time() - 120
    os.utime(old, (then, then))
    assert remove_stale() == [old]
    assert young.exists()
