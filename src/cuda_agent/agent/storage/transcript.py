"""Stores turns, one JSON line each. A turn is durable before the next begins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from cuda_agent.core.errors import StoreError
from cuda_agent.core.files import append_lines
from cuda_agent.core.records import Turn

FILE_NAME = "transcript.jsonl"


class Transcript:
    """The append-only file of turns. `turns` is its content."""

    def __init__(self, directory: Path, turns: Sequence[Turn] = ()) -> None:
        """`turns` are those in the file."""
        self.path = directory / FILE_NAME
        self.turns: list[Turn] = list(turns)

    def append(self, turn: Turn) -> None:
        """Writes a turn durably. Raises StoreError (no space, no permission); the turn then doesn't count."""
        append_lines(self.path, [turn.model_dump_json()])
        self.turns.append(turn)


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
