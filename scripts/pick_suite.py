"""Draws a benchmark suite of 250 composed tasks in three levels from the candidates, or unpacks it into a folder.

    python3 scripts/pick_suite.py data/candidates.jsonl.gz --of data/dataset --out data/suite250.jsonl.gz
    python3 scripts/pick_suite.py data/suite250.jsonl.gz --unpack runs/suite250     # level1/ level2/ level3/
    python3 scripts/pick_suite.py data/candidates.jsonl.gz --of data/dataset --random 200 --out runs/random200.jsonl.gz

Level 1 has 100 single operators, level 2 100 chains of two to five, level 3 50 modules of transformers. Sizes are those
of the data set; some inputs have gigabytes. `--of FOLDER` draws only tasks of an exported data set, which have passed
its filters. `held_bytes` of such a task is the memory that an eager call held on the GPU when the task was measured.
"""

from __future__ import annotations

import argparse
import gzip
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from cuda_agent.cli.support.errors import plainly
from cuda_agent.core.lines import read_lines
from cuda_agent.tasks.choose import kind_of
from cuda_agent.tasks.dataset.importing import read_exported
from cuda_agent.tasks.records import DatasetTask, Measurement

SEED = 250
#: level -> number of operators (0: a module of transformers) -> number of tasks.
LEVELS = {1: {1: 100}, 2: {2: 55, 3: 25, 4: 12, 5: 8}, 3: {0: 50}}


def read(path: Path) -> list[DatasetTask]:
    return read_lines(path, DatasetTask)


def as_measured(task: DatasetTask, found: Measurement) -> DatasetTask:
    """Returns the task with its measured memory where that is known."""
    if task.cost is None or found.peak_memory_bytes is None:
        return task
    return task.model_copy(update={"cost": task.cost.model_copy(update={"held_bytes": found.peak_memory_bytes})})


def pick(tasks: Sequence[DatasetTask]) -> list[DatasetTask]:
    """Draws the tasks, sorted by level and number."""
    rng = random.Random(SEED)
    chosen = []
    for counts in LEVELS.values():
        level = []
        for kind, count in counts.items():
            there = [task for task in tasks if kind_of(task) == kind]
            if len(there) < count:
                sys.exit(f"only {len(there)} tasks of {kind} operators, {count} are wanted")
            level += rng.sample(there, count)
        chosen += sorted(level, key=lambda task: task.number)
    return chosen


def unpack(tasks: Sequence[DatasetTask], folder: Path) -> None:
    """Writes the tasks in KernelBench's layout: level1/1_name.py."""
    places = dict.fromkeys(LEVELS, 0)
    for task in tasks:
        level = next(level for level, counts in LEVELS.items() if kind_of(task) in counts)
        places[level] += 1
        path = folder / f"level{level}" / f"{places[level]}_{task.task.name.partition('_')[2]}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(task.task.source)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path, help="candidates, or a suite (.jsonl or .jsonl.gz)")
    parser.add_argument("--out", type=Path, help="file for the suite")
    parser.add_argument("--unpack", type=Path, help="folder for the suite's task files")
    parser.add_argument("--random", type=int, help="number of tasks to draw at random from all levels")
    parser.add_argument("--of", type=Path, help="an exported data set: draw only its tasks")
    options = parser.parse_args()
    tasks = read(options.tasks)
    if options.of is not None:
        measured = read_exported(options.of)[1]
        tasks = [as_measured(task, measured[task.task.key]) for task in tasks if task.task.key in measured]
    if options.random is not None:
        tasks = random.Random(SEED).sample(tasks, min(options.random, len(tasks)))
    elif options.out is not None:
        tasks = pick(tasks)
    if options.out is not None:
        text = "".join(task.model_dump_json() + "\n" for task in tasks)
        options.out.write_bytes(gzip.compress(text.encode(), mtime=0))
    if options.unpack is not None:
        unpack(tasks, options.unpack)
    return 0


if __name__ == "__main__":
    sys.exit(plainly(main))
