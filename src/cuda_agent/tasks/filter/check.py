"""Pass 1 for one task: checks every rule except those of time in the task's process."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.graph import Graph
from cuda_agent.core.hashing import digest_text
from cuda_agent.judge import error_floor, random_operators
from cuda_agent.pool.client import DeviceQueue
from cuda_agent.pool.rule import Need
from cuda_agent.tasks.captured import NotCaptured, read_graph
from cuda_agent.tasks.decontaminate.graphhash import graph_hash, graph_operators
from cuda_agent.tasks.filter.options import FilterOptions
from cuda_agent.tasks.filter.processes import Processes, ProcessSlot
from cuda_agent.tasks.filter.records import Checked, Failure, from_fault, from_finding
from cuda_agent.tasks.inside import requests
from cuda_agent.tasks.inside.requests import F, TaskRequest
from cuda_agent.tasks.records import DatasetTask, Rule, TaskFinding
from cuda_agent.workers.channel import name_of
from cuda_agent.workers.inside.graph.errorfloor import largest_reduction
from cuda_agent.workers.process import WorkerFault

#: The length of the longest reduction where no graph tells it.
_USUAL_LENGTH = 4096
#: The peak of a step, in multiples of what an eager call would hold if it freed nothing. It has the outputs of several
#: draws, and one in float64.
_STEP_TIMES = 2.3
#: The bytes of a process's context and libraries.
_CONTEXT = {Device.CUDA: 1 << 30, Device.CPU: 0}


@dataclass(frozen=True)
class ProcessLimits:
    """The limits of a task's process: bytes of the device's memory, and threads. With `sleeps` it sleeps while it waits
    for the device, which frees its core; a timed process doesn't sleep."""

    device_bytes: int
    threads: int
    sleeps: bool = False


class TaskProcess:
    """A task in a process, which gets requests step by step until its time is over."""

    def __init__(self, slot: ProcessSlot, task: DatasetTask, options: FilterOptions, limits: ProcessLimits) -> None:
        self._slot, self._worker, self._task, self._options, self._limits = slot, slot.worker, task, options, limits
        self.seconds: dict[str, float] = {"fork": round(slot.seconds, 3)}
        self.restart()

    def restart(self) -> None:
        """Gives the task all its time again, because it had to wait for others."""
        self._end = time.monotonic() + self._options.limit_s

    def open(self) -> None:
        """Loads the task in the process. Raises Failure."""
        task, options = self._task.task, self._options
        request = requests.OpenTask(
            task=task,
            # The seed is the same in every process, on every machine.
            seed=int(digest_text("filter", task.key)[:11], 16),
            device=options.device,
            memory_bytes=options.memory_mib * 2**20,
            device_bytes=self._limits.device_bytes,
            threads=self._limits.threads,
            sleeps=self._limits.sleeps,
        )
        self.ask(request)

    def close(self) -> None:
        """Unloads the task, if another task may follow in this process."""
        if self._slot.reusable:
            try:
                self.ask(requests.CloseTask())
            except Failure:
                self._worker.kill()

    @contextmanager
    def on_device(self, queue: DeviceQueue, step: str) -> Iterator[None]:
        """Holds the device's queue for a step. The time in which the task waits for it isn't the task's time."""
        begun = time.monotonic()
        with queue.device(step, need_of(self._task, self._options.device).step):
            waited = time.monotonic() - begun
            self._end += waited
            self.seconds["waiting"] = self.seconds.get("waiting", 0.0) + round(waited, 3)
            yield

    @property
    def alive(self) -> bool:
        return not self._worker.ended

    def ask(self, request: TaskRequest[F]) -> F:
        """Returns the answer to a request. Raises Failure where the task breaks a rule, or its process ends, hangs or
        breaks its protocol."""
        begun, step = time.monotonic(), name_of(request)
        try:
            found = self._worker.request(request, timeout_s=max(0.1, self._end - begun))
        except WorkerFault as error:
            raise from_fault(error.fault, request.rule) from None
        finally:
            self.seconds[step] = self.seconds.get(step, 0.0) + round(time.monotonic() - begun, 3)
        if found.finding is not None:
            raise from_finding(found.finding)
        return found


def need_of(task: DatasetTask, device: Device) -> Need:
    """Returns the bytes of device memory for checking a task. While it waits it holds its inputs, its weights and the
    outputs of the compiled call."""
    held = task.cost.held_bytes if task.cost is not None else 0
    return Need(resting=_CONTEXT[device] + held, step=int(_STEP_TIMES * held))


def check(
    processes: Processes, task: DatasetTask, options: FilterOptions, limits: ProcessLimits, queue: DeviceQueue
) -> Checked:
    """Checks one task. Raises Failure, WorkerError."""

    def job(slot: ProcessSlot) -> Checked:
        process = TaskProcess(slot, task, options, limits)
        try:
            found = _checked(process, task.task.key, options, queue)
        except Failure as failure:
            failure.seconds = process.seconds
            raise
        process.close()
        return found

    stay = queue.stay(need_of(task, options.device))
    try:
        return processes.ask(job)
    finally:
        stay.close()


def _checked(process: TaskProcess, key: str, options: FilterOptions, queue: DeviceQueue) -> Checked:
    process.open()
    with process.on_device(queue, "run"):
        ran = process.ask(requests.RunTask())
    graph = _graph(process)
    random = random_operators(graph) if isinstance(graph, Graph) else ()
    if random:
        raise Failure(TaskFinding(rule=Rule.STOCHASTIC, detail=f"draws random numbers: {', '.join(random)}"))
    length = largest_reduction(graph) if isinstance(graph, Graph) else _USUAL_LENGTH
    floor = error_floor(Precision.TF32, options.device, length, ran.products)
    with process.on_device(queue, "answers"):
        process.ask(requests.CheckAnswers(floor=floor))
    if isinstance(graph, Failure):
        # A missing graph is reported only here, because a stochastic task should be reported as stochastic.
        raise graph
    process.ask(requests.CompileTask())
    with process.on_device(queue, "agrees"):
        process.ask(requests.CompareCompiled())
        sample = process.ask(requests.PlaceTask()).sample
    return Checked(
        task_key=key,
        peak_memory_bytes=ran.peak_memory_bytes,
        graph_hash=graph_hash(graph),
        graph_operators=graph_operators(graph),
        sample=sample,
        seconds=process.seconds,
    )


def _graph(process: TaskProcess) -> Graph | Failure:
    """Returns the graph, or why there is none. Raises Failure where the process ended."""
    try:
        return read_graph(process.ask(requests.GraphTask()))
    except NotCaptured as error:
        return Failure(TaskFinding(rule=Rule.COMPILES, detail=str(error)))
    except Failure as failure:
        if failure.scarce or not process.alive:
            raise
        return failure
