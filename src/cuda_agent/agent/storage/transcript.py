"""Stores turns, one JSON line each. A turn is durable before the next begins."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from cuda_agent.core.errors import StoreError
from cuda_agent.core.records import Turn

FILE_NAME = "transcript.jsonl"


class Transcript:
    """The append-only file of turns. `turns` is its content."""

    def __init__(self, directory: Path, turns: Sequence[Turn] = ()) -> None:
        """`turns` are those in the file. Raises StoreError."""
        self.path = directory / FILE_NAME
        self.turns: list[Turn] = list(turns)
        if self.path.exists():
            self._drop_half_a_line()

    def _drop_half_a_line(self) -> None:
        """Removes the part of a line that a stopped machine left, so the next line starts clean."""
        try:
            with self.path.open("rb+") as stream:
                stream.truncate(stream.read().rfind(b"\n") + 1)
        except OSError as error:
            raise StoreError(f"Can't write {self.path}: {error.strerror}", "Check its permissions") from None

    def append(self, turn: Turn) -> None:
        """Writes a turn and syncs the file. Raises StoreError (no space, no permission); the turn then doesn't
        count."""
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
        """Writes the whole line or nothing, even if the disk fills up in between."""
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
    """Returns the turns of a run directory. An incomplete last line, left by a stopped machine, is dropped.

    Raises StoreError if the file can't be read or a whole line isn't a turn.
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
