"""What an agent tries in order to get out of its workspace, from Bash and from each file tool. All of it must fail."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from cuda_agent.agent.best import Best
from cuda_agent.agent.context import Session, ToolContext
from cuda_agent.agent.files import CallRefused, WorkspaceFiles
from cuda_agent.agent.shell import open_shell
from cuda_agent.agent.tools.registry import Toolbox
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, SandboxLevel
from cuda_agent.core.records import Task, ToolCall, ToolResult
from cuda_agent.workspace import landlock, layout
from cuda_agent.workspace.sandbox import sandbox_facts
from cuda_agent.workspace.sockets import bound_socket

pytestmark = pytest.mark.integration

SECRET = "the-words-that-nobody-reads"
LEVELS = ([SandboxLevel.FULL] if sandbox_facts().level is SandboxLevel.FULL else []) + (
    [SandboxLevel.REDUCED] if landlock.abi() else []
)
SOURCE = "import torch\nfrom torch import nn\n\n\nclass Model(nn.Module):\n    pass\n"


class Run:
    """A run directory with a secret in it, and the tools of its workspace."""

    def __init__(self, context: ToolContext, directory: Path) -> None:
        self.context, self.directory = context, directory
        self.root = context.workspace.directory
        self.box = Toolbox(context)

    def __call__(self, tool: str, **arguments: object) -> ToolResult:
        return self.box.call(ToolCall(id="1", tool=tool, arguments=arguments))

    def bash(self, command: str, timeout_s: float = 30) -> str:
        return self("Bash", command=command, timeout_s=timeout_s).text


@pytest.fixture(params=LEVELS, ids=[level.value for level in LEVELS])
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    directory = tmp_path / "run"
    (directory / "logs").mkdir(parents=True)
    (directory / "secret.txt").write_text(SECRET)
    (tmp_path / "secret.txt").write_text(SECRET)
    options = JudgeOptions(device=Device.CPU, sandbox=request.param.value)
    workspace = layout.create(Task(name="t", source=SOURCE), directory / "workspace", options=options)
    with socket_of_the_judge(tmp_path) as path, open_shell(workspace, hidden=(directory,), socket=path) as shell:
        files = WorkspaceFiles(workspace.directory, directory / "logs")
        session = cast(Session, None)
        yield Run(ToolContext(workspace, session, files, shell, Best(directory), directory / "logs"), directory)


class socket_of_the_judge:
    """Something that answers where the judge would."""

    def __init__(self, folder: Path) -> None:
        (folder / "judge").mkdir()
        self.path = folder / "judge" / "judge.sock"
        self.listener = bound_socket(self.path)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.listener.close()


def reading_tools(path: str) -> list[tuple[str, dict[str, object]]]:
    return [
        ("Read", {"path": path}),
        ("Grep", {"pattern": ".", "glob": path}),
        ("Glob", {"pattern": path}),
        ("Edit", {"path": path, "old": "t", "new": "u"}),
        ("MultiEdit", {"path": path, "edits": [{"old": "t", "new": "u"}]}),
    ]


def all_file_tools(path: str) -> list[tuple[str, dict[str, object]]]:
    return [*reading_tools(path), ("Write", {"path": path, "content": "mine"})]


# ---------------------------------------------------------------- paths


@pytest.mark.parametrize(
    "path",
    [
        "{run}/secret.txt", "../secret.txt", "kernels/../../secret.txt", "/etc/passwd", "/proc/self/environ",
        "/proc/1/environ", "/proc/self/root{run}/secret.txt", "/proc/self/cwd/../secret.txt", "/dev/stdin", "~/.bashrc",
        "logs/../secret.txt", "logs/../../secret.txt", "{root}/../secret.txt", "//etc/passwd", "kernels/\0.cu",
    ],
)  # fmt: skip
def test_paths_that_leave_the_workspace(run: Run, path: str) -> None:
    path = path.format(run=run.directory, root=run.root)
    for tool, arguments in all_file_tools(path):
        result = run(tool, **arguments)
        assert SECRET not in result.text, tool
        assert "root:" not in result.text, tool
        # Grep and Glob of a path that isn't there may say so instead of refusing.
        assert not result.ok or tool in ("Grep", "Glob"), (tool, result.text)
    assert (run.directory / "secret.txt").read_text() == SECRET


def test_bash_paths_that_leave_the_workspace(run: Run) -> None:
    secret = run.directory / "secret.txt"
    for path in (secret, "../secret.txt", f"/proc/self/root{secret}", "/proc/self/cwd/../secret.txt"):
        assert SECRET not in run.bash(f"cat {path}")
    for pid in ("1", "self", "$PPID", str(os.getpid()), str(os.getppid())):
        for name in ("environ", "cmdline", "mem", f"root{secret}", f"cwd{secret}"):
            assert SECRET not in run.bash(f"cat /proc/{pid}/{name} | tr '\\0' '\\n'"), (pid, name)
    run.bash(f"echo gone > {secret}; rm -f {secret}; mv ../secret.txt .; cp /dev/null ../secret.txt")
    assert secret.read_text() == SECRET
    home = Path.home()
    assert (
        "Permission denied" in run.bash(f"ls {home}")
        or run.bash(f"ls -A {home}").strip() in ("(no output)", "")
        or (
            # The interpreter may lie there.
            SECRET not in run.bash(f"find {home} -maxdepth 1")
        )
    )


# ---------------------------------------------------------------- links


def test_links_planted_by_bash(run: Run) -> None:
    secret = run.directory / "secret.txt"
    run.bash(
        f"ln -s {secret} kernels/soft.cu; ln -s {run.directory} kernels/folder; ln -s /proc/self/root kernels/root;"
        f"ln {secret} kernels/hard.cu; ln model.py kernels/model.cu; ln /etc/passwd kernels/passwd.cu"
    )
    paths = ["kernels/soft.cu", "kernels/folder/secret.txt", f"kernels/root{secret}", "kernels/folder/new.cu"]
    for path in [*paths, "kernels/hard.cu", "kernels/model.cu", "kernels/passwd.cu"]:
        for tool, arguments in reading_tools(path):
            result = run(tool, **arguments)
            assert SECRET not in result.text, (tool, path)
            assert not result.ok or tool in ("Grep", "Glob"), (tool, path, result.text)
    for path in paths:
        assert not run("Write", path=path, content="mine").ok
    assert SECRET not in run("Grep", pattern=".", glob="**").text
    assert "soft.cu" not in run("Glob").text
    assert secret.read_text() == SECRET
    assert not (run.directory / "new.cu").exists()
    assert not (run.root / "kernels" / "hard.cu").exists()


def test_a_hard_link_is_no_way_to_another_file(tmp_path: Path) -> None:
    """Made from outside, where it can be made at all."""
    root = tmp_path / "ws"
    (root / "kernels").mkdir(parents=True)
    (tmp_path / "secret.txt").write_text(SECRET)
    os.link(tmp_path / "secret.txt", root / "kernels" / "hard.cu")
    files = WorkspaceFiles(root, tmp_path / "logs")
    with pytest.raises(CallRefused, match="hard link"):
        files.read("kernels/hard.cu")
    with pytest.raises(CallRefused, match="hard link"):
        files.write("kernels/hard.cu", "mine")
    assert (tmp_path / "secret.txt").read_text() == SECRET


def test_links_made_after_the_check(run: Run) -> None:
    """A file and a folder turn into links and back, as fast as can be, while the tools are called."""
    secret = run.directory / "secret.txt"
    kernels = run.root / "kernels"
    (kernels / "sub").mkdir()
    stop = threading.Event()

    def flip() -> None:
        plain, link, folder = kernels / ".plain", kernels / ".link", kernels / "sub"
        while not stop.is_set():
            plain.write_text("harmless")
            os.replace(plain, kernels / "a.cu")
            link.symlink_to(secret)
            os.replace(link, kernels / "a.cu")
            # Write makes the folder when it is missing just then.
            with suppress(OSError):
                shutil.rmtree(folder)
                folder.symlink_to(run.directory, target_is_directory=True)
            with suppress(OSError):
                folder.unlink()
                folder.mkdir()

    thread = threading.Thread(target=flip)
    thread.start()
    try:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            for path in ("kernels/a.cu", "kernels/sub/secret.txt", "kernels/sub/new.cu"):
                for tool, arguments in all_file_tools(path):
                    assert SECRET not in run(tool, **arguments).text
    finally:
        stop.set()
        thread.join()
    assert secret.read_text() == SECRET
    assert sorted(path.name for path in run.directory.iterdir()) == ["logs", "secret.txt", "workspace"]


# ---------------------------------------------------------------- devices, pipes, sizes


def test_devices_and_pipes(run: Run) -> None:
    run.bash("mknod kernels/zero.cu c 1 5; mkfifo kernels/pipe.cu; mkfifo model_new.py; ln -s /dev/zero kernels/z.h")
    assert not (run.root / "kernels" / "zero.cu").exists()
    started = time.monotonic()
    for path in ("kernels/pipe.cu", "model_new.py", "kernels/z.h"):
        for tool, arguments in all_file_tools(path):
            result = run(tool, **arguments)
            assert not result.ok or tool in ("Grep", "Glob"), (tool, path, result.text)
    assert not run("Compile").ok
    assert time.monotonic() - started < 10
    assert stat.S_ISFIFO((run.root / "model_new.py").stat().st_mode)
    assert "nvidia" not in run.bash("ls /dev")


def test_huge_files_and_deep_folders(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_MAX_ENTRIES", 500)
    run.bash("truncate -s 900M kernels/big.cu; head -c 5000000 /dev/zero | tr '\\0' x > kernels/line.cu")
    for path in ("kernels/big.cu", "kernels/line.cu"):
        for tool, arguments in all_file_tools(path):
            result = run(tool, **arguments)
            assert not result.ok or tool in ("Grep", "Glob"), (tool, path)
    run.bash("truncate -s 3G kernels/more.cu")
    assert (run.root / "kernels" / "more.cu").stat().st_size <= 1 << 30
    deep = "import os\nfor _ in range(1500):\n    os.mkdir('d'); os.chdir('d')\nopen('deep.cu', 'w').write('x')"
    run.bash(f'rm -f kernels/*; cd kernels; {sys.executable} -I -c "{deep}"')
    assert run("Glob").ok
    assert run("Grep", pattern="x").ok
    assert "deeper than" in run("Compile").text
    run.bash("rm -rf kernels/d")
    run.bash("cd kernels; seq 600 | xargs touch")
    assert run("Glob", pattern="*.py").ok
    assert not run("Compile").ok


def test_long_output_is_bounded(run: Run) -> None:
    started = time.monotonic()
    result = run("Bash", command="yes 0123456789", timeout_s=60)
    assert not result.ok
    assert len(result.text) < 20_000
    assert time.monotonic() - started < 50
    assert "log" in result.text.splitlines()[-1]


# ---------------------------------------------------------------- sockets, environment, processes

_CONNECT = (
    "import socket, sys\n"
    "s = socket.socket(socket.AF_UNIX); s.settimeout(2)\n"
    "name = sys.argv[1].replace('@', chr(0))\n"
    "try:\n    s.connect(name); print('connected')\nexcept OSError as e:\n    print(type(e).__name__)\n"
)


def connects(run: Run, name: str) -> bool:
    run.root.joinpath("try.py").write_text(_CONNECT)
    return "connected" in run.bash(
        f"cd $(dirname {name.replace('@', '/')}) ; {sys.executable} -I {run.root}/try.py {name}"
    )


def test_the_judges_socket_is_the_only_one(run: Run, tmp_path: Path) -> None:
    assert connects(run, str(tmp_path / "judge" / "judge.sock"))
    abstract = f"cuda-agent-escape-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind("\0" + abstract)
        other.listen()
        if run.context.shell.level == "full" or landlock.abi() >= 6:
            assert not connects(run, f"@{abstract}")
    elsewhere = bound_socket(tmp_path / "other.sock")
    with elsewhere:
        if run.context.shell.level == "full":
            assert not connects(run, str(tmp_path / "other.sock"))
    code = "import socket\nfor f in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET):\n"
    code += "    try:\n        socket.socket(f).connect(('127.0.0.1', 22)); print('open')\n"
    code += "    except Exception as e:\n        print(type(e).__name__)\n"
    run.root.joinpath("try.py").write_text(code)
    assert "open" not in run.bash(f"{sys.executable} -I try.py; exec 3<>/dev/tcp/127.0.0.1/22 && echo open")


@pytest.mark.skipif(sandbox_facts().level is not SandboxLevel.FULL, reason="Landlock doesn't stand between sockets")
def test_sockets_of_services_are_out_of_reach(tmp_path: Path) -> None:
    """Also where the file system is merely read-only."""
    options = JudgeOptions(device=Device.CPU, sandbox="full")
    workspace = layout.create(Task(name="t", source=SOURCE), tmp_path / "ws", options=options)
    (workspace.directory / "try.py").write_text(_CONNECT)
    path = Path("/var/tmp") / f"cuda-agent-test-{os.getpid()}.sock"
    with bound_socket(path):
        try:
            with open_shell(workspace, hidden=()) as shell:
                command = f"{sys.executable} -I try.py {path}"
                assert "connected" not in shell.wait(shell.start(command, timeout_s=30)).text
        finally:
            path.unlink()


def test_the_judges_socket_stays_where_it_is(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "judge" / "judge.sock"
    run.bash(f"rm -f {path}; mv {path} {path}.old; echo > {path}; touch {path.parent}/mine; chmod 0 {path}")
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert [entry.name for entry in path.parent.iterdir()] == ["judge.sock"]


def test_environment(run: Run) -> None:
    text = run.bash("env; cat /proc/self/environ /proc/1/environ /proc/$PPID/environ 2>/dev/null | tr '\\0' '\\n'")
    assert SECRET not in text
    assert "API_KEY" not in text
    names = {line.split("=")[0] for line in run.bash("env").splitlines() if "=" in line}
    assert not {name for name in names if any(word in name for word in ("TOKEN", "SECRET", "KEY", "PASSWORD"))}


def marked(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_nothing_outlives_its_call_or_the_run(run: Run) -> None:
    mark = f"7{os.getpid()}{time.monotonic_ns() % 10**9}"
    run.bash(f"setsid nohup sleep {mark} >/dev/null 2>&1 & (sleep {mark} &) ; disown -a; echo left")
    assert marked(mark) == [], "left by a command that has ended"
    daemon = f"setsid sh -c 'trap \"\" TERM HUP INT; sleep {mark}' & sleep {mark}"
    assert run("Bash", command=daemon, background=True).ok
    deadline = time.monotonic() + 20
    while not marked(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert marked(mark)
    run.context.shell.close()
    assert marked(mark) == [], "left by a run that has ended"


def test_processes_outside_are_out_of_reach(run: Run) -> None:
    text = run.bash(f"kill -9 {os.getpid()} 2>&1; kill -STOP {os.getppid()} 2>&1; echo still here")
    assert "still here" in text
    if run.context.shell.level == "full":
        assert "python" not in run.bash("ps -e -o pid= -o args= 2>/dev/null | grep -v grep | grep pytest || true")


def test_fixed_files_stay_as_they_are(run: Run) -> None:
    if run.context.shell.level != "full":
        pytest.skip("reduced: Landlock can't take away what it gave to the folder around; edits are noticed instead")
    run.bash(
        "chmod -R u+w . ; echo x > model.py; rm -rf utils binding.cpp .cuda-agent skills; mv utils other; ln -f "
        "SKILL.md kernels/a.h; echo x >> kernels/a.h; mount --bind kernels utils; sed -i s/a/b/ SKILL.md"
    )
    assert layout.open_workspace(run.root).edited_files() == ()
