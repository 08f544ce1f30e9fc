"""Captures the operator graph of a task in its own process in the judge's sandbox, without compiling it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cuda_agent.core.enums import Device, SandboxLevel
from cuda_agent.core.errors import CudaAgentError
from cuda_agent.core.files import cache_dir
from cuda_agent.core.graph import Graph
from cuda_agent.core.records import Task
from cuda_agent.tasks.inside import TASK_CHECK
from cuda_agent.tasks.inside.requests import (
    CheckAnswers,
    CloseTask,
    F,
    GraphTask,
    OpenTask,
    RunTask,
    TaskGraph,
    TaskRequest,
)
from cuda_agent.workers.process import Worker, WorkerFault, WorkerSettings
from cuda_agent.workers.roles import Role
from cuda_agent.workers.supply import WorkerSupply
from cuda_agent.workspace.temporary import temporary_folder

#: Loads, checks, captures and compiles one task.
CHECKER = Role("checker", TASK_CHECK, compiles=True)
#: The default memory of a task's process.
MEMORY_MIB = 16384
_LIMIT_S = 120.0


class NotCaptured(Exception):
    """The task has no graph, with the reason."""


def task_supply(device: Device, level: SandboxLevel, memory_mib: int, folder: Path) -> WorkerSupply:
    """Returns a supply of workers that don't see the current folder and the cache."""
    hidden = tuple(path for path in (Path.cwd(), cache_dir()) if len(path.resolve().parts) > 1)
    return WorkerSupply(WorkerSettings(device, level, memory_mib, hidden), folder)


@contextmanager
def task_workers(
    device: Device, level: SandboxLevel, memory_mib: int = MEMORY_MIB, role: Role = CHECKER
) -> Iterator[Callable[[], Worker]]:
    """Yields a function that starts a worker, which raises WorkerError. Those that are left end with the block."""
    with temporary_folder("judge") as folder:
        supply = task_supply(device, level, memory_mib, folder)
        try:
            yield lambda: supply.start(role)
        finally:
            supply.close()


def capture_graph(start: Callable[[], Worker], task: Task, device: Device, memory_mib: int = MEMORY_MIB) -> Graph:
    """Returns the graph. Raises NotCaptured, WorkerError."""
    limit = memory_mib << 20
    opening = OpenTask(task=task, seed=0, device=device, memory_bytes=limit, device_bytes=limit, threads=1)
    worker = start()
    try:
        _ask(worker, opening)
        return read_graph(_ask(worker, GraphTask()))
    finally:
        worker.kill()


def capture_checked(worker: Worker, task: Task, floor: float) -> Graph:
    """Returns the graph of a task that keeps the filter's rules from `runs` to `null_tests` on the CPU, in a process
    that may have had others. `floor` is the smallest relative error that counts. Raises NotCaptured, WorkerError."""
    limit = MEMORY_MIB << 20
    _ask(worker, OpenTask(task=task, seed=0, device=Device.CPU, memory_bytes=limit, device_bytes=limit, threads=1))
    try:
        _ask(worker, RunTask())
        graph = read_graph(_ask(worker, GraphTask()))
        _ask(worker, CheckAnswers(floor=floor))
    finally:
        if not worker.ended:
            _ask(worker, CloseTask())
    return graph


def read_graph(answer: TaskGraph) -> Graph:
    """Returns the graph that a task's process sent. Raises NotCaptured where it is none."""
    try:
        return Graph.from_json(answer.graph, where="the captured graph")
    except (CudaAgentError, RecursionError) as error:
        raise NotCaptured(f"its process sent no graph: {error}"[:300]) from None


def _ask(worker: Worker, request: TaskRequest[F]) -> F:
    try:
        found = worker.request(request, timeout_s=_LIMIT_S)
    except WorkerFault as error:
        raise NotCaptured(error.fault.reason) from None
    if found.finding is not None:
        raise NotCaptured(" ".join(found.finding.detail.split())[:300])
    return found
