"""Writes a task with another size of its batch dimension, as a new task."""

from collections.abc import Sequence
from pathlib import Path

from cuda_agent.core.assets import filled
from cuda_agent.core.graph import TensorMeta
from cuda_agent.core.records import Task


def batch_size(inputs: Sequence[TensorMeta]) -> int | None:
    """Returns the first dimension of the first input that has one, or None."""
    return next((meta.shape[0] for meta in inputs if meta.shape and meta.shape[0] > 0), None)


def sizes_to_try(usual: int, asked: Sequence[int], failed: Sequence[int]) -> tuple[int, ...]:
    """Returns the sizes `asked` (by default 1 and one more than usual), and those at which a candidate has `failed`."""
    wanted = (*(asked or (1, usual + 1)), *failed)
    return tuple(size for size in dict.fromkeys(wanted) if size > 0 and size != usual)


def resized_task(task: Task, usual: int, size: int) -> Task:
    """Returns the task with `size` rows in every input that has `usual` rows."""
    added = filled(Path(__file__).with_name("other_batch.py.j2"), size=size, usual=usual).removesuffix("\n")
    return task.model_copy(update={"name": f"{task.name} with a batch of {size}", "source": task.source + added})
