"""Defines a tool: a name, a pydantic model of its arguments, and a function that answers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from cuda_agent.agent.context import ToolContext


class Arguments(BaseModel):
    """Base of every tool's arguments. A subclass's docstring is the tool's description. Unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class ToolAnswer:
    """A tool's answer: `text` for the policy to read, `data` for programs (JSON values only)."""

    text: str
    ok: bool = True
    data: dict[str, Any] = field(default_factory=dict)


A = TypeVar("A", bound=Arguments)


@dataclass(frozen=True)
class Tool(Generic[A]):
    """One tool. `run` may raise CallRefused for a call that can't be done."""

    name: str
    arguments: type[A]
    run: Callable[[A, ToolContext], ToolAnswer]

    @property
    def description(self) -> str:
        return " ".join((self.arguments.__doc__ or "").split())

    def parameters(self) -> dict[str, Any]:
        """Returns the JSON schema of the arguments without references, since not every server follows them."""
        return copy.deepcopy(_parameters(self.arguments))

    def schema(self) -> dict[str, Any]:
        """Returns the tool as a function of the OpenAI protocol."""
        parameters = self.parameters()
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


@cache
def _parameters(arguments: type[Arguments]) -> dict[str, Any]:
    schema = arguments.model_json_schema()
    definitions = schema.pop("$defs", {})
    schema.pop("description", None)
    plain: dict[str, Any] = _plain(schema, definitions)
    return plain


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
