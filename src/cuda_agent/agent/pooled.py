"""One judge for several agents on one task: a pool, whose processes hold the clock and the compilers, so that nothing
that an agent does delays another one's timing."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from cuda_agent.agent.context import Progress, Session
from cuda_agent.core.config import TimingStop
from cuda_agent.core.errors import WorkerError
from cuda_agent.core.graph import Graph
from cuda_agent.core.inspection import InspectReport
from cuda_agent.core.records import BuildReport, Candidate, Evaluation, ScreenReport, Task
from cuda_agent.workspace.layout import Workspace

if TYPE_CHECKING:
    from cuda_agent.judge import Built, JudgeSession
    from cuda_agent.pool.pool import Pool


class PooledSession:
    """What one agent has of it; as `JudgeSession`. Whoever comes second waits."""

    def __init__(self, pool: Pool, task: Task, progress: Progress) -> None:
        self._pool, self.task, self.progress = pool, task, progress

    @contextmanager
    def telling(self, progress: Progress) -> Iterator[None]:
        """`progress` is told meanwhile."""
        before, self.progress = self.progress, progress
        try:
            yield
        finally:
            self.progress = before

    def admit(self) -> None:
        """Raises TaskError."""
        self._pool.ask(self.task, "admit")

    def graph(self) -> Graph:
        """Raises TaskError."""
        self.progress("task", "capturing the graph")
        graph: Graph = self._pool.ask(self.task, "graph")
        return graph

    def built(self, candidate: Candidate) -> Built:
        """The build's report with the library itself."""
        self.progress("build", "")
        return self._pool.compile(candidate)

    def build(self, candidate: Candidate) -> BuildReport:
        """Compiles a snapshot; a failure is in the report."""
        return self.built(candidate).report

    def screen(self, candidate: Candidate, configs: list[dict[str, int]]) -> ScreenReport:
        """Times of several settings in one build."""
        self.progress("profile", f"screening {len(configs)} settings")
        report: ScreenReport = self._pool.ask(self.task, "screen", candidate, configs, quiet=True)
        return report

    def inspect(self, candidate: Candidate) -> InspectReport | BuildReport:
        """As `JudgeSession.inspect`."""
        self.progress("inspect", "in the queue of the device")
        report: InspectReport | BuildReport = self._pool.ask(self.task, "inspect", candidate, quiet=True)
        return report

    def verify(self, candidate: Candidate) -> Evaluation:
        """As `JudgeSession.verify`."""
        return self._judged(candidate, with_profile=False)

    def evaluate(self, candidate: Candidate, *, stop: TimingStop | None = None) -> Evaluation:
        """As `JudgeSession.evaluate`."""
        return self._judged(candidate, with_profile=True, stop=stop)

    def _judged(self, candidate: Candidate, *, with_profile: bool, stop: TimingStop | None = None) -> Evaluation:
        self.progress("profile" if with_profile else "verify", "in the queue of the device")
        try:
            return self._pool.submit(self.task, candidate, with_profile=with_profile, stop=stop).result()
        except CancelledError:
            raise WorkerError("The judge was closed", "Resume the run") from None


class PooledJudges:
    """As `judging.open_judge`, for the runs that share a pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    @contextmanager
    def __call__(
        self, task: Task, workspace: Workspace, progress: Progress, hidden: tuple[Path, ...], *, admitted: bool = False
    ) -> Iterator[tuple[Session, Path]]:
        """Raises TaskError, and what `Pool` raises."""
        from cuda_agent.judge import JudgeServer

        session = PooledSession(self._pool, task, progress)
        if not admitted:
            session.admit()
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cuda-agent-socket-")))
            # The server asks for no more than is above.
            same = cast("JudgeSession", session)
            server = stack.enter_context(JudgeServer(same, workspace, folder / "judge.sock"))
            yield session, server.path
