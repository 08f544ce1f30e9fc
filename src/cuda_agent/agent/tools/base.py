"""What a tool is: a name, a pydantic model of its arguments, and a function that answers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from cuda_agent.agent.context import Context


class Arguments(BaseModel):
    """Base of every tool's arguments. Its docstring is the tool's description; unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class Answer:
    """What a tool says: `text` for the policy to read, `data` its structured form (JSON values only)."""

    text: str
    ok: bool = True
    data: dict[str, Any] = field(default_factory=dict)


A = TypeVar("A", bound=Arguments)


@dataclass(frozen=True)
class Tool(Generic[A]):
    """One tool. `run` may raise Refusal: a call that can't be done as asked, with what to do instead."""

    name: str
    arguments: type[A]
    run: Callable[[A, Context], Answer]

    @property
    def description(self) -> str:
        return " ".join((self.arguments.__doc__ or "").split())

    def parameters(self) -> dict[str, Any]:
        """JSON schema of the arguments, whole in itself: not every server follows references."""
        return copy.deepcopy(_parameters(self.arguments))

    def schema(self) -> dict[str, Any]:
        """The tool as a function of the OpenAI protocol; the JSON schema comes from the arguments' model."""
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
    """The schema with its references filled in and without the titles that pydantic makes of names."""
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
