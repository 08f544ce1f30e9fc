"""The published commands inside a workspace, with the judge that they start for themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.records import Candidate, Evaluation, Task
from cuda_agent.judge.serve import JudgeServer
from cuda_agent.workspace import layout
from cuda_agent.workspace.sandbox import SandboxSpec, sandbox_facts, spawn
from cuda_agent.workspace.sockets import connected_socket, end_server
from published_workspace import axpby_candidate, axpby_task

pytestmark = pytest.mark.integration


def small_task() -> Task:
    task = axpby_task()
    assert "4096, 4096" in task.source
    return Task(name="axpby", source=task.source.replace("4096, 4096", "64, 4096"))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[layout.Workspace]:
    options = JudgeOptions(device=Device.CPU, timing_budget_s=1.0)
    # Longer than the 107 bytes that the kernel takes for a socket's path.
    folder = tmp_path_factory.mktemp("w") / ("long" * 30)
    made = layout.create(small_task(), folder, options=options)
    made.restore(axpby_candidate(Device.CPU))
    yield made
    client = connected_socket(made.socket)
    if client is not None:
        end_server(client)
        client.close()
        deadline = time.monotonic() + 20
        while made.socket.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
    assert not made.socket.exists()


def command(workspace: layout.Workspace, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments,
        cwd=workspace.directory,
        env={**os.environ, "PYTHON": sys.executable, **environment},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def test_compile_verify_and_profile(workspace: layout.Workspace) -> None:
    done = command(workspace, "bash", "utils/compile.sh")
    assert done.returncode == 0, done.stderr
    assert "Compiled cuda_extension.so" in done.stdout
    code = "import torch, cuda_extension as e; print(e.axpby_forward(torch.ones(4), torch.ones(4), 2.0, 1.0).sum())"
    assert "12" in command(workspace, sys.executable, "-c", code).stdout

    done = command(workspace, sys.executable, "-m", "utils.verification")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Verified:" in done.stdout
    done = command(workspace, sys.executable, "-m", "utils.verification", "--json")
    evaluation = Evaluation.model_validate(json.loads(done.stdout)["evaluation"])
    assert evaluation.verify is not None
    assert all(trial.seed is None for trial in evaluation.verify.trials)

    done = command(workspace, sys.executable, "-m", "utils.profiling")
    # Two shared cores may be too noisy for a verdict; what is printed must say so then.
    assert (done.returncode == 0 and "yours" in done.stdout) or "timing void" in done.stdout, done.stdout + done.stderr

    done = command(workspace, sys.executable, "-m", "utils.inspection")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "-bound (counted): " in done.stdout
    assert "kernels/axpby.cpp" in done.stdout


def test_a_wrong_candidate_is_no_success(workspace: layout.Workspace) -> None:
    good = workspace.snapshot()
    try:
        kernel = good.files["kernels/axpby.cpp"]
        files = {**good.files, "kernels/axpby.cpp": kernel.replace("beta *", "-beta *")}
        assert files["kernels/axpby.cpp"] != kernel
        workspace.restore(Candidate(files=files))
        done = command(workspace, sys.executable, "-m", "utils.verification")
        assert done.returncode == 9
        assert "FAILED" in done.stdout
        workspace.restore(Candidate(files={**good.files, "kernels/axpby.cpp": "int"}))
        done = command(workspace, "bash", "utils/compile.sh")
        assert done.returncode == 9
        assert "kernels/axpby.cpp:1" in done.stdout
    finally:
        workspace.restore(good)


def test_a_python_without_the_package_starts_the_one_that_has_it(workspace: layout.Workspace) -> None:
    # Isolated from site-packages, this interpreter finds no cuda_agent.
    code = "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p and '/src' not in p]; "
    code += "sys.path.insert(0, ''); import utils; utils.run('compile')"
    done = command(workspace, sys.executable, "-S", "-c", code)
    assert done.returncode == 0, done.stderr
    assert "Compiled" in done.stdout


def test_bad_use_is_one_line(workspace: layout.Workspace) -> None:
    done = command(workspace, sys.executable, "-m", "utils.compile", "--fast")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    done = command(workspace, sys.executable, "-m", "utils.compile", CUDA_AGENT_SOCKET="/nowhere/judge.sock")
    assert done.returncode == 8
    assert "No judge listens" in done.stderr
    edited = workspace.directory / "binding.cpp"
    text = edited.read_text()
    edited.chmod(0o644)
    try:
        edited.write_text(text + "//")
        done = command(workspace, sys.executable, "-m", "utils.compile")
        assert done.returncode == 2
        assert "binding.cpp" in done.stderr
        assert "Traceback" not in done.stderr
    finally:
        edited.write_text(text)


def _from_the_agents_shell(workspace: layout.Workspace, path: Path, folder: Path) -> str:
    """What the command prints in a sandbox that sees the judge's socket and nothing else of the judge."""
    spec = SandboxSpec(
        scratch=folder / "scratch",
        level=sandbox_facts().level,
        readable=(workspace.directory, path.parent),
        environment={"CUDA_AGENT_SOCKET": str(path), "PYTHON": sys.executable},
    )
    command = ["bash", "utils/compile.sh"]
    with spawn(command, spec, cwd=workspace.directory, log=folder / "shell.log") as process:
        process.wait(120)
    return process.tail()


def test_commands_ask_the_judge_of_the_run(workspace: layout.Workspace, tmp_path: Path) -> None:
    from cuda_agent.judge.session import JudgeSession

    session = JudgeSession(workspace.task, workspace.options)
    with JudgeServer(session, workspace, tmp_path / "judge.sock") as server:
        done = command(workspace, "bash", "utils/compile.sh", CUDA_AGENT_SOCKET=str(server.path))
        assert done.returncode == 0, done.stderr
        assert session.build(workspace.snapshot()).succeeded
        assert "Compiled" in _from_the_agents_shell(workspace, server.path, tmp_path)
    assert connected_socket(tmp_path / "judge.sock") is None
