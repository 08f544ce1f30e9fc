"""Turns on disk, one JSON line each, durable before the next begins."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from cuda_agent.core.errors import StoreError
from cuda_agent.core.records import Turn

FILE_NAME = "transcript.jsonl"


class Transcript:
    """Append-only. `turns` is what it holds."""

    def __init__(self, directory: Path, turns: Sequence[Turn] = ()) -> None:
        """`turns`: those that are in the file already. Raises StoreError."""
        self.path = directory / FILE_NAME
        self.turns: list[Turn] = list(turns)
        if self.path.exists():
            self._drop_half_a_line()

    def _drop_half_a_line(self) -> None:
        """What stood after the last whole line, where a machine stopped on its way, must not begin the next one."""
        try:
            with self.path.open("rb+") as stream:
                stream.truncate(stream.read().rfind(b"\n") + 1)
        except OSError as error:
            raise StoreError(f"Can't write {self.path}: {error.strerror}", "Check its permissions") from None

    def append(self, turn: Turn) -> None:
        """Write and fsync. Raises StoreError (no space, no permission); the turn then doesn't count."""
        line = turn.model_dump_json().encode() + b"\n"
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                self._write(handle, line)
            finally:
                os.close(handle)
        except OSError as error:
            raise StoreError(f"Can't write {self.path}: {error.strerror}", "Free some space") from None
        self.turns.append(turn)

    def _write(self, handle: int, line: bytes) -> None:
        """All of the line or nothing: a disk that fills up in between must not leave half a turn."""
        size = os.fstat(handle).st_size
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(handle, rest) :]
            os.fsync(handle)
        except OSError:
            os.ftruncate(handle, size)
            raise


def read_transcript(directory: Path) -> tuple[Turn, ...]:
    """The turns of a run directory. A last line without its end (the machine stopped there) is dropped.

    Raises StoreError when the file can't be read or a whole line isn't a turn.
    """
    path = directory / FILE_NAME
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise StoreError(f"Can't read {path}: {error.strerror}", "Check the path") from None
    turns = []
    for number, line in enumerate(raw.split(b"\n")[:-1], start=1):
        try:
            turns.append(Turn.model_validate_json(line))
        except ValidationError as error:
            raise StoreError(f"{path}, line {number} is not a turn: {error.errors()[0]['msg']}") from None
    return tuple(turns)
