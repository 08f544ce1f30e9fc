"""Tool calls as tagged text (`<tool_call>{"name": …, "arguments": {…}}</tool_call>`), for models without native calls.

A block is one JSON object with exactly these two keys. Any other block becomes a call with a problem, which the model
is told: a guess could run something that the model didn't ask for. Where a model writes no tags, a fenced block of
exactly this form counts as a call too.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cuda_agent.llm.chat import WrittenCall
from cuda_agent.llm.stream import well_formed

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_BLOCK = re.compile(re.escape(_OPEN) + r"(.*?)" + re.escape(_CLOSE), re.DOTALL)
_FENCE = re.compile(r"^```(?:json|tool_call|tool)?[ \t]*\n(\{.*?\})\s*^```[ \t]*$", re.DOTALL | re.MULTILINE)
_SHOWN = 200


def describe(tools: Sequence[dict[str, Any]]) -> str:
    """Describes the tools and the form of a call, for the system prompt."""
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return Path(__file__).with_suffix(".txt").read_text().rstrip("\n").replace("{{ tools }}", lines)


def parse(text: str) -> tuple[str, tuple[WrittenCall, ...]]:
    """Returns the text outside the blocks, and the calls in them."""
    calls = [_call(found.group(1)) for found in _BLOCK.finditer(text)]
    if not calls and _OPEN not in text:
        fenced = [(found.group(0), _call(found.group(1))) for found in _FENCE.finditer(text)]
        right = [(block, call) for block, call in fenced if not call.problem]
        if right:
            for block, _ in right:
                text = text.replace(block, "", 1)
            return text.strip(), tuple(call for _, call in right)
    rest = _BLOCK.sub("", text)
    if _OPEN in rest:
        rest, _, body = rest.partition(_OPEN)
        calls.append(WrittenCall("", _name_in(body), "", problem=f"a tool_call has no closing tag ({_cut(body)})"))
    elif _CLOSE in rest:
        rest = rest.replace(_CLOSE, "")
        calls.append(WrittenCall("", "", "", problem="a closing tag of tool_call has no opening tag"))
    return rest.strip(), tuple(calls)


def write_call(name: str, arguments: dict[str, Any]) -> str:
    """Returns a call in the form in which the model writes it."""
    return f"{_OPEN}\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n{_CLOSE}"


def write_result(name: str, text: str) -> str:
    """Returns a tool's answer in the form in which the model reads it."""
    return f'<tool_response name="{name}">\n{text}\n</tool_response>'


def _call(body: str) -> WrittenCall:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        return WrittenCall("", _name_in(body), "", problem=f"the block isn't JSON: {error} ({_cut(body)})")
    if not isinstance(value, dict) or set(value) != {"name", "arguments"}:
        return WrittenCall("", _name_in(body), "", problem=f"the block needs exactly name and arguments ({_cut(body)})")
    name, arguments = value["name"], value["arguments"]
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return WrittenCall("", _name_in(body), "", problem=f"name is a string, arguments an object ({_cut(body)})")
    return WrittenCall("", well_formed(name), well_formed(json.dumps(arguments, ensure_ascii=False)))


def _name_in(body: str) -> str:
    """Returns the tool that a broken block most likely means, so that the answer can say how to call it."""
    found = re.search(r'"name"\s*:\s*"([A-Za-z]\w*)"', body)
    return found.group(1) if found else ""


def _cut(body: str) -> str:
    line = " ".join(body.split())
    return line if len(line) <= _SHOWN else line[:_SHOWN] + " …"
