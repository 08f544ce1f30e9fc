"""Condenses old turns to what must not be lost. A pure function of the turns and the run's candidates."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cuda_agent.agent.tools.output import cut_middle
from cuda_agent.core.errors import StoreError
from cuda_agent.core.records import Candidate, ToolCall, ToolResult, Turn

#: shares of the context's characters: the best candidate's source, the measurements, the failed ideas.
_SOURCE, _MEASUREMENTS, _FAILURES = 0.2, 0.1, 0.1
_JUDGED = ("Compile", "Verify", "Profile")
_MEASURING = ("Verify", "Profile", "Inspect")
#: the workspace's own command for measuring, which some models prefer to the tool.
_MEASURING_COMMAND = "utils.profiling"
_IDEA, _RESULT_LINES, _SHORT = 1500, 4, 200


@dataclass(frozen=True)
class BestSource:
    """The best candidate's files as far as they fit. `left_out` names the others and where they are."""

    turn: int
    headline: str
    files: tuple[tuple[str, str], ...]
    left_out: str


@dataclass(frozen=True)
class Condensed:
    """The facts that the template states about the condensed turns."""

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
    """Condenses turns. `characters` is the size of the whole context. `candidate` returns a candidate by its digest; it
    raises StoreError for a lost one."""
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
    """Yields every call with its answer. `idea` is what the policy said since its last idea was measured or refused."""
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
    # Short files first, so that most files fit.
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
    """Whether a stated idea was refused by the judge, or was no faster than the best candidate."""
    if step.call.tool not in _JUDGED or not step.idea:
        return False
    return not step.result.ok or step.result.data.get("kept") is False


def _entry(step: _Step, *, whole: bool) -> str:
    text = step.result.text if whole else _first_line(step.result.text)
    configs = " of several settings" if step.call.arguments.get("configs") else ""
    return f"- turn {step.turn}, {step.call.tool}{configs}: {text}"


def _failure(step: _Step) -> tuple[str, str]:
    """Returns a long and a short form of an idea, in the policy's own words, with its result."""
    idea = cut_middle(step.idea, _IDEA)
    lines = [line for line in step.result.text.splitlines() if line.strip()][:_RESULT_LINES]
    outcome = "\n  ".join(lines)
    head = f"- turn {step.turn}: "
    return f"{head}{idea}\n  {step.call.tool}: {outcome}", f"{head}{idea[:_SHORT]} → {_first_line(step.result.text)}"


def _fit(entries: Sequence[tuple[str, str]], room: int) -> tuple[str, ...]:
    """Returns the entries in short form, and the newest in long form as far as they fit in `room` characters. The
    oldest are left out, with their number, where even the short forms don't fit."""
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


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[: 2 * _SHORT]
