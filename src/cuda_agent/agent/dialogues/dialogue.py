"""The texts of one task: the prompt, how an answer is understood, and what is said to it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cuda_agent.core.records import ToolCall, ToolResult
from cuda_agent.llm import tagged
from cuda_agent.llm.chat import Message
from cuda_agent.llm.stream import well_formed


@dataclass(frozen=True)
class ParsedTurn:
    """A turn of the policy, parsed to its text and calls."""

    text: str
    calls: tuple[ToolCall, ...]


class TaskDialogue(Protocol):
    """What is said about one task."""

    def messages(self) -> list[Message]:
        """Returns the prompt."""
        ...

    def parse(self, text: str, turn: int) -> ParsedTurn:
        """Returns the text and calls of an answer, strictly parsed."""
        ...

    def observation(self, calls: Sequence[ToolCall], results: Sequence[ToolResult], turns_left: int) -> str:
        """Returns what is said to an answer with these calls; there may be none."""
        ...


def parse_tagged(text: str, turn: int) -> ParsedTurn:
    """Parses calls in tagged text. An unreadable call is malformed: it is answered and not run."""
    rest, written = tagged.parse(text)
    calls = []
    for number, call in enumerate(written, 1):
        problem, arguments = call.problem, {}
        if not problem:
            arguments = json.loads(well_formed(call.arguments))
        name = call.name or "?"
        calls.append(ToolCall(id=f"call-{turn}-{number}", tool=name, arguments=arguments, malformed=problem))
    return ParsedTurn(rest, tuple(calls))
