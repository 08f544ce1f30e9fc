"""The ReAct loop: the policy chooses tool calls, the tools answer, and the turn is on disk before the next one."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from cuda_agent.agent.budget import exhausted
from cuda_agent.agent.context import Progress
from cuda_agent.agent.policy import Policy
from cuda_agent.agent.storage.journal import Checkpoint, RunJournal
from cuda_agent.agent.tools.registry import Toolbox
from cuda_agent.core.errors import PolicyError, PolicyStalled
from cuda_agent.core.records import ToolCall, ToolResult

#: tools of which the progress line shows the argument, since their answer is a long text.
_LOOKS = ("Read", "Glob", "Grep")


class RunOutcome(StrEnum):
    """How a run ended. The policy chooses one of the first three with the tool Finish."""

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
    """The outcome and one line about it."""

    outcome: RunOutcome
    message: str = ""


def run(
    policy: Policy,
    tools: Toolbox,
    journal: RunJournal,
    progress: Progress,
    *,
    stopped: Callable[[], bool] = lambda: False,
    watch: Callable[[RunJournal], None] = lambda journal: None,
) -> Ending:
    """Plays until Finish, a limit, an interrupt or a failure of the policy. A move that is pending in the journal is
    completed first. `stopped()` is checked between calls; `watch(journal)` is called after each turn.

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
                    # The same stop has ended the command, so its answer doesn't count.
                    raise KeyboardInterrupt
                journal.add(result)
            journal.end()
            watch(journal)
    except KeyboardInterrupt:
        pass
    except PolicyStalled as error:
        return Ending(RunOutcome.STALLED, str(error))
    except PolicyError as error:
        return Ending(RunOutcome.POLICY_ERROR, str(error))
    return Ending(RunOutcome.INTERRUPTED, f"interrupted after {len(journal.turns)} turns")


def _ending(tools: Toolbox, journal: RunJournal) -> Ending | None:
    """Returns how the run ended, by its last turn or by a limit, or None if it continues."""
    if journal.pending is not None:
        return None
    if tools.finished is not None:
        return Ending(RunOutcome(tools.finished[0]), tools.finished[1])
    last = journal.turns[-1] if journal.turns else None
    if last is not None and not last.calls and not last.observation:
        return Ending(RunOutcome.FINISHED, last.message)
    spent = exhausted(journal.budget())
    return Ending(RunOutcome.BUDGET, spent) if spent is not None else None


def _ask(policy: Policy, journal: RunJournal, progress: Progress) -> Checkpoint:
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
