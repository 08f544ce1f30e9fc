"""A folder is all that a new skill takes: the planner and all readers of skills know it from there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cuda_agent.agent.trained.offers import offers
from cuda_agent.core.bench import SuiteTask
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.errors import UsageError
from cuda_agent.core.records import Task, Turn
from cuda_agent.playbook import propose
from cuda_agent.report.explain import explain
from cuda_agent.report.rows import ReportRow
from cuda_agent.workspace import layout
from cuda_agent.workspace.skills import skill_notes
from playbook_harness import graph_of
from toy_skill import INPUTS, Signs, added


@pytest.fixture
def toy() -> Iterator[None]:
    with added():
        yield


@pytest.mark.usefixtures("toy")
def test_a_plan_has_its_kernel() -> None:
    found = propose(graph_of(Signs(), INPUTS), Device.CPU, Precision.FP32)
    assert found.skills == ("pointwise", "toy_sign") and "kernels/sign_sign.cpp" in found.files
    assert found.tunables["sign_sign"] == 2
    turn = Turn(index=0, message="", plan=found.plan)
    steps = explain(ReportRow(SuiteTask(id="a", name="a", key="0")), "", [turn], None).steps
    assert [(step.skill, step.title) for step in steps] == [("pointwise", "Element-wise chains"), ("toy_sign", "Signs")]
    assert "a <strong>folder</strong> is all" in steps[1].why


@pytest.mark.usefixtures("toy")
def test_a_workspace_lists_it(tmp_path: Path) -> None:
    layout.create(Task(name="t", source="x"), tmp_path / "w", options=JudgeOptions(device=Device.CPU))
    assert "| `toy_sign` | signs of numbers, for tests |\n" in (tmp_path / "w" / "SKILL.md").read_text()
    assert "# Signs" in (tmp_path / "w" / "skills" / "toy_sign" / "SKILL.md").read_text()


@pytest.mark.usefixtures("toy")
def test_the_pocket_policy_chooses_its_settings_by_its_order() -> None:
    plans = offers(graph_of(Signs(), INPUTS), Device.CPU, Precision.FP32, "key")
    fused = next(plan for plan in plans if plan.name == "fused")
    assert {step.kind: step.tunable for step in fused.steps}["sign"] == "a"


def test_without_the_folder_nothing_knows_it() -> None:
    assert "toy_sign" not in propose(graph_of(Signs(), INPUTS), Device.CPU, Precision.FP32).skills
    assert "toy_sign" not in layout.fixed_files()["SKILL.md"]


@pytest.mark.parametrize(
    ("text", "said"),
    [("# No front matter\n", "no front matter"), ("---\nname: a\nmetadata: {ordre: 1}\n---\n", "Did you mean .*order")],
)
def test_a_wrong_front_matter_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "notes.md").write_text(text)
    with added(tmp_path), pytest.raises(UsageError, match=said) as caught:
        skill_notes()
    assert "broken/notes.md" in str(caught.value)
