"""Compares predicted with measured eager times of filtered tasks, to correct `tasks/compose/rates.py` for this stack.

    python3 benchmarks/task_rates.py runs/dataset                       # by family, and the operators furthest off

FOLDER holds candidates and one stack's measurements. A task's measured time is fitted as the sum of its operators'
predicted times, each multiplied by its family's factor (least squares of relative errors, factors above zero). With a
factor of 2 the family takes twice as long as predicted, so its rate should be halved. It needs no GPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from common import failed, run, table

from cuda_agent.core.lines import read_lines
from cuda_agent.tasks.compose.run import SEEDS_FILE
from cuda_agent.tasks.filter.measurements import read_all
from cuda_agent.tasks.filter.run import read_candidates
from cuda_agent.tasks.records import Seed

ROOT = Path(__file__).resolve().parent.parent
#: an operator dominates a task from this share of the predicted time on.
MOSTLY = 0.8
ROUNDS = 200


def factors(parts: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """Fits the factors of the families, all above zero, with which `parts` (tasks × families, µs) come near `measured`
    (tasks, µs). It minimises relative errors by coordinate descent on the logarithm's first order. All tasks have the
    same weight, but outliers less."""
    found = np.ones(parts.shape[1])
    relative = parts / measured[:, None]
    for _ in range(ROUNDS):
        total = relative @ found
        weight = 1.0 / np.maximum(np.abs(total - 1.0), 0.1)
        for column in range(parts.shape[1]):
            rest = total - relative[:, column] * found[column]
            bottom = float((weight * relative[:, column] ** 2).sum())
            if bottom:
                found[column] = max(0.05, float((weight * relative[:, column] * (1.0 - rest)).sum()) / bottom)
                total = rest + relative[:, column] * found[column]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=Path, default=ROOT / "data" / SEEDS_FILE)
    options = parser.parse_args()
    files = [one for one in read_all(options.folder) if any(found.eager_us for found in one.by_key.values())]
    if len(files) != 1:
        failed(f"{options.folder} holds times of {len(files)} stacks, not of one")
    seeds = {seed.name: seed for seed in read_lines(options.seeds, Seed)}
    rows = []
    for task in read_candidates(options.folder):
        found = files[0].by_key.get(task.task.key)
        cost = task.cost
        if found is not None and found.eager_us and cost is not None and len(cost.parts_us) == len(task.ops):
            rows.append(([seeds[op] for op in task.ops], cost.parts_us, found.eager_us))
    if not rows:
        failed("no task has both a time and a prediction by operator")
    names = sorted({family(seed) for ops, _, _ in rows for seed in ops})
    parts = np.zeros((len(rows), len(names)))
    for place, (ops, predicted, _) in enumerate(rows):
        for seed, part in zip(ops, predicted, strict=True):
            parts[place, names.index(family(seed))] += part
    measured = np.array([row[2] for row in rows])
    fitted = factors(parts, measured)
    tell(names, parts, measured, fitted)
    tell_operators(rows)
    return 0


def family(seed: Seed) -> str:
    return f"transformers: {seed.family}" if seed.library == "transformers" else seed.family


def tell(names: Sequence[str], parts: np.ndarray, measured: np.ndarray, fitted: np.ndarray) -> None:
    before, after = (np.median(np.abs(np.log(parts @ by / measured))) for by in (np.ones(len(names)), fitted))
    lines = [[name, str(int((parts[:, place] > 0).sum())), f"{fitted[place]:.2f}"] for place, name in enumerate(names)]
    print(table(["family", "tasks", "factor of the predicted time"], lines))
    print(
        f"\n{len(measured)} tasks: median error {np.expm1(before):.0%} as predicted, {np.expm1(after):.0%} with factors"
    )


def tell_operators(rows: Sequence[tuple[list[Seed], tuple[float, ...], float]]) -> None:
    """Prints measured over predicted times of tasks that one operator dominates, the largest error first."""
    by_operator: defaultdict[str, list[float]] = defaultdict(list)
    for ops, predicted, measured in rows:
        place = max(range(len(predicted)), key=predicted.__getitem__)
        if predicted[place] >= MOSTLY * sum(predicted):
            by_operator[ops[place].operator].append(measured / sum(predicted))
    far = sorted(by_operator, key=lambda name: -abs(np.log(statistics.median(by_operator[name]))))
    lines = [[name, str(len(by_operator[name])), f"{statistics.median(by_operator[name]):.2f}"] for name in far[:40]]
    sys.stdout.write("\n")
    print(table(["operator", "tasks that it dominates", "measured / predicted"], lines))


if __name__ == "__main__":
    run(main)
