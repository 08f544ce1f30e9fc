"""Prints tasks drawn at random as a page for people, such as data/tasks-sample.md.

python3 scripts/show_sample.py data/candidates.jsonl.gz --of data/dataset > data/tasks-sample.md
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from pathlib import Path

from cuda_agent.cli.support.errors import plainly
from cuda_agent.core.lines import read_lines
from cuda_agent.tasks.dataset.importing import read_exported
from cuda_agent.tasks.records import DatasetTask

_INIT = re.compile(r"def get_init_inputs.*", re.S)
_HEAD = re.compile(r'\A"""(.*?)"""\n', re.S)


def shown(task: DatasetTask) -> str:
    """Returns a task's number, docstring, predicted times, and code without imports and `get_init_inputs`."""
    source = task.task.source
    found = _HEAD.match(source)
    says = " ".join(found[1].split()) if found else task.task.name
    code = _INIT.sub("", _HEAD.sub("", source))
    code = re.sub(r"^(import torch.*|from torch import nn)\n", "", code, flags=re.M)
    code = re.sub(r"\n{2,}", "\n\n", code).strip()
    cost = task.cost
    parts = " + ".join(f"{part / 1e3:.1f}" for part in cost.parts_us) if cost is not None else ""
    size = f"{cost.held_bytes / 1e9:.1f} GB" if cost is not None else ""
    return f"**{task.number}** {says} *{parts} ms, {size}*\n\n```python\n{code}\n```\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("candidates", type=Path)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--of", type=Path, help="an exported data set: show only its tasks")
    parser.add_argument(
        "--numbers", type=int, nargs="+", help="numbers of the tasks to show instead of a random sample"
    )
    options = parser.parse_args()
    tasks = read_lines(options.candidates, DatasetTask)
    if options.of is not None:
        kept = {task.task.key for task in read_exported(options.of)[0]}
        tasks = [task for task in tasks if task.task.key in kept]
    if options.numbers is not None:
        chosen = [task for task in tasks if task.number in options.numbers]
    else:
        chosen = random.Random(options.seed).sample(tasks, min(options.count, len(tasks)))
    kind = "tasks" if options.of is not None else "candidates"
    sys.stdout.write(
        f"# {len(chosen)} tasks\n\n"
        f"Drawn at random from the {len(tasks):,} {kind} of the [data set](../docs/dataset.md): "
        "number, what is computed, predicted milliseconds of each operator, memory. Imports and `get_init_inputs` are "
        "left out.\n\n"
    )
    sys.stdout.write("\n".join(shown(task) for task in sorted(chosen, key=lambda task: task.number)))
    return 0


if __name__ == "__main__":
    sys.exit(plainly(main))
