"""One request to a language model and its reply: the plain data that clients and policies exchange."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

#: A message of the OpenAI chat protocol.
Message = dict[str, Any]

#: notice(text): one line for whoever watches (streaming, waiting before another attempt).
Notice = Callable[[str], None]

#: a cautious guess where a server gives no numbers: code and figures have few characters a token.
CHARACTERS_PER_TOKEN = 3.0


@dataclass(frozen=True)
class Usage:
    """Tokens of one request, by the server's own count unless `estimated`. `cached` is the part of `read` that it
    still held."""

    read: int
    written: int
    cached: int = 0
    estimated: bool = False


@dataclass(frozen=True)
class CallText:
    """A tool call as a model wrote it: `arguments` is text that should be a JSON object. `problem` says why it isn't
    a call at all (text between tags that can't be read)."""

    id: str
    name: str
    arguments: str
    problem: str = ""


@dataclass(frozen=True)
class Request:
    """What is sent. `tools`: functions of the OpenAI protocol, None where they aren't the protocol's business."""

    messages: Sequence[Message]
    tools: Sequence[dict[str, Any]] | None = None


@dataclass(frozen=True)
class Reply:
    """What came back, whole. `finish` is the server's word: stop, tool_calls, length, content_filter."""

    text: str
    reasoning: str
    calls: tuple[CallText, ...]
    usage: Usage
    finish: str


class ChatClient(Protocol):
    """Raises ContextExceeded when the request is longer than the model takes, PolicyError when there's no going on."""

    def complete(self, request: Request) -> Reply: ...


class ContextExceeded(Exception):
    """The server refused a request as too long; its own words."""


def estimate_tokens(characters: int) -> int:
    """Tokens of a text of that many characters, rounded up."""
    return math.ceil(characters / CHARACTERS_PER_TOKEN)
