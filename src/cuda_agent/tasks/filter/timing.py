"""Pass 2: the time of a checked task, alone on the device; the next tasks are prepared meanwhile.

A process is prepared as far as that takes none of the device's time: it has its context and the task's module. In its
turn it draws weights and inputs, warms up and is timed. The device's queue keeps other processes of this program off
the device, and the GPU's lock keeps other judges off. The task's own process reports the events; the judge's clock
around them, less its time around no program at all, must agree.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator

from cuda_agent.core.enums import Device
from cuda_agent.core.intervals import interval, median
from cuda_agent.judge import L2_TIMES, Burst, LoadMonitor, Tolerance, device_facts, wait_for_quiet
from cuda_agent.pool.client import DeviceQueue
from cuda_agent.tasks.filter.check import Asked, Room
from cuda_agent.tasks.filter.options import FilterOptions
from cuda_agent.tasks.filter.processes import Processes, Seat
from cuda_agent.tasks.filter.records import Checked, Failure, same_sample
from cuda_agent.tasks.inside.requests import PlaceTask, TimeTask, WarmTask
from cuda_agent.tasks.records import DatasetTask, Finding, Measurement, Rule
from cuda_agent.workers.gpulock import gpu_lock, gpu_uuid

#: a window of timings, after which others may have the GPU's lock.
_WINDOW_S = 15.0
#: a short task is timed this long.
_LEAST_S = 0.05
_MOST_CALLS = 40
_NULL_CALLS = 5
#: what takes so many times what is allowed is timed once.
_FAR_TIMES = 2.0
#: looks at the device for neighbours, around each timing.
_LOOKS = 3
#: What of the judge's clock the events may leave unexplained: a call's outputs are freed outside of them, and on the
#: CPU that gives pages back to the system.
_TOLERANCES = {Device.CUDA: Tolerance(0.15, 100.0), Device.CPU: Tolerance(0.5, 2000.0)}


class Disturbed(Exception):
    """Somebody else computed meanwhile, or the clocks disagreed: the time is void."""


class TimingTurns:
    """Gives the device to one process of this program at a time, and to none of another judge."""

    def __init__(self, device: Device, say: Callable[[str], None]) -> None:
        self._device, self._say = device, say
        self._uuid = gpu_uuid(device)
        self._held = contextlib.ExitStack()
        self._until = 0.0
        self.flush_bytes = L2_TIMES * device_facts(device)[0]

    @contextlib.contextmanager
    def turn(self, queue: DeviceQueue) -> Iterator[None]:
        """Waits for the device. Raises Disturbed where others computed meanwhile, DeviceError where they never stop."""
        with queue.clock("time"):
            self._hold()
            monitor = LoadMonitor(self._device, []) if self._device is Device.CUDA else None
            self._look(monitor)
            yield
            self._look(monitor)
        neighbour = monitor.neighbour() if monitor is not None else None
        if neighbour is not None:
            raise Disturbed(neighbour)

    def close(self) -> None:
        self._held.close()

    def _hold(self) -> None:
        if time.monotonic() < self._until:
            return
        self._held.close()
        self._held.enter_context(
            gpu_lock(self._uuid or "cpu", waiting=lambda holder: self._say(f"waiting for the device ({holder})"))
        )
        load = wait_for_quiet(self._device, self._uuid) if self._device is Device.CUDA else None
        if load is not None:
            self._say(load)
        self._until = time.monotonic() + _WINDOW_S

    def _look(self, monitor: LoadMonitor | None) -> None:
        for _ in range(_LOOKS if monitor is not None else 0):
            assert monitor is not None
            monitor.look()


def time_task(
    processes: Processes,
    task: DatasetTask,
    checked: Checked,
    options: FilterOptions,
    room: Room,
    turns: TimingTurns,
    queue: DeviceQueue,
) -> Measurement:
    """Times one task. Raises Failure, Disturbed, WorkerError, DeviceError."""

    def job(seat: Seat) -> Measurement:
        asked = Asked(seat, task, options, room)
        asked.open()
        with turns.turn(queue):
            asked.restart()
            if not same_sample(checked.sample, asked.ask(PlaceTask()).sample):
                detail = "another process gives another answer to the same inputs and weights"
                raise Failure(Finding(rule=Rule.DETERMINISTIC, detail=detail))
            last_s = asked.ask(WarmTask(calls=options.warm_calls)).call_s
            far = last_s * 1e6 > _FAR_TIMES * options.high_us
            times = _timed(asked, turns.flush_bytes, options, 1 if far else options.calls)
            # Its memory is the next one's, and giving it back takes the device's time.
            asked.close()
        measured = _measured(checked, times, asked.seconds, options)
        if measured.finding is not None and not seat.alone:
            raise Failure(measured.finding)
        return measured

    return processes.ask(job)


def _measured(checked: Checked, times: list[float], seconds: dict[str, float], options: FilterOptions) -> Measurement:
    low, high = interval(times)
    return Measurement(
        task_key=checked.task_key,
        finding=_in_window(median(times), options),
        eager_us=median(times),
        eager_low_us=low,
        eager_high_us=high,
        peak_memory_bytes=checked.peak_memory_bytes,
        graph_hash=checked.graph_hash,
        graph_operators=checked.graph_operators,
        seconds={**checked.seconds, **{f"timing_{op}": s for op, s in seconds.items()}},
    )


def _timed(asked: Asked, flush_bytes: int, options: FilterOptions, calls: int) -> list[float]:
    """µs of each call, of at least so many. Raises Disturbed where the two clocks disagree."""
    null = _burst(asked, _NULL_CALLS, flush_bytes, null=True)
    bursts = [_burst(asked, calls, flush_bytes)]
    more = min(_MOST_CALLS, math.ceil(_LEAST_S * 1e6 / max(1.0, bursts[0].median_us))) - calls
    if more > 0:
        bursts.append(_burst(asked, more, flush_bytes))
    for burst in bursts:
        unexplained = burst.unexplained_us - null.unexplained_us
        if _TOLERANCES[options.device].exceeded(unexplained, burst.median_us):
            raise Disturbed(f"its events say {burst.median_us:.0f} µs, the judge's clock {unexplained:.0f} µs more")
    return [time for burst in bursts for time in burst.event_us]


def _burst(asked: Asked, calls: int, flush_bytes: int, *, null: bool = False) -> Burst:
    begun = time.perf_counter_ns()
    times = asked.ask(TimeTask(calls=calls, flush_bytes=flush_bytes, null=null)).event_us
    wall_us = (time.perf_counter_ns() - begun) / 1e3
    if len(times) != calls:
        raise Failure(Finding(rule=Rule.EAGER_TIME, detail="its process gave no times"))
    return Burst(tuple(max(time_us, 1e-3) for time_us in times), wall_us)


def _in_window(eager_us: float, options: FilterOptions) -> Finding | None:
    if options.low_us <= eager_us <= options.high_us:
        return None
    window = f"{options.low_us / 1e3:g}–{options.high_us / 1e3:g} ms"
    return Finding(rule=Rule.EAGER_TIME, detail=f"eager takes {eager_us / 1e3:.4g} ms, outside {window}")
