"""The agent's files: every path is confined to the workspace, and only the candidate's files can be written.

A path is opened component by component with O_NOFOLLOW. So a link that a shell command makes, even between check and
use, leads nowhere. Links are refused rather than resolved, hard links too. Files are replaced, never written into.
"""

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from cuda_agent.core.errors import StoreError
from cuda_agent.core.hashing import digest_text
from cuda_agent.workspace.layout import KERNEL_SUFFIXES, MAX_BYTES, is_writable

_HIDDEN = (".cuda-agent", "__pycache__", ".git")
#: files and folders beyond these limits aren't listed: a command may leave any number of them, at any depth.
_MAX_LISTED, _MAX_DEPTH = 20_000, 16


class CallRefused(Exception):
    """A tool call that can't be done. The policy receives the text, which says what to do instead."""


class MissingFile(CallRefused):
    """The file doesn't exist."""


class NotText(CallRefused):
    """The file holds bytes that aren't UTF-8."""


class WorkspaceFiles:
    """Reads and writes by workspace-relative path. Files of the folder `logs`, which lies outside, can be read as
    `logs/…`."""

    def __init__(self, root: Path, logs: Path) -> None:
        self.root = root.resolve()
        self.logs = logs.resolve()
        self._seen: dict[str, str] = {}

    def known(self) -> dict[str, str]:
        """Returns path -> digest of the files as they were last read or written. A resumed run needs it."""
        return dict(self._seen)

    def remember(self, known: Mapping[str, str]) -> None:
        """Counts these files as read."""
        self._seen.update(known)

    def relative(self, path: str) -> str:
        """Returns the normalised path inside the workspace. Raises CallRefused when it lies outside."""
        if "\0" in path:
            raise CallRefused("A path can't hold a null character.")
        inside = PurePosixPath(os.path.normpath(self.root / path))
        if not inside.is_relative_to(self.root):
            raise CallRefused(f"{path} is outside the workspace. Use a path relative to it.")
        return inside.relative_to(self.root).as_posix()

    def read(self, path: str) -> str:
        """Returns the text of a file. Raises CallRefused for a path outside, a link, a folder, or a file that is
        missing, too large or not text."""
        text = self.peek(path)
        self._seen[self.relative(path)] = digest_text(text)
        return text

    def peek(self, path: str) -> str:
        """Reads a file without counting it as read."""
        relative = self.relative(path)
        root, inner = self.root, relative
        if relative.startswith("logs/") and not (self.root / "logs").exists():
            root, inner = self.logs, relative.removeprefix("logs/")
        with _parent(root, inner) as (folder, name):
            return _read_text(folder, name, relative)

    def read_known(self, path: str) -> str:
        """Returns the text of a file that was read before and hasn't changed since. Raises CallRefused otherwise."""
        relative = self.relative(path)
        known = self._seen.get(relative)
        text = self.peek(path)
        if known != digest_text(text):
            state = "was not read" if known is None else "has changed since it was read"
            raise CallRefused(f"{relative} {state}. Read it first.")
        return text

    def write(self, path: str, text: str) -> bool:
        """Writes a file of the candidate and returns whether it is new. Raises CallRefused when the path isn't
        writable, or when the file exists and wasn't read since it last changed. Raises StoreError when the disk
        refuses."""
        relative = self.relative(path)
        if not is_writable(relative):
            suffixes = ", ".join(KERNEL_SUFFIXES)
            raise CallRefused(
                f"{relative} is fixed. Only model_new.py and files under kernels/ ({suffixes}) are yours."
            )
        if len(text.encode(errors="surrogatepass")) > MAX_BYTES:
            raise CallRefused(f"{relative} would be larger than {MAX_BYTES >> 20} MiB.")
        with _parent(self.root, relative, create=True) as (folder, name):
            try:
                old: str | None = _read_text(folder, name, relative)
            except MissingFile:
                old = None
            except NotText:
                old = ""
            if old is not None and self._seen.get(relative) != digest_text(old):
                state = "has changed since it was read" if relative in self._seen else "exists and was not read"
                raise CallRefused(f"{relative} {state}. Read it first.")
            _write_text(folder, name, text)
        self._seen[relative] = digest_text(text)
        return old is None

    def walk(self) -> Iterator[str]:
        """Yields the relative paths of the workspace's regular files, sorted within a folder. Links, caches and our own
        state are left out. Links that appear meanwhile aren't followed."""
        pending: list[tuple[str, ...]] = [()]
        listed = 0
        while pending and listed < _MAX_LISTED:
            parts = pending.pop()
            with (
                suppress(CallRefused),
                _folder(self.root, parts, "/".join(parts)) as handle,
                os.scandir(handle) as found,
            ):
                names = sorted(found, key=lambda entry: entry.name)
                for entry in names:
                    if entry.is_file(follow_symlinks=False):
                        listed += 1
                        yield "/".join((*parts, entry.name))
                inner = [entry.name for entry in names if entry.is_dir(follow_symlinks=False)]
                if len(parts) < _MAX_DEPTH:
                    pending += [(*parts, name) for name in reversed(inner) if name not in _HIDDEN]


@contextmanager
def _parent(root: Path, relative: str, *, create: bool = False) -> Iterator[tuple[int, str]]:
    """Yields the descriptor of the folder that holds `relative`, and the last name. Follows no link."""
    *folders, name = PurePosixPath(relative).parts or (".",)
    with _folder(root, folders, relative, create=create) as handle:
        yield handle, name


@contextmanager
def _folder(root: Path, parts: Sequence[str], shown: str, *, create: bool = False) -> Iterator[int]:
    """Yields the descriptor of `root/parts…`, opened one component at a time. Raises CallRefused where a component is
    missing, a link or no folder."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    current = os.open(root, flags)
    try:
        for part in parts:
            try:
                if create:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=current)
                following = os.open(part, flags, dir_fd=current)
            except FileNotFoundError:
                raise CallRefused(f"{shown} doesn't exist.") from None
            except NotADirectoryError:
                raise CallRefused(f"{shown} leads through something that isn't a folder.") from None
            except OSError as error:
                raise CallRefused(f"{shown}: {error.strerror}.") from None
            os.close(current)
            current = following
        yield current
    finally:
        os.close(current)


def _read_text(folder: int, name: str, shown: str) -> str:
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        raise MissingFile(f"{shown} doesn't exist. Use Glob to see what does.") from None
    except OSError as error:
        raise CallRefused(f"Can't read {shown}: {error.strerror} (links are not followed).") from None
    try:
        facts = os.fstat(handle)
        if stat.S_ISDIR(facts.st_mode):
            raise CallRefused(f"{shown} is a folder. Use Glob to list it.")
        if not stat.S_ISREG(facts.st_mode):
            raise CallRefused(f"{shown} is not a regular file.")
        if facts.st_nlink > 1:
            raise CallRefused(f"{shown} is a hard link: the same file has another name. Remove it and write it anew.")
        if facts.st_size > MAX_BYTES:
            raise CallRefused(f"{shown} is larger than {MAX_BYTES >> 20} MiB. Use Grep or Bash to see parts of it.")
        with os.fdopen(handle, "rb", closefd=False) as stream:
            raw = stream.read(MAX_BYTES + 1)
    finally:
        os.close(handle)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise NotText(f"{shown} is not text.") from None


def _write_text(folder: int, name: str, text: str) -> None:
    """Writes a temporary file and renames it, so no reader sees half of it and nothing is written through a link."""
    temporary = f".{secrets.token_hex(8)}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        handle = os.open(temporary, flags, 0o644, dir_fd=folder)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(text.encode(errors="replace"))
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            os.unlink(temporary, dir_fd=folder)
            raise
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise CallRefused(f"Can't write {name}: {error.strerror}.") from None
        raise StoreError(f"Can't write {name}: {error.strerror}", "Free some space or choose another --out") from None
