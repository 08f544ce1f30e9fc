"""Shows a recorded run turn by turn: messages, calls, answers, times, and each candidate's change."""

import json
from collections.abc import Callable, Iterator, Sequence

from rich.console import RenderableType
from rich.rule import Rule
from rich.syntax import Syntax
from rich.text import Text

from cuda_agent.agent.tools.output import cut_middle
from cuda_agent.core.plain import plain
from cuda_agent.core.records import Candidate, ToolCall, ToolResult, Turn
from cuda_agent.report.plain import file_changes
from cuda_agent.report.tables.trajectory import budget_line
from cuda_agent.report.units import seconds

#: most characters of one text; the transcript has the whole text.
_SHOWN = 4_000

#: returns the candidate with a digest, or None where the run didn't keep it.
Candidates = Callable[[str], Candidate | None]


def transcript_view(turns: Sequence[Turn], candidates: Candidates) -> Iterator[RenderableType]:
    """Yields the parts of all turns in order."""
    before: Candidate | None = None
    for turn in turns:
        yield from _turn(turn)
        after = candidates(turn.candidate_digest) if turn.candidate_digest is not None else None
        if after is not None and after != before and (after.files or before is not None):
            yield Text(f"candidate {after.digest[:12]}", style="bold magenta")
            for lines in file_changes(before, after):
                yield Syntax(plain("\n".join(lines)), "diff", background_color="default", word_wrap=True)
            before = after


def _turn(turn: Turn) -> Iterator[RenderableType]:
    yield Rule(f"turn {turn.index + 1}", align="left", characters="─")
    facts = [seconds(turn.duration_s)]
    if turn.tokens_in or turn.tokens_out:
        facts.append(f"{turn.tokens_in:,} tokens read, {turn.tokens_out:,} written")
    if turn.cost is not None:
        facts.append(f"cost {turn.cost:.4g}")
    if turn.budget is not None:
        facts.append(f"spent: {budget_line(turn.budget)}")
    yield Text("; ".join(facts), style="dim")
    if turn.reasoning:
        yield Text(_cut(turn.reasoning), style="dim italic")
    if turn.message:
        yield Text(_cut(turn.message))
    for index, call in enumerate(turn.calls):
        yield Text(_said(call), style="bold cyan")
        if index < len(turn.results):
            yield from _result(turn.results[index])
    if turn.observation:
        yield Text(_cut(turn.observation), style="yellow")


def _said(call: ToolCall) -> str:
    """Returns `Edit(path="model_new.py", …)`. A text of several lines stands below its name."""
    short, long = [], []
    for name, value in call.arguments.items():
        if isinstance(value, str) and "\n" in value:
            long.append(f"{name}:\n{_cut(value).rstrip()}")
        else:
            short.append(f"{name}={json.dumps(value, ensure_ascii=False)}")
    problem = f"  [{call.malformed}]" if call.malformed else ""
    return "\n".join([plain(f"{call.tool}({', '.join(short)}){problem}"), *long])


def _result(result: ToolResult) -> Iterator[RenderableType]:
    mark = "→" if result.ok else "→ not ok:"
    text = _cut(result.text.rstrip())
    yield Text(f"{mark} {text}  ({seconds(result.duration_s)})", style="" if result.ok else "red")


def _cut(text: str) -> str:
    return cut_middle(plain(text), _SHOWN)
