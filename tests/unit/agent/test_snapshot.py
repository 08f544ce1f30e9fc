"""Snapshots of a workspace: what was there is there again, whatever a command did to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cuda_agent.agent.storage import snapshot
from cuda_agent.agent.storage.snapshot import Snapshots, objects
from cuda_agent.agent.storage.store import ContentStore
from cuda_agent.core.errors import StoreError
from cuda_agent.core.records import Candidate


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "workspace"
    (root / "kernels" / "deep").mkdir(parents=True)
    (root / ".cuda-agent").mkdir()
    (root / ".cuda-agent" / "workspace.json").write_text("ours")
    (root / "SKILL.md").write_text("fixed")
    (root / "model_new.py").write_text("one")
    (root / "kernels" / "a.cu").write_bytes(b"\x00\xff not text")
    (root / "kernels" / "run.sh").write_text("#!/bin/sh\n")
    (root / "kernels" / "run.sh").chmod(0o755)
    (root / "link").symlink_to("model_new.py")
    return root


def look(root: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        mode = path.lstat().st_mode
        what: object = os.readlink(path) if path.is_symlink() else path.is_file() and path.read_bytes()  # noqa: PTH115
        found[path.relative_to(root).as_posix()] = (mode, what)
    return found


def snapshots(root: Path) -> Snapshots:
    return Snapshots(root, ContentStore(root.parent / "run"), {"SKILL.md"})


def test_what_a_command_did_is_undone(root: Path) -> None:
    before, taken = look(root), snapshots(root).take()
    assert set(taken) == set(before) - {".cuda-agent", ".cuda-agent/workspace.json", "SKILL.md"}
    (root / "model_new.py").write_text("two")
    (root / "kernels" / "a.cu").unlink()
    (root / "kernels" / "run.sh").chmod(0o600)
    (root / "kernels" / "deep").rmdir()
    (root / "kernels" / "deep").write_text("a file where a folder was")
    (root / "link").unlink()
    (root / "link").mkdir()
    (root / "link" / "inside").write_text("x")
    (root / "new" / "folder").mkdir(parents=True)
    (root / "new" / "folder" / "file").write_text("x")
    os.mkfifo(root / "pipe")
    # By another process, as after a kill: nothing is known of the files.
    snapshots(root).restore(taken)
    assert look(root) == before
    assert snapshots(root).take() == taken


def test_a_link_planted_in_place_of_a_folder_leads_nowhere(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    taken = snapshots(root).take()
    (root / "kernels").rename(root / "away")
    (root / "kernels").symlink_to(outside)
    after = snapshots(root).take()
    assert not any("secret" in path for path in after)
    snapshots(root).restore(taken)
    assert (outside / "secret").read_text() == "secret" and list(outside.iterdir()) == [outside / "secret"]
    assert snapshots(root).take() == taken


def test_only_what_changed_is_written(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "_TICK_NS", -1)
    store = ContentStore(root.parent / "run")
    taken = Snapshots(root, store, set())
    first = taken.take()
    read: list[bytes] = []
    monkeypatch.setattr(store, "put", lambda raw: read.append(raw) or "object")
    (root / "model_new.py").write_text("changed")
    second = taken.take()
    assert read == [b"changed"]
    assert {path for path in first if first[path] != second[path]} == {"model_new.py"}


def test_a_file_that_is_too_large_is_left_alone_unless_it_changed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_FILE_BYTES", 100)
    (root / "large").write_text("x" * 200)
    taken = snapshots(root).take()
    snapshots(root).restore(taken)
    assert (root / "large").exists()
    (root / "large").write_text("y" * 300)
    snapshots(root).restore(taken)
    assert not (root / "large").exists()


def test_the_store_keeps_candidates_and_forgets_the_rest(tmp_path: Path) -> None:
    store = ContentStore(tmp_path)
    candidate = Candidate(files={"model_new.py": "a", "kernels/b.cu": "b"})
    store.keep(candidate)
    other = store.put(b"c")
    store.drop([other, store.put(b"a")])
    assert ContentStore(tmp_path).candidate(candidate.digest) == candidate
    with pytest.raises(StoreError, match="Can't read"):
        store.get(other)
    with pytest.raises(StoreError, match="holds no candidate"):
        store.candidate("0" * 64)
    (tmp_path / "store" / "objects" / store.put(b"b")).write_text("changed")
    with pytest.raises(StoreError, match="was changed"):
        store.candidate(candidate.digest)


def test_objects_are_those_of_files(root: Path) -> None:
    assert len(objects(snapshots(root).take())) == 3
