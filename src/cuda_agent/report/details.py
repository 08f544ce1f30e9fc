"""Reads the details of one task from its run directory: code, transcript and candidates."""

import base64
import gzip
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

from markupsafe import Markup

from cuda_agent.agent.best import BestRecord
from cuda_agent.agent.storage.store import ContentStore
from cuda_agent.agent.storage.transcript import FILE_NAME, passed_times, read_transcript
from cuda_agent.agent.tools.output import cut_middle
from cuda_agent.core.errors import StoreError
from cuda_agent.core.inspection import LeastWork, Roofline
from cuda_agent.core.plain import plain
from cuda_agent.core.record import Record
from cuda_agent.core.records import Candidate, Evaluation, Task, ToolCall, ToolResult, Trajectory, Turn
from cuda_agent.report.highlight import highlighted
from cuda_agent.report.plain import file_changes

#: the packed texts of a page by name: gzip in base64, which can't end a script element. A browser decodes a text when
#: the reader opens it.
Blobs = dict[str, str]
_Known = TypeVar("_Known", bound=Record)
_Read = TypeVar("_Read")

#: a text of at most this many characters is shown; a reader unfolds a longer one.
_OPEN = 500
#: characters that are kept of one text in a transcript, at its two ends; code keeps more.
KEPT = 60_000
_CODE = 4


def pack(blobs: Blobs, text: str) -> str:
    """Adds a text, each once, and returns the name by which the page finds it."""
    raw = text.encode("utf-8", errors="replace")
    name = hashlib.sha256(raw).hexdigest()[:16]
    if name not in blobs:
        blobs[name] = base64.b64encode(gzip.compress(raw, compresslevel=9, mtime=0)).decode()
    return name


@dataclass(frozen=True)
class Text:
    """A part of a page: a short text in `shown`, or a long one as the name of its blob and a title."""

    shown: Markup | str = ""
    blob: str = ""
    title: str = ""


@dataclass(frozen=True)
class Call:
    tool: str
    arguments: str
    texts: tuple[Text, ...]
    answer: Text | None
    ok: bool
    duration_s: float


@dataclass(frozen=True)
class TurnStep:
    """One turn. `change` is the difference that it made to the candidate, `latency_us` the time that passed."""

    turn: Turn
    message: str
    reasoning: Text | None
    calls: tuple[Call, ...]
    observation: str
    change: Text | None
    latency_us: float | None


@dataclass(frozen=True)
class File:
    path: str
    lines: int
    blob: str


@dataclass(frozen=True)
class Details:
    """The details of a task. `transcripts` are those of the run and then of the runs inside it (`agent-1`, `seed`), by
    name. `notes` say what can't be read. `limits` and `work` are from the run's last Inspect."""

    source: str
    reference: File | None
    files: tuple[File, ...]
    transcripts: tuple[tuple[str, tuple[TurnStep, ...]], ...]
    turns: tuple[Turn, ...]
    notes: tuple[str, ...]
    evaluation: Evaluation | None = None
    limits: Roofline | None = None
    work: LeastWork | None = None


def details(directory: Path | None, source: str, blobs: Blobs, kept: int = KEPT) -> Details:
    """Reads a run directory; a part that can't be read becomes a note. `source` is the reference where the directory
    has none, `kept` the most characters of each text in the transcript."""
    if directory is None:
        why = "This task left no run directory."
        return Details(source, _file("model.py", source, blobs) if source else None, (), (), (), (why,))
    notes: list[str] = []
    task = _read(directory, Task.read, notes)
    source = task.source if task is not None and task.source else source
    candidate = _candidate(directory, notes)
    evaluation = _read(directory, Evaluation.find, notes)
    agents = sorted(directory.glob("agent-*"), key=lambda path: (len(path.name), path.name))
    runs = [("", directory), *((path.name, path) for path in (directory / "seed", *agents) if path.is_dir())]
    written = {name: path for name, path in runs if (path / FILE_NAME).is_file()}
    turns = {name: _read(path, read_transcript, notes) or () for name, path in written.items()}
    transcripts = [(name, _steps(found, written[name], blobs, kept)) for name, found in turns.items() if found]
    every = tuple(turn for found in turns.values() for turn in found)
    order = sorted(candidate.files, key=_rank) if candidate is not None else []
    return Details(
        source,
        _file("model.py", source, blobs) if source else None,
        tuple(_file(path, candidate.files[path], blobs) for path in order) if candidate is not None else (),
        tuple(transcripts),
        turns.get("") or every,
        tuple(notes),
        evaluation,
        _inspected(every, "roofline", Roofline),
        _inspected(every, "work", LeastWork),
    )


def _rank(path: str) -> tuple[int, str]:
    """Sorts kernels first, then `model_new.py`, bindings and headers."""
    suffix = PurePosixPath(path).suffix
    binding = "binding" in path
    return {".cu": 0, ".cpp": 2 if binding else 0, ".py": 1}.get(suffix, 3), path


def _read(path: Path, read: Callable[[Path], _Read | None], notes: list[str]) -> _Read | None:
    """Reads a record. Returns None and adds a note where it can't be read."""
    try:
        return read(path)
    except StoreError as error:
        notes.append(error.cause)
        return None


def _candidate(directory: Path, notes: list[str]) -> Candidate | None:
    if best := _read(directory, BestRecord.find, notes):
        return best.candidate
    ended = _read(directory, Trajectory.find, notes)
    return ended.best if ended else None


def _inspected(turns: Sequence[Turn], name: str, record: type[_Known]) -> _Known | None:
    """Returns a record from the last answer of Inspect."""
    for turn in reversed(turns):
        for result in turn.results:
            found = result.data.get(name)
            if isinstance(found, dict):
                try:
                    return record.model_validate(found)
                except ValueError:
                    continue
    return None


def _steps(turns: Sequence[Turn], directory: Path, blobs: Blobs, kept: int) -> tuple[TurnStep, ...]:
    store = ContentStore(directory)
    before: Candidate | None = None
    steps = []
    for turn in turns:
        after = _kept(store, turn.candidate_digest)
        change: Text | None = _change(before, after, blobs, kept) if before is not None and after is not None else None
        before = after or before
        answered = [*turn.results, *([None] * len(turn.calls))]
        steps.append(
            TurnStep(
                turn,
                plain(_cut(turn.message, kept)),
                _text(turn.reasoning, blobs, kept, "reasoning") if turn.reasoning else None,
                tuple(_call(call, result, blobs, kept) for call, result in zip(turn.calls, answered, strict=False)),
                plain(_cut(turn.observation, kept)),
                change,
                next(iter(passed_times([turn])), None),
            )
        )
    return tuple(steps)


def _kept(store: ContentStore, digest: str | None) -> Candidate | None:
    """Returns a candidate, or None where the run didn't keep it or it is damaged."""
    if digest is None:
        return None
    try:
        found = store.candidate(digest)
    except (StoreError, ValueError, AttributeError):
        return None
    return found if found.files else None


def _call(call: ToolCall, result: ToolResult | None, blobs: Blobs, kept: int) -> Call:
    short, long = [], []
    path = str(call.arguments.get("path", ""))
    for name, value in call.arguments.items():
        if isinstance(value, str) and ("\n" in value or len(value) > 160):
            long.append(_text(value, blobs, kept, name, PurePosixPath(path).suffix))
            continue
        said = json.dumps(value, ensure_ascii=False)
        if len(said) > 160:
            long.append(_text(json.dumps(value, indent=1, ensure_ascii=False), blobs, kept, name))
        else:
            short.append(f"{name}={said}")
    problem = f" [{call.malformed}]" if call.malformed else ""
    answer = _text(result.text.rstrip(), blobs, kept, "answer") if result is not None else None
    ok, took = (result.ok, result.duration_s) if result is not None else (True, 0.0)
    return Call(plain(call.tool), plain(", ".join(short) + problem), tuple(long), answer, ok, took)


def _text(text: str, blobs: Blobs, kept: int, name: str, suffix: str = "") -> Text:
    if len(text) <= _OPEN and not suffix:
        return Text(plain(text), title=name)
    text = _cut(text, _CODE * kept if suffix else kept)
    return Text(blob=pack(blobs, highlighted(text, suffix)), title=f"{name}, {_lines(text)}")


def _file(path: str, text: str, blobs: Blobs) -> File:
    coloured = highlighted(_cut(text, _CODE * KEPT), PurePosixPath(path).suffix)
    return File(plain(path), len(text.splitlines()), pack(blobs, coloured))


def _change(before: Candidate, after: Candidate, blobs: Blobs, kept: int) -> Text | None:
    if before == after:
        return None
    lines = [line for changed in file_changes(before, after, context=2) for line in changed]
    text = _cut("\n".join(lines), kept)
    added = sum(line.startswith("+") and not line.startswith("+++") for line in lines)
    removed = sum(line.startswith("-") and not line.startswith("---") for line in lines)
    return Text(blob=pack(blobs, highlighted(text, ".diff")), title=f"candidate changed: +{added} −{removed} lines")


def _lines(text: str) -> str:
    count = len(text.splitlines())
    return f"{count:,} lines" if count > 1 else f"{len(text):,} characters"


def _cut(text: str, kept: int) -> str:
    return cut_middle(text, kept, "; the run's folder has the whole text")
