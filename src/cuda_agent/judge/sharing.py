"""Settings of a session that shares its device with other tasks. By default there are none."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

#: makes a context in which the caller may use the device, or has it alone for a timing.
DeviceUse = Callable[[], AbstractContextManager[None]]
#: processes of one compiler, where no other compiles beside it.
MAX_COMPILE_THREADS = 4


@dataclass
class Sharing:
    """Is set before the first request to a session. `device_use` is entered while baselines are prepared, which
    computes on the device. `give_up` ends the caller's own use of the device before it waits for something else, and
    `away` ends it for a block within the admission."""

    device_use: DeviceUse = nullcontext
    give_up: Callable[[], None] = lambda: None
    away: DeviceUse = nullcontext
    #: whether the next candidate's worker is started ahead, after each candidate.
    prewarms: bool = True
    #: whether a candidate frees cached device memory before it waits for its timing.
    gives_back: bool = False
    #: processes of the baselines' compiler on a GPU.
    compile_threads: int = MAX_COMPILE_THREADS
    #: cores that other processes of ours don't use, for timed programs; see `affinity.Cores`.
    timed_cores: frozenset[int] = frozenset()
