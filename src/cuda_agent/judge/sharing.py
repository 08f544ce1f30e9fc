"""How a session shares its device with others of ours, as in a benchmark; usually there are none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum

from cuda_agent.workers.process import Worker, wake

#: makes a context in which processes of these ids may use the device beside others, but not while somebody times.
DeviceUse = Callable[[Sequence[int]], AbstractContextManager[None]]
Wake = Callable[[Sequence[Worker]], None]
#: processes of one compiler, where nobody else compiles beside it.
MAX_COMPILE_THREADS = 4


def beside_nobody(_pids: Sequence[int]) -> AbstractContextManager[None]:
    """The device is ours."""
    return nullcontext()


def _nothing() -> None: ...


def _never(_reason: str) -> bool:
    return False


class NextWorker(StrEnum):
    """When it is started: when somebody asks for it ahead, where what is at work wants the cores; after each candidate,
    and at the beginning; or already while one is judged, where the next one waits and cores abound."""

    ASKED = "asked"
    AFTER = "after"
    BESIDE = "beside"


@dataclass
class Sharing:
    """What others ask of a session and its baselines; to be set before anything is asked of these."""

    #: entered for as long as baselines are prepared, which computes on the device.
    device_use: DeviceUse = beside_nobody
    #: starts the devices of workers, which takes none of the memory that `device_use` may set aside.
    wake: Wake = wake
    #: gives up what is shared of the device, before something else is waited for long.
    step_back: Callable[[], None] = _nothing
    #: whether a failure may be others' fault, so that it is worth another try.
    is_scarcity: Callable[[str], bool] = _never
    #: when the next candidate's worker is started.
    next_worker: NextWorker = NextWorker.AFTER
    #: whether baselines of a task that uses one stream of the device get small contexts.
    spares_contexts: bool = False
    #: processes of the baselines' compiler on a GPU.
    compile_threads: int = MAX_COMPILE_THREADS
    #: cores that others of ours keep off, for what is timed; see `cores.for_timing`.
    timed_cores: frozenset[int] = frozenset()
