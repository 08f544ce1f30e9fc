"""Draws graphs with hypothesis and compares the playbook's kernels with eager.

    .venv/bin/python benchmarks/graphs.py --graphs 20000 --out runs/graphs.jsonl
    .venv/bin/python benchmarks/graphs.py --graphs 2000 --device cuda --out runs/graphs-cuda.jsonl

The graphs of a batch share a compile. The file has a line for each batch, and a later run goes on behind them.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import common  # noqa: F401 - finds the tests' modules

from cuda_agent.core.enums import Device
from playbook_graphs import drawn, tried


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=20_000, help="graphs in all")
    parser.add_argument("--batch", type=int, default=100, help="graphs that share a compile")
    parser.add_argument("--device", type=Device, choices=list(Device), default=Device.CPU)
    parser.add_argument("--out", type=Path, required=True, help="file of results, one line a batch")
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    done = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    count = sum(one["graphs"] for one in done)
    batch = len(done)
    while count < given.graphs:
        programs = drawn(batch, given.batch)
        outcome = tried(programs, given.device)
        done.append({"batch": batch, "graphs": len(programs), **asdict(outcome)})
        with given.out.open("a") as file:
            file.write(json.dumps(done[-1]) + "\n")
        count, batch = count + len(programs), batch + 1
        print(f"{count} graphs, {sum(len(one['failed']) for one in done)} failed", flush=True)
        for text in outcome.failed:
            print(f"  {text}", flush=True)


if __name__ == "__main__":
    main()
