"""What a tool is: a name, a pydantic model of its arguments, and a function that answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
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

    def schema(self) -> dict[str, Any]:
        """The tool as a function of the OpenAI protocol; the JSON schema comes from the arguments' model."""
        parameters = self.arguments.model_json_schema()
        parameters.pop("description", None)
        parameters.pop("title", None)
        for prop in parameters.get("properties", {}).values():
            prop.pop("title", None)
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}
