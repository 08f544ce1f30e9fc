"""Detects a policy that no longer acts. Pure functions of the turns."""

from collections.abc import Sequence
from typing import Any

from cuda_agent.core.errors import PolicyStalled
from cuda_agent.core.records import Turn

#: the run ends after so many turns in a row in which no tool could run.
MAX_WITHOUT_EFFECT = 6
#: rounds of the same calls after which the policy is warned, and after which the run ends.
REPEATS_TOLD, MAX_REPEATS = 3, 10
_LONGEST_CYCLE = 3
#: tools whose answers change although the call is the same. Waiting for a command isn't a loop.
_WAITING = ("Bash", "BashOutput")


def check(history: Sequence[Turn], tools: frozenset[str]) -> None:
    """Raises PolicyStalled if the last turns show no progress. `tools`: the names that exist."""
    idle = 0
    for turn in reversed(history):
        if any(call.tool in tools and not call.malformed for call in turn.calls):
            break
        idle += 1
    if idle >= MAX_WITHOUT_EFFECT:
        raise PolicyStalled(
            f"the model gave {idle} answers in a row without a tool call that could be run",
            "A model without native tool calls needs --tools tagged; otherwise try another model",
        )
    repeats = rounds(history)[-1] if history else 0
    if repeats >= MAX_REPEATS:
        raise PolicyStalled(
            f"the model made the same calls {repeats} times in a row", "Try another model or temperature"
        )


def rounds(history: Sequence[Turn]) -> list[int]:
    """Returns for each turn how many times in a row its calls were made with nothing changed; 1 means the first time. A
    cycle of up to three turns counts too."""
    keys = [_key(turn) for turn in history]
    matched = [0] * (_LONGEST_CYCLE + 1)
    found = []
    for index, key in enumerate(keys):
        for period in range(1, _LONGEST_CYCLE + 1):
            same = index >= period and key is not None and key == keys[index - period]
            matched[period] = matched[period] + 1 if same else 0
        found.append(1 + max(matched[period] // period for period in range(1, _LONGEST_CYCLE + 1)))
    return found


def _key(turn: Turn) -> Any:
    """Returns what makes two turns equal, or None for a turn without calls, which counts as idle instead."""
    if not turn.calls:
        return None
    answers = tuple(
        (result.ok, result.text if call.tool in _WAITING else "")
        for call, result in zip(turn.calls, turn.results, strict=False)
    )
    return turn.candidate_digest, [(call.tool, call.arguments, call.malformed) for call in turn.calls], answers
