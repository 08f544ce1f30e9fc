"""The worked examples of prompts are right: on a CPU the judge says so, for a GPU they compile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from library_kernels import compile_kernels, graph_of

import pocket_domain as domain
from cuda_agent.agent.dialogues.fenced import WorkedExample, worked_examples
from cuda_agent.agent.dialogues.kinds import task_dialogue
from cuda_agent.agent.policy import Brief
from cuda_agent.core.config import JudgeOptions, Limits
from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.errors import DeviceError
from cuda_agent.core.graph import Graph
from cuda_agent.core.records import Candidate, Task
from cuda_agent.judge.build.extension import build_extension

pytestmark = pytest.mark.integration
COUNT = range(4)


def example(number: int, device: Device) -> tuple[WorkedExample, Brief]:
    """An example, and the brief of the task that it computes."""
    found = worked_examples(domain.graph(), device)[number]
    inputs = ", ".join(f"torch.randn({list(found.shapes[name])})" for name in found.inputs)
    source = (
        "import torch\n\nclass Model(torch.nn.Module):\n"
        f"    def forward(self, {', '.join(found.inputs)}):\n        return {found.computes}\n\n"
        f"def get_inputs():\n    return [{inputs}]\n\ndef get_init_inputs():\n    return []\n"
    )
    task = Task(name=f"example-{number}", source=source)
    return found, Brief(task, device, Precision.FP32, Limits(turns=1), [], lambda: graph(task))


def graph(task: Task) -> Graph:
    values: dict[str, object] = {}
    exec(task.source, values)
    return graph_of(values["Model"](), values["get_inputs"]())  # type: ignore[operator]


@pytest.mark.parametrize("number", COUNT)
def test_an_example_is_right_and_never_shown_for_itself(number: int) -> None:
    found, brief = example(number, Device.CPU)
    assert found not in worked_examples(brief.graph(), Device.CPU)
    calls = task_dialogue("short", brief).parse(f"```cpp\n{found.kernel}\n```", 1).calls
    files = {call.arguments["path"]: call.arguments["content"] for call in calls if call.tool == "Write"}
    built = build_extension(Candidate(files=files), JudgeOptions(device=Device.CPU))
    assert built.library is not None, built.report.log
    torch.manual_seed(0)
    values: dict[str, object] = {}
    exec(brief.task.source, values)
    assert list(values["Model"]()(*values["get_inputs"]()).shape) == list(found.shapes["out"])  # type: ignore[operator]


@pytest.mark.parametrize("number", COUNT)
def test_an_example_compiles_for_a_gpu(number: int, tmp_path: Path) -> None:
    found, brief = example(number, Device.CUDA)
    calls = task_dialogue("short", brief).parse(f"```cuda\n{found.kernel}\n```", 1).calls
    source = tmp_path / "kernel.cu"
    source.write_text(calls[1].arguments["content"])
    try:
        done = compile_kernels(source, tmp_path / "kernel.o")
    except DeviceError as error:
        pytest.skip(str(error))
    assert done.returncode == 0, done.stderr


def test_the_example_of_all_files_is_built() -> None:
    dialogue = task_dialogue("files", replace(example(1, Device.CPU)[1]))
    shown = dialogue.messages()[0]["content"].partition("\nExample")[2]
    calls = dialogue.parse(shown, 1).calls
    files = {call.arguments["path"]: call.arguments["content"] for call in calls if call.tool == "Write"}
    built = build_extension(Candidate(files=files), JudgeOptions(device=Device.CPU))
    assert built.library is not None, built.report.log
