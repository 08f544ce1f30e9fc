"""Folders of data sets for tests, as the stages leave them; measurements are made up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from cuda_agent.core.hashing import digest_text
from cuda_agent.core.lines import append
from cuda_agent.core.records import Task
from cuda_agent.core.stack import Stack
from cuda_agent.tasks.filter.measurements import stack_hash
from cuda_agent.tasks.records import CANDIDATES_FILE, Cost, DatasetTask, Measurement, MeasurementFile, Rule, TaskFinding

STACK = Stack(torch="2.11.0", python="3.12.1", cpu="a cpu", cpu_cores=2, cuda_agent="0.1.0")
FUNCTIONS = [
    "relu", "gelu", "silu", "mish", "elu", "selu", "celu", "softplus", "softsign", "tanh", "sigmoid", "hardswish",
    "hardtanh", "relu6", "logsigmoid", "softshrink",
]  # fmt: skip


def source_of(functions: Sequence[str], size: int = 64) -> str:
    """A task that calls them in turn."""
    call = "x"
    for function in functions:
        call = f"F.{function}({call})"
    return f'''"""{" then ".join(functions)}."""

import torch
import torch.nn.functional as F
from torch import nn

ROWS, WIDTH = {size}, 32


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return {call}


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, WIDTH)]


def get_init_inputs() -> list[int]:
    return []
'''


def task_of(functions: Sequence[str], number: int, size: int = 64) -> DatasetTask:
    name = f"{number:05d}_{'_'.join(functions)}"
    task = Task(
        name=name, source=source_of(functions, size), origin=f"torch#{len(functions)}", operators=tuple(functions)
    )
    cost = Cost(flops=1e9 * (number + 1), bytes=2e8 * (1 + number % 7), predicted_us=1500.0 + 37 * number)
    return DatasetTask(task=task, ops=tuple(f"F.{f}" for f in functions), composer="builtin", number=number, cost=cost)


def pairs(count: int) -> list[DatasetTask]:
    """Tasks of two functions each, all different."""
    chosen = [(a, b) for a in FUNCTIONS for b in FUNCTIONS if a != b][:count]
    return [task_of(pair, number) for number, pair in enumerate(chosen)]


def graph_of(task: DatasetTask) -> str:
    return digest_text(*task.ops)


def measurement_of(task: DatasetTask, broken: Rule | None = None) -> Measurement:
    if broken is not None:
        return Measurement(task_key=task.task.key, finding=TaskFinding(rule=broken, detail="made up"))
    eager_us = 1400.0 + 41 * task.number
    return Measurement(
        task_key=task.task.key,
        finding=None,
        eager_us=eager_us,
        eager_low_us=0.99 * eager_us,
        eager_high_us=1.01 * eager_us,
        peak_memory_bytes=1 << 28,
        graph_hash=graph_of(task),
        graph_operators=tuple(sorted(task.task.operators)),
    )


def write_folder(folder: Path, tasks: Sequence[DatasetTask], broken: Iterable[int] = ()) -> Path:
    """Candidates, and measurements of all of them; those whose number is in `broken` don't run."""
    append(folder / CANDIDATES_FILE, tasks)
    bad = set(broken)
    lines = [measurement_of(task, Rule.RUNS if task.number in bad else None) for task in tasks]
    append(folder / f"measurements-{stack_hash(STACK)}.jsonl", [MeasurementFile(stack=STACK), *lines])
    return folder
