"""Reads files of JSON lines, and appends to them durably, so that a kill loses at most the line being written."""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import os
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from cuda_agent.core.errors import StoreError
from cuda_agent.core.files import append_lines, write_durably
from cuda_agent.core.record import SCHEMA_VERSION, Record

#: The file of a dataset's folder that has every candidate, a line each.
CANDIDATES_FILE = "candidates.jsonl"

_GZIP = b"\x1f\x8b"
_RELEASE_S = 1.0
Line = TypeVar("Line", bound=Record)
Head = TypeVar("Head", bound=Record)


def read_lines(path: Path, kind: type[Line], *, optional: bool = False) -> list[Line]:
    """Returns all records of a file, compressed by gzip or not, without an incomplete last line; none where the file is
    `optional` and doesn't exist. Raises StoreError when it can't be read or a line isn't such a record."""
    if optional and not path.exists():
        return []
    return [_record(path, number, line, kind) for number, line in _whole_lines(path)]


def read_headed(path: Path, head: type[Head], kind: type[Line]) -> tuple[Head | None, list[Line]]:
    """Returns the first line's record (None in an empty file), which is of another kind, and those of the other
    lines."""
    lines = _whole_lines(path)
    if not lines:
        return None, []
    rest = [_record(path, number, line, kind) for number, line in lines[1:]]
    return _record(path, *lines[0], head), rest


def _whole_lines(path: Path) -> list[tuple[int, bytes]]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise StoreError(f"Can't read {path}: {error.strerror}", "Check the path") from None
    try:
        raw = gzip.decompress(raw) if raw.startswith(_GZIP) else raw
    except (OSError, EOFError, zlib.error) as error:
        raise StoreError(f"Can't read {path}: {error}", "Copy it again: it isn't a complete gzip file") from None
    return list(enumerate(raw[: raw.rfind(b"\n") + 1].splitlines(), 1))


def _record(path: Path, number: int, line: bytes, kind: type[Line]) -> Line:
    try:
        record = kind.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        field = "".join(f"{part}: " for part in first["loc"])
        remedy = f"Restore the file, or give a file of {kind.__name__} lines"
        raise StoreError(f"{path}, line {number}: {field}{first['msg']}", remedy) from None
    version = getattr(record, "schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"{path}, line {number} has schema version {version}, this cuda-agent reads {SCHEMA_VERSION}",
            "Use the cuda-agent that wrote it",
        )
    return record


def append(path: Path, records: Iterable[Record]) -> None:
    """Appends records durably, and removes an incomplete last line that a kill left. Raises StoreError."""
    lines = [record.model_dump_json() for record in records]
    if lines:
        append_lines(path, lines)


def write_lines(path: Path, records: Iterable[Record]) -> None:
    """Writes the records as a whole file, durably. Raises StoreError."""
    write_durably(path, "".join(record.model_dump_json() + "\n" for record in records))


@contextlib.contextmanager
def only_one(folder: Path, work: str) -> Iterator[None]:
    """Locks a kind of work in the folder for this process. Raises StoreError."""
    try:
        handle = os.open(folder / f".{work}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"Can't write in {folder}: {error.strerror}", "Choose a folder that can be written") from None
    try:
        # A process that was killed while it started another leaves it the lock until that one calls `exec`.
        end = time.monotonic() + _RELEASE_S
        while not _lock(handle):
            if time.monotonic() > end:
                raise StoreError(f"Another {work} is running in {folder}", "Wait for it, or end it")
            time.sleep(0.02)
        yield
    finally:
        os.close(handle)


def _lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
