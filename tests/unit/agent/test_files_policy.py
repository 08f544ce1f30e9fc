"""The policy `files:DIR`: what it asks next, given what the tools answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cuda_agent.agent.policies.registry import make_policy, policy_name
from cuda_agent.agent.policy import Brief
from cuda_agent.core.config import Limits
from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.errors import PolicyError, TaskError, UsageError
from cuda_agent.core.graph import Graph
from cuda_agent.core.records import Task, ToolCall, ToolResult, Turn

PASS: dict[str, tuple[bool, dict[str, Any]]] = {}


def _no_graph() -> Graph:
    raise TaskError("nobody asks for it")


def play(
    folder: Path, answers: dict[str, tuple[bool, dict[str, Any]]], name: str = "gated", id: str = ""
) -> list[ToolCall]:
    """Every call until Finish. A fresh policy makes each move, as after a kill."""
    brief = Brief(
        task=Task(name=name, source=""), device=Device.CPU, precision=Precision.TF32, limits=Limits(), tools=[],
        graph=_no_graph, id=id,
    )  # fmt: skip
    history: list[Turn] = []
    while not history or history[-1].calls[0].tool != "Finish":
        move = make_policy(f"files:{folder}", brief).next(history)
        results = []
        for call in move.calls:
            ok, data = answers.get(call.tool, (True, {}))
            results.append(ToolResult(call_id=call.id, text="said so", ok=ok, data=data))
        history.append(Turn(index=len(history), message="", calls=move.calls, results=tuple(results)))
    with pytest.raises(PolicyError):
        make_policy(f"files:{folder}", brief).next(history)
    return [call for turn in history for call in turn.calls]


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    folder = tmp_path / "others" / "gated"
    (folder / "kernels").mkdir(parents=True)
    (folder / "model_new.py").write_text("class ModelNew: ...\n")
    (folder / "kernels" / "a.cpp").write_text("// a\n")
    (folder / "notes.txt").write_text("not a candidate's\n")
    return folder.parent


def test_what_is_there_is_written_and_judged(kernels: Path) -> None:
    calls = play(kernels, PASS)
    assert [call.tool for call in calls] == ["Write", "Write", "Compile", "Verify", "Profile", "Finish"]
    assert [call.arguments["path"] for call in calls[:2]] == ["kernels/a.cpp", "model_new.py"]
    assert calls[4].arguments == {"precise": True}
    assert calls[-1].arguments["outcome"] == "finished"
    assert len({call.id for call in calls}) == len(calls)


@pytest.mark.parametrize("tool", ["Write", "Compile", "Verify", "Profile"])
def test_what_fails_ends_it(kernels: Path, tool: str) -> None:
    calls = play(kernels, {tool: (False, {})})
    assert calls[-1].arguments == {"message": f"{tool}: said so", "outcome": "gave_up"}


def test_the_id_comes_before_the_name_and_a_run_has_a_workspace(kernels: Path) -> None:
    other = kernels / "level1-gated" / "workspace"
    other.mkdir(parents=True)
    (other / "model_new.py").write_text("class ModelNew: 'another'\n")
    calls = play(kernels, PASS, id="level1-gated")
    assert "another" in calls[0].arguments["content"]
    # Nothing to compile.
    assert [call.tool for call in calls] == ["Write", "Verify", "Profile", "Finish"]


@pytest.mark.parametrize("name", ["missing", "../others/gated", "..", ".", "/etc", "gated/kernels"])
def test_a_task_without_kernels_is_a_clear_failure(kernels: Path, name: str) -> None:
    (call,) = play(kernels, PASS, name=name)
    assert call.arguments["outcome"] == "gave_up"
    assert "no kernel for this task" in call.arguments["message"]


def test_links_and_empty_folders_are_refused(kernels: Path, tmp_path: Path) -> None:
    (kernels / "empty").mkdir()
    assert "no model_new.py" in play(kernels, PASS, name="empty")[0].arguments["message"]
    (kernels / "linked").mkdir()
    (tmp_path / "secret").write_text("x")
    (kernels / "linked" / "model_new.py").symlink_to(tmp_path / "secret")
    assert "not a plain UTF-8" in play(kernels, PASS, name="linked")[0].arguments["message"]


def test_its_name_holds_the_whole_path(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(kernels.parent)
    assert policy_name("files:others") == f"files:{kernels.resolve()}"
    for wrong in ("files:", "files:gone"):
        with pytest.raises(UsageError, match="no folder of kernels"):
            policy_name(wrong)
