"""Laying out, snapshot, restore, lock."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import StoreError, UsageError
from cuda_agent.core.records import Candidate, Task
from cuda_agent.workspace import layout

TASK = Task(name="t", source="class Model: pass\n")
FILES = {"model_new.py": "x = 1\n", "kernels/a.cpp": "int a;\n", "kernels/deep/b.cuh": "// b\n"}


@pytest.fixture
def workspace(tmp_path: Path) -> layout.Workspace:
    return layout.create(TASK, tmp_path / "w", options=JudgeOptions(device=Device.CPU))


def test_layout_is_the_published_one(workspace: layout.Workspace) -> None:
    names = {path.relative_to(workspace.directory).as_posix() for path in workspace.directory.rglob("*")}
    expected = {
        "SKILL.md", "model.py", "binding.cpp", "binding_registry.h", "kernels", "utils/compile.sh", "utils/compile.py",
        "utils/verification.py", "utils/profiling.py", "utils/inspection.py", "utils/__init__.py",
    }  # fmt: skip
    assert expected <= names
    assert not (workspace.directory / "model_new.py").exists()
    assert oct((workspace.directory / "binding.cpp").stat().st_mode)[-3:] == "444"


def test_open_returns_what_was_laid_out(workspace: layout.Workspace) -> None:
    again = layout.open_workspace(workspace.directory)
    assert again == workspace
    assert again.edited_files() == ()


def test_a_directory_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        layout.create(TASK, tmp_path, options=JudgeOptions(device=Device.CPU))
    with pytest.raises(UsageError, match="not a workspace"):
        layout.open_workspace(tmp_path)


@pytest.mark.parametrize("name", ["binding.cpp", "utils/verification.py", "model.py", "SKILL.md"])
def test_edited_fixed_files_are_noticed(workspace: layout.Workspace, name: str) -> None:
    path = workspace.directory / name
    path.chmod(0o644)
    path.write_text(path.read_text() + " ")
    with pytest.raises(UsageError, match=name):
        layout.open_workspace(workspace.directory)


def test_a_fixed_file_replaced_by_a_link_is_noticed(workspace: layout.Workspace) -> None:
    path = workspace.directory / "binding.cpp"
    copy = path.with_suffix(".copy")
    path.rename(copy)
    path.symlink_to(copy)
    assert workspace.edited_files() == ("binding.cpp",)


def test_snapshot_and_restore(workspace: layout.Workspace) -> None:
    first = Candidate(files=FILES)
    workspace.restore(first)
    assert workspace.snapshot() == first
    (workspace.directory / "kernels" / "notes.txt").write_text("kept, but no part of the candidate")
    (workspace.directory / "kernels" / "late.cu").write_text("// later")
    assert workspace.snapshot() != first
    workspace.restore(first)
    assert workspace.snapshot() == first
    assert (workspace.directory / "kernels" / "notes.txt").exists()
    workspace.restore(Candidate(files={}))
    assert workspace.snapshot().files == {}


@pytest.mark.parametrize(
    "path",
    [
        "model.py", "../x.cu", "kernels/../x.cu", "kernels/a.so", "/kernels/a.cu", "kernels//a.cu", "kernels/a\n.cu",
        "kernels",
    ],
)  # fmt: skip
def test_foreign_paths_are_refused(workspace: layout.Workspace, path: str) -> None:
    assert not layout.is_writable(path)
    with pytest.raises(UsageError):
        workspace.restore(Candidate(files={path: ""}))


def test_links_and_binaries_are_refused(workspace: layout.Workspace, tmp_path: Path) -> None:
    kernels = workspace.directory / "kernels"
    (kernels / "a.cu").symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match=r"kernels/a\.cu"):
        workspace.snapshot()
    (kernels / "a.cu").unlink()
    (kernels / "a.cu").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="UTF-8"):
        workspace.snapshot()
    (kernels / "a.cu").unlink()
    os.mkfifo(kernels / "a.cu")
    with pytest.raises(UsageError):
        workspace.snapshot()


def test_restore_does_not_follow_a_linked_folder(workspace: layout.Workspace, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (workspace.directory / "kernels").rmdir()
    (workspace.directory / "kernels").symlink_to(elsewhere)
    (elsewhere / "other.cu").write_text("not ours")
    with pytest.raises(UsageError, match="is a link"):
        workspace.restore(Candidate(files=FILES))
    with pytest.raises(UsageError, match="is a link"):
        workspace.snapshot()
    assert [path.name for path in elsewhere.iterdir()] == ["other.cu"]


def test_too_much_is_refused(workspace: layout.Workspace) -> None:
    many = {f"kernels/{index}.cu": "" for index in range(layout.MAX_FILES + 1)}
    with pytest.raises(UsageError, match="200 files"):
        workspace.restore(Candidate(files=many))
    with pytest.raises(UsageError, match="bytes"):
        workspace.restore(Candidate(files={"kernels/a.cu": "x" * (layout.MAX_BYTES + 1)}))


def test_one_run_at_a_time(workspace: layout.Workspace) -> None:
    with workspace.lock(), pytest.raises(StoreError, match="in use"), layout.open_workspace(workspace.directory).lock():
        pass
    with workspace.lock():
        pass


def test_the_playbooks_notes_are_agent_skills(tmp_path: Path) -> None:
    """Each in a folder of its own name, with the front matter that the format asks for; SKILL.md says where."""
    workspace = layout.create(Task(name="t", source="x"), tmp_path / "ws", options=JudgeOptions(device=Device.CPU))
    folders = sorted((workspace.directory / "skills").iterdir())
    assert {"algebra", "gemm", "convolution", "pointwise", "rowreduce"} <= {folder.name for folder in folders}
    for folder in folders:
        assert [path.name for path in folder.iterdir()] == ["SKILL.md"]
        text = (folder / "SKILL.md").read_text()
        begin, front, body = text.split("---\n", 2)
        fields = yaml.safe_load(front)
        assert begin == ""
        assert fields.keys() == {"name", "description", "metadata"}
        assert fields["name"] == folder.name
        assert 20 < len(fields["description"]) <= 1024
        assert body.startswith("# ")
        assert f"`{folder.name}`" in layout.fixed_files()["SKILL.md"]
    (workspace.directory / "skills" / "gemm" / "SKILL.md").unlink()
    assert layout.open_workspace(workspace.directory).edited_files() == (), "notes are for reading only"
