"""Snapshots of everything that the agent may write in its workspace. One is taken before each tool and restored when a
run resumes, so a command that was killed half-way leaves nothing."""

import contextlib
import os
import stat
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Literal

from cuda_agent.agent.storage.store import ContentStore, name_of
from cuda_agent.core.errors import StoreError
from cuda_agent.core.record import Record

#: a larger file isn't stored. If it changed meanwhile, it is removed when the run resumes.
MAX_FILE_BYTES = 64 << 20
#: files beyond this number, and folders beyond this depth, are left as they are.
MAX_ENTRIES = 20_000
MAX_DEPTH = 16
#: a file that changed within this time may change again without a new time stamp.
_TICK_NS = 100_000_000


class FileEntry(Record):
    """What stands at one path. `content` names a file's stored object (None: too large), or is a link's target."""

    kind: Literal["file", "folder", "link"]
    content: str | None = None
    mode: int = 0o644
    mtime_ns: int = 0


Tree = dict[str, FileEntry]


class Snapshots:
    """Takes and restores snapshots of one workspace. Only files with new metadata are read, only new contents
    stored."""

    def __init__(self, root: Path, store: ContentStore, fixed: Collection[str]) -> None:
        """`fixed` are relative paths that the agent can't change."""
        self._root, self._store, self._fixed = root, store, frozenset(fixed)
        self._known: dict[str, tuple[tuple[int, int, int, int], str]] = {}

    def take(self) -> Tree:
        """Takes a snapshot. Follows no links. Raises StoreError when the disk refuses."""
        return {path: entry for path, entry in self._entries(store=True) if entry is not None}

    def restore(self, tree: Mapping[str, FileEntry]) -> None:
        """Makes the workspace what it was. No process may run in it. Raises StoreError."""
        try:
            for path, found in sorted(self._entries(store=False), reverse=True):
                wanted = tree.get(path)
                same_kind = wanted is not None and found is not None and wanted.kind == found.kind
                if not same_kind or (wanted != found and found is not None and found.kind != "folder"):
                    _remove(self._root / path)
            for path in sorted(tree):
                self._put(self._root / path, tree[path])
        except OSError as error:
            raise StoreError(f"Can't restore {self._root}: {error.strerror}", "Free some space") from None

    def _walk(self) -> Iterator[tuple[str, str, int, os.stat_result]]:
        """Yields (relative path, name, descriptor of its folder, metadata), a folder before its contents."""
        count = 0
        for folder, folders, names, handle in os.fwalk(self._root, follow_symlinks=False):
            prefix = os.path.relpath(folder, self._root)
            prefix = "" if prefix == "." else prefix + "/"
            if not prefix and ".cuda-agent" in folders:
                folders.remove(".cuda-agent")
            folders[:] = [name for name in folders if prefix + name not in self._fixed]
            if prefix.count("/") >= MAX_DEPTH:
                folders.clear()
            for name in (*folders, *names):
                if prefix + name in self._fixed or not _is_text(prefix + name):
                    continue
                count += 1
                if count > MAX_ENTRIES:
                    return
                with contextlib.suppress(FileNotFoundError):
                    yield prefix + name, name, handle, os.stat(name, dir_fd=handle, follow_symlinks=False)

    def _entries(self, *, store: bool) -> Iterator[tuple[str, FileEntry | None]]:
        """Yields every path with its entry, None for a socket, a pipe and what can't be read."""
        for path, name, folder, facts in self._walk():
            entry, mode = None, stat.S_IMODE(facts.st_mode)
            with contextlib.suppress(OSError):
                if stat.S_ISDIR(facts.st_mode):
                    entry = FileEntry(kind="folder", mode=mode)
                elif stat.S_ISLNK(facts.st_mode):
                    entry = FileEntry(kind="link", content=os.readlink(name, dir_fd=folder))
                elif stat.S_ISREG(facts.st_mode):
                    content = self._content(path, name, folder, facts, store=store)
                    entry = FileEntry(kind="file", content=content, mode=mode, mtime_ns=facts.st_mtime_ns)
            yield path, entry

    def _content(self, path: str, name: str, folder: int, facts: os.stat_result, *, store: bool) -> str | None:
        if facts.st_size > MAX_FILE_BYTES:
            return None
        signature = facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns
        known = self._known.get(path)
        if known is not None and known[0] == signature:
            return known[1]
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        with os.fdopen(handle, "rb") as stream:
            raw = stream.read(MAX_FILE_BYTES)
        if not store:
            return name_of(raw)
        content = self._store.put(raw)
        if time.time_ns() - facts.st_ctime_ns > _TICK_NS:
            self._known[path] = (signature, content)
        return content

    def _put(self, path: Path, entry: FileEntry) -> None:
        if entry.kind == "folder":
            path.mkdir(exist_ok=True)
            path.chmod(entry.mode | stat.S_IRWXU)
        elif path.is_symlink() or path.exists():
            return
        elif entry.kind == "link":
            path.symlink_to(entry.content or "")
        elif entry.content is not None:
            path.write_bytes(self._store.get(entry.content))
            path.chmod(entry.mode)
            os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns))


def objects(tree: Mapping[str, FileEntry]) -> set[str]:
    """Returns the names of the stored contents that a snapshot needs."""
    return {entry.content for entry in tree.values() if entry.kind == "file" and entry.content is not None}


def _is_text(path: str) -> bool:
    """Whether the name is UTF-8. Other names can't be recorded, so such files are left as they are."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        # Python's own rmtree ends at the recursion limit.
        subprocess.run(["rm", "-rf", "--", str(path)], check=False)
    else:
        path.unlink(missing_ok=True)
