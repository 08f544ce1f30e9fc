"""Files are whole or not there, also when the disk is full."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cuda_agent.core.errors import StoreError
from cuda_agent.core.files import cache_dir, write_durably


def test_writes_text_and_bytes_and_makes_folders(tmp_path: Path) -> None:
    write_durably(tmp_path / "a" / "text", "é\n")
    write_durably(tmp_path / "a" / "raw", b"\x00\x01")
    assert (tmp_path / "a" / "text").read_bytes() == "é\n".encode()
    assert (tmp_path / "a" / "raw").read_bytes() == b"\x00\x01"
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["raw", "text"]


def test_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "evaluation.json"
    write_durably(path, "old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left on device") as caught:
        write_durably(path, "new")
    assert caught.value.exit_code == 6
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["evaluation.json"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_disk_that_is_really_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fdopen

    def onto_full_device(handle: int, mode: str) -> object:
        os.close(handle)
        return real(os.open("/dev/full", os.O_WRONLY), mode)

    monkeypatch.setattr(os, "fdopen", onto_full_device)
    with pytest.raises(StoreError, match="No space left"):
        write_durably(tmp_path / "a", "data")
    assert list(tmp_path.iterdir()) == []


def test_folder_that_is_a_file_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="Can't write"):
        write_durably(tmp_path / "file" / "below", "data")


def test_cache_follows_the_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"
    monkeypatch.delenv("CUDA_AGENT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "cuda-agent"
    assert cache_dir().is_dir()


def test_cache_that_cannot_be_made_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(StoreError, match="Set CUDA_AGENT_CACHE"):
        cache_dir()
