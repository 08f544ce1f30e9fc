"""Requests to a task's own process. Its answers are the task's own word; the judge's clock is held against its times.

Each request names the rule that the task breaks where its code fails on the way; an answer with a `finding` says that
it breaks that rule or another.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Generic, TypeVar

from pydantic import Field

from cuda_agent.core.enums import Device
from cuda_agent.tasks.records import Rule, TaskFinding
from cuda_agent.workers.requests import Count, Many, WorkerAnswer, WorkerRequest


class Found(WorkerAnswer):
    """`finding`: the rule that the task breaks; the other fields then say nothing."""

    finding: TaskFinding | None = None


F_co = TypeVar("F_co", bound=Found, covariant=True)
F = TypeVar("F", bound=Found)


class TaskRequest(WorkerRequest[F_co], Generic[F_co]):
    """The base of these requests."""

    rule: ClassVar[Rule]


class OpenTask(TaskRequest[Found]):
    """Starts the device and loads the task's module. `memory_bytes`: what one eager call may hold; `device_bytes`,
    `host_bytes`: what the process may; `sleeps`: whether it does while it waits for the device."""

    rule = Rule.RUNS
    name: str
    source: str
    atol: float
    rtol: float
    seed: int
    device: Device
    memory_bytes: int
    device_bytes: int
    host_bytes: int
    threads: int
    sleeps: bool = False


class RanTask(Found):
    """`products`: float32 matrix products or convolutions occur. `peak_memory_bytes` is None on the CPU."""

    peak_memory_bytes: Count | None = None
    products: bool = False


class RunTask(TaskRequest[RanTask]):
    """Makes the model and calls it once."""

    rule = Rule.RUNS


class TaskGraph(Found):
    """A `core.graph.Graph` as JSON."""

    graph: str = ""


class GraphTask(TaskRequest[TaskGraph]):
    """Captures the graph of `forward`; the task needn't have run."""

    rule = Rule.COMPILES


class CheckAnswers(TaskRequest[Found]):
    """Checks that the task repeats itself, that its answers vary, and that null answers fail. `floor`: the smallest
    relative error that counts."""

    rule = Rule.DETERMINISTIC
    floor: float


class CompileTask(TaskRequest[Found]):
    """Compiles the task and runs that on the inputs of `CheckAnswers`."""

    rule = Rule.COMPILES


class CompareCompiled(TaskRequest[Found]):
    """Checks that what was compiled agrees with eager."""

    rule = Rule.AGREES


class SampledOutputs(Found):
    """Of each output its norm and some values, the same in every process."""

    sample: Many[Many[float]] = ()


class PlaceTask(TaskRequest[SampledOutputs]):
    """Makes the model and inputs on the device, and calls it once."""

    rule = Rule.DETERMINISTIC


class WarmedTask(Found):
    """Seconds of the last call."""

    call_s: float = 0.0


class WarmTask(TaskRequest[WarmedTask]):
    """Makes `calls` calls before the timing, fewer of long ones."""

    rule = Rule.RUNS
    calls: int


class TaskTimes(Found):
    """µs of each call."""

    event_us: Many[Annotated[float, Field(ge=0, lt=1e12)]] = ()


class TimeTask(TaskRequest[TaskTimes]):
    """Times calls of the task; with `null`, of no program at all."""

    rule = Rule.EAGER_TIME
    calls: int
    flush_bytes: int
    null: bool = False


class CloseTask(TaskRequest[Found]):
    """Lets go of the task, so that another one can be opened."""

    rule = Rule.RUNS
