"""`cuda-agent mcp` as an agent of somebody else meets it: through the official SDK's client, over stdio."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.records import Task
from cuda_agent.workspace import layout
from integration.scripted_runs import FILES, SOURCE

mcp = pytest.importorskip("mcp")
anyio = pytest.importorskip("anyio")

pytestmark = pytest.mark.integration


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[layout.Workspace]:
    options = JudgeOptions(device=Device.CPU, timing_budget_s=0.5)
    yield layout.create(Task(name="gated", source=SOURCE), tmp_path / "ws", options=options)


def client(workspace: layout.Workspace, **environment: str) -> mcp.Client:
    from mcp.client.stdio import StdioServerParameters

    code = "import sys; from cuda_agent.cli.main import main; sys.argv = ['cuda-agent', *sys.argv[1:]]; main()"
    arguments = ["-c", code, "mcp", str(workspace.directory)]
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "CUDA_AGENT_CACHE") if name in os.environ}
    return mcp.Client(StdioServerParameters(command=sys.executable, args=arguments, env={**kept, **environment}))


def test_compile_verify_profile(workspace: layout.Workspace) -> None:
    told: list[str] = []

    async def progress(_step: float, _total: float | None, message: str | None) -> None:
        told.append(message or "")

    async def play() -> None:
        async with client(workspace, OPENAI_API_KEY="nobody-sees-this") as session:
            tools = {tool.name: tool for tool in (await session.list_tools()).tools}
            assert {"Bash", "Read", "Write", "Edit", "Compile", "Verify", "Profile", "Inspect"} <= tools.keys()
            assert "Finish" not in tools
            assert tools["Read"].input_schema["required"] == ["path"]

            async def call(name: str, **arguments: object) -> tuple[bool, str, dict[str, object]]:
                done = await session.call_tool(name, arguments, progress_callback=progress)
                return not done.is_error, done.content[0].text, done.structured_content or {}

            ok, text, _ = await call("Read", path="SKILL.md")
            assert ok and "Make this module faster" in text
            ok, text, _ = await call("Compile")
            assert not ok and "no model_new.py yet" in text
            ok, text, _ = await call("Raed", path="x")
            assert not ok and "Did you mean Read?" in text
            for path, content in FILES.items():
                ok, text, _ = await call("Write", path=path, content=content)
                assert ok, text
            ok, text, data = await call("Compile")
            assert ok and data["succeeded"] is True, text
            ok, text, data = await call("Verify")
            assert ok and data["verified"] is True, text
            ok, text, data = await call("Profile")
            # Shared cores may be too noisy for a verdict; what is said must say so then.
            assert (ok and data["verdict"] == "passed") or data["verdict"] == "timing_void", text
            assert "nobody-sees-this" not in (await call("Bash", command="env"))[1]

    anyio.run(play)
    assert any(message.startswith("build") for message in told), told


def test_a_second_server_on_the_workspace_is_refused(workspace: layout.Workspace) -> None:
    import subprocess

    with workspace.lock():
        command = [sys.executable, "-c", "from cuda_agent.cli.main import run; raise SystemExit(run(['mcp', '.']))"]
        done = subprocess.run(
            command, cwd=workspace.directory, capture_output=True, text=True, timeout=100, check=False
        )  # fmt: skip
    assert done.returncode == 6
    assert "in use by another run" in done.stderr
    assert done.stdout == ""


def test_what_is_no_workspace_is_one_line(tmp_path: Path) -> None:
    import subprocess

    command = [sys.executable, "-c", "from cuda_agent.cli.main import run; raise SystemExit(run(['mcp', '.']))"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "cuda-agent init" in done.stderr
