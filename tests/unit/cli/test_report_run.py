"""Runs as people read them."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from cuda_agent.core.plain import plain
from cuda_agent.core.records import Budget, Candidate, ToolCall, ToolResult, Turn
from cuda_agent.report.tables.trajectory import budget_line, history_line
from cuda_agent.report.tables.transcript import transcript_view


def text(*parts: object) -> str:
    out = StringIO()
    console = Console(file=out, width=160)
    for part in parts:
        console.print(part)
    return out.getvalue()


def test_a_budget_names_what_is_limited_or_spent() -> None:
    assert budget_line(Budget(turns_limit=60, turns_spent=12, wall_s=182, judge_s=41)) == (
        "12 of 60 turns, 3 min 02 s, judge 41.0 s"
    )
    rich = Budget(
        turns_limit=60, turns_spent=1, tokens=34_120, tokens_limit=100_000, cost=0.1234, cost_limit=2,
        wall_s=5, wall_limit_s=600, judge_s=1, judge_limit_s=120,
    )  # fmt: skip
    assert budget_line(rich) == (
        "1 of 60 turns, 34,120 of 100,000 tokens, cost 0.1234 of 2, 5.0 s of 10 min 00 s, judge 1.0 s of 2 min 00 s"
    )


def test_a_history_is_a_bar_for_each_time() -> None:
    assert history_line([]) == ""
    assert history_line([200.0, 100.0, 150.0]) == "best 100.0 µs  █▁▅ of 3 timed"
    assert history_line([5.0]) == "best 5.00 µs  ▁ of 1 timed"


def test_a_transcript_shows_calls_results_and_candidates_as_differences() -> None:
    first = Candidate(files={"model_new.py": "a = 1\nb = 2\n", "kernels/old.cu": "// old\n"})
    second = Candidate(files={"model_new.py": "a = 1\nb = 3\n"})
    kept = {candidate.digest: candidate for candidate in (first, second)}
    call = ToolCall(id="1", tool="Write", arguments={"path": "model_new.py", "content": "a = 1\nb = 2\n"})
    turns = [
        Turn(index=0, message="hello", calls=(call,), results=(ToolResult(call_id="1", text="Created."),),
             candidate_digest=first.digest, tokens_in=1200, cost=0.5),
        Turn(index=1, message="", results=(), candidate_digest=second.digest),
        Turn(index=2, message="", observation="Call a tool.", candidate_digest="lost"),
    ]  # fmt: skip
    shown = text(*transcript_view(turns, kept.get))
    for words in ("turn 1", "1,200 tokens read", 'Write(path="model_new.py")', "→ Created.", "+b = 2", "Call a tool."):
        assert words in shown
    assert "-b = 2" in shown and "+b = 3" in shown and "+++ /dev/null" in shown
    assert shown.count("a = 1") == 3, "the whole only once, then as the context of a difference"


def test_nothing_steers_the_readers_terminal() -> None:
    assert plain("a\x1b[2Jb\r\nc\td\x9b") == "a�[2Jb\nc\td�"
    turn = Turn(index=0, message="x\x1b]0;title\x07y")
    assert "\x1b" not in text(*transcript_view([turn], lambda digest: None))
