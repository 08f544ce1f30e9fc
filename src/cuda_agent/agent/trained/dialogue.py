"""Converts a run to the tokens that a policy reads and writes. Tokens are only added, so the context at one turn is a
prefix of the context at the next."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from cuda_agent.agent.policy import Brief
from cuda_agent.agent.trained.offers import Offer
from cuda_agent.core.record import StoredRecord
from cuda_agent.core.records import ToolCall, ToolResult
from cuda_agent.llm import tagged
from cuda_agent.llm.stream import well_formed


class DialogueSettings(StoredRecord):
    """The settings beside a checkpoint's weights. `pocket`: a few tokens per turn, and offered plans. `chat`: the
    tokenizer's chat template and the prompts of `--policy llm`. `turns` and `context_tokens` limit an episode,
    `turn_tokens` one turn of the policy."""

    file_name = "dialogue.json"
    kind: Literal["pocket", "chat"] = "pocket"
    turns: int = Field(default=10, ge=1)
    turn_tokens: int = Field(default=48, ge=4)
    #: of the prompt and everything after it.
    context_tokens: int = Field(default=2048, ge=64)


@dataclass(frozen=True)
class ParsedTurn:
    """A turn of the policy, parsed to its text and calls."""

    text: str
    calls: tuple[ToolCall, ...]


class Dialogue(ABC):
    """The token form of a run. `stop_id` ends a turn of the policy. The lists are concatenated unchanged."""

    stop_id: int
    pad_id: int
    offers_plans: bool

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """The number of tokens that the tokenizer knows."""

    @abstractmethod
    def prompt(self, brief: Brief, plans: Sequence[Offer]) -> list[int]:
        """Returns the tokens up to where the policy begins to write. `plans` are offered to it."""

    @abstractmethod
    def encode_answers(self, parsed: ParsedTurn, results: Sequence[ToolResult], turns_left: int) -> list[int]:
        """Returns the tools' answers, up to where the policy writes again."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text alone."""

    @abstractmethod
    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text of a policy's tokens."""

    def encode_turn(self, text: str) -> list[int]:
        """Returns a turn as a policy would write it, with the stop token."""
        return [*self.encode(text), self.stop_id]

    def parse_turn(self, token_ids: Sequence[int], turn: int) -> ParsedTurn:
        """Returns the text and calls of a turn, strictly parsed."""
        return parse_text(self.decode([token for token in token_ids if token != self.stop_id]), turn)


def parse_text(text: str, turn: int) -> ParsedTurn:
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
