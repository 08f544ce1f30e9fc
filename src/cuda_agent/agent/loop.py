"""The ReAct loop: the policy moves, the tools answer, the turn is on disk before the next one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from cuda_agent.agent.budget import exhausted
from cuda_agent.agent.context import Progress
from cuda_agent.agent.policy import Policy
from cuda_agent.agent.storage.journal import Checkpoint, Journal
from cuda_agent.agent.tools.registry import Toolbox
from cuda_agent.core.errors import PolicyError, PolicyStalled
from cuda_agent.core.records import ToolCall, ToolResult

#: tools whose answer is a text that is only worth naming to whoever watches.
_LOOKS = ("Read", "Glob", "Grep")


class Outcome(StrEnum):
    """How a run ended. The first three are the policy's own word (tool Finish)."""

    FINISHED = "finished"
    NOT_COVERED = "not_covered"
    GAVE_UP = "gave_up"
    BUDGET = "budget"
    STALLED = "stalled"
    POLICY_ERROR = "policy_error"
    INTERRUPTED = "interrupted"
    ERROR = "error"


@dataclass(frozen=True)
class Ending:
    """Outcome and one line on it."""

    outcome: Outcome
    message: str = ""


def run(
    policy: Policy,
    tools: Toolbox,
    journal: Journal,
    progress: Progress,
    *,
    stopped: Callable[[], bool] = lambda: False,
    watch: Callable[[Journal], None] = lambda journal: None,
) -> Ending:
    """Play until Finish, a spent limit, an interrupt or the policy's failure. A move that is pending in the journal is
    ended first. `stopped` is asked between calls, `watch` is told after each turn.

    A turn that was interrupted is not in the transcript. Raises CudaAgentError when this machine fails (disk, judge).
    """
    try:
        while not stopped():
            ending = _ending(tools, journal)
            if ending is not None:
                return ending
            pending = journal.pending or _ask(policy, journal, progress)
            assert pending.move is not None
            for call in pending.move.calls[len(pending.results) :]:
                result = _call(tools, call, progress)
                if stopped():
                    # Whoever stopped us ended the command too: that is no answer of it.
                    raise KeyboardInterrupt
                journal.add(result)
            journal.end()
            watch(journal)
    except KeyboardInterrupt:
        pass
    except PolicyStalled as error:
        return Ending(Outcome.STALLED, str(error))
    except PolicyError as error:
        return Ending(Outcome.POLICY_ERROR, str(error))
    return Ending(Outcome.INTERRUPTED, f"interrupted after {len(journal.turns)} turns")


def _ending(tools: Toolbox, journal: Journal) -> Ending | None:
    """How the run ended with its last turn, or because a limit is spent; None where it goes on."""
    if journal.pending is not None:
        return None
    if tools.finished is not None:
        return Ending(Outcome(tools.finished[0]), tools.finished[1])
    last = journal.turns[-1] if journal.turns else None
    if last is not None and not last.calls and not last.observation:
        return Ending(Outcome.FINISHED, last.message)
    spent = exhausted(journal.budget())
    return Ending(Outcome.BUDGET, spent) if spent is not None else None


def _ask(policy: Policy, journal: Journal, progress: Progress) -> Checkpoint:
    started = time.monotonic()
    move = policy.next(journal.turns)
    pending = journal.begin(move, time.monotonic() - started)
    if move.message:
        progress("agent", move.message)
    return pending


def _call(tools: Toolbox, call: ToolCall, progress: Progress) -> ToolResult:
    result = tools.call(call)
    lines = [line for line in result.text.strip().splitlines() if line.strip()]
    looked_at = call.arguments.get("path") or call.arguments.get("pattern") if call.tool in _LOOKS else None
    first = str(looked_at) if looked_at and result.ok else lines[0] if lines else ""
    progress(call.tool, first if result.ok else f"not ok: {first}")
    return result
