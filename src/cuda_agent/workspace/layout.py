"""The directory of a task in the published form: it is laid out, opened, snapshot, restored and locked."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.errors import StoreError, UsageError
from cuda_agent.core.files import write_durably
from cuda_agent.core.record import StoredRecord
from cuda_agent.core.records import Candidate, Task
from cuda_agent.workspace.skills import skill_notes

KERNEL_SUFFIXES = (".cu", ".cuh", ".cpp", ".h", ".hpp")
MAX_FILES = 200
MAX_BYTES = 2 << 20
#: limits of a snapshot: a command may leave any number of files under kernels/, at any depth.
_MAX_DEPTH, _MAX_ENTRIES = 16, 20_000
_PRIVATE = ".cuda-agent"
_TEMPLATE = Path(__file__).with_name("files")
_SKILLS = "skills"


class WorkspaceInfo(StoredRecord):
    """The record of a workspace's task and options. `interpreter` is the Python that has this package; commands that
    another Python runs start again with it."""

    file_name = "workspace.json"
    task: Task
    options: JudgeOptions
    interpreter: str


@cache
def fixed_files() -> Mapping[str, str]:
    """Returns path -> text of the files that are the same in every workspace."""
    found = sorted(path for path in _TEMPLATE.rglob("*") if path.is_file() and path.suffix != ".pyc")
    texts = {path.relative_to(_TEMPLATE).as_posix(): path.read_text() for path in found}
    table = "\n".join(f"| `{notes.name}` | {notes.purpose} |" for notes in skill_notes())
    return MappingProxyType({**texts, "SKILL.md": texts["SKILL.md"].replace("{{ skills }}", table)})


@lru_cache(maxsize=4096)
def is_writable(path: str) -> bool:
    """Whether a candidate may hold this file: `model_new.py`, or a source or header under `kernels/`."""
    pure = PurePosixPath(path)
    if path == "model_new.py":
        return True
    parts = pure.parts
    inside = len(parts) > 1 and parts[0] == "kernels" and not any(part in ("..", ".") for part in parts)
    return inside and pure.suffix in KERNEL_SUFFIXES and str(pure) == path and path.isprintable()


def check_candidate(candidate: Candidate) -> None:
    """Raises UsageError when a candidate has a file that it may not write, too many files or too many bytes."""
    for path in candidate.files:
        if not is_writable(path):
            raise UsageError(f"{path} can't be part of a candidate", f"Use model_new.py and kernels/*{KERNEL_SUFFIXES}")
    total = sum(len(text.encode()) for text in candidate.files.values())
    if len(candidate.files) > MAX_FILES or total > MAX_BYTES:
        cause = f"The candidate has {len(candidate.files)} files and {total} bytes"
        raise UsageError(cause, f"Keep to {MAX_FILES} files and {MAX_BYTES} bytes")


@dataclass(frozen=True)
class Workspace:
    """An opened workspace. `task` and `options` were recorded when it was laid out."""

    directory: Path
    task: Task
    options: JudgeOptions

    @property
    def fixed_paths(self) -> tuple[Path, ...]:
        """Files and folders that are never edited; an agent's sandbox mounts them read-only. Folders are mounted whole:
        a folder that only holds mounted files could be moved away with them."""
        tops = dict.fromkeys(name.partition("/")[0] for name in (*fixed_files(), "model.py", _SKILLS))
        return tuple(self.directory / name for name in tops)

    @property
    def socket(self) -> Path:
        """The socket of the judge that was started for this workspace alone."""
        return self.directory / _PRIVATE / "judge.sock"

    @property
    def library(self) -> Path:
        """The extension that a successful build leaves, at its place in the published workspace."""
        return self.directory / "cuda_extension.so"

    def edited_files(self) -> tuple[str, ...]:
        """Returns the names of fixed files that differ from this package's copies, and of `model.py` if it differs from
        the task."""
        expected = {**fixed_files(), "model.py": self.task.source}
        return tuple(name for name, text in expected.items() if _read_plain(self.directory / name) != text)

    def snapshot(self) -> Candidate:
        """Returns the writable files as they are now.

        Raises UsageError for a link, for text that isn't UTF-8, and when there are too many files or bytes.
        """
        files: dict[str, str] = {}
        _refuse_links(self.directory, self.directory / "kernels" / "any")
        found, complete = _below(self.directory / "kernels")
        if not complete:
            cause = f"kernels/ holds more than {_MAX_ENTRIES} files or is nested deeper than {_MAX_DEPTH} folders"
            raise UsageError(cause, "Remove what isn't part of the candidate")
        for path in [self.directory / "model_new.py", *found]:
            name = str(path).removeprefix(f"{self.directory}/")
            if not is_writable(name) or path.is_dir() or not os.path.lexists(path):
                continue
            text = _read_plain(path)
            if text is None:
                raise UsageError(f"{name} is not a plain UTF-8 text file of at most {MAX_BYTES} bytes", "Replace it")
            files[name] = text
        candidate = Candidate(files=files)
        check_candidate(candidate)
        return candidate

    def restore(self, candidate: Candidate) -> None:
        """Makes the writable files equal to the candidate's. Raises UsageError for a path that a candidate may not
        have, and StoreError when the disk refuses."""
        check_candidate(candidate)
        kernels = self.directory / "kernels"
        _refuse_links(self.directory, kernels / "any")
        for path in _below(kernels)[0]:
            name = path.relative_to(self.directory).as_posix()
            if name not in candidate.files and is_writable(name) and not path.is_dir():
                path.unlink()
        if "model_new.py" not in candidate.files:
            (self.directory / "model_new.py").unlink(missing_ok=True)
        for name, text in candidate.files.items():
            target = self.directory / name
            if _read_plain(target) != text:
                _refuse_links(self.directory, target)
                write_durably(target, text)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Locks the workspace for one run. Raises StoreError when another process holds the lock."""
        with (self.directory / _PRIVATE / "lock").open("w") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise StoreError(
                    f"{self.directory} is in use by another run", "Wait for it or use another --out"
                ) from None
            yield


def _below(folder: Path) -> tuple[list[Path], bool]:
    """Returns the paths under a folder, sorted, without following links; and whether the limits left none out."""
    found: list[Path] = []
    complete = True
    for current, folders, names in os.walk(folder):
        found += [Path(current, name) for name in (*folders, *names)]
        if len(found) > _MAX_ENTRIES:
            return sorted(found), False
        if len(Path(current).relative_to(folder).parts) >= _MAX_DEPTH - 1:
            complete &= all(Path(current, name).is_symlink() for name in folders)
            folders.clear()
    return sorted(found), complete


def _read_plain(path: Path) -> str | None:
    """Returns the text of a regular file of bounded size, None for anything else. Follows no link at the path's end."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        raw = stream.read(MAX_BYTES + 1)
    try:
        return raw.decode() if len(raw) <= MAX_BYTES else None
    except UnicodeDecodeError:
        return None


def _refuse_links(root: Path, path: Path) -> None:
    """Raises UsageError when a folder of the path is a link: a restore would write elsewhere."""
    for parent in path.parents:
        if parent == root:
            return
        if parent.is_symlink():
            raise UsageError(f"{parent} is a link", "Replace it by a folder")


def create(task: Task, directory: Path, *, options: JudgeOptions) -> Workspace:
    """Lays out a workspace in a new or empty directory.

    Raises UsageError when the directory isn't empty, StoreError when it can't be written.
    """
    directory = directory.resolve()
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory} exists and is not empty", "Choose a new directory")
    # The playbook's notes as Agent Skills, for reading.
    skills = {f"{_SKILLS}/{notes.name}/SKILL.md": notes.page for notes in skill_notes()}
    for name, text in {**fixed_files(), **skills, "model.py": task.source}.items():
        write_durably(directory / name, text)
        (directory / name).chmod(0o444)
    (directory / "kernels").mkdir(exist_ok=True)
    WorkspaceInfo(task=task, options=options, interpreter=sys.executable).write(directory / _PRIVATE)
    return Workspace(directory, task, options)


def open_workspace(directory: Path) -> Workspace:
    """Opens a workspace. Raises UsageError when the directory isn't one or its fixed files were edited, StoreError when
    it can't be read."""
    workspace = _recorded(directory)
    edited = workspace.edited_files()
    if edited:
        names = ", ".join(edited)
        raise UsageError(f"Fixed files were edited or are missing: {names}", "Lay the workspace out again with `init`")
    return workspace


def renew(directory: Path) -> tuple[Workspace, tuple[str, ...]]:
    """Opens a workspace and writes the fixed files that differ again; returns their names.

    It is for a workspace in which only sandboxed commands wrote, and which another version may have laid out. Raises
    the errors of `open_workspace`, and StoreError when a file can't be written.
    """
    workspace = _recorded(directory)
    changed = workspace.edited_files()
    expected = {**fixed_files(), "model.py": workspace.task.source}
    for name in changed:
        write_durably(workspace.directory / name, expected[name])
        (workspace.directory / name).chmod(0o444)
    return workspace, changed


def _recorded(directory: Path) -> Workspace:
    directory = directory.resolve()
    if not (directory / _PRIVATE / WorkspaceInfo.file_name).is_file():
        what = "is not a workspace" if directory.exists() else "doesn't exist, so it is not a workspace"
        raise UsageError(f"{directory} {what}", "Lay one out with `cuda-agent init TASK.py DIR`")
    info = WorkspaceInfo.read(directory / _PRIVATE)
    return Workspace(directory, info.task, info.options)
