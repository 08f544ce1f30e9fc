"""A run as the tokens that a policy reads and writes. Tokens are only ever added, so that the context at one turn is a
prefix of that at the next."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import Field

from cuda_agent.agent.trained.offers import Offer
from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.graph import Graph
from cuda_agent.core.record import StoredRecord
from cuda_agent.core.records import Task, ToolCall, ToolResult
from cuda_agent.llm import tagged
from cuda_agent.llm.stream import well_formed


class DialogueSettings(StoredRecord):
    """Lies beside a checkpoint's weights. `pocket`: a few tokens a turn, plans offered. `chat`: the tokenizer's own
    chat template and the prompts of `--policy llm`. Limits of one episode; `turn_tokens` of one own turn."""

    file_name = "dialogue.json"
    kind: Literal["pocket", "chat"] = "pocket"
    turns: int = Field(default=10, ge=1)
    turn_tokens: int = Field(default=48, ge=4)
    #: prompt and everything after it.
    context_tokens: int = Field(default=2048, ge=64)


@dataclass(frozen=True)
class Opening:
    """What a run begins with. `graph` captures the reference where it must; `tools` are schemas."""

    task: Task
    device: Device
    precision: Precision
    turns: int
    graph: Callable[[], Graph]
    offers: tuple[Offer, ...] = ()
    tools: Sequence[dict[str, Any]] = ()


@dataclass(frozen=True)
class Spoken:
    """One own turn as it is acted on."""

    text: str
    calls: tuple[ToolCall, ...]


class Dialogue(Protocol):
    """`stop_id` ends an own turn. All token lists are to be put one behind the other, unchanged."""

    stop_id: int
    pad_id: int
    offers_plans: bool

    def prompt(self, opening: Opening) -> list[int]:
        """Up to where the policy begins to write."""
        ...

    def say(self, text: str) -> list[int]:
        """An own turn as a policy would write it, stop token included."""
        ...

    def hear(self, token_ids: Sequence[int], turn: int) -> Spoken:
        """The calls in an own turn, strictly read."""
        ...

    def observe(self, spoken: Spoken, results: Sequence[ToolResult], turns_left: int) -> list[int]:
        """The tools' answers, up to where the policy writes again."""
        ...


def hear(text: str, turn: int) -> Spoken:
    """Calls in tagged text; what can't be read is a malformed call, which is answered and not run."""
    rest, written = tagged.parse(text)
    calls = []
    for number, call in enumerate(written, 1):
        problem, arguments = call.problem, {}
        if not problem:
            arguments = json.loads(well_formed(call.arguments))
        name = call.name or "?"
        calls.append(ToolCall(id=f"call-{turn}-{number}", tool=name, arguments=arguments, malformed=problem))
    return Spoken(rest, tuple(calls))
