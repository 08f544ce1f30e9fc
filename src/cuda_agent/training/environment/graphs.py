"""Captures the operator graphs of many tasks, each in its own fork in the judge's sandbox. Nothing is compiled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.errors import CudaAgentError, TaskError
from cuda_agent.core.files import cache_dir
from cuda_agent.core.graph import Graph
from cuda_agent.core.records import Task
from cuda_agent.tasks.inside import TASK_CHECK
from cuda_agent.workers.folder import judge_folder
from cuda_agent.workers.process import WorkerFault, WorkerSettings
from cuda_agent.workers.roles import ZYGOTE
from cuda_agent.workers.supply import WorkerSupply
from cuda_agent.workers.zygote import Fork, Zygote
from cuda_agent.workspace.sandbox import resolve_level

_MEMORY_MIB = 16384
_LIMIT_S = 120.0


def capture(tasks: Sequence[Task], options: JudgeOptions) -> Iterator[tuple[Task, Graph | TaskError]]:
    """Yields each task with its graph or an error. Raises SandboxError and WorkerError."""
    hidden = tuple(path for path in (Path.cwd(), cache_dir()) if len(path.resolve().parts) > 1)
    with judge_folder() as folder:
        level = resolve_level(options.sandbox)
        supply = WorkerSupply(WorkerSettings(options.device, level, _MEMORY_MIB, hidden), folder)
        zygote = Zygote(lambda: supply.start(ZYGOTE), serves=TASK_CHECK)
        try:
            for task in tasks:
                try:
                    yield task, _graph(zygote, task, options)
                except TaskError as error:
                    yield task, error
        finally:
            zygote.close()
            supply.close()


def _graph(zygote: Zygote, task: Task, options: JudgeOptions) -> Graph:
    memory = _MEMORY_MIB << 20
    try:
        with zygote.fork() as fork:
            _ask(
                fork, task, "open", name=task.name, source=task.source, atol=task.atol, rtol=task.rtol, seed=0,
                device=options.device.value, memory_bytes=memory, device_bytes=memory, host_bytes=memory, threads=1,
            )  # fmt: skip
            reply = _ask(fork, task, "graph")
    except WorkerFault as error:
        raise TaskError(f"{task.name} can't be captured: {error.fault.reason}") from None
    try:
        return Graph.from_json(str(reply.get("graph")), where="the captured graph")
    except (CudaAgentError, RecursionError) as error:
        raise TaskError(f"{task.name}: its process sent no graph: {str(error)[:200]}") from None


def _ask(fork: Fork, task: Task, op: str, **params: object) -> dict[str, object]:
    """Sends a request. Raises TaskError and WorkerFault."""
    reply: dict[str, object] = fork.request(op, params, timeout_s=_LIMIT_S)
    finding = reply.get("finding") if isinstance(reply, dict) else f"{op} was answered with a {type(reply).__name__}"
    if finding is not None:
        said = finding.get("detail") if isinstance(finding, dict) else finding
        raise TaskError(f"{task.name}: {' '.join(str(said).split())[:300]}")
    return reply
