"""A request to a language model and its reply: the data that clients and policies exchange."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

#: a message of the OpenAI chat protocol.
Message = dict[str, Any]

#: notice(text): shows one line of progress (streaming, waiting before another attempt).
Notice = Callable[[str], None]

#: an estimate for servers that count no tokens. It is low because code and numbers have few characters a token.
CHARACTERS_PER_TOKEN = 3.0


@dataclass(frozen=True)
class Usage:
    """Tokens of one request, counted by the server unless `estimated`. `cached` is the part of `read` that the server
    had in its cache."""

    read: int
    written: int
    cached: int = 0
    estimated: bool = False


@dataclass(frozen=True)
class WrittenCall:
    """A tool call that a model wrote. `arguments` is text that should be a JSON object. `problem` says why the text
    between tags can't be read as a call."""

    id: str
    name: str
    arguments: str
    problem: str = ""


@dataclass(frozen=True)
class ChatRequest:
    """What is sent. `tools` are functions of the OpenAI protocol; None where the messages describe them."""

    messages: Sequence[Message]
    tools: Sequence[dict[str, Any]] | None = None


@dataclass(frozen=True)
class Reply:
    """A complete answer. `finish` is the server's value: stop, tool_calls, length or content_filter."""

    text: str
    reasoning: str
    calls: tuple[WrittenCall, ...]
    usage: Usage
    finish: str


class ChatClient(Protocol):
    """A connection to a language model."""

    def complete(self, request: ChatRequest) -> Reply:
        """Raises ContextExceeded when the request is too long for the model, PolicyError when no attempt can
        succeed."""
        ...


class ContextExceeded(Exception):
    """The server refused a request as too long. The message is the server's."""


def estimate_tokens(characters: int) -> int:
    """Estimates the tokens of a text from its number of characters, rounded up."""
    return math.ceil(characters / CHARACTERS_PER_TOKEN)
