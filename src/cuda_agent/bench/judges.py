"""Opens the judges of a benchmark's tasks, each with its socket for the agent's shell."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import cast

from cuda_agent.agent.context import Progress, Session
from cuda_agent.bench.judging import Counted, LaneSession, Tells
from cuda_agent.bench.lane import Lane, Step
from cuda_agent.core.errors import WorkerError
from cuda_agent.core.records import Task
from cuda_agent.judge import JudgeSession
from cuda_agent.workers.helper import HelperProcess
from cuda_agent.workspace.layout import Workspace

_END = Step("end")


class LaneJudges:
    """As `judging.open_judge` of the agent, with a lane. `compile_threads`: of each task's baselines' compiler.
    `timed_cores`: as in `Sharing`. `waits`: as of a `LaneSession`."""

    def __init__(
        self,
        lane: Lane,
        builder: HelperProcess | None,
        counted: Counted,
        tells: Tells,
        compile_threads: int,
        timed_cores: frozenset[int],
        *,
        waits: bool = True,
    ) -> None:
        self._lane, self._compile_threads, self._timed_cores = lane, compile_threads, timed_cores
        self._session = partial(LaneSession, lane=lane, builder=builder, counted=counted, tells=tells, waits=waits)

    @contextmanager
    def __call__(
        self, task: Task, workspace: Workspace, progress: Progress, hidden: tuple[Path, ...], *, admitted: bool = False
    ) -> Iterator[tuple[Session, Path]]:
        """Raises TaskError, and what `JudgeSession` raises."""
        from cuda_agent.judge import JudgeServer

        options = workspace.options
        with ExitStack() as turn, ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cuda-agent-socket-")))
            judge = JudgeSession(task, options, progress=progress, hidden=hidden)
            judge.sharing.compile_threads, judge.sharing.timed_cores = self._compile_threads, self._timed_cores
            stack.callback(judge.close)
            # Not while what still prepares baselines, and may wait for a turn, is waited for.
            stack.callback(turn.close)
            stack.callback(judge.free)
            session = self._session(judge)
            if not admitted:
                session.admit()
            # The server asks for no more than is above.
            server = stack.enter_context(JudgeServer(cast("JudgeSession", session), workspace, folder / "judge.sock"))
            # Left in reverse: workers end first, so that a request that is still being answered fails at once.
            stack.callback(judge.end_workers)
            stack.callback(self._take, turn)
            yield session, server.path

    def _take(self, turn: ExitStack) -> None:
        """A shared turn for the end: the driver takes memory and contexts apart, which whoever is timed would feel.
        A command that still has something judged waits for none meanwhile: its end is waited for."""
        turn.enter_context(self._lane.ending())
        with suppress(WorkerError):
            turn.enter_context(self._lane.shared(_END))
