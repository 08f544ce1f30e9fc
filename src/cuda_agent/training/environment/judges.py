"""The judge of episodes: one pool for all tasks behind a memo of verdicts, and stored graphs and plans."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Self

from cuda_agent.agent.trained.dialogue import PolicyKind
from cuda_agent.agent.trained.offers import Offer, offers
from cuda_agent.core.config import JudgeOptions, TimingStop
from cuda_agent.core.enums import Phase, Verdict
from cuda_agent.core.errors import CudaAgentError, StoreError, TaskError, WorkerError
from cuda_agent.core.files import write_durably
from cuda_agent.core.graph import Graph
from cuda_agent.core.inspection import InspectReport
from cuda_agent.core.record import StoredRecord
from cuda_agent.core.records import BuildReport, Candidate, Evaluation, ScreenReport, Task
from cuda_agent.core.stack import read_stack
from cuda_agent.judge import Case
from cuda_agent.playbook.single_file import SingleFile
from cuda_agent.pool.pool import Pool
from cuda_agent.tasks.captured import NotCaptured, capture_graph, task_workers
from cuda_agent.training.environment.memo import Memo, stack_digest
from cuda_agent.workers.process import Worker
from cuda_agent.workspace.sandbox import resolve_level

_UNTIMED = "verified, not timed"


class Offers(StoredRecord):
    """All plans of one task."""

    plans: tuple[Offer, ...]


class Judges:
    """A context manager. The pool opens with the first unknown verdict, so a complete memo needs no device."""

    def __init__(
        self,
        folder: Path,
        options: JudgeOptions,
        *,
        gpus: Sequence[str] = (),
        sessions: int = 4,
        stack: str | None = None,
        make_pool: Callable[[JudgeOptions], Pool] | None = None,
        table_only: bool = False,
    ) -> None:
        """`folder` stores verdicts, builds, graphs and plans; several runs may share it. `stack` is the digest of the
        verdicts' stack (None: this machine's). `make_pool` makes a pool elsewhere than on this machine. `table_only`:
        nothing is judged, and an unknown candidate counts as a failed build."""
        self.options = options
        self.table_only = table_only
        #: hidden from everything that a policy runs, since it holds the verdicts of every candidate.
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"Can't create {folder}: {error.strerror}", "Choose another folder") from None
        self._gpus, self._sessions, self._make_pool = gpus, sessions, make_pool
        self.memo = Memo(folder, stack or stack_digest(read_stack(), options))
        self._pool: Pool | None = None
        self._lock = threading.RLock()
        self._graphs: dict[str, Graph] = {}
        self._refused: dict[str, TaskError] = {}
        #: task key -> why it can't be judged. Another attempt would compile its baselines again.
        self.inadmissible: dict[str, TaskError] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the pool. The next unknown verdict opens another."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    @property
    def pool(self) -> Pool:
        with self._lock:
            if self._pool is None:
                make = self._make_pool or partial(Pool, gpus=self._gpus, sessions=self._sessions)
                self._pool = make(self.options)
            return self._pool

    def session(self, task: Task) -> "RememberingSession":
        """Returns the session of one episode."""
        return RememberingSession(self, task)

    def capture(self, tasks: Iterable[Task]) -> None:
        """Captures the missing graphs, each in its own process in the judge's sandbox. `graph` raises the error of a
        task without a graph."""
        with self._lock:
            wanted = [task for task in tasks if task.key not in self._refused and not self._path(task).exists()]
            if not wanted:
                return
            level, side_by_side = resolve_level(self.options.sandbox), max(1, len(os.sched_getaffinity(0)) // 2)
            with task_workers(self.options.device, level) as start, ThreadPoolExecutor(side_by_side) as threads:
                list(threads.map(partial(self._capture, start), wanted))

    def _capture(self, start: Callable[[], Worker], task: Task) -> None:
        try:
            graph = capture_graph(start, task, self.options.device)
        except NotCaptured as error:
            self._refused[task.key] = TaskError(f"{task.name} can't be captured: {error}")
        else:
            write_durably(self._path(task), graph.to_json())

    def graph(self, task: Task) -> Graph:
        """Returns the task's graph, which is captured once and stored. Raises TaskError."""
        with self._lock:
            found = self._graphs.get(task.key)
            if found is None:
                self.capture([task])
                if task.key in self._refused:
                    raise self._refused[task.key]
                found = Graph.from_json(self._path(task).read_text(), where=str(self._path(task)))
                self._graphs[task.key] = found
            return found

    def _path(self, task: Task) -> Path:
        return self.folder / "graphs" / f"{task.key}.json"

    def offers(self, task: Task) -> tuple[Offer, ...]:
        """Returns the task's plans. They are made once and stored with the verdicts, which belong to exactly these
        texts, even if a later playbook writes others. Raises TaskError and NotCovered."""
        device, precision = self.options.device, self.options.precision
        path = self.folder / "offers" / f"{device.value}-{precision.value}" / f"{task.key}.json"
        if path.exists():
            return Offers.from_json(path.read_text(), where=str(path)).plans
        found = offers(self.graph(task), device, precision, task.key)
        write_durably(path, Offers(plans=found).to_json())
        return found

    @contextmanager
    def workers(self, count: int) -> Iterator[ThreadPoolExecutor]:
        """Yields threads that request verdicts. If the block raises (an interrupt), the pool is closed instead of
        waited for."""
        with ThreadPoolExecutor(count, thread_name_prefix="asks") as threads:
            try:
                yield threads
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                self.close()
                raise

    def build(self, task: Task, candidate: Candidate) -> None:
        """Compiles ahead of a verdict. The verdict reports a failure."""
        with suppress(CudaAgentError):
            self.session(task).build(candidate)

    def admit(self, tasks: Iterable[Task]) -> None:
        """Compiles the baselines of these tasks side by side, at most `sessions` of them. The verdict reports a
        failure."""

        def one(task: Task) -> None:
            try:
                self.pool.ask(task, "admit")
            except TaskError as error:
                self.inadmissible[task.key] = error
            except CudaAgentError:
                pass

        wanted = list(tasks)
        with self.workers(max(1, len(wanted))) as threads:
            list(threads.map(one, wanted))

    def evaluate_all(self, choices: Iterable[tuple[Task, Candidate]]) -> list[Evaluation | CudaAgentError]:
        """Returns the verdicts of many choices, or errors of the judge. Unknown ones are judged in parallel, and every
        verdict is stored at once.
        """
        wanted = list(choices)

        def one(choice: tuple[Task, Candidate]) -> Evaluation | CudaAgentError:
            try:
                return self.session(choice[0]).evaluate(choice[1], stop="decided")
            except CudaAgentError as error:
                return error

        with self.workers(max(1, len(wanted))) as threads:
            return list(threads.map(one, wanted))


class RememberingSession:
    """`agent.context.Session` for one episode, with known verdicts at once. `evaluations` counts the requested
    verdicts, `memoised` the known ones among them. `evaluated` holds the timed ones in order."""

    def __init__(self, judges: Judges, task: Task) -> None:
        self._judges, self.task = judges, task
        self.evaluations = self.memoised = 0
        self.evaluated: list[Evaluation] = []

    def graph(self) -> Graph:
        """Raises TaskError."""
        return self._judges.graph(self.task)

    def build(self, candidate: Candidate) -> BuildReport:
        """Compiles a candidate. A failure is in the report."""
        memo = self._judges.memo
        if self._judges.table_only:
            return memo.known_build(candidate) or _not_in_the_table(candidate)
        return memo.build(candidate, lambda: self._judges.pool.compile(candidate).report)

    def verify(self, candidate: Candidate) -> Evaluation:
        """Verifies like `JudgeSession.verify`. A known timed verdict contains the verification."""
        timed = self._judges.memo.known("evaluate", self.task.key, candidate)
        if timed is None or timed.profile is None:
            return self._asked("verify", candidate, None)
        self.evaluations, self.memoised = self.evaluations + 1, self.memoised + 1
        changes = {"verdict": Verdict.TIMING_VOID, "phase": Phase.VERIFY, "profile": None, "reason": _UNTIMED}
        return timed.model_copy(update=changes)

    def evaluate(self, candidate: Candidate, *, stop: TimingStop | None = None) -> Evaluation:
        """Evaluates like `JudgeSession.evaluate`. Raises TaskError and other errors that aren't the candidate's
        fault."""
        # A more precise time is another evaluation; rewards don't use it.
        found = self._asked("evaluate" if stop == "decided" else "precise", candidate, stop)
        self.evaluated.append(found)
        return found

    def screen(self, candidate: Candidate, configs: list[dict[str, int]]) -> ScreenReport:
        """Times several settings. They aren't remembered, and each counts as an evaluation."""
        self.evaluations += len(configs)
        report: ScreenReport = self._judges.pool.ask(self.task, "screen", candidate, configs)
        return report

    def inspect(self, candidate: Candidate) -> InspectReport | BuildReport:
        """Inspects like `JudgeSession.inspect`. It counts as an evaluation."""
        self.evaluations += 1
        report: InspectReport | BuildReport = self._judges.pool.ask(self.task, "inspect", candidate)
        return report

    def _asked(self, kind: str, candidate: Candidate, stop: TimingStop | None) -> Evaluation:
        self.evaluations += 1
        timed = kind != "verify"

        def judge() -> Evaluation:
            if self.task.key in self._judges.inadmissible:
                raise self._judges.inadmissible[self.task.key]
            failed = self._judges.memo.failed_build(candidate)
            if failed is not None:
                # The pool would prepare the task for a candidate that never runs.
                case = self._unbuilt(candidate, stop, failed)
                if case.decided:
                    return case.evaluation()
            try:
                return self._judges.pool.submit(self.task, candidate, with_profile=timed, stop=stop).result()
            except TaskError as error:
                self._judges.inadmissible[self.task.key] = error
                raise
            except CancelledError:
                raise WorkerError("The judge was closed", "Start the stage again") from None

        memo = self._judges.memo
        if self._judges.table_only and memo.known(kind, self.task.key, candidate) is None:
            # Not stored in the memo, since another run may judge the candidate.
            failed = memo.failed_build(candidate) or _not_in_the_table(candidate)
            return self._unbuilt(candidate, stop, failed).evaluation()
        evaluation, known = memo.evaluation(kind, self.task.key, candidate, judge)
        self.memoised += known
        return evaluation

    def _unbuilt(self, candidate: Candidate, stop: TimingStop | None, failed: BuildReport) -> Case:
        """Returns the case of a candidate that doesn't compile, which the guard checks first."""
        case = Case(self.task, self._judges.options.stopping(stop), candidate)
        case.build(failed=failed)
        return case


def _not_in_the_table(candidate: Candidate) -> BuildReport:
    said = "error: none of the choices that were measured"
    return BuildReport(succeeded=False, candidate_digest=candidate.digest, duration_s=0.0, log=said)


def usable(judges: Judges, tasks: Iterable[Task], kind: PolicyKind) -> tuple[list[Task], dict[str, str]]:
    """Returns the tasks that a kind of dialogue can say, and the reasons of the others."""
    found: list[Task] = []
    reasons: dict[str, str] = {}
    wanted = list(tasks)
    judges.capture(wanted)
    for task in wanted:
        try:
            if kind == "pocket":
                judges.offers(task)
            elif kind == "short":
                SingleFile.of(judges.graph(task), judges.options.device)
            else:
                judges.graph(task)
        except CudaAgentError as error:
            reasons[task.name] = error.cause
        else:
            found.append(task)
    return found, reasons
