"""The device's memory among tasks that are checked at a time, by what each is predicted to hold."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from cuda_agent.core.enums import Device
from cuda_agent.tasks.records import DatasetTask

#: for tasks that are open; the rest is for those of them that are at work with their answers.
_OPEN_SHARE = 0.6
#: of what an eager call would hold if it freed nothing. Open: inputs, weights, and what the compiled call leaves; most
#: of a task's time is the compiler's. At work, besides: answers of several draws, and one in float64.
_OPEN_TIMES, _ACTIVE_TIMES = 1.0, 2.3
#: a process' context and libraries.
_CONTEXT = {Device.CUDA: 1 << 30, Device.CPU: 0}


class Memory:
    """One that would run short beside the others waits, which costs less than to fail and be asked again. Nobody waits
    to be open while at work, so all that are at work come to an end."""

    def __init__(self, device: Device, device_bytes: int) -> None:
        self._context = _CONTEXT[device]
        self._open = _Pool(int(_OPEN_SHARE * device_bytes))
        self._active = _Pool(device_bytes - int(_OPEN_SHARE * device_bytes))

    def open(self, task: DatasetTask) -> contextlib.AbstractContextManager[None]:
        """For as long as the task has a process."""
        return self._open.share(self._context + int(_OPEN_TIMES * _held(task)))

    def active(self, task: DatasetTask) -> contextlib.AbstractContextManager[None]:
        """Besides, while its answers are made and compared."""
        return self._active.share(int(_ACTIVE_TIMES * _held(task)))


def _held(task: DatasetTask) -> int:
    return task.cost.held_bytes if task.cost is not None else 0


class _Pool:
    def __init__(self, total: int) -> None:
        self._total, self._taken = total, 0
        self._door, self._changed = threading.Lock(), threading.Condition()

    @contextlib.contextmanager
    def share(self, part: int) -> Iterator[None]:
        """Waits in turn; for all of it where more is asked for."""
        part = min(part, self._total)
        with self._door, self._changed:
            self._changed.wait_for(lambda: self._taken + part <= self._total)
            self._taken += part
        try:
            yield
        finally:
            with self._changed:
                self._taken -= part
                self._changed.notify_all()
