"""The dialogue of a chat model, with its own template, the prompts of `--policy llm` and tool calls as tagged text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cuda_agent.agent.policies.conversation import Conversation
from cuda_agent.agent.policy import Brief
from cuda_agent.agent.trained.dialogue import Dialogue, ParsedTurn
from cuda_agent.agent.trained.offers import Offer
from cuda_agent.core.config import LanguageModelOptions
from cuda_agent.core.errors import UsageError
from cuda_agent.core.records import ToolResult
from cuda_agent.llm import tagged

#: probe messages that show what the template puts around a message.
_ASKED, _ANSWERED = "question", "answer"
_NOTHING_CALLED = "You called no tool. Go on with a tool call."


class ChatDialogue(Dialogue):
    """`Dialogue` over a tokenizer of transformers. Answers are added after the model's own tokens; the conversation is
    never rendered as a whole again."""

    offers_plans = False

    def __init__(self, tokenizer: Any) -> None:
        """Raises UsageError if the tokenizer has no chat template, no end token, or a template that changes earlier
        messages."""
        self.tokenizer = tokenizer
        if tokenizer.chat_template is None or tokenizer.eos_token_id is None:
            raise UsageError(
                "The model's tokenizer has no chat template or no end token", "Take an instruction-tuned one"
            )
        self.stop_id: int = tokenizer.eos_token_id
        self.pad_id: int = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else self.stop_id
        self._between("a look whether it can be continued")

    @classmethod
    def load(cls, checkpoint: Path) -> "ChatDialogue":
        from transformers import AutoTokenizer

        return cls(AutoTokenizer.from_pretrained(checkpoint, local_files_only=True))

    def prompt(self, brief: Brief, plans: Sequence[Offer]) -> list[int]:
        conversation = Conversation(brief, LanguageModelOptions(model="checkpoint", tools="tagged"))
        return self.encode(self._render(list(conversation.request([]).messages), opened=True))

    def encode_answers(self, parsed: ParsedTurn, results: Sequence[ToolResult], turns_left: int) -> list[int]:
        answers = [
            tagged.write_result(call.tool, result.text) for call, result in zip(parsed.calls, results, strict=False)
        ]
        text = "\n".join([*(answers or [_NOTHING_CALLED]), f"[Left: {turns_left} turns.]"])
        return self.encode(self._between(text))

    def _between(self, text: str) -> str:
        """Returns what the template puts between an answer's end token and the next answer. Raises UsageError."""
        before = [{"role": "user", "content": _ASKED}, {"role": "assistant", "content": _ANSWERED}]
        base = self._render(before, opened=False)
        whole = self._render([*before, {"role": "user", "content": text}], opened=True)
        answer, end, rest = base.rpartition(self.tokenizer.eos_token)
        if not whole.startswith(base) or not end or _ANSWERED not in answer:
            raise UsageError(
                "The model's chat template changes earlier messages or ends answers without its end token",
                "Give a template that only adds at the end",
            )
        return rest + whole[len(base) :]

    def _render(self, messages: list[Any], *, opened: bool) -> str:
        text: str = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=opened)
        return text

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))
