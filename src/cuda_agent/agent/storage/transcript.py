"""Stores turns, one JSON line each. A turn is durable before the next begins."""

from collections.abc import Iterable
from pathlib import Path

from cuda_agent.core.lines import append, read_lines
from cuda_agent.core.records import Turn

FILE_NAME = "transcript.jsonl"


def append_turn(directory: Path, turn: Turn) -> None:
    """Writes a turn durably. Raises StoreError (no space, no permission)."""
    append(directory / FILE_NAME, [turn])


def read_transcript(directory: Path) -> tuple[Turn, ...]:
    """Returns the turns of a run directory, none if it has no transcript yet. An incomplete last line, left by a
    stopped machine, is dropped. Raises StoreError if the file can't be read or a whole line isn't a turn."""
    return tuple(read_lines(directory / FILE_NAME, Turn, optional=True))


def passed_times(turns: Iterable[Turn]) -> tuple[float, ...]:
    """Returns the microseconds of each judged profile that passed, in order."""
    found = (result.data for turn in turns for result in turn.results if result.data.get("verdict") == "passed")
    times = (data.get("latency_us") for data in found)
    return tuple(float(time) for time in times if isinstance(time, int | float))
