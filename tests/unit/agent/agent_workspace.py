"""A real workspace with a real shell; no judge (tools that ask it are tested in tests/integration)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from cuda_agent.agent.best import Best
from cuda_agent.agent.context import Session, ToolContext
from cuda_agent.agent.files import WorkspaceFiles
from cuda_agent.agent.shell import open_shell
from cuda_agent.agent.tools.registry import Toolbox
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.records import Task, ToolCall, ToolResult
from cuda_agent.workspace import layout

SOURCE = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x + 1)


def get_inputs():
    return [torch.randn(8, 16)]


def get_init_inputs():
    return []
"""


class Calls:
    """`calls("Read", path=…)`: one tool call."""

    def __init__(self, context: ToolContext) -> None:
        self.context = context
        self.box = Toolbox(context)

    def __call__(self, tool: str, **arguments: object) -> ToolResult:
        return self.box.call(ToolCall(id="1", tool=tool, arguments=arguments))


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    (tmp_path / "run" / "logs").mkdir(parents=True)
    return tmp_path / "run"


@pytest.fixture
def calls(run_directory: Path) -> Iterator[Calls]:
    options = JudgeOptions(device=Device.CPU)
    workspace = layout.create(Task(name="t", source=SOURCE), run_directory / "workspace", options=options)
    with open_shell(workspace, hidden=(run_directory,)) as shell:
        files = WorkspaceFiles(workspace.directory, run_directory / "logs")
        session = cast(Session, None)
        yield Calls(ToolContext(workspace, session, files, shell, Best(run_directory), run_directory / "logs"))
