"""A language model as policy: the turns become a request, the reply becomes a move. It keeps no state of its own."""

import json
from collections.abc import Sequence
from typing import Any

from cuda_agent.agent.policies import stall
from cuda_agent.agent.policies.conversation import Conversation
from cuda_agent.agent.policy import Brief
from cuda_agent.core.config import LanguageModelOptions
from cuda_agent.core.errors import PolicyError, UsageError
from cuda_agent.core.records import PolicyMove, ToolCall, Turn
from cuda_agent.llm import tagged
from cuda_agent.llm.chat import ChatClient, ContextExceeded, Reply, WrittenCall
from cuda_agent.llm.client import make_client
from cuda_agent.llm.prices import spent
from cuda_agent.llm.stream import well_formed

#: parts of its length to which a request is shortened, in turn, when the server refuses it as too long.
_SMALLER = (0.75, 0.5, 0.25)
_SHOWN = 300


class LanguageModelPolicy:
    """`Policy` over a `ChatClient`, or over the endpoint that the brief names. Raises UsageError if the brief names
    none or the client's package is missing."""

    name = "llm"

    def __init__(self, brief: Brief, client: ChatClient | None = None) -> None:
        if brief.llm is None:
            raise UsageError("The policy llm needs a model", "Give --model, and --base-url where it isn't OpenAI's")
        self._options = brief.llm
        self._conversation = Conversation(brief, brief.llm)
        self._tools = frozenset(tool["function"]["name"] for tool in brief.tools)
        self._client = client or make_client(brief.llm, brief.key, brief.notice)

    def next(self, history: Sequence[Turn]) -> PolicyMove:
        """Raises PolicyStalled when the model no longer acts, PolicyError when the endpoint ends the conversation."""
        stall.check(history, self._tools)
        try:
            return self._move(self._client.complete(self._conversation.request(history)), len(history))
        except ContextExceeded as error:
            said = str(error)
        length = min(self._conversation.window(history).limit, self._conversation.expected(history))
        for part in _SMALLER:
            limit = int(length * part)
            try:
                reply = self._client.complete(self._conversation.request(history, refused=limit))
            except ContextExceeded as error:
                said = str(error)
                continue
            return self._move(reply, len(history)).model_copy(update={"context_limit": limit})
        raise PolicyError(
            f"The model's context is too small for this task ({said})", "Use a model or server with a longer context"
        )

    def _move(self, reply: Reply, index: int) -> PolicyMove:
        text, written = tagged.parse(reply.text) if self._options.tools == "tagged" else (reply.text, reply.calls)
        calls = _distinct([_call(call, reply.finish) for call in written], index)
        return PolicyMove(
            message=text,
            reasoning=reply.reasoning if self._options.reasoning == "keep" else "",
            calls=calls,
            observation="" if calls else _nothing_called(reply, self._options),
            **spent(reply, self._options),
        )


def _call(written: WrittenCall, finish: str) -> ToolCall:
    """Returns the call, or a malformed call that says what is wrong."""
    arguments: Any = None
    problem = written.problem
    if not problem:
        try:
            arguments = json.loads(written.arguments or "{}")
            # Escapes may stand for half of a surrogate pair, which no file can hold.
            arguments = json.loads(well_formed(json.dumps(arguments, ensure_ascii=False)))
        except (ValueError, RecursionError) as error:
            problem = f"the arguments aren't JSON: {error}"
        else:
            if not isinstance(arguments, dict):
                problem = "the arguments aren't a JSON object"
        if problem:
            given = written.arguments
            shown = given if len(given) <= _SHOWN else f"{given[:_SHOWN]} … ({len(given):,} characters)"
            problem += f". They were: {shown}"
    if problem and finish == "length":
        problem += ". Your answer was cut off at the limit of its length: write less at a time, a large file in parts"
    return ToolCall(id=written.id, tool=written.name, arguments={} if problem else arguments, malformed=problem)


def _distinct(calls: Sequence[ToolCall], index: int) -> tuple[ToolCall, ...]:
    """Returns the calls with unique ids. Some servers give none, or the same ones each time."""
    seen: set[str] = set()
    found = []
    for position, call in enumerate(calls):
        if not call.id or call.id in seen:
            call = call.model_copy(update={"id": f"call-{index + 1}-{position + 1}"})
        seen.add(call.id)
        found.append(call)
    return tuple(found)


def _nothing_called(reply: Reply, options: LanguageModelOptions) -> str:
    """Returns what a model is told after an answer without a tool call."""
    if reply.finish == "length":
        return (
            "Your answer was cut off at the limit of its length before it called a tool. Think and write less at once."
        )
    if reply.finish == "content_filter":
        return "The server's filter held back your answer. Go on with a tool call."
    if "<tool_call>" in reply.text and options.tools == "native":
        return "Your call came as text and was not run. Use the tool calls of the protocol."
    nothing = "No tool was called, so nothing happened." if reply.text else "Your answer was empty."
    return f"{nothing} Go on with a tool call; to end the run, call Finish."
