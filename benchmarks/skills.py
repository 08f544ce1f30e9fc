"""Counts the playbook's skills that a benchmark run's kernels came from, with the results of each.

    .venv/bin/python benchmarks/skills.py runs/random200

A task counts for every skill in its last plan, so it may count in several rows. Tasks without a plan (not covered, or
ended before one) are in the last row. It needs no GPU.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter, defaultdict
from pathlib import Path

from common import run, table

from cuda_agent.core.records import Trajectory
from cuda_agent.report.explain import explain
from cuda_agent.report.load import load
from cuda_agent.report.rows import ReportRow

NONE = "no plan"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a benchmark run")
    rows = [row for row in load(parser.parse_args().run).rows if row.result is not None]
    by_skill: dict[str, list[ReportRow]] = defaultdict(list)
    for row in rows:
        for skill in skills(row) or [NONE]:
            by_skill[skill].append(row)
    states = Counter(row.state for row in rows)
    rewards = Counter(row.result.reward.value for row in rows if row.result is not None and row.result.reward)
    print(f"{len(rows)} tasks: {', '.join(f'{count} {state}' for state, count in states.most_common())}")
    print(f"rewards: {', '.join(f'{value:g}: {count}' for value, count in sorted(rewards.items(), reverse=True))}\n")
    order = sorted(by_skill, key=lambda skill: (skill == NONE, -len(by_skill[skill])))
    print(table(["skill", "tasks", "passed", "≥ 5 % faster", "over matched"], [line(s, by_skill[s]) for s in order]))
    return 0


def skills(row: ReportRow) -> list[str]:
    """Returns the skills of the task's last kernels."""
    if row.directory is None or not (row.directory / Trajectory.file_name).is_file():
        return []
    return [step.skill for step in explain(row, row.source, Trajectory.read(row.directory).turns, None).steps]


def line(skill: str, rows: list[ReportRow]) -> list[str]:
    passed = [row for row in rows if row.state == "passed"]
    ratios = [ratio.value for row in passed if (ratio := row.ratio("matched")) is not None]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None
    faster = sum(row.is_faster("matched") for row in passed)
    return [skill, str(len(rows)), str(len(passed)), str(faster), "—" if mean is None else f"{mean:.2f}×"]


if __name__ == "__main__":
    run(main)
