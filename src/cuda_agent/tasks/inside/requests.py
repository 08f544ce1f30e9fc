"""Requests to a task's own process. The task can forge its answers, so the judge compares its times with its own clock.

Each request names the rule that the task breaks when its code fails. An answer with a `finding` says that the task
breaks that rule or another.
"""

from typing import Annotated, ClassVar, Generic, TypeVar

from pydantic import Field

from cuda_agent.core.enums import Device
from cuda_agent.core.records import Task
from cuda_agent.tasks.records import Rule, TaskFinding
from cuda_agent.workers.requests import Count, Many, WorkerAnswer, WorkerRequest


class TaskAnswer(WorkerAnswer):
    """An answer of a task's process. With a `finding` the task breaks a rule, and the other fields have no meaning."""

    finding: TaskFinding | None = None


F_co = TypeVar("F_co", bound=TaskAnswer, covariant=True)
F = TypeVar("F", bound=TaskAnswer)


class TaskRequest(WorkerRequest[F_co], Generic[F_co]):
    """The base of these requests."""

    rule: ClassVar[Rule]


class OpenTask(TaskRequest[TaskAnswer]):
    """Starts the device and loads the task's module. `memory_bytes` limits one eager call, and `device_bytes` the
    process. With `sleeps` the process sleeps while it waits for the device."""

    rule = Rule.RUNS
    task: Task
    seed: int
    device: Device
    memory_bytes: int
    device_bytes: int
    threads: int
    sleeps: bool = False


class RanTask(TaskAnswer):
    """The answer to RunTask. `products` says whether float32 matrix products or convolutions occur. `peak_memory_bytes`
    is None on the CPU."""

    peak_memory_bytes: Count | None = None
    products: bool = False


class RunTask(TaskRequest[RanTask]):
    """Makes the model and calls it once."""

    rule = Rule.RUNS


class TaskGraph(TaskAnswer):
    """A `core.graph.Graph` as JSON."""

    graph: str = ""


class GraphTask(TaskRequest[TaskGraph]):
    """Captures the graph of `forward`; the task needn't have run."""

    rule = Rule.COMPILES


class CheckAnswers(TaskRequest[TaskAnswer]):
    """Checks that outputs repeat and vary with the inputs, and that null outputs fail. `floor` is the smallest relative
    error that counts."""

    rule = Rule.DETERMINISTIC
    floor: float


class CompileTask(TaskRequest[TaskAnswer]):
    """Compiles the task and runs it on the inputs of `CheckAnswers`."""

    rule = Rule.COMPILES


class CompareCompiled(TaskRequest[TaskAnswer]):
    """Checks that the compiled task agrees with eager."""

    rule = Rule.AGREES


class SampledOutputs(TaskAnswer):
    """The norm and some values of each output, which are the same in every process."""

    sample: Many[Many[float]] = ()


class PlaceTask(TaskRequest[SampledOutputs]):
    """Makes the model and inputs on the device, and calls it once."""

    rule = Rule.DETERMINISTIC


class WarmedTask(TaskAnswer):
    """The seconds of the last call."""

    call_s: float = 0.0


class WarmTask(TaskRequest[WarmedTask]):
    """Makes `calls` calls before the timing, fewer of long ones."""

    rule = Rule.RUNS
    calls: int


class TaskTimes(TaskAnswer):
    """The µs of each call."""

    event_us: Many[Annotated[float, Field(ge=0, lt=1e12)]] = ()


class TimeTask(TaskRequest[TaskTimes]):
    """Times calls of the task; with `null`, of an empty program."""

    rule = Rule.EAGER_TIME
    calls: int
    flush_bytes: int
    null: bool = False


class CloseTask(TaskRequest[TaskAnswer]):
    """Unloads the task, so that another one can be opened."""

    rule = Rule.RUNS
