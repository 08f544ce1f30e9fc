"""Finds and runs tools by name. A wrong call is answered with the right form and never ends the run."""

import difflib
import json
import time
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from cuda_agent.agent.context import ToolContext
from cuda_agent.agent.files import CallRefused
from cuda_agent.agent.tools.base import Tool, ToolAnswer
from cuda_agent.agent.tools.files import Edit, MultiEdit, Read, Write
from cuda_agent.agent.tools.judged import Compile, Finish, Inspect, Profile, Verify
from cuda_agent.agent.tools.output import shorten
from cuda_agent.agent.tools.search import Glob, Grep
from cuda_agent.agent.tools.shell import Bash, BashOutput, KillBash
from cuda_agent.core.plain import for_model
from cuda_agent.core.records import ToolCall, ToolResult

ALL: tuple[type[Tool], ...] = (
    Bash, BashOutput, KillBash, Read, Write, Edit, MultiEdit, Glob, Grep, Compile, Verify, Profile, Inspect, Finish,
)  # fmt: skip

#: set in the data of an answer when the call itself was wrong: an unknown tool, or arguments that don't fit it.
WRONG_CALL = "wrong_call"


class Toolbox:
    """The tools of one run, with its context."""

    def __init__(self, context: ToolContext, tools: tuple[type[Tool], ...] = ALL) -> None:
        self.context = context
        self._tools = {tool.__name__: tool for tool in tools}
        #: number of calls so far. It numbers their files, and a resumed run continues the count.
        self.calls = 0
        self._told = False

    def resume(self, calls: int, made: Iterable[ToolCall]) -> None:
        """Goes on after the calls that a run made before. `calls` is their number."""
        self.calls = calls
        self._told = any(call.tool not in self._tools for call in made)

    def schemas(self) -> list[dict[str, Any]]:
        """Returns all tools in the form of the OpenAI protocol."""
        return [tool.function() for tool in self._tools.values()]

    @property
    def finished(self) -> tuple[str, str] | None:
        return self.context.finished

    def call(self, call: ToolCall) -> ToolResult:
        """Runs one call. A call that can't be done has an answer with ok=False; only errors of this machine raise."""
        started = time.monotonic()
        self.calls += 1
        if self.context.finished is not None:
            answer = ToolAnswer("Not run: the run is finished.", ok=False)
        else:
            answer = self._answer(call)
        text = shorten(for_model(answer.text), self.context.logs, f"{self.calls:04d}-{call.tool}.txt")
        took = time.monotonic() - started
        return ToolResult(call_id=call.id, text=text, ok=answer.ok, data=answer.data, duration_s=took)

    def _answer(self, call: ToolCall) -> ToolAnswer:
        tool = self._tools.get(call.tool)
        if tool is None:
            near = difflib.get_close_matches(call.tool, self._tools, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            wrong = f"Wrong call: {call.malformed}\n" if call.malformed else ""
            told, self._told = self._told, True
            named = (f"{name}({_fields(one.parameters())})" for name, one in self._tools.items())
            known = f" Tools: {', '.join(self._tools)}." if told else "\n".join([" Call one of these:", *named])
            return _wrong(f"{wrong}No tool {call.tool!r}.{hint}{known}")
        if call.malformed:
            return _wrong(f"Wrong call: {call.malformed}\n{_usage(tool)}")
        unusable = _unusable(call.arguments)
        if unusable:
            return _wrong(f"Wrong call: an argument holds {unusable}. Leave it out.")
        try:
            asked = tool.model_validate(call.arguments)
        except ValidationError as error:
            found = (f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}" for one in error.errors()[:5])
            return _wrong(f"Wrong call: {'; '.join(found)}\n{_usage(tool)}")
        try:
            return asked.run(self.context)
        except CallRefused as refusal:
            return ToolAnswer(str(refusal), ok=False)


def _wrong(text: str) -> ToolAnswer:
    return ToolAnswer(text, ok=False, data={WRONG_CALL: True})


def _unusable(value: object) -> str:
    """Returns a name for characters in the arguments that no file, path or command can hold, or ""."""
    if isinstance(value, str):
        if "\0" in value:
            return "a null character"
        return "half of a surrogate pair" if any("\ud800" <= letter <= "\udfff" for letter in value) else ""
    parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return next((found for part in parts if (found := _unusable(part))), "")


def _usage(tool: type[Tool]) -> str:
    return f"Call it as {tool.__name__}({_fields(tool.parameters())}). {tool.description()}"


def _fields(schema: dict[str, Any]) -> str:
    required = schema.get("required", [])
    properties = schema.get("properties", {})
    parts = (f"{name}: {_kind(spec)}{'' if name in required else ' (optional)'}" for name, spec in properties.items())
    return ", ".join(parts)


def _kind(spec: dict[str, Any]) -> str:
    if "anyOf" in spec:
        return " or ".join(_kind(part) for part in spec["anyOf"] if part.get("type") != "null")
    if "enum" in spec:
        return "|".join(map(json.dumps, spec["enum"]))
    if spec.get("type") == "array" and "items" in spec:
        return f"array of {_kind(spec['items'])}"
    if spec.get("properties"):
        return f"{{{_fields(spec)}}}"
    if isinstance(spec.get("additionalProperties"), dict):
        return f"object of {_kind(spec['additionalProperties'])}"
    return str(spec.get("type", "object"))
