"""The sandbox holds: what a hostile command tries, at every level that runs here."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cuda_agent.core.enums import SandboxLevel
from cuda_agent.core.errors import SandboxError
from cuda_agent.workspace import bwrap, landlock, sandbox
from cuda_agent.workspace.sandbox import SandboxLimits, SandboxSpec, resolve_level, sandbox_facts, spawn

pytestmark = pytest.mark.integration

LEVELS = [SandboxLevel.REDUCED] + ([SandboxLevel.FULL] if sandbox_facts().level is SandboxLevel.FULL else [])
needs_landlock = pytest.mark.skipif(landlock.abi() == 0, reason="no Landlock")


@pytest.fixture(params=LEVELS, ids=[level.value for level in LEVELS])
def level(request: pytest.FixtureRequest) -> SandboxLevel:
    if request.param is SandboxLevel.REDUCED and landlock.abi() == 0:
        pytest.skip("no Landlock")
    return request.param  # type: ignore[no-any-return]


def run(command: list[str], spec: SandboxSpec, timeout: float = 60.0) -> tuple[int, str]:
    log = spec.scratch.parent / "log"
    with spawn(command, spec, cwd=spec.scratch, log=log) as process:
        code = process.wait(timeout)
    return code, process.tail()


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-c", code]


@pytest.fixture
def spec(tmp_path: Path, level: SandboxLevel) -> SandboxSpec:
    (tmp_path / "scratch").mkdir()
    return SandboxSpec(scratch=tmp_path / "scratch", level=level, limits=SandboxLimits(memory_mib=1024, processes=64))


def test_exit_code_output_and_signal(spec: SandboxSpec) -> None:
    code, text = run(["/bin/sh", "-c", "echo hello; exit 7"], spec)
    assert (code, text) == (7, "hello\n")
    code, _ = run(python("import os; os.kill(os.getpid(), 11)"), spec)
    assert code == -11


def test_fixed_addresses_are_the_same_in_every_process(spec: SandboxSpec) -> None:
    """Whatever the arguments and the environment: the stack, the program, its libraries."""
    script = "maps = [line.split()[0] for line in open('/proc/self/maps')]; print(*maps[:4], *maps[-4:])"
    ask = "import ctypes; exit(ctypes.CDLL(None).personality(0x0040000) == -1)"
    forbidden = subprocess.run(python(ask), check=False).returncode != 0

    def addresses(word: str, fixed: bool) -> str:
        (spec.scratch.parent / "log").unlink(missing_ok=True)
        own = replace(spec, fixed_addresses=fixed, environment={"WORD": word})
        code, text = run([*python(script), word], own)
        assert code == 0, text
        return text

    assert addresses("a", True) == addresses("a" * 777, True) or forbidden
    assert addresses("a", False) != addresses("a", False)


@pytest.mark.parametrize("small", [True, False])
def test_small_pages(spec: SandboxSpec, small: bool) -> None:
    ask = "import ctypes; print(ctypes.CDLL(None).prctl(42, 0, 0, 0, 0))"
    assert run(python(ask), replace(spec, small_pages=small)) == (0, f"{int(small)}\n")


def test_writes_only_in_scratch(spec: SandboxSpec, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    code, _ = run(["/bin/sh", "-c", f"echo 1 > mine && echo 2 > {outside}/theirs"], spec)
    assert code != 0
    assert (spec.scratch / "mine").read_text() == "1\n"
    assert not (outside / "theirs").exists()
    target = f"/var/tmp/cuda-agent-test-{os.getpid()}"
    assert run(["/bin/sh", "-c", f"echo 2 > {target}"], spec)[0] != 0
    assert not Path(target).exists()


def test_hidden_paths_can_not_be_read(spec: SandboxSpec, tmp_path: Path) -> None:
    secret = tmp_path / "secrets"
    (secret / "open").mkdir(parents=True)
    (secret / "seed").write_text("12345")
    (secret / "open" / "file").write_text("allowed")
    hidden = SandboxSpec(
        scratch=spec.scratch, level=spec.level, limits=spec.limits, hidden=(secret,), readable=(secret / "open",)
    )
    code, text = run(["/bin/sh", "-c", f"cat {secret}/open/file; cat {secret}/seed"], hidden)
    assert code != 0
    assert "allowed" in text
    assert "12345" not in text


def test_home_is_hidden_and_environment_is_closed(spec: SandboxSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "12345")
    code, text = run(["/bin/sh", "-c", "env; echo $HOME; ls ~"], spec)
    assert code == 0
    assert "12345" not in text
    assert str(spec.scratch) in text
    assert run(["/bin/sh", "-c", f"cat {Path.home()}/.profile {Path.home()}/.bashrc"], spec)[0] != 0


def test_no_network(spec: SandboxSpec) -> None:
    code, text = run(
        python(
            "import socket\n"
            "for family in (socket.AF_INET, socket.AF_INET6):\n"
            "    try:\n"
            "        made = socket.socket(family)\n"
            "        made.settimeout(1)\n"
            "        made.connect(('127.0.0.1' if family == socket.AF_INET else '::1', 22))\n"
            "        print('reached')\n"
            "    except OSError as error:\n"
            "        print(type(error).__name__)\n"
            "socket.socketpair()\n"
        ),
        spec,
    )
    assert code == 0, text
    assert "reached" not in text


def test_other_processes_can_not_be_touched(spec: SandboxSpec) -> None:
    victim = subprocess.Popen(["sleep", "100"], env={"SECRET": "12345"})
    try:
        _, text = run(
            python(
                "import os, sys\n"
                f"pid = {victim.pid}\n"
                "for action in (lambda: os.kill(pid, 9), lambda: print(open(f'/proc/{pid}/environ').read()),\n"
                "               lambda: open(f'/proc/{pid}/mem', 'r+b')):\n"
                "    try:\n"
                "        action()\n"
                "    except OSError as error:\n"
                "        print(type(error).__name__)\n"
            ),
            spec,
        )
        assert "12345" not in text
        assert len(text.splitlines()) == 3, text
        time.sleep(0.05)
        if spec.level is SandboxLevel.FULL or landlock.abi() >= 6:
            assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


def test_every_process_of_the_sandbox_has_the_filter(spec: SandboxSpec) -> None:
    """Bubblewrap's own process too: as root a command may write into its memory."""
    script = (
        "import os\n"
        "for name in filter(str.isdecimal, os.listdir('/proc')):\n"
        "    try:\n"
        "        os.close(os.open(f'/proc/{name}/mem', os.O_RDWR))\n"
        "        text = open(f'/proc/{name}/status').read()\n"
        "    except OSError:\n"
        "        continue\n"
        "    print(name == str(os.getpid()), text.partition('Seccomp:')[2].split()[0])\n"
    )
    code, text = run(python(script), spec)
    found = [line.split() for line in text.splitlines()]
    assert code == 0 and all(mode == "2" for _, mode in found), text
    assert spec.level is SandboxLevel.REDUCED or ["True", "2"] in found


def test_namespaces_and_tracing_are_denied(spec: SandboxSpec) -> None:
    code, text = run(
        python(
            "import ctypes, os\n"
            "libc = ctypes.CDLL(None, use_errno=True)\n"
            "print(libc.unshare(0x10000000), libc.ptrace(0, 0, 0, 0), libc.mount(None, b'/', None, 4096, None))\n"
        ),
        spec,
    )
    assert code == 0
    assert text.split() == ["-1", "-1", "-1"]


def marked_processes(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.fixture
def daemon() -> Iterator[tuple[str, str]]:
    """A program that leaves its session and its parent, and a word in its command line to find it by."""
    mark = f"daemon-{os.getpid()}-{time.monotonic_ns()}"
    code = (
        "import os, sys, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        print('up', flush=True)\n"
        "        time.sleep(100)\n"
        "    os._exit(0)\n"
    )
    yield mark, code
    assert marked_processes(mark) == []


def test_kill_ends_daemons(spec: SandboxSpec, daemon: tuple[str, str]) -> None:
    mark, code = daemon
    command = [*python(code + "time.sleep(100)"), mark]
    with spawn(command, spec, cwd=spec.scratch, log=spec.scratch.parent / "log") as process:
        deadline = time.monotonic() + 30
        while "up" not in process.tail() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert marked_processes(mark)
        process.kill()
        assert marked_processes(mark) == []
        process.kill()


def test_daemons_end_with_their_program(spec: SandboxSpec, daemon: tuple[str, str]) -> None:
    mark, code = daemon
    code, _ = run([*python(code + "time.sleep(0.3)"), mark], spec)  # type: ignore[assignment]
    assert marked_processes(mark) == []


def test_everything_ends_with_the_judge(tmp_path: Path, level: SandboxLevel) -> None:
    mark = f"orphan-{os.getpid()}"
    program = (
        "import sys, time\nfrom pathlib import Path\n"
        "from cuda_agent.core.enums import SandboxLevel\n"
        "from cuda_agent.workspace.sandbox import SandboxSpec, spawn\n"
        f"spec = SandboxSpec(scratch=Path({str(tmp_path)!r}) / 's', level=SandboxLevel({level.value!r}))\n"
        f"p = spawn([sys.executable, '-c', 'import time; time.sleep(100)', {mark!r}], spec, cwd=Path('/'), "
        f"log=Path({str(tmp_path)!r}) / 'log')\n"
        "time.sleep(0.5)\nprint('up', flush=True)\ntime.sleep(100)\n"
    )
    judge = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert judge.stdout is not None
    assert judge.stdout.readline() == "up\n"
    assert marked_processes(mark)
    judge.kill()
    judge.wait()
    deadline = time.monotonic() + 10
    while marked_processes(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert marked_processes(mark) == []


def test_memory_limit(spec: SandboxSpec) -> None:
    small = SandboxSpec(scratch=spec.scratch, level=spec.level, limits=SandboxLimits(memory_mib=256))
    code, text = run(python("x = bytearray(512 << 20)\nprint(len(x))"), small)
    assert code != 0
    assert "MemoryError" in text


def test_memory_is_watched_where_no_limit_can_be_set(spec: SandboxSpec) -> None:
    gpu = SandboxSpec(scratch=spec.scratch, level=spec.level, gpu=True, limits=SandboxLimits(memory_mib=256))
    log = spec.scratch.parent / "log"
    with spawn(
        python("import time\nx = b'1' * (400 << 20)\ntime.sleep(60)"), gpu, cwd=spec.scratch, log=log
    ) as process:
        process.wait(30)
        assert process.limit_hit == "memory"


def test_fork_bomb_is_ended(spec: SandboxSpec) -> None:
    bounded = SandboxSpec(scratch=spec.scratch, level=spec.level, limits=SandboxLimits(processes=20))
    code = "import os, time\nfor _ in range(40):\n    if os.fork() == 0:\n        time.sleep(60)\ntime.sleep(60)"
    log = spec.scratch.parent / "log"
    with spawn(python(code), bounded, cwd=spec.scratch, log=log) as process:
        process.wait(30)
        assert process.limit_hit == "processes"


def test_only_named_descriptors_are_inherited(spec: SandboxSpec) -> None:
    ours, theirs = os.pipe()
    secret = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(secret, True)
    passing = SandboxSpec(scratch=spec.scratch, level=spec.level, limits=spec.limits, pass_fds=(theirs,))
    try:
        code, text = run(
            python(
                f"import os\nos.write({theirs}, b'hello')\n"
                "print(sorted(int(f) for f in os.listdir('/proc/self/fd') if int(f) > 2))"
            ),
            passing,
        )
        assert code == 0, text
        assert os.read(ours, 10) == b"hello"
        # One more is the listing's own.
        assert len(text.strip("[]\n").split(",")) <= 2
    finally:
        for handle in (ours, theirs, secret):
            os.close(handle)


def test_without_bubblewrap_the_level_is_reduced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failing = tmp_path / "bwrap"
    failing.write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setenv("CUDA_AGENT_BWRAP", str(failing))
    sandbox.sandbox_facts.cache_clear()
    bwrap.probe.cache_clear()
    try:
        assert sandbox_facts().level is SandboxLevel.REDUCED
        assert "No permissions" in sandbox.sandbox_facts().reason
        assert resolve_level("auto") is SandboxLevel.REDUCED
        with pytest.raises(SandboxError, match="No permissions"):
            resolve_level("full")
    finally:
        monkeypatch.undo()
        sandbox.sandbox_facts.cache_clear()
        bwrap.probe.cache_clear()
