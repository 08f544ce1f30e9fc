"""Everything of one task, read from its run directory when its page is written: code, transcript, candidates."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

from markupsafe import Markup

from cuda_agent.agent.best import BestRecord
from cuda_agent.agent.storage.store import ContentStore
from cuda_agent.agent.storage.transcript import FILE_NAME, read_transcript
from cuda_agent.core.errors import StoreError
from cuda_agent.core.inspection import Roofline, Work
from cuda_agent.core.record import Record
from cuda_agent.core.records import Candidate, Evaluation, Task, ToolCall, ToolResult, Trajectory, Turn
from cuda_agent.report.blobs import Blobs
from cuda_agent.report.highlight import highlighted
from cuda_agent.report.plain import plain

_Known = TypeVar("_Known", bound=Record)

#: characters of a text that stands in the open; longer ones unfold.
_OPEN = 500
#: of one text in a transcript, its two ends; code keeps more.
KEPT = 60_000
_CODE = 4


@dataclass(frozen=True)
class Text:
    """Part of a page: short as `shown`, long as the name of a blob with a line that says what it is."""

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
class Step:
    """One turn; `change` is the difference that it made to the candidate."""

    number: int
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
    """`transcripts`: the run's own, then those of the runs inside it (`agent-1`, `seed`), by name. `notes`: what can't
    be read. `limits`, `work`: as the run's own Inspect answered them."""

    source: str
    reference: File | None
    files: tuple[File, ...]
    transcripts: tuple[tuple[str, tuple[Step, ...]], ...]
    turns: tuple[Turn, ...]
    notes: tuple[str, ...]
    evaluation: Evaluation | None = None
    limits: Roofline | None = None
    work: Work | None = None


def details(directory: Path | None, source: str, blobs: Blobs, kept: int = KEPT) -> Details:
    """What there is; a part that can't be read is a note. `source`: the reference where the directory has none, `kept`:
    characters of each text of the transcript."""
    notes: list[str] = []
    if directory is None:
        notes = ["This task left no run directory."]
        return Details(source, _file("model.py", source, blobs) if source else None, (), (), (), tuple(notes))
    source = _source(directory, notes) or source
    candidate = _candidate(directory, notes)
    runs = [("", directory), *((item.name, item) for item in _inner(directory))]
    turns = {name: _turns(path, notes) for name, path in runs}
    transcripts = [(name, _steps(turns[name], path, blobs, kept)) for name, path in runs if turns[name]]
    every = tuple(turn for found in turns.values() for turn in found)
    order = sorted(candidate.files, key=_rank) if candidate is not None else []
    return Details(
        source,
        _file("model.py", source, blobs) if source else None,
        tuple(_file(path, candidate.files[path], blobs) for path in order) if candidate is not None else (),
        tuple(transcripts),
        turns[""] or every,
        tuple(notes),
        _evaluation(directory, notes),
        _inspected(every, "roofline", Roofline),
        _inspected(every, "work", Work),
    )


def _rank(path: str) -> tuple[int, str]:
    """Kernels first, then what calls them, then headers."""
    suffix = PurePosixPath(path).suffix
    binding = "binding" in path
    return {".cu": 0, ".cpp": 2 if binding else 0, ".py": 1}.get(suffix, 3), path


def _inner(directory: Path) -> list[Path]:
    found = sorted(directory.glob("agent-*"), key=lambda path: (len(path.name), path.name))
    return [path for path in (directory / "seed", *found) if path.is_dir()]


def _source(directory: Path, notes: list[str]) -> str:
    try:
        return Task.read(directory).source
    except StoreError as error:
        notes.append(error.cause)
        return ""


def _candidate(directory: Path, notes: list[str]) -> Candidate | None:
    for record, read in ((BestRecord, _best), (Trajectory, _ended)):
        if (directory / record.file_name).is_file():
            try:
                found = read(directory)
            except StoreError as error:
                notes.append(error.cause)
                continue
            if found is not None:
                return found
    return None


def _best(directory: Path) -> Candidate | None:
    return BestRecord.read(directory).candidate


def _ended(directory: Path) -> Candidate | None:
    return Trajectory.read(directory).best


def _evaluation(directory: Path, notes: list[str]) -> Evaluation | None:
    if not (directory / Evaluation.file_name).is_file():
        return None
    try:
        return Evaluation.read(directory)
    except StoreError as error:
        notes.append(error.cause)
        return None


def _turns(directory: Path, notes: list[str]) -> tuple[Turn, ...]:
    if not (directory / FILE_NAME).is_file():
        return ()
    try:
        return read_transcript(directory)
    except StoreError as error:
        notes.append(error.cause)
        return ()


def _inspected(turns: Sequence[Turn], name: str, record: type[_Known]) -> _Known | None:
    """As Inspect last answered it."""
    for turn in reversed(turns):
        for result in turn.results:
            found = result.data.get(name)
            if isinstance(found, dict):
                try:
                    return record.model_validate(found)
                except ValueError:
                    continue
    return None


# ---------------------------------------------------------------- the transcript


def _steps(turns: Sequence[Turn], directory: Path, blobs: Blobs, kept: int) -> tuple[Step, ...]:
    store = ContentStore(directory)
    before: Candidate | None = None
    steps = []
    for turn in turns:
        after = _kept(store, turn.candidate_digest)
        change: Text | None = _change(before, after, blobs, kept) if before is not None and after is not None else None
        before = after or before
        answered = [*turn.results, *([None] * len(turn.calls))]
        steps.append(
            Step(
                turn.index + 1,
                turn,
                plain(_cut(turn.message, kept)),
                _text(turn.reasoning, blobs, kept, "reasoning") if turn.reasoning else None,
                tuple(_call(call, result, blobs, kept) for call, result in zip(turn.calls, answered, strict=False)),
                plain(_cut(turn.observation, kept)),
                change,
                _latency(turn),
            )
        )
    return tuple(steps)


def _latency(turn: Turn) -> float | None:
    """Of a full profile that passed."""
    for result in turn.results:
        found = result.data.get("latency_us")
        if result.data.get("verdict") == "passed" and isinstance(found, int | float):
            return float(found)
    return None


def _kept(store: ContentStore, digest: str | None) -> Candidate | None:
    """None where the run didn't keep it, or it was damaged."""
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
    return Text(blob=blobs.put(str(highlighted(text, suffix))), title=f"{name}, {_lines(text)}")


def _file(path: str, text: str, blobs: Blobs) -> File:
    coloured = highlighted(_cut(text, _CODE * KEPT), PurePosixPath(path).suffix)
    return File(plain(path), len(text.splitlines()), blobs.put(str(coloured)))


def _change(before: Candidate, after: Candidate, blobs: Blobs, kept: int) -> Text | None:
    if before == after:
        return None
    lines: list[str] = []
    for path in sorted({*before.files, *after.files}):
        old, new = before.files.get(path, ""), after.files.get(path, "")
        if old != new:
            names = (path if path in before.files else "/dev/null", path if path in after.files else "/dev/null")
            lines += difflib.unified_diff(old.splitlines(), new.splitlines(), *names, lineterm="", n=2)
    text = _cut("\n".join(lines), kept)
    added = sum(line.startswith("+") and not line.startswith("+++") for line in lines)
    removed = sum(line.startswith("-") and not line.startswith("---") for line in lines)
    return Text(blob=blobs.put(str(highlighted(text, ".diff"))), title=f"candidate changed: +{added} −{removed} lines")


def _lines(text: str) -> str:
    count = len(text.splitlines())
    return f"{count:,} lines" if count > 1 else f"{len(text):,} characters"


def _cut(text: str, kept: int) -> str:
    """The two ends of a very long text."""
    if len(text) <= kept:
        return text
    half = kept // 2
    gap = f"[… {len(text) - 2 * half:,} characters left out; all of it is in the run's folder …]"
    return f"{text[:half]}\n{gap}\n{text[-half:]}"
