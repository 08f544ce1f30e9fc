"""The dialogue of a chat model, with its own template.

The template is rendered with probes for contents. What stands around the probes is what it adds to a conversation: it
is encoded once, and contents are encoded between it. So a conversation only grows, even where the template would
change earlier messages (Qwen3 removes their thinking), the model's tokens stay as they were sampled, and a content
can't contain the template's special tokens.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cuda_agent.agent.dialogues.dialogue import TaskDialogue
from cuda_agent.agent.dialogues.kinds import task_dialogue
from cuda_agent.agent.policy import Brief
from cuda_agent.agent.trained.dialogue import Dialogue
from cuda_agent.agent.trained.offers import Offer
from cuda_agent.core.config import DialogueKind
from cuda_agent.core.errors import UsageError
from cuda_agent.llm.chat import Message

#: how models enclose thinking, in which no call counts.
_THINKS, _THOUGHT = "<think>", "</think>"


class ChatDialogue(Dialogue):
    """`Dialogue` over a tokenizer of transformers."""

    offers_plans = False

    def __init__(self, tokenizer: Any, kind: DialogueKind = "tools", examples: int = 1) -> None:
        """Raises UsageError if the tokenizer has no chat template, no end token, or a template that doesn't show the
        messages or ends answers in another way."""
        self.tokenizer, self._kind, self._examples = tokenizer, kind, examples
        if tokenizer.chat_template is None or tokenizer.eos_token_id is None:
            raise UsageError(
                "The model's tokenizer has no chat template or no end token", "Take an instruction-tuned one"
            )
        self.stop_id: int = tokenizer.eos_token_id
        self.pad_id: int = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else self.stop_id
        roles = ("system", "user") if kind == "tools" else ("user",)
        self._opening = [self._encode_template(piece) for piece in self._around(*roles)]
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
    def load(cls, checkpoint: Path, kind: DialogueKind, examples: int) -> "ChatDialogue":
        from transformers import AutoTokenizer

        return cls(AutoTokenizer.from_pretrained(checkpoint, local_files_only=True), kind, examples)

    @property
    def vocabulary(self) -> int:
        return len(self.tokenizer)

    def about(self, brief: Brief, plans: Sequence[Offer]) -> TaskDialogue:
        return task_dialogue(self._kind, brief, self._examples)

    def encode_prompt(self, messages: Sequence[Message]) -> list[int]:
        first, *others = self._opening
        parts = zip(messages, others, strict=True)
        return [*first, *(token for said, after in parts for token in [*self.encode(said["content"]), *after])]

    def encode_observation(self, text: str) -> list[int]:
        return [*self._between, *self.encode(text), *self._end]

    def decode_turn(self, token_ids: Sequence[int]) -> str:
        """Returns what stands after the thinking; nothing if that didn't end."""
        text = super().decode_turn(token_ids)
        _, ended, said = text.rpartition(_THOUGHT)
        hidden = not ended and (self._begins_thinking or _THINKS in said)  # foreign text: the model's
        return "" if hidden else said

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
