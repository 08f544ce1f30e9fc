"""The judge of one task of a benchmark: what it does on the device, it does in a turn of the `Lane`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from cuda_agent.agent.context import Progress
from cuda_agent.bench.lane import Lane, Size, Step
from cuda_agent.bench.scarcity import Memory, Shortage, lacks_memory, names_memory, screened_none
from cuda_agent.core.config import TimingStop
from cuda_agent.core.errors import CudaAgentError, DeviceError, TaskError, WorkerError
from cuda_agent.core.graph import Graph
from cuda_agent.core.inspection import InspectReport, Work
from cuda_agent.core.records import BuildReport, Candidate, Evaluation, ScreenReport
from cuda_agent.judge import Case, Hush, JudgeSession, NextWorker, total_bytes, work_needed
from cuda_agent.workers.buffers import gpu_memory
from cuda_agent.workers.helper import HelperProcess
from cuda_agent.workers.process import Worker

if TYPE_CHECKING:
    from cuda_agent.judge import Built

#: what a task does on the device, and how many copies of a call's inputs, of its outputs and of the rest that takes of
#: its memory, in all processes (docs/bench.md).
_CAPTURE, _LOADING, _BASELINES = Step("capture", 3, 3, 3), Step("loading", 2, 2, 2), Step("baselines", 2, 2, 2)
#: answers also in float64; a verified candidate's besides, and inputs in new storage.
_ADMISSION, _VERIFICATION = Step("admission", 4, 6, 2), Step("verification", 5, 8, 3)
#: one more verified call, whose kernels are looked at.
_OBSERVATION = Step("observation", 4, 8, 3)
#: what is timed takes what there is; who found too little waits for so much, in turns of their own.
_SCREENING, _PROFILE, _INSPECTION = Step("screening", 3, 3, 3), Step("profile"), Step("inspection")
_BUILD, _IMPORTS, _ROOM = Step("build"), Step("imports"), Step("room")

#: how a lack of memory shows, besides in a verdict.
_SHORT = (TaskError, DeviceError, WorkerError)

#: told what a task must move and compute, as soon as its graph is known.
Counted = Callable[[Work], None]
#: between two looks at what is free.
_LOOK_S = 1.0

#: told what a task says of the device's memory, whenever that changes.
Tells = Callable[[Memory], None]


class LaneSession:
    """As `JudgeSession`. Candidates are compiled by `builder`, a process that gives way to what is timed; without one
    (on the CPU, where a compiler would be foreign load) here, in a shared turn. `waits`: other tasks are at work, which
    may give memory back."""

    def __init__(
        self,
        session: JudgeSession,
        lane: Lane,
        builder: HelperProcess | None,
        counted: Counted,
        tells: Tells,
        *,
        waits: bool = True,
    ) -> None:
        self._session, self._lane, self._builder = session, lane, builder
        self._counted, self._tells, self._waits = counted, tells, waits
        self._memory, self._saying = Memory(), threading.Lock()
        sharing = session.sharing
        sharing.device_use, sharing.wake, sharing.step_back = self._beside, self._wake, lane.step_back
        sharing.is_scarcity = names_memory
        if builder is not None:
            # Mostly one verdict is asked for, and compiling takes longer than a worker's imports.
            sharing.next_worker = NextWorker.ASKED
        # Contexts are made one at a time, and beside dozens of others.
        sharing.spares_contexts = builder is not None
        self._is_counted = self._is_begun = False
        self._beginning = threading.Lock()
        #: threads in which workers make their contexts ahead, by the workers' ids.
        self._waking: dict[int, threading.Thread] = {}
        #: captured at the admission; who asks for it again needs no turn.
        self._graph: Graph | None = None

    @property
    def progress(self) -> Progress:
        return self._session.progress

    def telling(self, progress: Progress) -> AbstractContextManager[None]:
        """`progress` is told meanwhile."""
        return self._session.telling(progress)

    def _begin(self) -> Sequence[Worker]:
        """Its processes import what they need, for which no turn is held: a run that is gone on with asks for a verdict
        at once. Returns those that came to be awake."""
        with self._beginning:
            if self._is_begun:
                return ()
            with self._lane.host(_IMPORTS):
                workers = self._session.start()
            self._wake(workers)
            self._is_begun = True
        return workers

    def admit(self) -> None:
        """Where it finds no memory beside others, once more alone. Raises TaskError, DeviceError."""
        workers = self._begin()
        if self._builder is not None:
            # Seconds of the host's work, for which nobody need wait. What goes wrong is said below.
            with self._lane.aside([worker.pid for worker in workers], _CAPTURE), suppress(CudaAgentError):
                self._session.known_graph()
                # The admission may be long in coming.
                self._session.rest()
        self._learn_size()
        try:
            with self._lane.shared(_ADMISSION):
                self._admit()
        except _SHORT as error:
            if self._builder is None or not names_memory(str(error)):
                raise
        else:
            return
        with self._with_room(_ADMISSION) as hush, hush():
            self._rest()
            self._admit()

    def _admit(self) -> None:
        self._session.admit()
        self._graph = self._session.known_graph()
        self._count()
        self._rest()

    def graph(self) -> Graph:
        """Raises TaskError."""
        if self._graph is None:
            self._begin()
            try:
                with self._telling(), self._lane.shared(_ADMISSION):
                    self._capture()
            except _SHORT as error:
                if self._builder is None or not names_memory(str(error)):
                    raise
                with self._telling(), self._with_room(_ADMISSION) as hush, hush():
                    self._rest()
                    self._capture()
        assert self._graph is not None
        return self._graph

    def _capture(self) -> None:
        self._graph = self._session.graph()
        self._count()
        self._rest()

    def built(self, candidate: Candidate) -> Built:
        """As `JudgeSession.built`."""
        if self._builder is None:
            with self._telling(), self._lane.shared(_BUILD):
                return self._session.built(candidate)
        self.progress("build", "")
        with self._lane.host(_BUILD):
            self._session.prewarm()
            self._wake_ahead(self._session.next_screener())
            built: Built = self._builder.call("compile", candidate, self._session.options)
        self._tell_kept()
        return built

    def build(self, candidate: Candidate) -> BuildReport:
        """As `JudgeSession.build`."""
        return self.built(candidate).report

    def screen(self, candidate: Candidate, configs: list[dict[str, int]]) -> ScreenReport:
        """As `JudgeSession.screen`."""
        self._begin()
        # The session finds it in the cache then.
        self.built(candidate)
        screener = self._session.next_screener()
        self._wake(screener)
        # A verdict mostly follows.
        self._wake_ahead([worker for worker in self._session.next_candidate() if worker not in screener])
        # On a GPU its own baselines are aside, and stand still.
        quiet = partial(self._alone if self._builder else self._quiet, _SCREENING)
        try:
            with self._telling(), self._lane.shared(_LOADING):
                report = self._session.screen(candidate, configs, quiet=quiet)
            short = screened_none(report)
        except _SHORT as error:
            short = names_memory(str(error))
            if self._builder is None or not short:
                raise
        if self._builder is not None and short:
            self._wake(self._session.next_screener())
            with self._telling(), self._with_room(_SCREENING) as hush:
                report = self._session.screen(candidate, configs, quiet=lambda: nullcontext(hush))
        self._tell_kept()
        return report

    def inspect(self, candidate: Candidate) -> InspectReport | BuildReport:
        """As `JudgeSession.inspect`."""
        self._begin()
        self.built(candidate)
        with self._telling(), self._quiet(_INSPECTION) as hush, hush():
            return self._session.inspect(candidate)

    def verify(self, candidate: Candidate) -> Evaluation:
        """As `JudgeSession.verify`."""
        return self._judged(candidate, with_profile=False)

    def evaluate(self, candidate: Candidate, *, stop: TimingStop | None = None) -> Evaluation:
        """As `JudgeSession.evaluate`."""
        return self._judged(candidate, with_profile=True, stop=stop)

    def _judged(self, candidate: Candidate, *, with_profile: bool, stop: TimingStop | None = None) -> Evaluation:
        session = self._session
        case = Case(session.task, session.options.stopping(stop), candidate)
        self._begin()
        if self._builder is None:
            with self._lane.shared(_BUILD):
                case.build(self.progress)
        else:
            self.progress("build", "")
            with self._lane.host(_BUILD):
                session.prewarm()
                case = self._builder.call("build", case)
            self._wake(session.next_candidate())
        try:
            with self._telling(), ExitStack() as turn:
                turn.enter_context(self._lane.shared(_VERIFICATION))
                case.judge(session, with_profile=with_profile, quiet=partial(self._timing, turn))
                self._count()
                session.rest()
            short = lacks_memory(case.evaluation())
        except _SHORT as error:
            short = names_memory(str(error))
            if self._builder is None or not short:
                raise
        if self._builder is not None and short:
            self._judge_alone(case, with_profile=with_profile)
        self._tell_kept()
        return case.evaluation()

    def _judge_alone(self, case: Case, *, with_profile: bool) -> None:
        """Once more, since it found no memory beside others."""
        session = self._session
        with self._telling():
            session.prewarm()
            self._wake(session.next_candidate())
            session.baselines.renew()
            session.settle()
            with self._with_room(_VERIFICATION) as hush:
                self._rest()
                session.baselines.renew()
                case.judge(session, with_profile=with_profile, quiet=lambda: nullcontext(hush))
                self._count()

    def _wake(self, workers: Sequence[Worker]) -> None:
        """Workers make their contexts aside, one at a time: no turn need wait for that. On a CPU there is nothing to
        start."""
        for worker in workers:
            ahead = self._waking.pop(worker.pid, None)
            if ahead is not None:
                ahead.join()
            self._make_context(worker)

    def _wake_ahead(self, workers: Sequence[Worker]) -> None:
        """As `_wake`, while something else is done; that waits for it."""
        for worker in workers:
            if worker.pid not in self._waking:
                thread = threading.Thread(target=self._make_context, args=(worker,), name="waking", daemon=True)
                thread.start()
                self._waking[worker.pid] = thread

    def _make_context(self, worker: Worker) -> None:
        """What goes wrong is said to who first asks the worker something."""
        if self._builder is None or worker.awake or not worker.alive:
            return
        with suppress(WorkerError):
            worker.imported()
            with self._lane.waking(worker.pid):
                worker.ready()

    @contextmanager
    def _timing(self, turn: ExitStack) -> Iterator[Hush]:
        """Quiet before another shared turn, for what isn't timed: one more call that is looked at, another verification
        after a fault, the end of a candidate that was convicted."""
        try:
            with self._quiet(_PROFILE) as hush:
                yield hush
        except Exception:
            turn.enter_context(self._lane.shared(_VERIFICATION))
            raise
        # On a CPU there is nothing to look at.
        if self._builder is not None:
            turn.enter_context(self._lane.shared(_OBSERVATION))

    @contextmanager
    def _quiet(self, step: Step) -> Iterator[Hush]:
        """The device alone, and no baseline of this task still being prepared."""
        self._lane.step_back()
        self._session.settle()
        with self._alone(step) as hush:
            yield hush

    @contextmanager
    def _alone(self, step: Step) -> Iterator[Hush]:
        with self._lane.alone(step) as hush:
            try:
                yield hush
            except Exception:
                with suppress(CudaAgentError):
                    self._session.rest()
                raise
            self._session.rest()

    @contextmanager
    def _with_room(self, step: Step) -> Iterator[Hush]:
        """The device alone, for what found no memory: once as much of that is free as the step needs, or no more comes
        to be free. Until then no task is begun."""
        # The first try has loaded the reference.
        self._learn_size()
        shortage = Shortage(step.needed_bytes(self._lane.size))
        self._tell(is_short=self._waits)
        try:
            while True:
                with self._alone(_ROOM) as hush:
                    self._rest()
                    if not self._waits or not shortage.waits(*gpu_memory(), time.monotonic()):
                        yield hush
                        return
                time.sleep(_LOOK_S)
        finally:
            self._tell(is_short=False)

    def _beside(self, pids: Sequence[int]) -> AbstractContextManager[None]:
        """Baselines are prepared. On a CPU their compilers would be foreign load for who is alone, also stopped."""
        if self._builder is None:
            return self._lane.shared(_BASELINES)
        # Nobody need wait for a compiler, so who has verified and has one more form compiled shares no more.
        self._lane.step_back()
        return self._lane.aside(pids, _BASELINES)

    def _tell_kept(self) -> None:
        self._learn_size()
        kept = self._session.kept_bytes
        if kept is not None:
            self._tell(kept=kept)

    def _tell(self, **known: Any) -> None:
        with self._saying:
            self._memory = self._memory._replace(**known)
            self._tells(self._memory)

    def _rest(self) -> None:
        """Others get the memory; not while a command in the agent's shell has something judged."""
        with self._telling():
            self._session.rest()

    def _telling(self) -> AbstractContextManager[None]:
        """Nobody else uses the session, which is waited for before a turn: all threads here share one, and who has the
        session may wait to be alone."""
        return self._session.telling(self._session.progress)

    def _count(self) -> None:
        if not self._is_counted:
            self._is_counted = True
            self._counted(work_needed(self._session))

    def _learn_size(self) -> None:
        """Later turns need so many copies of what a call has held here, whatever the suite says."""
        spec = self._session.spec
        if spec is not None and spec.peak_bytes:
            self._lane.size = Size(total_bytes(spec.inputs), total_bytes(spec.outputs), spec.rest_bytes)
