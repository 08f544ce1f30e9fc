"""Dialogues in fenced blocks, for models that can't use the agent's tools. An answer holds a whole candidate, which
replaces the one before and is judged at once; the model is told in a few lines what the judge found."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda_agent.agent.dialogues.dialogue import ParsedTurn
from cuda_agent.agent.dialogues.reference import computed
from cuda_agent.agent.policy import Brief
from cuda_agent.core.assets import filled, tables
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.graph import Graph
from cuda_agent.core.records import ToolCall, ToolResult
from cuda_agent.llm.chat import Message

#: pieces of a judge's answer that the model hears: with the request after it at most 120 tokens.
_OBSERVED = 90
#: what is about one token of the usual vocabularies, or less.
_PIECE = re.compile(r"\s*(?:\d|[^\W\d]{1,5}|[^\w\s]{1,2})")
_CLEAR = "rm -rf kernels model_new.py"


@dataclass(frozen=True)
class WorkedExample:
    """A small task and its kernel. `operators` are those of its graph, `shapes` its inputs' and `out`."""

    computes: str
    operators: tuple[str, ...]
    shapes: Mapping[str, Sequence[int]]
    kernel: str

    @property
    def inputs(self) -> list[str]:
        return [name for name in self.shapes if name != "out"]

    @property
    def tensors(self) -> str:
        """The inputs with their shapes."""
        return " and ".join(f"{name} {self.shapes[name]}" for name in self.inputs)


class FencedDialogue(ABC):
    """`TaskDialogue` without tools."""

    #: file name of the prompt's template.
    template: str
    #: what is said to an answer that holds no candidate, and the request at the end of every observation.
    nothing: str
    again: str

    def __init__(self, brief: Brief, examples: int = 1) -> None:
        """`examples` is the number of worked examples in the prompt. None of them is the task itself. Raises TaskError
        where the task has no graph."""
        self._brief, self._examples = brief, examples
        self._graph: Graph = brief.graph()

    @abstractmethod
    def candidate(self, text: str) -> dict[str, str]:
        """Returns the files that an answer holds; none where it holds no candidate."""

    def facts(self) -> dict[str, Any]:
        """Returns further values of the prompt."""
        return {}

    def as_written(self, reason: str) -> str:
        """Returns a compiler's message in terms of what the model wrote."""
        return reason

    def messages(self) -> list[Message]:
        text = filled(
            Path(__file__).parent / "prompts" / self.template,
            device=self._brief.device.value,
            language="cuda" if self._brief.device is Device.CUDA else "cpp",
            reference=computed(self._brief.task.source),
            examples=worked_examples(self._graph, self._brief.device)[: self._examples],
            **self.facts(),
        ).strip()
        return [{"role": "user", "content": text}]

    def parse(self, text: str, turn: int) -> ParsedTurn:
        files = self.candidate(text)
        if not files:
            return ParsedTurn(text, ())
        calls: list[tuple[str, dict[str, Any]]] = [("Bash", {"command": _CLEAR})]
        calls += [("Write", {"path": path, "content": content}) for path, content in files.items()]
        return ParsedTurn(
            text,
            tuple(
                ToolCall(id=f"call-{turn}-{number}", tool=tool, arguments=arguments)
                for number, (tool, arguments) in enumerate([*calls, ("Profile", {})], 1)
            ),
        )

    def observation(self, calls: Sequence[ToolCall], results: Sequence[ToolResult], turns_left: int) -> str:
        """Returns the first error of the compiler, the verdict's reason, or the times."""
        if not results:
            return f"{self.nothing} {self.again}"
        refused = (call.tool == "Write" and not result.ok for call, result in zip(calls, results, strict=False))
        at = next((at for at, is_refused in enumerate(refused) if is_refused), -1)
        return f"{_beginning(self._said(results[at]))}\n{self.again}"

    def _said(self, result: ToolResult) -> str:
        verdict, reason = result.data.get("verdict"), str(result.data.get("reason", "")) or result.first_line
        if verdict == Verdict.PASSED:
            ratios = [f"{ratio[0]:.2f} times as fast as {name}" for name, ratio in result.data["ratios"].items()]
            return f"Right, in {result.data['latency_us']:,.1f} us: {', '.join(ratios)}. Make it faster."
        if verdict == Verdict.BUILD_FAILED:
            return f"It doesn't compile: {self.as_written(reason)}"
        return f"Not accepted ({verdict}): {reason}" if verdict else reason


def worked_examples(graph: Graph, device: Device) -> list[WorkedExample]:
    """Returns the examples except one that computes what the graph does."""
    operators = sorted(node.op.removeprefix("aten.").partition(".")[0] for node in graph.nodes)
    found = [
        WorkedExample(one["computes"], tuple(one["operators"].split()), one["shapes"], one[device.value].rstrip())
        for one in tables(__file__)["examples"]
    ]
    return [one for one in found if sorted(one.operators) != operators]


def _beginning(text: str) -> str:
    pieces = [piece.end() for piece in _PIECE.finditer(text)]
    return text if len(pieces) <= _OBSERVED else text[: pieces[_OBSERVED - 1]] + " …"
