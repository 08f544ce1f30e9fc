"""Serves one workspace: `python -m cuda_agent.judge DIR`. A command inside a workspace starts it if no judge serves."""

import contextlib
import fcntl
import signal
import sys
from pathlib import Path
from types import FrameType

from cuda_agent.core.errors import CudaAgentError
from cuda_agent.judge.serve import JudgeServer
from cuda_agent.judge.session import JudgeSession
from cuda_agent.workspace.layout import open_workspace

#: seconds for which a judge that a command started waits for the next command, since its workers are warm.
IDLE_S = 120.0


def _end(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


def main(arguments: list[str]) -> int:
    """Serves one workspace until no more requests come. Returns exit code 0, or the error's; also 0 when another judge
    serves already."""
    workspace = open_workspace(Path(arguments[0]))
    signal.signal(signal.SIGTERM, _end)
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(workspace.socket.with_suffix(".lock").open("w"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return 0
        session = JudgeSession(workspace.task, workspace.options)
        stack.callback(session.close)
        server = stack.enter_context(JudgeServer(session, workspace, workspace.socket))
        server.wait_until_idle(IDLE_S)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except CudaAgentError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
