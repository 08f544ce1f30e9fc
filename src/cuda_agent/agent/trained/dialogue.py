"""Converts a run to the tokens that a policy reads and writes. Tokens are only added, so the context at one turn is a
prefix of the context at the next."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from cuda_agent.agent.dialogues.dialogue import TaskDialogue
from cuda_agent.agent.policy import Brief
from cuda_agent.agent.trained.offers import Offer
from cuda_agent.core.config import DialogueKind
from cuda_agent.core.record import StoredRecord
from cuda_agent.llm.chat import Message

PolicyKind = Literal["pocket"] | DialogueKind


class DialogueSettings(StoredRecord):
    """The settings beside a checkpoint's weights. `pocket`: a few tokens per turn, and offered plans. Other kinds use
    the tokenizer's chat template: `tools` is the agent loop, `short` and `files` have answers in fenced blocks, with
    `examples` worked ones in the prompt. `turns` and `context_tokens` limit an episode, `turn_tokens` one turn of the
    policy."""

    file_name = "dialogue.json"
    kind: PolicyKind = "pocket"
    examples: int = Field(default=1, ge=0, le=3)
    turns: int = Field(default=10, ge=1)
    turn_tokens: int = Field(default=48, ge=4)
    #: of the prompt and everything after it.
    context_tokens: int = Field(default=2048, ge=64)


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
    def about(self, brief: Brief, plans: Sequence[Offer]) -> TaskDialogue:
        """Returns the texts about one task. `plans` are offered to the policy. Raises NotCovered and TaskError."""

    @abstractmethod
    def encode_prompt(self, messages: Sequence[Message]) -> list[int]:
        """Returns the prompt up to where the policy begins to write."""

    @abstractmethod
    def encode_observation(self, text: str) -> list[int]:
        """Returns what is said to a turn, up to where the policy writes again."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text alone."""

    @abstractmethod
    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text of a policy's tokens."""

    def encode_turn(self, text: str) -> list[int]:
        """Returns a turn as a policy would write it, with the stop token."""
        return [*self.encode(text), self.stop_id]

    def decode_turn(self, token_ids: Sequence[int]) -> str:
        """Returns what a turn of the policy says."""
        return self.decode([token for token in token_ids if token != self.stop_id])
