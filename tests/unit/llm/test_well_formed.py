"""What a model writes can be written down, whatever it is."""

from __future__ import annotations

import pytest

from cuda_agent.agent.policies.llm import _call
from cuda_agent.llm import tagged
from cuda_agent.llm.chat import WrittenCall
from cuda_agent.llm.stream import well_formed


def test_halves_of_surrogate_pairs() -> None:
    assert well_formed("a\ud83d\ude00b") == "a😀b"
    assert well_formed("\ud800x") == "\ufffdx"
    assert well_formed("plain ä\0") == "plain ä\0"


@pytest.mark.parametrize("arguments", ['{"content": "\\ud800"}', '{"\\udfff": 1}', "[" * 200_000, '{"a": NaN}'])
def test_a_call_can_be_written_down(arguments: str) -> None:
    _call(WrittenCall("1", "Write", arguments), "stop").model_dump_json()


@pytest.mark.parametrize("body", ['{"name": "\\ud800", "arguments": {"a": "\\ud800"}}', '{"name": ' + "[" * 200_000])
def test_a_tagged_call_can_be_written_down(body: str) -> None:
    _, (call,) = tagged.parse(f"<tool_call>{body}</tool_call>")
    _call(call, "stop").model_dump_json()
