"""Defines a tool: a pydantic model of its arguments with a method that answers."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict

from cuda_agent.agent.context import ToolContext


@dataclass(frozen=True)
class ToolAnswer:
    """A tool's answer: `text` for the policy to read, `data` for programs (JSON values only)."""

    text: str
    ok: bool = True
    data: dict[str, Any] = field(default_factory=dict)


class Arguments(BaseModel):
    """Arguments of a tool, or a part of them. Unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Tool(Arguments, ABC):
    """One call of a tool. A subclass's name is the tool's name, its docstring the description for the policy, and its
    fields are the arguments."""

    @abstractmethod
    def run(self, context: ToolContext) -> ToolAnswer:
        """Answers the call. Raises CallRefused for a call that can't be done."""

    @classmethod
    def description(cls) -> str:
        return " ".join((cls.__doc__ or "").split())

    @classmethod
    def parameters(cls) -> dict[str, Any]:
        """Returns the JSON schema of the arguments without references, since not every server follows them."""
        schema = cls.model_json_schema()
        definitions = schema.pop("$defs", {})
        schema.pop("description", None)
        plain: dict[str, Any] = _plain(schema, definitions)
        return plain

    @classmethod
    def function(cls) -> dict[str, Any]:
        """Returns the tool as a function of the OpenAI protocol."""
        function = {"name": cls.__name__, "description": cls.description(), "parameters": cls.parameters()}
        return {"type": "function", "function": function}


def _plain(schema: Any, definitions: dict[str, Any]) -> Any:
    """Returns the schema with references filled in and without the titles that pydantic adds."""
    if isinstance(schema, list):
        return [_plain(part, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _plain(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    kept = {key: value for key, value in schema.items() if key != "title"}
    properties = kept.pop("properties", None)
    plain = {key: _plain(value, definitions) for key, value in kept.items()}
    if properties is not None:
        plain["properties"] = {name: _plain(value, definitions) for name, value in properties.items()}
    return plain
