"""Composes the requests to a language model: a pure function of the brief and the turns, so that a resumed run
continues alike.

All turns stand word for word until the next request would be too long, by the server's token counts. Then the older
turns are condensed (`condensed.py`). Between two condensations requests only grow at their end, so servers can keep
their prefix caches.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda_agent.agent.budget import Accounts
from cuda_agent.agent.policies.condensed import condense
from cuda_agent.agent.policies.stall import REPEATS_TOLD, rounds
from cuda_agent.agent.policy import Brief
from cuda_agent.agent.tools.output import cut_middle
from cuda_agent.core.assets import filled
from cuda_agent.core.config import LanguageModelOptions
from cuda_agent.core.records import Budget, ToolCall, Turn
from cuda_agent.llm import tagged
from cuda_agent.llm.chat import CHARACTERS_PER_TOKEN, ChatRequest, Message, estimate_tokens

#: tokens kept free for the answer, but at most one part in so many of the context.
_ANSWER_TOKENS, _ANSWER_PART = 16_384, 8
#: shares of the context: the turns that stay when older ones are condensed, one turn's answers, the task.
_KEPT, _ONE_TURN, _TASK = 0.2, 0.2, 0.15


@dataclass(frozen=True)
class Window:
    """Turns before `first` are condensed. Request and answer together have `limit` tokens."""

    first: int
    limit: int

    @property
    def characters(self) -> int:
        return int(self.limit * CHARACTERS_PER_TOKEN)


class Conversation:
    """Composes requests for one brief."""

    def __init__(self, brief: Brief, options: LanguageModelOptions) -> None:
        self._brief, self._options = brief, options
        self._tagged = options.tools == "tagged"
        described = tagged.describe(brief.tools) if self._tagged else ""
        self._system = _render("system.md.j2", device=brief.device.value, tools=described)

    def request(self, history: Sequence[Turn], refused: int | None = None) -> ChatRequest:
        """Returns the next request. `refused` is a limit of tokens that the server has just shown."""
        repeats = rounds(history)
        window = self._window(history, repeats, refused)
        messages: list[Message] = [
            {"role": "system", "content": self._system},
            {"role": "user", "content": self._task(history[: window.first], window)},
        ]
        for turn, times in zip(history[window.first :], repeats[window.first :], strict=True):
            messages += self._turn(turn, window, times)
        return ChatRequest(messages, None if self._tagged else self._brief.tools)

    def window(self, history: Sequence[Turn], refused: int | None = None) -> Window:
        """Returns which turns stand word for word in the request after `history`."""
        return self._window(history, rounds(history), refused)

    def expected(self, history: Sequence[Turn]) -> int:
        """Returns the tokens of the next request if it only grows, or the whole context before the first request."""
        if not history:
            return self._options.context_tokens
        repeats = rounds(history)
        return self._grown(history[-1], self._window(history, repeats), repeats[-1])

    def _window(self, history: Sequence[Turn], repeats: Sequence[int], refused: int | None = None) -> Window:
        window = Window(0, self._options.context_tokens)
        for index in range(len(history) + 1):
            shown = history[index].context_limit if index < len(history) else refused
            limit = min(window.limit, shown) if shown is not None else window.limit
            room = limit - min(_ANSWER_TOKENS, limit // _ANSWER_PART)
            window = Window(window.first, limit)
            full = index > 0 and self._grown(history[index - 1], window, repeats[index - 1]) > room
            if full or shown is not None:
                window = Window(self._first_kept(history[:index], repeats, window), limit)
        return window

    def _grown(self, turn: Turn, window: Window, repeats: int) -> int:
        """Returns the tokens of the request after `turn` if it only grows: the server's count and what is added."""
        said, *answers = self._turn(turn, window, repeats)
        answer = min(turn.tokens_out, estimate_tokens(_length([said])))
        return turn.tokens_in + answer + estimate_tokens(_length(answers))

    def _first_kept(self, history: Sequence[Turn], repeats: Sequence[int], window: Window) -> int:
        """Returns the earliest of the last turns that fit in their share; the last turn always stays."""
        room = window.characters * _KEPT
        first = len(history)
        while first > 0:
            room -= _length(self._turn(history[first - 1], window, repeats[first - 1]))
            if room < 0 and first < len(history):
                break
            first -= 1
        return first

    def _task(self, condensed: Sequence[Turn], window: Window) -> str:
        before = ""
        if condensed:
            facts = condense(condensed, self._brief.candidate, window.characters)
            before = _render("condensed.md.j2", **vars(facts))
        source = self._brief.task.source
        if len(source) > window.characters * _TASK:
            source = cut_middle(source, int(window.characters * _TASK)) + "\n# Read model.py gives all of it."
        return _render(
            "task.md.j2",
            name=self._brief.task.name,
            device=self._brief.device.value,
            precision=self._brief.precision.value,
            budget=Accounts(self._brief.limits).budget((), 0.0),
            source=source,
            condensed=before,
        )

    def _turn(self, turn: Turn, window: Window, repeats: int) -> list[Message]:
        """Returns one turn as messages: the model's words and calls, then the answers, the last with the remaining
        budget."""
        said: Message = {"role": "assistant", "content": turn.message or None}
        if turn.reasoning and self._options.reasoning == "keep":
            said["reasoning_content"] = turn.reasoning
        status = self._status(turn, repeats)
        if not turn.calls:
            said["content"] = turn.message or "(no answer)"
            return [said, {"role": "user", "content": f"{turn.observation or 'Go on.'}\n\n{status}"}]
        each = int(window.characters * _ONE_TURN) // len(turn.calls)
        texts = [cut_middle(result.text, each, "; ask for less at a time to see them") for result in turn.results]
        texts += ["Not run."] * (len(turn.calls) - len(texts))
        if self._tagged:
            calls = [tagged.write_call(_name(call), call.arguments) for call in turn.calls]
            said["content"] = "\n".join([turn.message, *calls] if turn.message else calls)
            answers = [tagged.write_result(_name(call), text) for call, text in zip(turn.calls, texts, strict=True)]
            return [said, {"role": "user", "content": "\n".join([*answers, status])}]
        said["tool_calls"] = [_as_sent(call) for call in turn.calls]
        texts[-1] += f"\n\n{status}"
        answered = zip(turn.calls, texts, strict=True)
        return [said, *({"role": "tool", "tool_call_id": call.id, "content": text} for call, text in answered)]

    def _status(self, turn: Turn, repeats: int) -> str:
        """Returns the remaining budget after `turn`, and a warning if the model repeats itself."""
        budget = turn.budget or Budget(turns_limit=self._brief.limits.turns, turns_spent=turn.index + 1)
        used, context = turn.tokens_in + turn.tokens_out, self._options.context_tokens
        return _render("status.md.j2", budget=budget, used=used, context=context, repeats=repeats, told=REPEATS_TOLD)


def _as_sent(call: ToolCall) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {"id": call.id, "type": "function", "function": {"name": _name(call), "arguments": arguments}}


def _name(call: ToolCall) -> str:
    """Returns a tool's name as servers accept it in an old call, even if the model invented it."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", call.tool)[:64] or "unknown"


def _length(messages: Sequence[Message]) -> int:
    """Counts the characters of messages, with calls and reasoning."""
    total = 0
    for message in messages:
        total += len(message["content"] or "") + len(message.get("reasoning_content", ""))
        for call in message.get("tool_calls", ()):
            total += len(call["function"]["name"]) + len(call["function"]["arguments"])
    return total


def _render(template: str, /, **values: Any) -> str:
    return filled(Path(__file__).parent / "prompts" / template, **values).strip()
