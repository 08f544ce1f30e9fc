"""The judge of one task, each step in a turn of its device's queue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.errors import CudaAgentError, OutOfMemory, WorkerError
from cuda_agent.core.graph import Graph
from cuda_agent.core.inspection import InspectReport, Work
from cuda_agent.core.records import BuildReport, Candidate, Evaluation, ScreenReport, Task
from cuda_agent.judge import Case, JudgeSession, Sharing, total_bytes, work_needed
from cuda_agent.pool.client import DeviceQueue, Stay, Turn
from cuda_agent.pool.rule import Need
from cuda_agent.workers.process import Worker

Result = TypeVar("Result")

_GIB = 1 << 30
#: bytes of device memory that a task's processes hold for their contexts.
CONTEXTS = int(3.6 * _GIB)
#: bytes that an eager call of a task holds, where nothing is known of it.
USUAL_PEAK = _GIB
#: times what an eager call holds: what a task holds between its steps (weights, pools of captured graphs), until it has
#: been measured.
_RESTING = 0.3
#: more than any device has: this task has the device's memory alone.
WHOLE = Need(resting=1 << 60)


class Step(NamedTuple):
    """What a turn is for, and how many copies of an eager call's inputs, outputs and other memory it needs."""

    name: str
    inputs: float = 0.0
    outputs: float = 0.0
    rest: float = 0.0


#: answers come also in float64, and for a verified candidate besides.
ADMISSION, VERIFICATION = Step("admission", 4, 6, 2), Step("verification", 5, 8, 3)
BASELINES, LOADING = Step("baselines", 2, 2, 2), Step("loading", 3, 3, 3)
#: one more verified call, whose kernels are recorded.
OBSERVATION = Step("observation", 4, 8, 3)
STEPS = (ADMISSION, VERIFICATION, BASELINES, LOADING, OBSERVATION)


class Size(NamedTuple):
    """Bytes of the device that an eager call holds: inputs, outputs, and the rest at its peak."""

    inputs: int
    outputs: int
    rest: int = 0

    def of(self, step: Step) -> int:
        """Bytes that a step needs."""
        return int(step.inputs * self.inputs + step.outputs * self.outputs + step.rest * self.rest)

    def need(self, kept: int | None) -> Need:
        """`kept`: bytes that the task's processes hold between steps besides their contexts; None: not known yet."""
        resting = int(_RESTING * sum(self)) if kept is None else kept
        return Need(CONTEXTS + resting, max(map(self.of, STEPS)))


class QueuedSession:
    """A `JudgeSession` that is opened when it is first needed. It promises its memory before it uses it: by an estimate
    at first, by what the reference has measured once it is loaded. If the measured need isn't free, or a step finds too
    little memory, the session ends, waits for that memory, and begins again; a task that finds too little memory has
    the whole device for its second attempt.

    Methods return and raise what those of `JudgeSession` do, and raise WorkerError where the queue has ended.
    """

    def __init__(
        self,
        task: Task,
        options: JudgeOptions,
        queue: DeviceQueue,
        sharing: Sharing,
        *,
        hidden: Sequence[Path] = (),
        peak_bytes: int | None = None,
    ) -> None:
        """`peak_bytes`: what an eager call is known to hold on the device."""
        self.task = task
        self._options, self._queue, self._hidden = options, queue, tuple(hidden)
        peak = peak_bytes or USUAL_PEAK
        self._size = Size(peak // 2, peak // 2)
        self._need = self._size.need(None)
        self._turn = Turn(queue)
        self._sharing = sharing
        sharing.device_use, sharing.give_up = self._prepares, self._turn.give_up
        self._session: JudgeSession | None = None
        self._stay: Stay | None = None
        #: the session was opened and its memory promised, or it failed.
        self._stays = threading.Event()

    def admit(self) -> None:
        """Raises TaskError."""
        self._with_memory(lambda: self._admitted() and None, lambda _none: False)

    def graph(self) -> Graph:
        """Raises TaskError."""
        # The admission has captured it.
        return self._admitted().graph()

    def screen(self, candidate: Candidate, configs: list[dict[str, int]]) -> ScreenReport:
        """As `JudgeSession.screen`."""

        def screened() -> ScreenReport:
            session = self._admitted()
            self._import(session, session.next_screener)
            with self._device(LOADING):
                return session.screen(candidate, configs, clock=partial(self._clock, session))

        return self._with_memory(screened, lambda report: report.out_of_memory)

    def inspect(self, candidate: Candidate) -> InspectReport | BuildReport:
        """As `JudgeSession.inspect`."""
        session = self._admitted()
        session.settle()
        with self._queue.clock("inspection"):
            return session.inspect(candidate)

    def judge(self, case: Case, *, with_profile: bool) -> Evaluation:
        """Verification and timing of a case that was built."""

        def judged() -> Evaluation:
            session = self._admitted()
            self._import(session, session.next_candidate)
            with self._device(VERIFICATION):
                case.judge(session, with_profile=with_profile, clock=partial(self._clock, session, then=OBSERVATION))
                session.rest()
            return case.evaluation()

        return self._with_memory(judged, self._lacked_memory)

    def prewarm(self) -> None:
        """A candidate will be judged: its worker imports torch while the candidate is compiled."""
        if self._session is not None:
            self._import(self._session, self._session.next_candidate)

    def work(self) -> Work | None:
        """The least work of one call; None before the task is loaded."""
        return None if self._session is None or self._session.spec is None else work_needed(self._session)

    def close(self) -> None:
        """Ends the session and gives its memory back; harmless when done before."""
        session, self._session = self._session, None
        if session is not None:
            session.end_workers()
            # The driver takes contexts apart, which a timing would feel.
            with suppress(WorkerError), self._queue.device("end"):
                session.close()
            session.close()
        if self._stay is not None:
            self._stay.close()
            self._stay = None

    # ------------------------------------------------------------ parts of a step

    def _admitted(self) -> JudgeSession:
        """The session, with the task admitted and its need known."""
        session = self._opened()
        if not session.admitted:
            with self._device(ADMISSION):
                session.admit()
                session.rest()
        if self._learn(session):
            return session
        self.close()
        return self._admitted()

    def _import(self, session: JudgeSession, workers: Callable[[], Sequence[Worker]]) -> None:
        """Waits until the next step's worker has imported torch, for which it needs no device."""
        session.prewarm()
        for worker in workers():
            # A worker that doesn't start is reported by the step that needs it.
            with self._queue.host("imports"), suppress(WorkerError):
                worker.imported()

    def _opened(self) -> JudgeSession:
        if self._session is not None:
            return self._session
        session = JudgeSession(self.task, self._options, hidden=self._hidden)
        session.sharing = self._sharing
        self._session = session
        self._stays.clear()
        try:
            # Nothing of this needs the device.
            with self._queue.host("imports"):
                session.start()
            self._stay = self._queue.stay(self._need)
        except BaseException:
            self.close()
            raise
        finally:
            self._stays.set()
        return session

    def _learn(self, session: JudgeSession) -> bool:
        """Promises what is known of the task by now. Returns False where its measured size isn't free; that is then
        asked for first. What it keeps between steps is promised when it is free."""
        spec, stay = session.spec, self._stay
        if self._options.device is Device.CPU or self._need is WHOLE or spec is None or not spec.peak_bytes:
            return True
        assert stay is not None
        known = self._size
        self._size = Size(total_bytes(spec.inputs), total_bytes(spec.outputs), spec.rest_bytes)
        need = self._size.need(session.kept_bytes)
        if need == stay.need or stay.change(need):
            self._need = need
            return True
        if known == self._size:
            return True
        self._need = self._size.need(None)
        return False

    def _with_memory(self, call: Callable[[], Result], lacked: Callable[[Result], bool]) -> Result:
        """The call's result. Where it found too little memory beside other tasks: that of a second one, alone."""
        alone = self._options.device is Device.CPU or self._need is WHOLE
        try:
            result = call()
            if alone or not (lacked(result) or (self._session and self._session.baselines.out_of_memory)):
                return result
        except OutOfMemory:
            if alone:
                raise
        self.close()
        self._need = WHOLE
        return call()

    def _lacked_memory(self, evaluation: Evaluation) -> bool:
        return evaluation.verdict is Verdict.OUT_OF_MEMORY

    @contextmanager
    def _device(self, step: Step) -> Iterator[None]:
        self._turn.take(step.name, self._size.of(step))
        try:
            yield
        finally:
            self._turn.give_up()

    @contextmanager
    def _prepares(self) -> Iterator[None]:
        """Baselines are prepared, in a thread of their own. On a GPU they wait for the task's promise of memory."""
        if self._options.device is Device.CUDA:
            self._stays.wait()
        with self._queue.device(BASELINES.name, self._size.of(BASELINES)):
            yield

    @contextmanager
    def _clock(self, session: JudgeSession, *, then: Step | None = None) -> Iterator[None]:
        """The device alone, with no baseline still being prepared. `then`: the device step that follows."""
        self._turn.give_up()
        session.settle()
        try:
            with self._queue.clock("timing"):
                try:
                    yield
                finally:
                    with suppress(CudaAgentError):
                        session.rest()
        finally:
            if then is not None:
                self._turn.take(then.name, self._size.of(then))
