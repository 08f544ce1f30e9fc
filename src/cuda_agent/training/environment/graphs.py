"""Captures the operator graphs of many tasks, each in its own fork in the judge's sandbox. Nothing is compiled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.errors import TaskError
from cuda_agent.core.files import cache_dir
from cuda_agent.core.graph import Graph
from cuda_agent.core.records import Task
from cuda_agent.tasks.captured import MEMORY_MIB, NotCaptured, capture_graph
from cuda_agent.tasks.inside import TASK_CHECK
from cuda_agent.workers.folder import judge_folder
from cuda_agent.workers.process import WorkerSettings
from cuda_agent.workers.roles import ZYGOTE
from cuda_agent.workers.supply import WorkerSupply
from cuda_agent.workers.zygote import Zygote
from cuda_agent.workspace.sandbox import resolve_level


def capture(tasks: Sequence[Task], options: JudgeOptions) -> Iterator[tuple[Task, Graph | TaskError]]:
    """Yields each task with its graph or an error. Raises SandboxError and WorkerError."""
    hidden = tuple(path for path in (Path.cwd(), cache_dir()) if len(path.resolve().parts) > 1)
    with judge_folder() as folder:
        level = resolve_level(options.sandbox)
        supply = WorkerSupply(WorkerSettings(options.device, level, MEMORY_MIB, hidden), folder)
        zygote = Zygote(lambda: supply.start(ZYGOTE), serves=TASK_CHECK)
        try:
            for task in tasks:
                try:
                    yield task, capture_graph(zygote, task, options.device)
                except NotCaptured as error:
                    yield task, TaskError(f"{task.name} can't be captured: {error}")
        finally:
            zygote.close()
            supply.close()
