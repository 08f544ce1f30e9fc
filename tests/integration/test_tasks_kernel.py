"""The check of the tasks of preset `kernel`, in their own process."""

from __future__ import annotations

import pytest

from cuda_agent.tasks.kernel_set import KernelTask, checked
from cuda_agent.workspace.sandbox import resolve_level
from task_candidates import candidate

pytestmark = pytest.mark.integration


def test_only_sound_tasks_with_the_single_file_form_are_kept() -> None:
    good, again = candidate("good", "return torch.relu(x) * 2"), candidate("again", "return torch.relu(x) * 3")
    flat, broken = candidate("flat", "return x * 0 + 1"), candidate("broken", "return x @ x @ x")
    complex_ = candidate("complex", "return torch.fft.fft(x)")
    given = [KernelTask(one, one.task.source) for one in (good, again, flat, broken, complex_)]
    said: list[str] = []
    found = checked(given, resolve_level("auto"), 2, said.append)
    assert [one.task for one in found] == [good] and found[0].operators == ("mul", "relu") and found[0].graph
    assert {text.partition(" is left out")[0] for text in said} == {"flat", "broken", "complex"}
