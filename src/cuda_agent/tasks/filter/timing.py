"""Pass 2: times a checked task alone on the device, while the next tasks are prepared.

Preparing a process uses none of the device's time: it creates the context and loads the task's module. In its turn the
process draws weights and inputs, warms up and is timed. The device's queue keeps other processes of this program off
the device, and the GPU's lock keeps other judges off. The task's own process reports the events; the judge's clock
around them, less its time around an empty program, must agree.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator

from cuda_agent.core.enums import Device
from cuda_agent.core.intervals import interval, median
from cuda_agent.judge import L2_TIMES, Burst, GpuProbe, Tolerance, device_facts, wait_for_quiet
from cuda_agent.pool.client import DeviceQueue
from cuda_agent.tasks.filter.check import ProcessLimits, TaskProcess
from cuda_agent.tasks.filter.options import FilterOptions
from cuda_agent.tasks.filter.processes import Processes, ProcessSlot
from cuda_agent.tasks.filter.records import Checked, Failure, known_of, same_sample
from cuda_agent.tasks.inside.requests import PlaceTask, TimeTask, WarmTask
from cuda_agent.tasks.records import DatasetTask, Measurement, Rule, TaskFinding
from cuda_agent.workers.gpulock import gpu_lock, gpu_uuid

#: The seconds of timings after which other judges may have the GPU's lock.
_WINDOW_S = 15.0
#: The least total time of a task's timed calls.
_LEAST_S = 0.05
_MOST_CALLS = 40
_NULL_CALLS = 5
#: A task that takes so many times the limit is timed once.
_FAR_TIMES = 2.0
#: The number of checks for foreign load before and after each timing.
_LOOKS = 3
#: The time of the judge's clock that the events may leave unexplained. A call's outputs are freed outside of the
#: events, and on the CPU that returns pages to the system.
_TOLERANCES = {Device.CUDA: Tolerance(0.15, 100.0), Device.CPU: Tolerance(0.5, 2000.0)}


class Disturbed(Exception):
    """The timing is void, because another process used the device or the clocks disagreed."""


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
        """Waits for the device. Raises Disturbed where another process used it meanwhile, DeviceError where that never
        stops."""
        with queue.clock("time"):
            self._hold()
            monitor = GpuProbe() if self._device is Device.CUDA else None
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

    def _look(self, monitor: GpuProbe | None) -> None:
        for _ in range(_LOOKS):
            if monitor is not None:
                monitor.look()


def time_task(
    processes: Processes,
    task: DatasetTask,
    checked: Checked,
    options: FilterOptions,
    limits: ProcessLimits,
    turns: TimingTurns,
    queue: DeviceQueue,
) -> Measurement:
    """Times one task. Raises Failure, Disturbed, WorkerError, DeviceError."""

    def job(slot: ProcessSlot) -> Measurement:
        process = TaskProcess(slot, task, options, limits)
        process.open()
        with turns.turn(queue):
            process.restart()
            if not same_sample(checked.sample, process.ask(PlaceTask()).sample):
                detail = "another process gives another answer to the same inputs and weights"
                raise Failure(TaskFinding(rule=Rule.DETERMINISTIC, detail=detail))
            last_s = process.ask(WarmTask(calls=options.warm_calls)).call_s
            far = last_s * 1e6 > _FAR_TIMES * 1e3 * options.window_ms[1]
            times = _timed(process, turns.flush_bytes, options, 1 if far else options.calls)
            # Its memory is the next one's, and giving it back takes the device's time.
            process.close()
        measured = _measured(checked, times, process.seconds, options)
        if measured.finding is not None and not slot.alone:
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
        **known_of(checked),
        seconds={**checked.seconds, **{f"timing_{op}": s for op, s in seconds.items()}},
    )


def _timed(process: TaskProcess, flush_bytes: int, options: FilterOptions, calls: int) -> list[float]:
    """Returns the µs of each call, of at least `calls`. Raises Disturbed where the two clocks disagree."""
    null = _burst(process, _NULL_CALLS, flush_bytes, null=True)
    bursts = [_burst(process, calls, flush_bytes)]
    more = min(_MOST_CALLS, math.ceil(_LEAST_S * 1e6 / max(1.0, bursts[0].median_us))) - calls
    if more > 0:
        bursts.append(_burst(process, more, flush_bytes))
    for burst in bursts:
        unexplained = burst.unexplained_us - null.unexplained_us
        if _TOLERANCES[options.device].exceeded(unexplained, burst.median_us):
            raise Disturbed(f"its events take {burst.median_us:.0f} µs, the judge's clock {unexplained:.0f} µs more")
    return [time for burst in bursts for time in burst.event_us]


def _burst(process: TaskProcess, calls: int, flush_bytes: int, *, null: bool = False) -> Burst:
    begun = time.perf_counter_ns()
    times = process.ask(TimeTask(calls=calls, flush_bytes=flush_bytes, null=null)).event_us
    wall_us = (time.perf_counter_ns() - begun) / 1e3
    if len(times) != calls:
        raise Failure(TaskFinding(rule=Rule.EAGER_TIME, detail="its process gave no times"))
    return Burst(tuple(max(time_us, 1e-3) for time_us in times), wall_us)


def _in_window(eager_us: float, options: FilterOptions) -> TaskFinding | None:
    low, high = options.window_ms
    if 1e3 * low <= eager_us <= 1e3 * high:
        return None
    window = f"{low:g}–{high:g} ms"
    return TaskFinding(rule=Rule.EAGER_TIME, detail=f"eager takes {eager_us / 1e3:.4g} ms, outside {window}")
