"""Joins the chunks of a streamed answer, and evens out small differences between servers."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from cuda_agent.llm.chat import ChatRequest, Notice, Reply, Usage, WrittenCall, estimate_tokens

#: a model's reasoning inside its text, from servers that don't separate it.
_THOUGHTS = re.compile(r"\A\s*<think>(.*?)</think>\s*", re.DOTALL)
_THOUGHTS_WITHOUT_BEGIN = re.compile(r"\A((?:(?!<think>).)*?)</think>\s*", re.DOTALL)
_NOTICE_EVERY = 2000


class BrokenStream(Exception):
    """The stream ended before the answer was complete."""


@dataclass
class _Call:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


@dataclass
class _Answer:
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)
    by_index: dict[int, _Call] = field(default_factory=dict)
    finish: str = ""
    usage: Any = None


def assemble(chunks: Iterable[Any], request: ChatRequest, notice: Notice) -> Reply:
    """Returns the reply that `chunks` (objects of the protocol's `chat.completion.chunk`) make. Raises BrokenStream
    when no chunk says that the answer is complete."""
    answer = _Answer()
    characters = shown = 0
    for chunk in chunks:
        if getattr(chunk, "usage", None) is not None:
            answer.usage = chunk.usage
        for choice in (getattr(chunk, "choices", None) or [])[:1]:
            characters += _take(answer, choice)
        if characters - shown >= _NOTICE_EVERY:
            shown = characters
            notice(f"{characters:,} characters so far")
    if not answer.finish:
        raise BrokenStream("the stream ended before the answer was complete")
    return _reply(answer, request)


def _take(answer: _Answer, choice: Any) -> int:
    """Adds one choice's delta and returns its number of characters."""
    answer.finish = getattr(choice, "finish_reason", None) or answer.finish
    delta = getattr(choice, "delta", None)
    text = getattr(delta, "content", None) or ""
    # The field is reasoning_content with vLLM, SGLang, llama.cpp and DeepSeek, reasoning with OpenRouter and Ollama.
    reasoning = getattr(delta, "reasoning_content", None) or getattr(delta, "reasoning", None) or ""
    answer.text.append(text)
    answer.reasoning.append(reasoning if isinstance(reasoning, str) else "")
    arguments = sum(_take_call(answer, part) for part in getattr(delta, "tool_calls", None) or [])
    return len(text) + len(answer.reasoning[-1]) + arguments


def _take_call(answer: _Answer, part: Any) -> int:
    """Adds a piece of a tool call and returns its number of characters. Pieces of one call share the index. Some
    servers give every call index 0 or none; there a new id begins a new call."""
    index = getattr(part, "index", None)
    identity = getattr(part, "id", None) or ""
    function = getattr(part, "function", None)
    name, arguments = getattr(function, "name", None) or "", getattr(function, "arguments", None) or ""
    call = answer.by_index.get(index) if index is not None else (answer.calls[-1] if answer.calls else None)
    if call is None or (identity and call.id and identity != call.id and name):
        call = _Call()
        answer.calls.append(call)
        if index is not None:
            answer.by_index[index] = call
    call.id = call.id or identity
    call.name = call.name or name
    call.arguments.append(arguments)
    return len(arguments)


def _reply(answer: _Answer, request: ChatRequest) -> Reply:
    text, reasoning = well_formed("".join(answer.text)), well_formed("".join(answer.reasoning))
    if not reasoning:
        text, reasoning = _split_thoughts(text)
    calls = tuple(
        WrittenCall(well_formed(call.id), well_formed(call.name), well_formed("".join(call.arguments)))
        for call in answer.calls
    )
    written = len(text) + len(reasoning) + sum(len(call.name) + len(call.arguments) for call in calls)
    return Reply(text.strip(), reasoning, calls, _usage(answer.usage, request, written), answer.finish)


def well_formed(text: str) -> str:
    """Returns text that UTF-8 can encode: a surrogate pair becomes one character, a lone surrogate becomes U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _split_thoughts(text: str) -> tuple[str, str]:
    """Returns the text after a leading `<think>…</think>`, and the reasoning inside. Some servers omit the opening
    tag."""
    found = _THOUGHTS.match(text) or ("</think>" in text and _THOUGHTS_WITHOUT_BEGIN.match(text)) or None
    return (text[found.end() :], found.group(1).strip()) if found else (text, "")


def _usage(counts: Any, request: ChatRequest, written: int) -> Usage:
    read = _number(counts, "prompt_tokens")
    if read <= 0:
        sent = sum(_length(message) for message in request.messages) + _length(request.tools or [])
        return Usage(estimate_tokens(sent), estimate_tokens(written), estimated=True)
    details = getattr(counts, "prompt_tokens_details", None)
    cached = _number(details, "cached_tokens") or _number(counts, "prompt_cache_hit_tokens")
    return Usage(read, _number(counts, "completion_tokens"), min(cached, read))


def _number(holder: Any, name: str) -> int:
    value = getattr(holder, name, None)
    return int(value) if isinstance(value, int | float) and value > 0 else 0


def _length(value: Any) -> int:
    """Returns the number of characters in nested JSON data."""
    if isinstance(value, dict):
        return sum(len(key) + _length(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return sum(_length(item) for item in value)
    return len(value) if isinstance(value, str) else 4
