"""Copies measurements to recomposed candidates: they are valid for the same program with another docstring.

    python3 scripts/carry_measurements.py OLD.jsonl.gz NEW.jsonl MEASURED.jsonl.gz --out FILE.jsonl

A task's measurement depends on its program, while its key is a hash of its whole text. FILE gets the measurements of
all new candidates that have the same statements as an old one. The others must be measured.
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path

from cuda_agent.cli.support.errors import plainly
from cuda_agent.core.hashing import digest_text
from cuda_agent.core.lines import append, read_lines
from cuda_agent.tasks.filter.measurements import read_measured
from cuda_agent.tasks.records import DatasetTask, MeasurementFile


def program(task: DatasetTask) -> str:
    """Returns a hash of the module's statements without its docstring, and of its tolerances."""
    body = ast.parse(task.task.source).body
    first = body[0] if body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        body = body[1:]
    return digest_text(*(ast.dump(one) for one in body), repr(task.task.atol), repr(task.task.rtol))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("measured", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    found = read_measured(options.measured)
    known = {program(task): task.task.key for task in read_lines(options.old, DatasetTask)}
    tasks = read_lines(options.new, DatasetTask)
    keys = [(task.task.key, found.by_key.get(known.get(program(task), ""))) for task in tasks]
    carried = [one.model_copy(update={"task_key": key}) for key, one in keys if one is not None]
    options.out.unlink(missing_ok=True)
    append(options.out, [MeasurementFile(stack=found.stack), *sorted(carried, key=lambda one: one.task_key)])
    print(f"{len(carried)} of {len(tasks)} tasks have the program of a measured task: {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(plainly(main))
