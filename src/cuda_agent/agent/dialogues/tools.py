"""The dialogue of the agent loop: the prompts of `--policy llm`, and tool calls as tagged text."""

from collections.abc import Sequence

from cuda_agent.agent.dialogues.dialogue import ParsedTurn, parse_tagged
from cuda_agent.agent.policies.conversation import Conversation
from cuda_agent.agent.policy import Brief
from cuda_agent.core.config import LanguageModelOptions
from cuda_agent.core.records import ToolCall, ToolResult
from cuda_agent.llm import tagged
from cuda_agent.llm.chat import Message

_NOTHING_CALLED = "You called no tool. Go on with a tool call."


class ToolDialogue:
    """`TaskDialogue` with the agent's tools."""

    def __init__(self, brief: Brief) -> None:
        self._brief = brief

    def messages(self) -> list[Message]:
        options = LanguageModelOptions(model="checkpoint", tools="tagged")
        return list(Conversation(self._brief, options).request([]).messages)

    def parse(self, text: str, turn: int) -> ParsedTurn:
        return parse_tagged(text, turn)

    def observation(self, calls: Sequence[ToolCall], results: Sequence[ToolResult], turns_left: int) -> str:
        answers = [tagged.write_result(call.tool, result.text) for call, result in zip(calls, results, strict=False)]
        return "\n".join([*(answers or [_NOTHING_CALLED]), f"[Left: {turns_left} turns.]"])
