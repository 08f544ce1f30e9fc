"""Dialogues in fenced blocks: what a prompt holds, which answers are candidates, and what is said to them."""

from __future__ import annotations

from dataclasses import replace

import pytest

import pocket_domain as domain
from cuda_agent.agent.dialogues.fenced import worked_examples
from cuda_agent.agent.dialogues.kinds import task_dialogue
from cuda_agent.agent.dialogues.reference import computed
from cuda_agent.agent.policy import Brief
from cuda_agent.core.config import Limits
from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.records import ToolCall, ToolResult

BRIEF = Brief(domain.TASK, Device.CUDA, Precision.TF32, Limits(turns=4), [], domain.graph)
SOURCE = '''"""Text."""
import torch
from torch import nn

ROWS, WIDTH = 64, 500
SLOPE = 0.1


class Model(nn.Module):
    """A model."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scales."""
        y: torch.Tensor = x * self.scale  # a remark
        return y * SLOPE


class Nothing(nn.Module):
    def __init__(self) -> None:
        super().__init__()


def get_inputs():
    return [torch.randn(ROWS, WIDTH)]


def get_init_inputs():
    return [WIDTH]
'''


def test_a_reference_is_shortened_to_what_it_computes() -> None:
    text = computed(SOURCE)
    assert text.startswith(
        "ROWS, WIDTH = (64, 500)\nSLOPE = 0.1\nclass Model(nn.Module):\n    def __init__(self, width):"
    )
    assert text.endswith("model = Model(WIDTH)") and "def forward(self, x):" in text
    assert not any(part in text for part in ("import", "Tensor", "Scales", "get_", "remark", '"""', "\n\n"))
    plain = SOURCE.replace("return [WIDTH]", "return []")
    assert "ROWS" not in computed(plain) and "model =" not in computed(plain)
    assert "def get_init_inputs():" in computed(SOURCE.replace("return [WIDTH]", "return list(range(1))"))


@pytest.mark.parametrize("kind", ["short", "files"])
def test_prompts_have_as_many_examples_as_they_should(kind: str) -> None:
    for count in (0, 1, 3):
        (message,) = task_dialogue(kind, BRIEF, count).messages()  # type: ignore[arg-type]
        assert message["content"].count("\nExample") == count
        assert "class Model(nn.Module):" in message["content"]


def test_no_example_is_the_task_itself() -> None:
    plain = domain.graph()
    assert len(worked_examples(plain, Device.CPU)) == 4
    operators = ("aten.mul.Tensor", "aten.tanh.default")
    nodes = tuple(node.model_copy(update={"op": op}) for node, op in zip(plain.nodes, operators, strict=False))
    found = worked_examples(plain.model_copy(update={"nodes": nodes}), Device.CPU)
    assert len(found) == 3 and not any("tanh" in one.computes for one in found)


def test_a_short_answer_is_a_whole_candidate() -> None:
    dialogue = task_dialogue("short", BRIEF)
    parsed = dialogue.parse("```cpp\nfirst\n```\nor better\n```cuda\nvoid launch() {}\n```", 3)
    names = [call.tool for call in parsed.calls]
    assert names == ["Bash", "Write", "Write", "Write", "Profile"] and parsed.calls[0].id == "call-3-1"
    written = {call.arguments["path"]: call.arguments["content"] for call in parsed.calls[1:-1]}
    assert set(written) == {"kernels/kernel.cu", "kernels/fused_binding.cpp", "model_new.py"}
    assert written["kernels/kernel.cu"].endswith("\n\nvoid launch() {}\n")
    assert dialogue.parse("void launch() {}", 1).calls == ()
    assert len(dialogue.parse("```\nvoid launch() {", 1).calls) == 5
    assert dialogue.observation((), (), 3).startswith("There is no fenced block")


def test_what_is_said_to_an_answer() -> None:
    dialogue = task_dialogue("short", BRIEF)
    calls = dialogue.parse("```\nx\n```", 1).calls

    def said(**data: object) -> str:
        results = [ToolResult(call_id=call.id, text="ok") for call in calls]
        return dialogue.observation(calls, [*results[:-1], results[-1].model_copy(update={"data": data})], 3)

    again = "\nAnswer with the whole kernel in one fenced block."
    broken = said(verdict="build_failed", reason="kernels/kernel.cu(9): error: expected a ;")
    assert broken == "It doesn't compile: line 1: error: expected a ;" + again
    assert said(verdict="incorrect", reason="wrong") == "Not accepted (incorrect): wrong" + again
    passed = said(verdict="passed", latency_us=12.34, ratios={"eager": [1.5, 1.4, 1.6]})
    assert passed == "Right, in 12.3 us: 1.50 times as fast as eager. Make it faster." + again
    long = said(verdict="incorrect", reason="0.25 " * 300)
    assert long.endswith(" …" + again) and len(long) < 400


def test_a_refused_file_is_said() -> None:
    dialogue = task_dialogue("short", BRIEF)
    calls = (ToolCall(id="1", tool="Write", arguments={}), ToolCall(id="2", tool="Profile", arguments={}))
    results = [ToolResult(call_id="1", text="a.txt is fixed.", ok=False), ToolResult(call_id="2", text="judged")]
    assert dialogue.observation(calls, results, 3).startswith("a.txt is fixed.\n")


def test_files_come_in_blocks_with_their_paths() -> None:
    dialogue = task_dialogue("files", BRIEF)
    text = (
        "Three files.\n\n```cuda kernels/a.cu\none\n```\n**kernels/a_binding.cpp**\n\n```cpp\ntwo\n```\n"
        "```python\n# model_new.py\nthree\n```\n```\nno path\n```\n"
        "```python model.py\nx\n```\n```sh kernels/../b.cu\ny\n```"
    )
    calls = dialogue.parse(text, 1).calls
    written = {call.arguments["path"]: call.arguments["content"] for call in calls if call.tool == "Write"}
    assert written.pop("model_new.py") == "# model_new.py\nthree\n"
    assert written == {"kernels/a.cu": "one\n", "kernels/a_binding.cpp": "two\n"}
    assert dialogue.parse("```cpp\nx\n```", 1).calls == ()
    assert "with the path" in dialogue.observation((), (), 1)


@pytest.mark.parametrize("device", list(Device))
def test_the_prompt_s_own_example_is_an_answer(device: Device) -> None:
    dialogue = task_dialogue("files", replace(BRIEF, device=device))
    suffix = "cu" if device is Device.CUDA else "cpp"
    example = dialogue.messages()[0]["content"].partition("\nExample")[2]
    calls = dialogue.parse(example, 1).calls
    paths = [call.arguments["path"] for call in calls if call.tool == "Write"]
    assert paths == [f"kernels/example.{suffix}", "kernels/example_binding.cpp", "model_new.py"]
