"""Old turns in few words: what must not be lost of them. A pure function of the turns and the run's candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cuda_agent.core.errors import StoreError
from cuda_agent.core.records import Candidate, ToolCall, ToolResult, Turn

#: shares of the context, in characters of it: the best candidate's source, the measurements, the failed ideas.
_SOURCE, _MEASUREMENTS, _FAILURES = 0.2, 0.1, 0.1
_JUDGED = ("Compile", "Verify", "Profile")
_MEASURING = ("Verify", "Profile", "Inspect")
#: the workspace's own command that measures, where a model prefers the shell.
_MEASURING_COMMAND = "utils.profiling"
_IDEA, _RESULT_LINES, _SHORT = 1500, 4, 200


@dataclass(frozen=True)
class BestSource:
    """The best candidate's text, whole files first come; `left_out` says what didn't fit and where it is."""

    turn: int
    headline: str
    files: tuple[tuple[str, str], ...]
    left_out: str


@dataclass(frozen=True)
class Condensed:
    """What the template says of the turns before the first that stands word for word."""

    turns: int
    standing: str
    best: BestSource | None
    measurements: tuple[str, ...]
    failures: tuple[str, ...]


@dataclass(frozen=True)
class _Step:
    turn: int
    call: ToolCall
    result: ToolResult
    idea: str


def condense(turns: Sequence[Turn], candidate: Callable[[str], Candidate], characters: int) -> Condensed:
    """`characters`: what the whole context holds. `candidate` gives a candidate by its digest (StoreError: lost)."""
    steps = list(_steps(turns))
    kept = next((step for step in reversed(steps) if step.result.ok and step.result.data.get("kept")), None)
    best = None if kept is None else _source(kept, candidate, int(characters * _SOURCE))
    standing = ""
    if kept is not None and turns[-1].candidate_digest is not None:
        same = kept.result.data.get("digest") == turns[-1].candidate_digest
        standing = "; it holds " + ("the best candidate" if same else "another version than the best candidate")
    measured = [(_entry(step, whole=True), _entry(step, whole=False)) for step in steps if _measures(step)]
    failed = [_failure(step) for step in steps if _failed(step)]
    return Condensed(
        turns=len(turns),
        standing=standing,
        best=best,
        measurements=_fit(measured, int(characters * _MEASUREMENTS)),
        failures=_fit(failed, int(characters * _FAILURES)),
    )


def _steps(turns: Sequence[Turn]) -> Iterator[_Step]:
    """Every call with its answer; `idea` is what the policy has said since the idea before was measured or refused."""
    said: list[str] = []
    settled = False
    for turn in turns:
        if turn.message:
            said, settled = ([] if settled else said) + [turn.message], False
        for call, result in zip(turn.calls, turn.results, strict=False):
            yield _Step(turn.index + 1, call, result, " ".join(" ".join(said).split()))
            settled |= call.tool == "Profile" or (call.tool in _JUDGED and not result.ok)


def _source(step: _Step, candidate: Callable[[str], Candidate], room: int) -> BestSource:
    try:
        files = candidate(str(step.result.data.get("digest"))).files
    except StoreError:
        return BestSource(step.turn, _first_line(step.result.text), (), "its source, which was lost")
    shown: list[tuple[str, str]] = []
    left_out: list[str] = []
    # Short files first: the most of them then stand whole.
    for path, text in sorted(files.items(), key=lambda item: len(item[1])):
        if len(text) <= room:
            room -= len(text)
            shown.append((path, text))
        else:
            left_out.append(f"{path} ({len(text):,} characters)")
    return BestSource(step.turn, _first_line(step.result.text), tuple(sorted(shown)), ", ".join(left_out))


def _measures(step: _Step) -> bool:
    if step.call.tool == "Bash":
        return _MEASURING_COMMAND in str(step.call.arguments.get("command"))
    return step.call.tool in _MEASURING


def _failed(step: _Step) -> bool:
    """The judge refused it, or it was no faster than the best. Without a word on the idea there is nothing to keep."""
    if step.call.tool not in _JUDGED or not step.idea:
        return False
    return not step.result.ok or step.result.data.get("kept") is False


def _entry(step: _Step, *, whole: bool) -> str:
    text = step.result.text if whole else _first_line(step.result.text)
    configs = " of several settings" if step.call.arguments.get("configs") else ""
    return f"- turn {step.turn}, {step.call.tool}{configs}: {text}"


def _failure(step: _Step) -> tuple[str, str]:
    """Long and short form: the idea in the policy's own words, and what came of it."""
    idea = cut_middle(step.idea, _IDEA)
    lines = [line for line in step.result.text.splitlines() if line.strip()][:_RESULT_LINES]
    outcome = "\n  ".join(lines)
    head = f"- turn {step.turn}: "
    return f"{head}{idea}\n  {step.call.tool}: {outcome}", f"{head}{idea[:_SHORT]} → {_first_line(step.result.text)}"


def _fit(entries: Sequence[tuple[str, str]], room: int) -> tuple[str, ...]:
    """All entries in their short form, the newest in their long one as far as there is room; where even the short ones
    have none, how many of the oldest are left out."""
    first = len(entries)
    while first > 0 and len(entries[first - 1][1]) <= room:
        first -= 1
        room -= len(entries[first][1])
    chosen = [short for _, short in entries[first:]]
    for index in reversed(range(first, len(entries))):
        whole, short = entries[index]
        room -= len(whole) - len(short)
        if room < 0:
            break
        chosen[index - first] = whole
    return (*([f"- [{first} older ones left out]"] if first else []), *chosen)


def cut_middle(text: str, limit: int, remedy: str = "") -> str:
    """Both ends of a text that is longer than `limit` characters; `remedy`: how to get at the rest."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out{remedy} …]\n{text[-half:]}"


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[: 2 * _SHORT]
