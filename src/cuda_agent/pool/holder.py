"""What a pool runs in processes of its own: builders, which compile, and holders, which own a device each. On the CPU a
compiler would be foreign load, so nobody builds while a holder times."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.errors import CudaAgentError
from cuda_agent.core.records import Candidate, Evaluation, Task
from cuda_agent.core.stack import read_stack
from cuda_agent.judge import Built, Case, Hush, JudgeSession, NextWorker, build_extension, no_hush
from cuda_agent.workers.affinity import keep_off, share

#: builders give way to what is timed.
_NICE = 5


class Builder:
    """Compiles; needs no device. `gate`: a folder for the locks of `building` and `timing`, None where both may run at
    once."""

    def __init__(self, gate: Path | None, off: frozenset[int] = frozenset()) -> None:
        """`off`: cores that are kept for what is timed."""
        os.nice(_NICE)
        keep_off(off)
        self._gate = gate

    def build(self, case: Case) -> Case:
        """The case with its build. Raises what `Case.build` raises."""
        with building(self._gate):
            case.build()
        return case

    def compile(self, candidate: Candidate, options: JudgeOptions) -> Built:
        """Compiles without looking at the rules. Raises what `build` raises."""
        with building(self._gate):
            return build_extension(candidate, device=options.device, options=options)

    def close(self) -> None:
        pass


class Holder:
    """Owns one device: verifies and times, and keeps the sessions of the tasks that it saw last."""

    def __init__(
        self,
        options: JudgeOptions,
        gpu: str | None,
        gate: Path | None,
        keep: int,
        hidden: tuple[Path, ...] = (),
        place: tuple[int, int] = (0, 1),
        kept: frozenset[int] = frozenset(),
    ) -> None:
        """`place`: its number among so many holders of this machine. Each keeps to its own cores, since one's workers
        would disturb what another one times. `kept`: those of them that are for its timing only."""
        number, count = place
        # Which cores there are, before it has fewer.
        read_stack()
        cores = os.sched_getaffinity(0)
        mine = share(cores, number, count)
        self._kept = kept
        keep_off((cores - mine) | kept)
        # What imports beside a timing must not do so beside another holder's.
        self._next_worker = NextWorker.BESIDE if count == 1 or mine < cores else NextWorker.AFTER
        if gpu is not None:
            # Before anything asks the driver. Sandboxes pass it on to the workers.
            os.environ["CUDA_VISIBLE_DEVICES"] = gpu
        self._options, self._gate, self._keep, self._hidden = options, gate, keep, hidden
        self._sessions: OrderedDict[str, JudgeSession] = OrderedDict()

    def prepare(self, task: Task) -> None:
        """Loads the task and lets its baselines compile in the background. Raises TaskError."""
        with self._session(task) as session:
            session.admit()

    def judge(self, case: Case, with_profile: bool) -> Evaluation:
        """Raises what isn't the candidate's fault; the task's next candidate then finds a new session."""
        with self._session(case.task) as session:
            case.judge(session, with_profile=with_profile, quiet=partial(self._for_verdict, session))
            # Where nothing was timed, or the next worker is only there now.
            _rouse_next(session)
        return case.evaluation()

    def ask(self, task: Task, method: str, arguments: tuple[Any, ...], quiet: bool) -> Any:
        """Raises what the session's method raises."""
        with self._session(task) as session, self._quiet() if quiet else contextlib.nullcontext():
            return getattr(session, method)(*arguments)

    def close(self) -> None:
        while self._sessions:
            self._sessions.popitem()[1].close()

    @contextlib.contextmanager
    def _session(self, task: Task) -> Iterator[JudgeSession]:
        session = self._sessions.pop(task.key, None)
        if session is None:
            while len(self._sessions) >= self._keep:
                self._sessions.popitem(last=False)[1].close()
            session = JudgeSession(task, self._options, hidden=self._hidden)
            session.sharing.next_worker = self._next_worker
            session.sharing.timed_cores = self._kept
        for key, other in list(self._sessions.items()):
            try:
                other.rest()
            except CudaAgentError:
                # Another task's trouble; its next candidate hears of it.
                self._sessions.pop(key).close()
        self._sessions[task.key] = session
        try:
            yield session
        except CudaAgentError:
            self._sessions.pop(task.key).close()
            raise

    @contextlib.contextmanager
    def _for_verdict(self, session: JudgeSession) -> Iterator[Hush]:
        """`_quiet`; then the next worker's device starts beside what is left to do for this candidate."""
        with self._quiet() as hush:
            yield hush
        _rouse_next(session)

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[Hush]:
        """Nothing of ours computes beside a timing: no compiler of any task's baselines, no worker that starts its
        device, which holds up everybody's launches, on the CPU no builder."""
        for session in self._sessions.values():
            session.settle()
        with timing(self._gate):
            yield no_hush


def _rouse_next(session: JudgeSession) -> None:
    for worker in session.next_candidate():
        worker.begin()


@contextlib.contextmanager
def building(gate: Path | None) -> Iterator[None]:
    """Any number at a time, never beside `timing`, and not while somebody waits for it."""
    if gate is None:
        yield
        return
    with _locked(gate / "room", fcntl.LOCK_SH, through=gate / "door"):
        yield


@contextlib.contextmanager
def timing(gate: Path | None) -> Iterator[None]:
    """Alone in the room. Whoever waits to get in keeps the door, so that no stream of builders keeps him out."""
    if gate is None:
        yield
        return
    with _locked(gate / "room", fcntl.LOCK_EX, through=gate / "door"):
        yield


@contextlib.contextmanager
def _locked(room: Path, how: int, *, through: Path) -> Iterator[None]:
    """A lock of the kernel: it ends with its process, however that ends."""
    with room.open("w") as inside:
        with through.open("w") as door:
            fcntl.flock(door, how)
            fcntl.flock(inside, how)
        yield
