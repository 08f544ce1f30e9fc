"""Captures the graph hashes of evaluation tasks. Their code runs only in the judge's sandbox."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cuda_agent.core.enums import Device, SandboxLevel
from cuda_agent.core.errors import CudaAgentError
from cuda_agent.core.files import cache_dir
from cuda_agent.core.graph import Graph
from cuda_agent.tasks.decontaminate.graphhash import graph_hash
from cuda_agent.tasks.decontaminate.reading import TaskSource
from cuda_agent.tasks.decontaminate.references import Capture, source_id
from cuda_agent.tasks.inside import TASK_CHECK
from cuda_agent.workers.folder import judge_folder
from cuda_agent.workers.process import WorkerFault, WorkerSettings
from cuda_agent.workers.roles import ZYGOTE
from cuda_agent.workers.supply import WorkerSupply
from cuda_agent.workers.zygote import Fork, Zygote

#: The default memory of a task's process.
MEMORY_MIB = 16384
_LIMIT_S = 120.0
#: The number of tasks between reports of progress.
_STEP = 25


def capturing(device: Device, level: SandboxLevel, memory_mib: int) -> Capture:
    """Returns a function that captures graphs on `device`, each task in its own process with at most `memory_mib`."""

    def capture(
        sources: Sequence[TaskSource], say: Callable[[str], None]
    ) -> tuple[Mapping[str, str], Mapping[str, str]]:
        hidden = tuple(path for path in (Path.cwd(), cache_dir()) if len(path.resolve().parts) > 1)
        graphs: dict[str, str] = {}
        reasons: dict[str, str] = {}
        with judge_folder() as folder:
            supply = WorkerSupply(WorkerSettings(device, level, memory_mib, hidden), folder)
            zygote = Zygote(lambda: supply.start(ZYGOTE), serves=TASK_CHECK)
            try:
                for number, source in enumerate(sources, 1):
                    key = source_id(source.text)
                    try:
                        graphs[key] = _captured(zygote, source, device, memory_mib)
                    except _Failed as failed:
                        reasons[key] = " ".join(str(failed).split())[:300]
                        say(f"{source.name} has no graph: {reasons[key]}")
                    if number % _STEP == 0 or number == len(sources):
                        say(f"{number} of {len(sources)} graphs of evaluation tasks")
            finally:
                zygote.close()
                supply.close()
        return graphs, reasons

    return capture


class _Failed(Exception):
    """The task has no graph, with the reason."""


def _captured(zygote: Zygote, source: TaskSource, device: Device, memory_mib: int) -> str:
    with zygote.fork() as fork:
        limit = memory_mib << 20
        _ask(
            fork,
            "open",
            name=Path(source.name).stem,
            source=source.text,
            atol=1e-2,
            rtol=1e-2,
            seed=0,
            device=device.value,
            memory_bytes=limit,
            device_bytes=limit,
            host_bytes=limit,
            threads=1,
        )
        reply = _ask(fork, "graph")
    try:
        return graph_hash(Graph.from_json(str(reply.get("graph")), where="the graph"))
    except (CudaAgentError, KeyError, RecursionError) as error:
        raise _Failed(f"its process sent no graph: {error}") from None


def _ask(fork: Fork, op: str, **params: Any) -> dict[str, Any]:
    try:
        reply = fork.request(op, params, timeout_s=_LIMIT_S)
    except WorkerFault as error:
        raise _Failed(error.fault.reason) from None
    if not isinstance(reply, dict):
        raise _Failed(f"{op} was answered with a {type(reply).__name__}")
    finding = reply.get("finding")
    if finding is not None:
        raise _Failed(str(finding.get("detail") if isinstance(finding, dict) else finding))
    return reply
