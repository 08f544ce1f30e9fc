from __future__ import annotations

import os
from pathlib import Path

import pytest

from cuda_agent.agent.files import CallRefused, MissingFile, WorkspaceFiles


@pytest.fixture
def files(tmp_path: Path) -> WorkspaceFiles:
    root, logs = tmp_path / "ws", tmp_path / "logs"
    (root / "kernels").mkdir(parents=True)
    logs.mkdir()
    (root / "model.py").write_text("reference\n")
    (tmp_path / "secret.txt").write_text("secret\n")
    (logs / "long.txt").write_text("long\n")
    return WorkspaceFiles(root, logs)


@pytest.mark.parametrize("path", ["../secret.txt", "/etc/passwd", "kernels/../../secret.txt", "a/../../secret.txt"])
def test_outside_is_refused(files: WorkspaceFiles, path: str) -> None:
    with pytest.raises(CallRefused, match="outside the workspace"):
        files.read(path)


def test_absolute_path_inside_is_understood(files: WorkspaceFiles) -> None:
    assert files.read(str(files.root / "model.py")) == "reference\n"
    assert files.read("kernels/../model.py") == "reference\n"


def test_links_lead_nowhere(files: WorkspaceFiles, tmp_path: Path) -> None:
    (files.root / "kernels" / "a.cu").symlink_to(tmp_path / "secret.txt")
    (files.root / "kernels" / "sub").symlink_to(tmp_path, target_is_directory=True)
    for path in ("kernels/a.cu", "kernels/sub/secret.txt"):
        with pytest.raises(CallRefused):
            files.read(path)
        with pytest.raises(CallRefused):
            files.write(path if path.endswith(".cu") else "kernels/sub/b.cu", "x")
    assert (tmp_path / "secret.txt").read_text() == "secret\n"
    assert not (tmp_path / "b.cu").exists()
    assert "kernels/a.cu" not in list(files.walk())


def test_a_pipe_does_not_hang(files: WorkspaceFiles) -> None:
    os.mkfifo(files.root / "kernels" / "pipe.cu")
    with pytest.raises(CallRefused, match="regular file"):
        files.read("kernels/pipe.cu")


@pytest.mark.parametrize(
    "path", ["model.py", "SKILL.md", "utils/compile.sh", "kernels/x.py", "kernels", "other.cu", ".cuda-agent/x.cu"]
)
def test_only_the_candidates_files_can_be_written(files: WorkspaceFiles, path: str) -> None:
    with pytest.raises(CallRefused, match="is fixed"):
        files.write(path, "x")


def test_reading_before_overwriting(files: WorkspaceFiles) -> None:
    assert files.write("kernels/deep/a.cu", "one") is True
    assert files.write("kernels/deep/a.cu", "two") is False
    (files.root / "kernels/deep/a.cu").write_text("changed elsewhere")
    with pytest.raises(CallRefused, match="has changed since it was read"):
        files.write("kernels/deep/a.cu", "three")
    files.read("kernels/deep/a.cu")
    assert files.write("kernels/deep/a.cu", "three") is False
    (files.root / "model_new.py").write_text("there already")
    with pytest.raises(CallRefused, match="was not read"):
        files.write("model_new.py", "x")
    with pytest.raises(CallRefused, match="was not read"):
        files.read_known("model_new.py")


def test_a_missing_file_and_a_folder_say_so(files: WorkspaceFiles) -> None:
    with pytest.raises(MissingFile, match=r"nothing\.cu doesn't exist"):
        files.read("nothing.cu")
    with pytest.raises(CallRefused, match="doesn't exist"):
        files.read("no/such/file.cu")
    with pytest.raises(CallRefused, match="is a folder"):
        files.read("kernels")


def test_logs_can_be_read_but_not_written(files: WorkspaceFiles) -> None:
    assert files.read("logs/long.txt") == "long\n"
    with pytest.raises(CallRefused):
        files.write("logs/long.txt", "x")
    with pytest.raises(CallRefused):
        files.read("logs/../../secret.txt")


def test_what_is_not_text_is_refused(files: WorkspaceFiles) -> None:
    (files.root / "kernels" / "b.h").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CallRefused, match="is not text"):
        files.read("kernels/b.h")
