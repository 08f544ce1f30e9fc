"""Captures the graph hashes of evaluation tasks. Their code runs only in the judge's sandbox."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cuda_agent.core.enums import Device, SandboxLevel
from cuda_agent.core.records import Task
from cuda_agent.tasks.captured import NotCaptured, capture_graph, task_zygote
from cuda_agent.tasks.decontaminate.graphhash import graph_hash
from cuda_agent.tasks.decontaminate.reading import TaskSource
from cuda_agent.tasks.decontaminate.references import Capture, source_id
from cuda_agent.workers.zygote import Zygote

#: The number of tasks between reports of progress.
_STEP = 25


def capturing(device: Device, level: SandboxLevel, memory_mib: int) -> Capture:
    """Returns a function that captures graphs on `device`, each task in its own process with at most `memory_mib`."""

    def capture(sources: Sequence[TaskSource], say: Callable[[str], None]) -> Mapping[str, str]:
        graphs: dict[str, str] = {}
        with task_zygote(device, level, memory_mib) as zygote:
            for number, source in enumerate(sources, 1):
                try:
                    graphs[source_id(source.text)] = _captured(zygote, source, device, memory_mib)
                except NotCaptured as failed:
                    say(f"{source.name} has no graph: {' '.join(str(failed).split())[:300]}")
                if number % _STEP == 0 or number == len(sources):
                    say(f"{number} of {len(sources)} graphs of evaluation tasks")
        return graphs

    return capture


def _captured(zygote: Zygote, source: TaskSource, device: Device, memory_mib: int) -> str:
    task = Task(name=Path(source.name).stem, source=source.text)
    try:
        return graph_hash(capture_graph(zygote, task, device, memory_mib))
    except (KeyError, RecursionError) as error:
        raise NotCaptured(f"its graph has no hash: {error}") from None
