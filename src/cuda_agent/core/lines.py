"""Reads files of JSON lines, and appends to them durably, so that a kill loses at most the line being written."""

import contextlib
import gzip
import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from cuda_agent.core.errors import StoreError
from cuda_agent.core.files import append_lines, write_durably
from cuda_agent.core.record import SCHEMA_VERSION, Record

_GZIP = b"\x1f\x8b"
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


def read_objects(path: Path) -> list[dict[str, Any]]:
    """Returns the JSON objects in a file's lines, none if it can't be read. Damaged lines are left out."""
    found = []
    with contextlib.suppress(OSError):
        for line in path.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return [entry for entry in found if isinstance(entry, dict)]


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
