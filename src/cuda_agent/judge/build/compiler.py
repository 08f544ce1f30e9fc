"""Runs a compiler in a sandbox and caches its outputs."""

import fcntl
import os
import re
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from cuda_agent.core.enums import SandboxLevel
from cuda_agent.core.errors import StoreError
from cuda_agent.core.hashing import digest_files, digest_text
from cuda_agent.judge.build import nvcc
from cuda_agent.judge.build.toolchain import Toolchain
from cuda_agent.judge.guard import COMPILED, MOST_TEXT, Compiled
from cuda_agent.workspace.process import SandboxedProcess, wait_until
from cuda_agent.workspace.sandbox import SandboxLimits, SandboxSpec, spawn

_MEMORY_MIB = 8192
#: with less free space a failed compile is the disk's fault, since the largest object is smaller.
_LEAST_FREE = 16 << 20
_OUTPUT_LIMIT_BYTES = 1 << 30
_CACHE_LIMIT_BYTES = 4 << 30
_OBJECT_FORMAT = "6"
_TEXT_LIMIT = 6000
_MAKE_SPACE = "Free some space or set CUDA_AGENT_CACHE"


@dataclass(frozen=True)
class Outcome:
    """The outcome of one compiler run. `fault` is empty on success, else the cause in one line. `log` holds the
    compiler's messages."""

    output: Path | None
    log: str
    fault: str = ""
    cached: bool = False


class ObjectCache:
    """Stores files by the digest of all their inputs. Several processes may use it. The oldest files are removed
    first."""

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            for name in ("objects", "libraries", "headers", "scratch"):
                (root / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"Can't create the build cache {root}: {error.strerror}", "Set CUDA_AGENT_CACHE") from None

    def find(self, kind: str, key: str, name: str) -> Path | None:
        """Returns the stored file and marks it as used now."""
        path = self.root / kind / key / name
        if not path.is_file():
            return None
        os.utime(path.parent)
        return path

    def keep(self, kind: str, key: str, name: str, made: Path, beside: Sequence[Path] = ()) -> Path:
        """Moves a finished file and its companions into the cache. Raises StoreError where there is no space."""
        folder = self.root / kind / key
        staging = Path(tempfile.mkdtemp(dir=self.root / "scratch"))
        try:
            shutil.move(made, staging / name)
            (staging / name).chmod(0o555)
            for path in beside:
                shutil.move(path, staging / path.name)
            staging.chmod(0o755)
            if not (folder / name).exists():
                shutil.rmtree(folder, ignore_errors=True)
                staging.rename(folder)
        except OSError as error:
            if not (folder / name).exists():
                raise self._unwritable(error) from None
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return folder / name

    def made(self, kind: str, key: str, name: str, make: Callable[[Path], None]) -> Path:
        """Returns the stored file. Where there is none, `make` writes it under this name into a scratch folder. Raises
        StoreError where there is no space."""
        found = self.find(kind, key, name)
        if found is not None:
            return found
        with self.scratch() as scratch:
            make(scratch)
            return self.keep(kind, key, name, scratch / name)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Makes a folder on the cache's file system and removes it after the block."""
        try:
            folder = Path(tempfile.mkdtemp(prefix="build-", dir=self.root / "scratch"))
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _unwritable(self, error: OSError) -> StoreError:
        return StoreError(f"Can't write to the build cache {self.root}: {error.strerror}", _MAKE_SPACE)

    @contextmanager
    def lock(self, key: str) -> Iterator[None]:
        with (self.root / "headers" / f"{key}.lock").open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    def prune(self, limit_bytes: int | None = None) -> None:
        """Removes the least recently used files until the rest is within the limit."""
        entries = []
        for kind in ("objects", "libraries", "headers"):
            for folder in (self.root / kind).iterdir():
                if folder.is_dir():
                    size = sum(path.stat().st_size for path in folder.iterdir())
                    entries.append((folder.stat().st_mtime, size, folder))
        limit_bytes = _CACHE_LIMIT_BYTES if limit_bytes is None else limit_bytes
        total = sum(size for _, size, _ in entries)
        for _, size, folder in sorted(entries):
            if total <= limit_bytes:
                return
            shutil.rmtree(folder, ignore_errors=True)
            total -= size


def prune_builds(library: Path) -> None:
    """Prunes the cache that holds this library, where another machine's build was stored."""
    ObjectCache(library.parents[2]).prune()


@dataclass(frozen=True)
class Compiler:
    """Runs the compilers of one build. `deadline` is on the monotonic clock, in seconds."""

    tools: Toolchain
    cache: ObjectCache
    level: SandboxLevel
    deadline: float
    running: set[SandboxedProcess] = field(default_factory=set)
    abandoned: threading.Event = field(default_factory=threading.Event)

    def abandon(self) -> None:
        """Ends every running compiler and starts no other, since the build is given up. For threads that wait for a
        compiler."""
        self.abandoned.set()
        for process in tuple(self.running):
            process.kill()

    def compile(
        self,
        command: list[str],
        files: Mapping[str, str],
        source: str,
        header: Path | None = None,
        *,
        started: Callable[[str], None] = lambda _: None,
    ) -> Outcome:
        """Compiles `source`, which sees only `files` of the workspace. Messages name paths as in the workspace.

        `started` is called when a compiler really runs. The candidate's own part of what the compiler read is kept
        beside the object, for the guard.
        """
        made_with = header.parent.name if header else ""
        key = digest_text(_OBJECT_FORMAT, self.tools.fingerprint, *command, made_with, source, digest_files(files))
        found = self.cache.find("objects", key, "object.o")
        if found is not None:
            return Outcome(found, "", cached=True)
        started(source)
        with self.cache.scratch() as scratch:
            root = write_files(scratch / "workspace", files)
            kept, made = scratch / "kept", scratch / "object.o"
            kept.mkdir()
            if source.endswith(".cu"):
                outcome = self.run(self._nvcc(command, source, kept, made, key), root, scratch, made)
            else:
                outcome = self._cxx(command, source, kept, made, header)
            if outcome.output is None:
                return outcome
            compiled = _compiled(kept, (*self.tools.readable, *((header.parent,) if header else ())))
            if compiled is None:
                return Outcome(None, outcome.log, f"more than {MOST_TEXT >> 20} MiB after the preprocessor")
            compiled.save(scratch / COMPILED)
            return Outcome(self.cache.keep("objects", key, "object.o", made, [scratch / COMPILED]), outcome.log)

    def _nvcc(self, command: list[str], source: str, kept: Path, made: Path, key: str) -> list[str]:
        steps = nvcc.script(tuple(command), source, str(kept), str(made), f"_{key[:16]}")
        if steps is None:
            return [*command, "--keep", "--keep-dir", str(kept), "-c", source, "-o", str(made)]
        (kept / "steps.sh").write_text(steps)
        return ["/bin/sh", str(kept / "steps.sh")]

    def _cxx(self, command: list[str], source: str, kept: Path, made: Path, header: Path | None) -> Outcome:
        """Preprocesses with g++ and compiles the output, so that the guard reads what is compiled. Nothing in a source
        can tell two preprocessors from each other, since there is one. The output names the precompiled header, which
        the preprocessor doesn't read."""
        text, scratch = kept / "source.ii", kept.parent
        included = ["-Winvalid-pch", "-include", str(header), "-fpch-preprocess"] if header else []
        root = scratch / "workspace"
        first = self.run([*command, *included, "-E", source, "-o", str(text)], root, scratch, text, header)
        if first.output is None:
            return first
        options = ["-Winvalid-pch", "-x", "c++-cpp-output", "-c", str(text), "-o", str(made)]
        outcome = self.run([*command, *options], root, scratch, made, header)
        return replace(outcome, log="\n".join(filter(None, (first.log, outcome.log))))

    def run(self, command: list[str], cwd: Path, scratch: Path, made: Path, header: Path | None = None) -> Outcome:
        """Runs one compiler in a sandbox that may write only to `scratch`. `made` is the expected output file. Raises
        StoreError where the disk is full."""
        if self.abandoned.is_set():
            return Outcome(None, "", "the build was given up")
        log = scratch / "log"
        spec = SandboxSpec(
            scratch=scratch,
            level=self.level,
            readable=(*self.tools.readable, *((header.parent,) if header else ())),
            environment={"LC_ALL": "C.UTF-8"},
            limits=SandboxLimits(memory_mib=_MEMORY_MIB, processes=64, file_mib=2048, scratch_mib=2048),
        )
        with spawn(command, spec, cwd=cwd, log=log) as process:
            self.running.add(process)
            if self.abandoned.is_set():
                process.kill()
            try:
                code = wait_until(process, self.deadline)
            finally:
                self.running.discard(process)
            limit = process.limit_hit
        text = _clean(log, cwd)
        if "No space left on device" in text:
            raise StoreError("The disk is full: the compiler can't write", _MAKE_SPACE)
        fault = _fault(code, limit, text)
        if not fault and not _is_plain(made):
            fault = "the compiler left no object file"
        free = shutil.disk_usage(scratch).free
        if fault and free < _LEAST_FREE:
            # The log is on the same disk, so it may be empty.
            raise StoreError(f"The disk is full: {free >> 20} MiB are left for compiling", _MAKE_SPACE)
        return Outcome(None if fault else made, text, fault)


def write_files(root: Path, files: Mapping[str, str]) -> Path:
    """Writes texts at their paths below a folder, and returns the folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def _compiled(kept: Path, foreign: Sequence[Path]) -> Compiled | None:
    """Reads the preprocessed text that one compile left, and the kernels that nvcc registered. Returns None where there
    is too much of it. `foreign`: the folders of headers."""
    plain = [path for path in sorted(kept.iterdir()) if _is_plain(path)]
    outputs = [path for path in plain if path.suffix == ".ii"]
    return Compiled.read(outputs, [path for path in plain if path.name.endswith(".cudafe1.stub.c")], foreign)


def _is_plain(path: Path) -> bool:
    """Whether a path is a regular file of bounded size. The compiler's input is hostile, and so are its outputs."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and 0 < found.st_size <= _OUTPUT_LIMIT_BYTES


def _clean(log: Path, root: Path) -> str:
    """Returns at most 1 MiB of the log, with paths as in the workspace."""
    try:
        with log.open("rb") as stream:
            text = stream.read(1 << 20).decode(errors="replace")
    except OSError:
        return ""
    text = text.replace(f"{root}/", "").replace(str(root.parent), "")
    text = re.sub(r"[^\n]*#pragma once in main file[^\n]*\n(?:[^\n]*\n){2}", "", text)
    return text.strip()


def shorten(text: str, limit: int = _TEXT_LIMIT) -> str:
    """Returns the beginning and the end of a log: the first error explains the rest, the last lines tell how it
    ended."""
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]}\n[…]\n{text[-half:]}"


def _fault(code: int | None, limit: str | None, text: str) -> str:
    if limit == "memory" or "out of memory" in text or "cannot allocate memory" in text.lower():
        return f"the compiler needed more than {_MEMORY_MIB} MiB of memory"
    if limit is not None:
        return f"the compiler was ended: too many {limit}"
    if code is None:
        return "the compiler took too long"
    if code < 0 or "internal compiler error" in text or "Segmentation fault" in text:
        return "the compiler crashed"
    return "" if code == 0 else "compile error"


def deadline_after(seconds: float) -> float:
    return time.monotonic() + seconds
