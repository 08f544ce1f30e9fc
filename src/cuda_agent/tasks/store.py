"""Files of JSON lines: appended to durably, so that a kill loses at most the line in flight."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from cuda_agent.core.errors import StoreError
from cuda_agent.core.record import SCHEMA_VERSION, Record

#: of a data set's folder: every candidate, a line each.
CANDIDATES_FILE = "candidates.jsonl"

Line = TypeVar("Line", bound=Record)
Head = TypeVar("Head", bound=Record)


def read_lines(path: Path, kind: type[Line]) -> list[Line]:
    """All records of a file (`.gz`: compressed); what was half-written at its end is dropped. Raises StoreError when it
    can't be read or a whole line isn't such a record."""
    return [_record(path, number, line, kind) for number, line in _whole_lines(path)]


def read_headed(path: Path, head: type[Head], kind: type[Line]) -> tuple[Head | None, list[Line]]:
    """The same for a file whose first line is of another kind; None where it has no whole line yet."""
    lines = _whole_lines(path)
    if not lines:
        return None, []
    rest = [_record(path, number, line, kind) for number, line in lines[1:]]
    return _record(path, *lines[0], head), rest


def _whole_lines(path: Path) -> list[tuple[int, bytes]]:
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        line = (isinstance(error, OSError) and error.strerror) or str(error)
        raise StoreError(f"Can't read {path}: {line}", "Check the path") from None
    return list(enumerate(raw[: raw.rfind(b"\n") + 1].splitlines(), 1))


def _record(path: Path, number: int, line: bytes, kind: type[Line]) -> Line:
    try:
        record = kind.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise StoreError(f"{path}, line {number}: {field}: {first['msg']}", "Restore the file") from None
    version = getattr(record, "schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"{path}, line {number} has schema version {version}, this cuda-agent reads {SCHEMA_VERSION}",
            "Use the cuda-agent that wrote it",
        )
    return record


def append(path: Path, records: Sequence[Record] | Iterable[Record]) -> None:
    """Write records at a file's end, past whatever was half-written there, and wait for the disk. Raises StoreError."""
    text = "".join(record.model_dump_json() + "\n" for record in records)
    if not text:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab+") as stream:
            _cut_unfinished(stream.fileno())
            stream.seek(0, os.SEEK_END)
            stream.write(text.encode())
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise StoreError(f"Can't write {path}: {error.strerror}", "Free some space or choose another folder") from None


def _cut_unfinished(handle: int) -> None:
    """Drop the bytes after the last line's end."""
    end = size = os.fstat(handle).st_size
    while end > 0:
        start = max(0, end - 65536)
        found = os.pread(handle, end - start, start).rfind(b"\n")
        if found >= 0:
            end = start + found + 1
            break
        end = start
    if end < size:
        os.ftruncate(handle, end)
