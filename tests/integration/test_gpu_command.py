"""`gpu COMMAND` in the agent's shell: who runs, for how long, who waits. The server is the real one; its lock here is
a file of the test, since this needs no GPU to be seen."""

from __future__ import annotations

import shlex
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cuda_agent.agent import gpuclient, gpucommand
from cuda_agent.agent.gpucommand import GpuCommands, environment
from cuda_agent.agent.shell import Shell
from cuda_agent.workers.gpulock import gpu_lock
from cuda_agent.workspace.sandbox import SandboxLimits, SandboxSpec, sandbox_facts

pytestmark = pytest.mark.integration


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "the.lock"


@pytest.fixture
def shell(tmp_path: Path, lock: Path) -> Iterator[Shell]:
    for name in ("scratch", "logs", "gpu", "gpu/bin", "ws"):
        (tmp_path / name).mkdir()
    shim = tmp_path / "gpu" / "bin" / "gpu"
    shim.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-I", "-S", gpuclient.__file__])} "$@"\n')
    shim.chmod(0o555)
    spec = SandboxSpec(
        scratch=tmp_path / "scratch",
        level=sandbox_facts().level,
        writable=(tmp_path / "ws",),
        readable=(tmp_path / "gpu",),
        environment=environment(tmp_path / "gpu", "/usr/bin:/bin"),
        limits=SandboxLimits(memory_mib=2048, processes=64),
    )
    (tmp_path / "server").mkdir()
    server = GpuCommands(
        replace(spec, scratch=tmp_path / "scratch"),
        tmp_path / "ws",
        tmp_path / "gpu",
        tmp_path / "server",
        lambda waiting, given_up: gpu_lock("test", waiting=waiting, given_up=given_up, path=lock),
    )
    made = Shell(tmp_path / "ws", spec, tmp_path / "logs", server)
    yield made
    made.close()
    server.close()


def said(shell: Shell, command: str, timeout_s: float = 60) -> tuple[str, int | None]:
    state = shell.wait(shell.start(command, timeout_s=timeout_s))
    return state.text, state.exit_code


def begun(shell: Shell, seconds: int, folder: Path) -> str:
    """A command that sleeps on the GPU, when it has begun to."""
    name = shell.start(f"gpu sh -c 'touch begun; exec sleep {seconds}'", timeout_s=120)
    deadline = time.monotonic() + 20
    while not (folder / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert (folder / "begun").exists()
    return name


def test_output_exit_code_and_folder(shell: Shell, tmp_path: Path) -> None:
    assert said(shell, "gpu echo hällo") == ("hällo\n", 0)
    assert said(shell, "gpu bash -c 'echo out; exit 7'") == ("out\n", 7)
    assert said(shell, "mkdir sub && cd sub && gpu pwd")[0] == f"{tmp_path}/ws/sub\n"
    assert said(shell, "cd / && gpu pwd")[0] == f"{tmp_path}/ws\n"
    assert said(shell, "gpu bash -c 'kill -9 $$'")[1] == -9
    assert said(shell, "gpu nothing-of-that-name")[1] == 127
    assert shell.gpu_s > 0


def test_a_wrong_call_says_how(shell: Shell) -> None:
    for wrong in ("gpu", "gpu --seconds 100000 true", "gpu --seconds x true", "gpu -h"):
        text, code = said(shell, wrong)
        assert (code, "Usage: gpu" in text) == (2, True), wrong


def test_time_is_bounded(shell: Shell) -> None:
    started = time.monotonic()
    text, code = said(shell, "gpu --seconds 0.5 sleep 60")
    assert (code, time.monotonic() - started < 20) == (124, True)
    assert "ended after 0.5 s" in text


def test_it_is_in_the_sandbox(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("12345")
    assert "12345" not in said(shell, f"gpu cat {tmp_path}/secret")[0]
    said(shell, f"gpu bash -c 'echo x > {tmp_path}/out'")
    assert not (tmp_path / "out").exists()
    code = "import socket; s = socket.socket(); s.settimeout(2); s.connect(('1.1.1.1', 53))"
    assert said(shell, f'gpu {sys.executable} -I -c "{code}"')[1] != 0


def test_what_it_prints_goes_nowhere_else(shell: Shell, tmp_path: Path) -> None:
    """The run writes a log for each command; nothing that a command plants may lead it elsewhere."""
    target = tmp_path / "target"
    said(shell, f"ln -s {target} {tmp_path}/gpu/gpu-1.log; rm -f {tmp_path}/gpu/gpu.sock")
    assert said(shell, "gpu echo hello") == ("hello\n", 0)
    assert not target.exists()


def test_it_waits_for_the_lock_and_holds_it(shell: Shell, lock: Path, tmp_path: Path) -> None:
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with gpu_lock("test", path=lock):
            held.set()
            let_go.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    name = shell.start("gpu echo done", timeout_s=30)
    deadline, text = time.monotonic() + 20, ""
    while "waiting for the GPU" not in text and time.monotonic() < deadline:
        text += shell.look(name).text
        time.sleep(0.05)
    assert "held by process" in text
    assert "done" not in text
    let_go.set()
    thread.join()
    assert shell.wait(name).text.endswith("done\n")
    name = begun(shell, 2, tmp_path / "ws")
    waited: list[str] = []
    with gpu_lock("test", path=lock, waiting=waited.append, timeout_s=30):
        assert waited, "the lock was free while a command ran"
    shell.kill(name)


def test_ending_the_caller_ends_the_command(shell: Shell, lock: Path, tmp_path: Path) -> None:
    name = begun(shell, 100, tmp_path / "ws")
    shell.kill(name)
    started = time.monotonic()
    with gpu_lock("test", path=lock, timeout_s=20):
        assert time.monotonic() - started < 10


def test_on_cpu_it_says_that_there_is_none(tmp_path: Path) -> None:
    from cuda_agent.core.enums import Device

    spec = SandboxSpec(scratch=tmp_path, level=sandbox_facts().level)
    (tmp_path / "gpu").mkdir()
    with gpucommand.gpu_commands(Device.CPU, spec, tmp_path, tmp_path / "gpu", tmp_path) as server:
        assert server is None
        assert "device of this workspace is cpu" in (tmp_path / "gpu" / "bin" / "gpu").read_text()
