"""The judge of one task, which takes each step in a turn of its device's queue."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.errors import CudaAgentError, OutOfMemory, WorkerError
from cuda_agent.core.graph import Graph
from cuda_agent.core.inspection import InspectReport, LeastWork
from cuda_agent.core.records import BuildReport, Candidate, Evaluation, ScreenReport, Task
from cuda_agent.judge import Case, JudgeSession, Sharing, timing_bytes, total_bytes, work_needed
from cuda_agent.pool.client import DeviceQueue, Stay
from cuda_agent.pool.rule import Need
from cuda_agent.workers.process import Worker
from cuda_agent.workers.requests.reference import LARGE, CallEstimate

Result = TypeVar("Result")

_GIB = 1 << 30
#: Bytes of device memory that a task's processes hold for their contexts.
CONTEXTS = int(3.6 * _GIB)
#: The assumed bytes of an eager call whose memory can't be estimated.
USUAL_PEAK = _GIB
#: The assumed memory between steps (weights, pools of captured graphs) over that of an eager call, until it is
#: measured.
_RESTING = 0.3
#: Copies of a large task's outputs at the most, since its answers are compared piece by piece.
_LARGE_OUTPUTS = 3
#: More bytes than any device has; the task then has the device's memory alone.
WHOLE = Need(resting=1 << 60)


class DeviceStep(NamedTuple):
    """The name of a step, how many copies of an eager call's inputs, outputs and other memory it needs, and whether the
    oracle computes in it."""

    name: str
    inputs: int = 0
    outputs: int = 0
    rest: int = 0
    has_oracle: bool = False


#: The answers are kept in float64 too, and a verified candidate has its own outputs.
ADMISSION = DeviceStep("admission", 2, 6, 1, has_oracle=True)
VERIFICATION = DeviceStep("verification", 3, 6, 1, has_oracle=True)
BASELINES, LOADING = DeviceStep("baselines", 2, 2, 2), DeviceStep("loading", 3, 4, 3)
#: A further verified call, whose kernels are recorded.
OBSERVATION = DeviceStep("observation", 2, 6, 1, has_oracle=True)
STEPS = (ADMISSION, VERIFICATION, BASELINES, LOADING, OBSERVATION)


class CallSize(NamedTuple):
    """The bytes that an eager call holds on the device: inputs, outputs, and the rest at its peak. `oracle` is what the
    call in float64 holds; None where it isn't known."""

    inputs: int
    outputs: int
    rest: int = 0
    oracle: int | None = None

    def of(self, step: DeviceStep) -> int:
        """Returns the bytes that a step needs."""
        oracle = 2 * self.call if self.oracle is None else self.oracle
        outputs = min(step.outputs, _LARGE_OUTPUTS) if self.call >= LARGE else step.outputs
        own = step.inputs * self.inputs + outputs * self.outputs + step.rest * self.rest
        return own + (oracle if step.has_oracle else 0)

    @property
    def call(self) -> int:
        """The bytes of an eager call."""
        return self.inputs + self.outputs + self.rest

    def need(self, kept: int | None, card_bytes: int) -> Need:
        """Returns the task's need on a device of `card_bytes`. `kept` are the bytes that its processes hold between
        steps besides their contexts; None where they aren't measured yet."""
        resting = int(_RESTING * self.call) if kept is None else kept
        clock = timing_bytes(self.inputs, self.outputs, self.rest, card_bytes)
        return Need(CONTEXTS + resting, max(clock, *map(self.of, STEPS)))


class QueuedSession:
    """A `JudgeSession` that is opened by the first request. It reserves memory before it uses it, at first by an
    estimate, and once the reference is loaded by its measurement. If the measured memory isn't free, or a step runs out
    of memory, the session ends, waits for that memory, and begins again. A task that ran out of memory has the whole
    device for its second attempt.

    Methods return and raise the same as those of `JudgeSession`, and raise WorkerError where the queue has ended.
    """

    def __init__(
        self,
        task: Task,
        options: JudgeOptions,
        queue: DeviceQueue,
        sharing: Sharing,
        *,
        hidden: Sequence[Path] = (),
        card_bytes: int,
    ) -> None:
        """`card_bytes` is the memory of the device."""
        self.task = task
        self._options, self._queue, self._hidden = options, queue, tuple(hidden)
        self._card = card_bytes
        self._size = CallSize(USUAL_PEAK // 2, USUAL_PEAK // 2)
        self._need = self._size.need(None, card_bytes)
        #: the device step of this moment, which can be given up and taken again.
        self._turn = ExitStack()
        self._sharing = sharing
        sharing.device_use, sharing.give_up, sharing.away = self._prepares, self._turn.close, self._away
        self._session: JudgeSession | None = None
        self._stay: Stay | None = None
        self._stay_step = "stay"
        #: Set when the session has its memory, or when opening it failed.
        self._stays = threading.Event()

    def admit(self) -> None:
        """Loads and checks the task. Raises TaskError."""
        self._with_memory(lambda: self._admitted() and None, lambda _none: None)

    def graph(self) -> Graph:
        """Returns the task's graph, which the admission has captured. Raises TaskError."""
        return self._admitted().graph()

    def screen(self, candidate: Candidate, configs: list[dict[str, int]]) -> ScreenReport:
        """Times several settings in one build, like `JudgeSession.screen`."""

        def screened() -> ScreenReport:
            session = self._admitted()
            self._import(session, session.next_screener)
            with self._device(LOADING):
                return session.screen(candidate, configs, clock=partial(self._clock, session))

        return self._with_memory(screened, lambda report: "a setting" if report.out_of_memory else None)

    def inspect(self, candidate: Candidate) -> InspectReport | BuildReport:
        """Says what limits a candidate, like `JudgeSession.inspect`."""
        session = self._admitted()
        session.settle()
        with self._queue.clock("inspection"):
            return session.inspect(candidate)

    def judge(self, case: Case, *, with_profile: bool) -> Evaluation:
        """Verifies and times a case that was built."""

        def judged() -> Evaluation:
            session = self._admitted()
            self._import(session, session.next_candidate)
            with self._device(VERIFICATION):
                case.judge(session, with_profile=with_profile, clock=partial(self._clock, session, then=OBSERVATION))
                session.rest()
            return case.evaluation()

        def lacked(evaluation: Evaluation) -> str | None:
            return evaluation.reason if evaluation.verdict is Verdict.OUT_OF_MEMORY else None

        return self._with_memory(judged, lacked)

    def prewarm(self) -> None:
        """Starts the next candidate's worker, which imports torch while the candidate is compiled."""
        if self._session is not None:
            self._import(self._session, self._session.next_candidate)

    def work(self) -> LeastWork | None:
        """Returns the least work of one call, or None before the task is loaded."""
        return None if self._session is None or self._session.spec is None else work_needed(self._session)

    def close(self) -> None:
        """Ends the session and gives its memory back. A second call does nothing."""
        session, self._session = self._session, None
        if session is not None:
            session.end_workers()
            # The driver destroys contexts, which would disturb a timing.
            with suppress(WorkerError), self._queue.device("end"):
                session.close()
            session.close()
        if self._stay is not None:
            self._stay.close()
            self._stay = None

    def _admitted(self) -> JudgeSession:
        """Returns the session, with the task admitted and its memory known."""
        session = self._opened()
        if session.signal is None:
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
            # This needs no device.
            with self._queue.host("imports"):
                self._estimated(session.start())
            self._stay = self._queue.stay(self._need, self._stay_step)
        except BaseException:
            self.close()
            raise
        finally:
            self._stays.set()
        return session

    def _estimated(self, found: CallEstimate) -> None:
        """Takes the estimate of a call's memory for the task's need, where nothing is measured yet."""
        if found.inputs and self._need is not WHOLE and self._size.oracle is None:
            self._size = CallSize(found.inputs, found.outputs, found.rest)
            self._need = self._size.need(None, self._card)

    def _learn(self, session: JudgeSession) -> bool:
        """Reserves the measured memory of the task. Returns False where it isn't free; the next session then waits for
        it. The memory that it holds between steps is reserved when it is free."""
        spec, stay = session.spec, self._stay
        if self._options.device is Device.CPU or self._need is WHOLE or spec is None or not spec.peak_bytes:
            return True
        assert stay is not None
        known = self._size
        self._size = CallSize(
            total_bytes(spec.inputs), total_bytes(spec.outputs), spec.rest_bytes, session.oracle_bytes
        )
        need = self._size.need(session.kept_bytes, self._card)
        if need == stay.need or stay.change(need):
            self._need = need
            return True
        if known.oracle is not None:
            # It was measured before and differs by little.
            return True
        self._need = self._size.need(None, self._card)
        return False

    def _with_memory(self, call: Callable[[], Result], lacked: Callable[[Result], str | None]) -> Result:
        """Returns the call's result. A call that ran out of memory beside other tasks is repeated alone. `lacked` says
        what of a result ran out of memory; the queue's log has it as the reason of the second stay."""
        alone = self._options.device is Device.CPU or self._need is WHOLE
        try:
            result = call()
            short = lacked(result)
            if short is None and self._session is not None and self._session.baselines.out_of_memory:
                short = ", ".join(sorted(self._session.baselines.out_of_memory))
            if alone or short is None:
                return result
        except OutOfMemory as error:
            if alone:
                raise
            short = error.cause
        self.close()
        self._need, self._stay_step = WHOLE, f"stay alone: {short}"
        return call()

    @contextmanager
    def _device(self, step: DeviceStep) -> Iterator[None]:
        with self._turn:
            self._take(step)
            yield

    def _take(self, step: DeviceStep) -> None:
        self._turn.enter_context(self._queue.device(step.name, self._size.of(step)))

    @contextmanager
    def _away(self) -> Iterator[None]:
        """Gives up the admission's turn for the block."""
        self._turn.close()
        try:
            yield
        finally:
            self._take(ADMISSION)

    @contextmanager
    def _prepares(self) -> Iterator[None]:
        """Runs the preparation of baselines in a turn. On a GPU it waits for the task's promise of memory."""
        if self._options.device is Device.CUDA:
            self._stays.wait()
        with self._queue.device(BASELINES.name, self._size.of(BASELINES)):
            yield

    @contextmanager
    def _clock(self, session: JudgeSession, *, then: DeviceStep | None = None) -> Iterator[None]:
        """This block has the device alone, when no baseline is being prepared any more. `then` is the device step that
        follows."""
        self._turn.close()
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
                self._take(then)
