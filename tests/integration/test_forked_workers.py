"""A fork of a fork server is confined exactly as a process that the sandbox starts, and reaches no other."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cuda_agent.core.enums import Device, SandboxLevel
from cuda_agent.core.errors import SandboxError
from cuda_agent.workers import process
from cuda_agent.workers.process import Worker, WorkerSettings
from cuda_agent.workers.roles import CANDIDATE
from cuda_agent.workspace import landlock
from cuda_agent.workspace.descendants import descendants
from cuda_agent.workspace.forkserver import ForkServer
from cuda_agent.workspace.process import SandboxedProcess
from cuda_agent.workspace.sandbox import (
    SandboxLimits,
    SandboxSpec,
    can_fork,
    closed_environment,
    fork,
    sandbox_facts,
    spawn,
)

pytestmark = pytest.mark.integration

_HERE = Path(__file__).parent
_PATH = {"PYTHONPATH": str(_HERE), "PYTHONHASHSEED": "0"}
_CODE = "import sys; from confined_state import act; act(sys.argv[1:])"
LEVELS = [SandboxLevel.REDUCED] + ([SandboxLevel.FULL] if sandbox_facts().level is SandboxLevel.FULL else [])

Start = Callable[..., SandboxedProcess]


@pytest.fixture(scope="module")
def server() -> ForkServer:
    return ForkServer("confined_state", closed_environment(Path("/nonexistent"), _PATH), small_pages=True)


@pytest.fixture(params=LEVELS, ids=[level.value for level in LEVELS])
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SandboxSpec]:
    if request.param is SandboxLevel.REDUCED and landlock.abi() == 0:
        pytest.skip("no Landlock")
    for name in ("scratch", "hidden", "read"):
        (tmp_path / name).mkdir()
    (tmp_path / "hidden" / "seed").write_text("12345")
    passed, other = os.pipe()
    # Descriptors that a child of this process would inherit.
    os.set_inheritable(other, True)
    yield SandboxSpec(
        scratch=tmp_path / "scratch", level=request.param, readable=(_HERE, tmp_path / "read"), environment=_PATH,
        hidden=(tmp_path / "hidden",), limits=SandboxLimits(memory_mib=1024, processes=64), fixed_addresses=True,
        small_pages=True, pass_fds=(passed,),
    )  # fmt: skip
    os.close(passed)
    os.close(other)


@pytest.fixture
def forked(server: ForkServer, spec: SandboxSpec) -> Start:
    assert can_fork(server, spec.level), "can't fork here"
    return lambda *words: fork(server, words, spec, cwd=spec.scratch, log=spec.scratch.parent / "log")


@pytest.fixture
def fresh(spec: SandboxSpec) -> Start:
    command = [sys.executable, "-P", "-c", _CODE]
    return lambda *words: spawn([*command, *words], spec, cwd=spec.scratch, log=spec.scratch.parent / "log")


def ended(started: SandboxedProcess) -> tuple[int, str]:
    started.log.write_text("")
    with started:
        return started.wait(60), started.tail(1 << 20)


def said(started: SandboxedProcess) -> Any:
    code, text = ended(started)
    assert code == 0, text
    return json.loads(text.splitlines()[-1])


def test_a_fork_is_confined_like_a_fresh_process(fresh: Start, forked: Start, spec: SandboxSpec) -> None:
    """Capabilities, filters, mounts, files, variables, descriptors, limits, session, signals, addresses."""
    one, other = said(fresh("state")), said(forked("state"))
    inside = one.pop("namespaces"), other.pop("namespaces")
    processes = one.pop("processes"), other.pop("processes")
    # This limit counts all threads of the user, at the moment.
    bounds = [found["limits"].pop("RLIMIT_NPROC") for found in (one, other)]
    assert all(0 < soft == hard for soft, hard in bounds)
    # The server has imported this module by the same variable.
    assert list(dict.fromkeys(one.pop("search"))) == list(dict.fromkeys(other.pop("search")))
    assert one == other
    assert sum("passed" in each for each in one["descriptors"]) == 1
    mine = {kind: str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in inside[0]}
    apart = [{kind for kind in mine if names[kind] != mine[kind]} for names in inside]
    assert apart[0] == apart[1]
    if spec.level is SandboxLevel.FULL:
        # In its PID namespace it has a shell beside it that waits for its exit code.
        assert processes == (2, 3)
        assert apart[1] >= {"user", "mnt", "uts", "ipc", "pid", "net"}
        assert one["status"]["CapBnd"] == ["0" * 16]
    assert one["status"]["CapEff"] == one["status"]["CapPrm"] == ["0" * 16]
    assert one["status"]["NoNewPrivs"] == ["1"] and one["status"]["Seccomp"] == ["2"]


def test_exit_codes_and_signals(fresh: Start, forked: Start) -> None:
    for words in (("exit", "0"), ("exit", "7"), ("exit", "255"), ("die", "11"), ("die", "9"), ("die", "15")):
        assert ended(fresh(*words))[0] == ended(forked(*words))[0], words


def test_a_fork_reaches_neither_the_server_nor_another_fork(
    forked: Start, server: ForkServer, spec: SandboxSpec
) -> None:
    with forked("sleep") as sibling:
        wait_for(lambda: "up" in sibling.tail())
        below = descendants(sibling.pid)
        assert below
        numbers = [os.getpid(), server.pid, sibling.pid, *below]
        found = said(forked("attack", json.dumps(numbers), "nowhere", "to be found"))
        assert found["reached"] == [] or (landlock.abi() < 6 and spec.level is SandboxLevel.REDUCED), found
        assert sibling.poll() is None and found["poisoned"] is False


def test_what_a_fork_changes_reaches_no_later_one(forked: Start, server: ForkServer, spec: SandboxSpec) -> None:
    if spec.level is SandboxLevel.REDUCED and landlock.abi() < 6:
        pytest.skip("Landlock can't forbid signals")
    before = said(forked("attack", "[]", "nowhere", "to be found"))
    server_pid = server.pid
    ended(forked("poison"))
    after = said(forked("attack", "[]", "nowhere", "to be found"))
    assert server.pid == server_pid and after["poisoned"] is False
    assert before["drawn"] != after["drawn"]


def test_a_forks_memory_holds_no_secret_of_the_judge(forked: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables and memory of the judge. What earlier requests told is there: names of folders, which aren't secret."""
    front, back = f"secret-{time.monotonic_ns()}-", f"{os.getpid()}-{time.time_ns()}"
    monkeypatch.setenv("SECRET", front + back)
    assert said(forked("attack", "[]", front, back))["secret"] == 0
    # The search finds what is there: this request's own words, which the server keeps for an uncertain time.
    assert said(forked("attack", "[]", front, back, front + back))["secret"] >= 1


def test_forks_end_with_the_server_and_another_server_starts(forked: Start, server: ForkServer) -> None:
    with forked("sleep") as started:
        wait_for(lambda: "up" in started.tail())
        numbers = [started.pid, *descendants(started.pid)]
        assert server.pid is not None and len(numbers) >= 3
        os.kill(server.pid, signal.SIGKILL)
        started.wait(10)
        wait_for(lambda: not any(map(alive, numbers)))
    assert ended(forked("exit", "3"))[0] == 3


def test_an_import_that_fails_in_the_server_ends_no_fork(forked: Start) -> None:
    with forked("sleep") as started:
        wait_for(lambda: "up" in started.tail())
        code, text = ended(forked("exit", "4", "unprepared"))
        assert code == 4 and "this import failed once" in text
        assert started.poll() is None


def test_kill_ends_all_of_a_fork(forked: Start) -> None:
    with forked("sleep") as started:
        wait_for(lambda: "up" in started.tail())
        numbers = [started.pid, *descendants(started.pid)]
        assert len(numbers) >= 3
        started.kill()
        wait_for(lambda: not any(map(alive, numbers)))


@pytest.mark.parametrize("level", LEVELS, ids=[level.value for level in LEVELS])
def test_forks_and_their_server_end_with_the_judge(tmp_path: Path, level: SandboxLevel) -> None:
    code = (
        "import os, time\nfrom pathlib import Path\n"
        "from cuda_agent.core.enums import Device, SandboxLevel\n"
        "from cuda_agent.workers.process import Worker, WorkerSettings\n"
        "from cuda_agent.workers.roles import CANDIDATE\n"
        "from cuda_agent.workspace.descendants import descendants\n"
        f"settings = WorkerSettings(Device.CPU, SandboxLevel({level.value!r}), 2048)\n"
        f"worker = Worker(CANDIDATE, settings, Path({str(tmp_path)!r}))\n"
        "worker.ready()\n"
        "print(*descendants(os.getpid()), flush=True)\n"
        "time.sleep(100)\n"
    )
    judge = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert judge.stdout is not None
    numbers = [int(word) for word in judge.stdout.readline().split()]
    assert len(numbers) >= 4 and all(map(alive, numbers))
    judge.kill()
    judge.wait()
    wait_for(lambda: not any(map(alive, numbers)))


def test_where_no_fork_can_enter_a_worker_starts_by_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Refusing(ForkServer):
        def ask(self, *_: object) -> None:
            raise SandboxError("no", "")

    refusing = Refusing("cuda_agent.workers.inside.main", {}, small_pages=False)
    assert not can_fork(refusing, LEVELS[-1])
    monkeypatch.setattr(process, "fork_server", lambda *_, **__: refusing)
    worker = Worker(CANDIDATE, WorkerSettings(Device.CPU, LEVELS[-1], 2048), tmp_path)
    try:
        worker.ready()
        assert worker.alive
    finally:
        worker.kill()


def alive(number: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
