"""The ReAct loop: the policy moves, the tools answer, the turn is on disk before the next one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum

from cuda_agent.agent.context import Progress
from cuda_agent.agent.policy import Policy
from cuda_agent.agent.tools.registry import Toolbox
from cuda_agent.agent.transcript import Transcript
from cuda_agent.core.errors import PolicyError, PolicyStalled, UsageError
from cuda_agent.core.records import ToolCall, ToolResult, Turn

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


def run(policy: Policy, tools: Toolbox, transcript: Transcript, turns_limit: int, progress: Progress) -> Ending:
    """Play until Finish, the limit of turns, an interrupt or the policy's failure.

    A turn that was interrupted is not in the transcript. Raises CudaAgentError when this machine fails (disk, judge).
    """
    try:
        while len(transcript.turns) < turns_limit:
            started = time.monotonic()
            move = policy.next(transcript.turns)
            if move.message:
                progress("agent", move.message)
            results = tuple(_call(tools, call, progress) for call in move.calls)
            turn = Turn(
                index=len(transcript.turns),
                results=results,
                candidate_digest=_digest(tools),
                duration_s=time.monotonic() - started,
                **move.model_dump(),
            )
            transcript.append(turn)
            if tools.finished is not None:
                return Ending(Outcome(tools.finished[0]), tools.finished[1])
            if not move.calls and not move.observation:
                return Ending(Outcome.FINISHED, move.message)
    except KeyboardInterrupt:
        return Ending(Outcome.INTERRUPTED, f"interrupted after {len(transcript.turns)} turns")
    except PolicyStalled as error:
        return Ending(Outcome.STALLED, str(error))
    except PolicyError as error:
        return Ending(Outcome.POLICY_ERROR, str(error))
    return Ending(Outcome.BUDGET, f"all {turns_limit} turns are spent")


def _digest(tools: Toolbox) -> str | None:
    """Of the candidate as it stands; None where what stands there can't be one (a link, too large)."""
    try:
        return tools.context.workspace.snapshot().digest
    except UsageError:
        return None


def _call(tools: Toolbox, call: ToolCall, progress: Progress) -> ToolResult:
    result = tools.call(call)
    lines = [line for line in result.text.strip().splitlines() if line.strip()]
    looked_at = call.arguments.get("path") or call.arguments.get("pattern") if call.tool in _LOOKS else None
    first = str(looked_at) if looked_at and result.ok else lines[0] if lines else ""
    progress(call.tool, first if result.ok else f"not ok: {first}")
    return result
