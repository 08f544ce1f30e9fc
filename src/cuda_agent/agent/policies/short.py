"""A short dialogue, for models that can't use the agent's tools: the model answers with one fenced block, the kernel of
the single-file form, and is told in a few lines what the judge found.

An attempt has few turns. The next one begins from the prompt again; the best candidate of all attempts counts.
"""

import ast
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from cuda_agent.agent.policies import stall
from cuda_agent.agent.policy import Brief, finish
from cuda_agent.core.assets import filled
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.errors import NotCovered, PolicyError, TaskError, UsageError
from cuda_agent.core.graph import Graph
from cuda_agent.core.records import PolicyMove, ToolCall, ToolResult, Turn
from cuda_agent.llm.chat import ChatClient, ChatRequest, ContextExceeded, Message
from cuda_agent.llm.client import make_client
from cuda_agent.llm.prices import spent
from cuda_agent.playbook.single_file import SingleFile

#: turns of an attempt, and attempts of a run.
TURNS, ATTEMPTS = 4, 8
#: characters of an observation, some 120 tokens.
_OBSERVED = 420
_BLOCK = re.compile(r"```[\w+]*[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_NOTHING = "There is no fenced block, so nothing was built."
_AGAIN = "Answer with the whole kernel in one fenced block."
#: functions of a task file that say nothing about what is computed.
_DRAWS = ("get_inputs", "get_init_inputs")


class ShortDialogue:
    """The texts of the dialogue about one task. Raises NotCovered and TaskError where there is no single-file form."""

    def __init__(self, brief: Brief) -> None:
        self._brief = brief
        self._graph: Graph = brief.graph()
        self._form = SingleFile.of(self._graph, brief.device)

    def prompt(self) -> str:
        """Returns the reference, the tensors, the launcher's declaration and one worked example."""
        return filled(
            Path(__file__).parent / "prompts" / "short.md.j2",
            device=self._brief.device.value,
            language="cuda" if self._brief.device is Device.CUDA else "cpp",
            reference=_computed(self._brief.task.source),
            tensors=[argument.description for argument in self._form.arguments],
            declaration=self._form.declaration,
        ).strip()

    def calls(self, text: str, turn: int) -> tuple[ToolCall, ...]:
        """Returns the calls that write the answer's last block into the workspace and have it judged; none where there
        is no block."""
        blocks = _BLOCK.findall(text)
        if not blocks:
            return ()
        files = self._form.candidate(blocks[-1], self._graph)
        calls: list[tuple[str, dict[str, Any]]] = [
            ("Write", {"path": path, "content": content}) for path, content in files.items()
        ]
        return tuple(
            ToolCall(id=f"call-{turn}-{number}", tool=tool, arguments=arguments)
            for number, (tool, arguments) in enumerate([*calls, ("Profile", {})], 1)
        )

    def observation(self, results: Sequence[ToolResult]) -> str:
        """Returns what the model hears: the first error of the compiler, the verdict's reason, or the times."""
        if not results:
            return f"{_NOTHING} {_AGAIN}"
        said = self._said(results[-1])
        return f"{said if len(said) <= _OBSERVED else said[:_OBSERVED] + ' …'}\n{_AGAIN}"

    def _said(self, result: ToolResult) -> str:
        verdict, reason = result.data.get("verdict"), str(result.data.get("reason", "")) or result.first_line
        if verdict == Verdict.PASSED:
            ratios = [f"{ratio[0]:.2f} times as fast as {name}" for name, ratio in result.data["ratios"].items()]
            return f"Right, in {result.data['latency_us']:,.1f} us: {', '.join(ratios)}. Make it faster."
        if verdict == Verdict.BUILD_FAILED:
            return f"It doesn't compile: {self._as_written(reason)}"
        return f"Not accepted ({verdict}): {reason}" if verdict else reason

    def _as_written(self, reason: str) -> str:
        """Returns a compiler's message with line numbers of the model's own text."""
        above = self._form.opening.count("\n")
        place = re.compile(rf"(?:\S*/)?{re.escape(Path(self._form.path).name)}(?:\((\d+)\)|:(\d+))")

        def line(found: re.Match[str]) -> str:
            return f"line {max(1, int(found[1] or found[2]) - above)}"

        return place.sub(line, reason)  # foreign text: the compiler's


class ShortPolicy:
    """Plays the short dialogue with an endpoint. Every move is a function of the turns before."""

    name = "llm"

    def __init__(self, brief: Brief, client: ChatClient | None = None) -> None:
        """Raises UsageError if the brief names no model or the client's package is missing."""
        if brief.llm is None:
            raise UsageError("The policy llm needs a model", "Give --model, and --base-url where it isn't OpenAI's")
        self._brief, self._options = brief, brief.llm
        self._tools = frozenset(tool["function"]["name"] for tool in brief.tools)
        self._client = client or make_client(brief.llm, brief.key, brief.notice)

    @cached_property
    def _dialogue(self) -> ShortDialogue:
        return ShortDialogue(self._brief)

    def next(self, history: Sequence[Turn]) -> PolicyMove:
        """Raises PolicyStalled when the model no longer acts, PolicyError when the endpoint ends the conversation."""
        stall.check(history, self._tools)
        try:
            dialogue = self._dialogue
        except NotCovered as gap:
            return finish(gap.cause, "not_covered")
        except TaskError as error:
            return finish(f"the reference can't be captured as a graph: {error}", "not_covered")
        if len(history) >= TURNS * ATTEMPTS:
            passed = any(result.data.get("verdict") == Verdict.PASSED for turn in history for result in turn.results)
            return finish(f"{ATTEMPTS} attempts of {TURNS} turns", "finished" if passed else "gave_up")
        attempt = history[len(history) // TURNS * TURNS :]
        try:
            reply = self._client.complete(ChatRequest(self._messages(attempt), None))
        except ContextExceeded as error:
            remedy = "Use a model or server with a longer context"
            raise PolicyError(f"The model's context is too small for this task ({error})", remedy) from None
        calls = dialogue.calls(reply.text, len(history) + 1)
        return PolicyMove(
            message=reply.text,
            reasoning=reply.reasoning if self._options.reasoning == "keep" else "",
            calls=calls,
            observation="" if calls else dialogue.observation(()),
            **spent(reply, self._options),
        )

    def _messages(self, attempt: Sequence[Turn]) -> list[Message]:
        messages: list[Message] = [{"role": "user", "content": self._dialogue.prompt()}]
        for turn in attempt:
            messages.append({"role": "assistant", "content": turn.message or "(no answer)"})
            messages.append({"role": "user", "content": self._dialogue.observation(turn.results)})
        return messages


def _computed(source: str) -> str:
    """Returns the task's source without imports, docstrings and the functions that draw inputs."""
    kept = []
    for node in ast.parse(source).body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_draw = isinstance(node, ast.FunctionDef) and node.name in _DRAWS
        if not is_text and not is_draw and not isinstance(node, ast.Import | ast.ImportFrom):
            kept.append(ast.get_source_segment(source, node) or "")
    return "\n".join(kept)
