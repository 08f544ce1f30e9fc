"""The dialogue of a chat model, with its own template, the prompts of `--policy llm` and tool calls as tagged text.

The template is rendered with probes for contents. What stands around the probes is what it adds to a conversation: it
is encoded once, and contents are encoded between it. So a conversation only grows, even where the template would
change earlier messages (Qwen3 removes their thinking), the model's tokens stay as they were sampled, and a content
can't contain the template's special tokens.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cuda_agent.agent.policies.conversation import Conversation
from cuda_agent.agent.policy import Brief
from cuda_agent.agent.trained.dialogue import Dialogue, ParsedTurn, parse_text
from cuda_agent.agent.trained.offers import Offer
from cuda_agent.core.config import LanguageModelOptions
from cuda_agent.core.errors import UsageError
from cuda_agent.core.records import ToolResult
from cuda_agent.llm import tagged

_NOTHING_CALLED = "You called no tool. Go on with a tool call."
#: how models enclose thinking, in which no call counts.
_THINKS, _THOUGHT = "<think>", "</think>"


class ChatDialogue(Dialogue):
    """`Dialogue` over a tokenizer of transformers."""

    offers_plans = False

    def __init__(self, tokenizer: Any) -> None:
        """Raises UsageError if the tokenizer has no chat template, no end token, or a template that doesn't show the
        messages or ends answers in another way."""
        self.tokenizer = tokenizer
        if tokenizer.chat_template is None or tokenizer.eos_token_id is None:
            raise UsageError(
                "The model's tokenizer has no chat template or no end token", "Take an instruction-tuned one"
            )
        self.stop_id: int = tokenizer.eos_token_id
        self.pad_id: int = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else self.stop_id
        self._opening = [self._encode_template(piece) for piece in self._around("system", "user")]
        *_, between, end = self._around("user", "assistant", "user")
        if not between.startswith(tokenizer.eos_token):
            raise UsageError(
                f"The model's chat template doesn't end answers with its end token {tokenizer.eos_token}",
                "Set the tokenizer's eos_token to what ends an answer",
            )
        rest = between.removeprefix(tokenizer.eos_token)
        self._between, self._end = self._encode_template(rest), self._encode_template(end)
        self._begins_thinking = end.rstrip().endswith(_THINKS)

    @classmethod
    def load(cls, checkpoint: Path) -> "ChatDialogue":
        from transformers import AutoTokenizer

        return cls(AutoTokenizer.from_pretrained(checkpoint, local_files_only=True))

    @property
    def vocabulary(self) -> int:
        return len(self.tokenizer)

    def prompt(self, brief: Brief, plans: Sequence[Offer]) -> list[int]:
        conversation = Conversation(brief, LanguageModelOptions(model="checkpoint", tools="tagged"))
        system, user = (str(message["content"]) for message in conversation.request([]).messages)
        before, between, end = self._opening
        return [*before, *self.encode(system), *between, *self.encode(user), *end]

    def encode_answers(self, parsed: ParsedTurn, results: Sequence[ToolResult], turns_left: int) -> list[int]:
        answers = [
            tagged.write_result(call.tool, result.text) for call, result in zip(parsed.calls, results, strict=False)
        ]
        text = "\n".join([*(answers or [_NOTHING_CALLED]), f"[Left: {turns_left} turns.]"])
        return [*self._between, *self.encode(text), *self._end]

    def parse_turn(self, token_ids: Sequence[int], turn: int) -> ParsedTurn:
        """Returns the text and calls after the thinking; none if it didn't end."""
        text = self.decode([token for token in token_ids if token != self.stop_id])
        _, ended, said = text.rpartition(_THOUGHT)
        if not ended and (self._begins_thinking or _THINKS in said):  # foreign text: the model's
            said = ""
        return parse_text(said, turn)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def _encode_template(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=False)
        return ids

    def _around(self, *roles: str) -> list[str]:
        """Returns what the template puts before, between and after the contents of messages, up to where the model
        writes. Raises UsageError."""
        from jinja2 import TemplateError

        probes = [f"probe-{number}-of-{len(roles)}" for number in range(len(roles))]
        messages = [{"role": role, "content": probe} for role, probe in zip(roles, probes, strict=True)]
        try:
            rest = str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except TemplateError as error:
            raise UsageError(f"The model's chat template fails: {error}", "Give one for system and user") from None
        pieces = []
        for role, probe in zip(roles, probes, strict=True):
            before, found, rest = rest.partition(probe)
            if not found:
                raise UsageError(
                    f"The model's chat template doesn't show messages of role {role}", "Give one that does"
                )
            pieces.append(before)
        return [*pieces, rest]
