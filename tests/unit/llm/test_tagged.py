from __future__ import annotations

import json

import pytest

from cuda_agent.llm.tagged import describe, parse, write_call


def test_calls_and_the_text_around_them() -> None:
    blocks = (
        write_call("Read", {"path": "a"}) + "\nthen\n" + write_call("Write", {"path": "b", "content": 'x = "<y>"\n'})
    )
    text, calls = parse(f"I try this.\n{blocks}\nEnd.")
    assert text.split() == ["I", "try", "this.", "then", "End."]
    assert [call.name for call in calls] == ["Read", "Write"]
    assert json.loads(calls[1].arguments)["content"] == 'x = "<y>"\n'
    assert parse("no call") == ("no call", ())


@pytest.mark.parametrize(
    ("block", "name", "says"),
    [
        ('<tool_call>{"name": "Read", "arguments": {\'a\': 1}}</tool_call>', "Read", "isn't JSON"),
        ('<tool_call>{"name": "Read", "parameters": {}}</tool_call>', "Read", "exactly name and arguments"),
        ('<tool_call>{"name": "Read", "arguments": {}, "x": 1}</tool_call>', "Read", "exactly name and arguments"),
        ('<tool_call>{"name": "Read", "arguments": "{}"}</tool_call>', "Read", "arguments an object"),
        ("<tool_call>[1]</tool_call>", "", "exactly name and arguments"),
        ('<tool_call>{"name": "Write", "arguments": {"path": "a', "Write", "has no closing tag"),
        ("</tool_call>", "", "has no opening tag"),
        ("<tool_call></tool_call>", "", "isn't JSON"),
    ],
)
def test_what_is_not_exactly_a_call_has_a_problem(block: str, name: str, says: str) -> None:
    text, calls = parse(f"before {block}")
    assert text == "before"
    assert len(calls) == 1 and calls[0].name == name and says in calls[0].problem


def test_the_description_names_every_tool() -> None:
    text = describe([{"type": "function", "function": {"name": "Read", "parameters": {}}}])
    assert '"name": "Read"' in text and '"name": "Read", "arguments"' in parse.__module__ + text


def test_calls_in_code_fences() -> None:
    call = '{"name": "Write", "arguments": {"path": "a.cu", "content": "int x = {0};\\\\n```\\\\n"}}'
    text, calls = parse(
        f'I write it.\n```json\n{call}\n```\nThen:\n```\n{{\n "name": "Profile",\n "arguments": {{}}\n}}\n```\n'
    )
    assert [one.name for one in calls] == ["Write", "Profile"] and not any(one.problem for one in calls)
    assert text.split() == ["I", "write", "it.", "Then:"]
    for other in ('```json\n{"name": "Read"}\n```', "```cpp\nint main() {}\n```", f"    {call}", "```\n{}\n```"):
        assert parse(other) == (other.strip(), ())
    # Tags come before fences.
    tagged, calls = parse(f"```json\n{call}\n```\n{write_call('Read', {'path': 'model.py'})}")
    assert [one.name for one in calls] == ["Read"] and "Write" in tagged
