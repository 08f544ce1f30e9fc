"""Runs the agent's shell commands in the workspace's sandbox: without network, with the GPU only through the command
`gpu`, and without sight of the rest of the run."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cuda_agent.agent.files import CallRefused
from cuda_agent.agent.gpucommand import GpuCommands, environment, gpu_commands
from cuda_agent.core.files import cache_dir
from cuda_agent.workspace.layout import Workspace
from cuda_agent.workspace.process import SandboxedProcess
from cuda_agent.workspace.sandbox import SandboxLimits, SandboxSpec, resolve_level, spawn
from cuda_agent.workspace.sockets import listening_sockets
from cuda_agent.workspace.temporary import temporary_folder

MAX_BACKGROUND = 8
#: bytes of a command's output that one look returns at most; the rest stays in the sandbox's log.
MAX_OUTPUT_BYTES = 1 << 20
#: folder of our own records in a workspace. The agent can read it and not change it.
PRIVATE = ".cuda-agent"
LIMITS = SandboxLimits(memory_mib=8192, processes=256, file_mib=1024)


@dataclass(frozen=True)
class ShellState:
    """New output of a command. `exit_code` is None while it runs; `ended` describes its state in words."""

    text: str
    exit_code: int | None
    ended: str


@dataclass
class _Command:
    process: SandboxedProcess
    timeout_s: float | None
    background: bool
    started: float = field(default_factory=time.monotonic)
    position: int = 0
    timed_out: bool = False


class Shell:
    """Starts, watches and ends commands. `close()` ends them all."""

    def __init__(self, workspace: Path, spec: SandboxSpec, logs: Path, gpu: GpuCommands | None = None) -> None:
        self._workspace = workspace
        self._spec = spec
        self._logs = logs
        self._gpu = gpu
        self._commands: dict[str, _Command] = {}
        #: number of commands started so far. It numbers them, and a resumed run continues the count.
        self.started = 0
        self.level = spec.level

    @property
    def gpu_s(self) -> float:
        """Seconds for which `gpu` commands have held the GPU."""
        return self._gpu.held_s if self._gpu is not None else 0.0

    def start(self, command: str, *, timeout_s: float | None) -> str:
        """Starts `bash -c command`. Without a timeout it runs in the background. Raises CallRefused when too many
        run."""
        running = [name for name, item in self._commands.items() if item.process.poll() is None]
        if len(running) >= MAX_BACKGROUND:
            raise CallRefused(f"{len(running)} commands run already ({', '.join(running)}). End one with KillBash.")
        self.started += 1
        name = f"shell-{self.started}"
        log = self._logs / f"{name}.log"
        process = spawn(["bash", "-c", command], self._spec, cwd=self._workspace, log=log)
        self._commands[name] = _Command(process, timeout_s, background=timeout_s is None)
        return name

    def wait(self, name: str) -> ShellState:
        """Waits for a command within its timeout, then ends it and everything that it started."""
        command = self._find(name)
        try:
            command.process.wait(command.timeout_s)
        except subprocess.TimeoutExpired:
            command.timed_out = True
        finally:
            command.process.kill()
        return self.look(name)

    def look(self, name: str) -> ShellState:
        """Returns what the command printed since the last look."""
        command = self._find(name)
        code = command.process.poll()
        with command.process.log.open("rb") as stream:
            stream.seek(command.position)
            raw = stream.read(MAX_OUTPUT_BYTES)
            command.position = stream.tell()
            more = stream.read(1) != b""
        text = raw.decode(errors="replace")
        if more:
            text += "\n[… more output follows]"
        return ShellState(text, code, self._describe(command, code))

    def kill(self, name: str) -> None:
        """Ends a command and everything that it started."""
        self._find(name).process.kill()

    def close(self) -> None:
        """Ends all commands."""
        for command in self._commands.values():
            command.process.kill()

    def _find(self, name: str) -> _Command:
        command = self._commands.get(name)
        if command is None:
            known = ", ".join(key for key, item in self._commands.items() if item.background) or "none"
            raise CallRefused(f"No background command {name!r}. Known: {known}. Start one with Bash(background=true).")
        return command

    def _describe(self, command: _Command, code: int | None) -> str:
        if command.timed_out:
            return f"ended after {command.timeout_s:g} s; give a larger timeout_s or use background=true"
        if command.process.limit_hit is not None:
            return f"ended: limit of {command.process.limit_hit} reached"
        if code is None:
            return f"running for {time.monotonic() - command.started:.0f} s"
        return f"exit code {code}" if code >= 0 else f"ended by signal {-code}"


@contextmanager
def open_shell(
    workspace: Workspace,
    *,
    hidden: tuple[Path, ...],
    socket: Path | None = None,
) -> Iterator[Shell]:
    """Yields a shell for one run. It can't change the workspace's fixed files or see the `hidden` folders. The
    workspace's commands (`utils/*`) reach the judge at `socket`; `gpu COMMAND` is the only way to the GPU. Raises
    SandboxError."""
    with temporary_folder("shell") as temporary:
        scratch, logs, gpu = (temporary / name for name in ("scratch", "logs", "gpu"))
        for folder in (scratch, logs, gpu):
            folder.mkdir()
        root = workspace.directory
        judge, sockets = ({"CUDA_AGENT_SOCKET": str(socket)}, (socket.parent,)) if socket is not None else ({}, ())
        # The machine's services have sockets outside the folders that are hidden anyway.
        services = listening_sockets(outside=(gpu, *sockets, Path("/tmp"), Path("/run"), Path("/var/run")))
        spec = SandboxSpec(
            scratch=scratch,
            level=resolve_level(workspace.options.sandbox),
            writable=(root,),
            # Connecting to a socket needs no write access to its folder, and no command may replace the socket.
            readable=(*workspace.fixed_paths, root / PRIVATE, *sockets, gpu),
            hidden=(*hidden, cache_dir(), *sorted(services)),
            environment={**environment(gpu, os.environ.get("PATH", os.defpath)), **judge},
            limits=LIMITS,
        )
        with gpu_commands(workspace.options.device, spec, root, gpu, logs) as commands:
            shell = Shell(root, spec, logs, commands)
            try:
                yield shell
            finally:
                shell.close()
