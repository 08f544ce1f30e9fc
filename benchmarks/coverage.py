"""Counts the tasks that the playbook has kernels for, and the operators that the others need. It needs no GPU.

    .venv/bin/python benchmarks/coverage.py data/candidates.jsonl.gz --count 700
    .venv/bin/python benchmarks/coverage.py data/candidates.jsonl.gz --count 100 --device cpu

Graphs are captured from meta tensors, so sizes cost nothing. The tasks' code runs in this process: use it only for your
own tasks.
"""

from __future__ import annotations

import random
import re
import signal
import time
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from types import FrameType

import torch
from common import arguments, read_tasks, run, save, table

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.errors import NotCovered
from cuda_agent.core.graph import Graph
from cuda_agent.playbook.proposal import proposals
from cuda_agent.workers.inside.graph.capture import capture
from cuda_agent.workers.inside.task.taskmodule import TaskModule, load_task_module, make_init_inputs

#: the most seconds of one task.
LIMIT_S = 60


def captured(name: str, source: str) -> Graph:
    """Returns a task's graph. Raises TaskError."""
    task = load_task_module(source, name)
    try:
        return _captured(task, "meta")
    except (RuntimeError, NotImplementedError):
        # The model computes with values of its own, which meta tensors don't have.
        return _captured(task, "cpu")


def _captured(task: TaskModule, where: str) -> Graph:
    init = make_init_inputs(task)
    with torch.device(where):
        model = task.Model(*init.args, **init.kwargs).eval().requires_grad_(False).to(where)
        inputs = task.get_inputs()
    return capture(model, inputs, task)


def late(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"not captured within {LIMIT_S} s")


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("tasks", type=Path, help="JSON lines of tasks, or .gz")
    parser.add_argument("--count", type=int, help="number of tasks, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    device = options.device or Device.CUDA
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, late)
    tasks = read_tasks(options.tasks)
    random.Random(options.seed).shuffle(tasks)
    skills, missing = Counter[str](), defaultdict[str, list[str]](list)
    found, begin = dict[str, str](), time.monotonic()
    for task in tasks[: options.count]:
        signal.alarm(LIMIT_S)
        try:
            used = proposals(captured(task["name"], task["source"]), device, Precision.TF32)[0].skills
            skills.update(used)
            found[task["name"]] = "covered"
        except NotCovered as error:
            found[task["name"]] = error.cause
            for operator in re.findall(r"aten\.\w+", error.cause) or [error.cause]:
                missing[operator].append(task["name"])
        except Exception as error:  # noqa: BLE001 - any task's failure is a row of the table
            found[task["name"]] = f"failed: {type(error).__name__}: {error}"[:300]
            missing[f"failed: {type(error).__name__}"].append(task["name"])
        finally:
            signal.alarm(0)
    covered = sum(text == "covered" for text in found.values())
    print(f"{covered} of {len(found)} covered ({covered / len(found):.1%}), {time.monotonic() - begin:.0f} s\n")
    print(table(["skill", "tasks"], [[name, str(count)] for name, count in skills.most_common()]) + "\n")
    rows = [
        [name, str(len(names)), names[0]] for name, names in sorted(missing.items(), key=lambda item: -len(item[1]))
    ]
    print(table(["missing", "tasks", "such as"], rows))
    print(f"raw samples: {save('coverage', options, device, {'tasks': found, 'skills': dict(skills)})}")
    return 0


if __name__ == "__main__":
    run(main)
