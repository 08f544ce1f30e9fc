"""The judge of one task, used through a pool: the remote counterpart of `JudgeSession`."""

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import cast

from cuda_agent.core.config import TimingStop
from cuda_agent.core.errors import CudaAgentError, WorkerError
from cuda_agent.core.graph import Graph
from cuda_agent.core.inspection import InspectReport, LeastWork
from cuda_agent.core.records import BuildReport, Candidate, Evaluation, ScreenReport, Task
from cuda_agent.judge import Built, JudgeServer, JudgeSession, Progress
from cuda_agent.pool.pool import Pool
from cuda_agent.workspace.layout import Workspace
from cuda_agent.workspace.temporary import temporary_folder


class PooledSession:
    """An agent's use of a pool. Methods return and raise the same as those of `JudgeSession`; they wait for a
    device."""

    def __init__(self, pool: Pool, task: Task, progress: Progress) -> None:
        self._pool, self.task, self.progress = pool, task, progress

    @contextmanager
    def telling(self, progress: Progress) -> Iterator[None]:
        """Reports to `progress` in this block."""
        before, self.progress = self.progress, progress
        try:
            yield
        finally:
            self.progress = before

    def admit(self) -> None:
        """Loads and checks the task. Raises TaskError."""
        self._pool.ask(self.task, "admit")

    def graph(self) -> Graph:
        """Returns the task's graph. Raises TaskError."""
        self.progress("task", "capturing the graph")
        return cast(Graph, self._pool.ask(self.task, "graph"))

    def built(self, candidate: Candidate) -> Built:
        """Returns the build's report with the library itself."""
        self.progress("build", "")
        return self._pool.compile(candidate)

    def build(self, candidate: Candidate) -> BuildReport:
        """Compiles a snapshot; a failure is in the report."""
        return self.built(candidate).report

    def screen(self, candidate: Candidate, configs: list[dict[str, int]]) -> ScreenReport:
        """Times several settings in one build."""
        # The device host then finds the library in the cache.
        self.built(candidate)
        self.progress("profile", f"screening {len(configs)} settings")
        return cast(ScreenReport, self._pool.ask(self.task, "screen", candidate, configs))

    def inspect(self, candidate: Candidate) -> InspectReport | BuildReport:
        """Says what limits a candidate. Returns the build's report where it doesn't compile."""
        self.built(candidate)
        self.progress("inspect", "in the queue of the device")
        return cast(InspectReport | BuildReport, self._pool.ask(self.task, "inspect", candidate))

    def verify(self, candidate: Candidate) -> Evaluation:
        """Verifies without timing."""
        return self._judged(candidate, with_profile=False)

    def evaluate(self, candidate: Candidate, *, stop: TimingStop | None = None) -> Evaluation:
        """Verifies and times a candidate for its reward."""
        return self._judged(candidate, with_profile=True, stop=stop)

    def _judged(self, candidate: Candidate, *, with_profile: bool, stop: TimingStop | None = None) -> Evaluation:
        self.progress("profile" if with_profile else "verify", "in the queue of the device")
        try:
            return self._pool.submit(self.task, candidate, with_profile=with_profile, stop=stop).result()
        except CancelledError:
            raise WorkerError("The judge was closed", "Resume the run") from None


class PooledJudges:
    """Opens sessions of a pool for runs; `agent.judging.open_judge` is its counterpart without a pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    @contextmanager
    def __call__(
        self, task: Task, workspace: Workspace, progress: Progress, hidden: tuple[Path, ...], *, admitted: bool = False
    ) -> Iterator[tuple[PooledSession, Path]]:
        """Yields the session, with the task admitted unless it was `admitted` before, and the path of the socket for
        commands inside the workspace. Raises TaskError, and what `Pool` raises."""
        with self._open(task, progress, admitted) as session, ExitStack() as stack:
            folder = stack.enter_context(temporary_folder("socket"))
            # The server uses only the methods that `PooledSession` has.
            same = cast("JudgeSession", session)
            server = stack.enter_context(JudgeServer(same, workspace, folder / "judge.sock"))
            yield session, server.path

    @contextmanager
    def _open(self, task: Task, progress: Progress, admitted: bool) -> Iterator[PooledSession]:
        session = PooledSession(self._pool, task, progress)
        if not admitted:
            session.admit()
        yield session


class StayingJudge(PooledJudges):
    """Opens the judge of one task of a benchmark: the task has its own device host until the run ends."""

    def __init__(self, pool: Pool, *, rank: float, told: Callable[[LeastWork], None]) -> None:
        """`told` is called with the least work of one call, where it is known."""
        super().__init__(pool)
        self._rank, self._told = rank, told

    @contextmanager
    def _open(self, task: Task, progress: Progress, admitted: bool) -> Iterator[PooledSession]:
        with self._pool.staying(task, rank=self._rank, load=not admitted):
            try:
                yield PooledSession(self._pool, task, progress)
            finally:
                with suppress(CudaAgentError):
                    work = self._pool.ask(task, "work")
                    if work is not None:
                        self._told(work)
