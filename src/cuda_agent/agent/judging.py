"""Opens the judge of one run: a session, and a socket at which commands in the agent's shell reach it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cuda_agent.agent.context import Progress, Session
from cuda_agent.core.records import Task
from cuda_agent.workspace.layout import Workspace
from cuda_agent.workspace.temporary import temporary_folder


@contextmanager
def open_judge(
    task: Task, workspace: Workspace, progress: Progress, hidden: tuple[Path, ...], *, admitted: bool = False
) -> Iterator[tuple[Session, Path]]:
    """Yields the session and the socket's path. The task is admitted first; one that was `admitted` before is checked
    again only when a candidate is judged. Raises TaskError and what `JudgeSession` raises."""
    from cuda_agent.judge import JudgeServer, JudgeSession

    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder("socket"))
        session = JudgeSession(task, workspace.options, progress=progress, hidden=hidden)
        stack.callback(session.close)
        if not admitted:
            session.admit()
        server = stack.enter_context(JudgeServer(session, workspace, folder / "judge.sock"))
        # The stack unwinds in reverse: workers end first, so that a request in progress fails at once.
        stack.callback(session.end_workers)
        yield session, server.path
