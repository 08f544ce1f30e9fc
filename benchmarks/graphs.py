"""Draws graphs with hypothesis and compares the playbook's kernels with eager.

    .venv/bin/python benchmarks/graphs.py --graphs 20000 --jobs 16 --out runs/graphs.jsonl
    .venv/bin/python benchmarks/graphs.py --graphs 2000 --device cuda --out runs/graphs-cuda.jsonl

The graphs of a batch share a compile. The file has a line for each batch, and a later run goes on behind them.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import common  # noqa: F401 - finds the tests' modules
import torch

from cuda_agent.core.enums import Device
from playbook_graphs import drawn, tried


def batch_of(size: int, device: Device, number: int) -> dict[str, Any]:
    """Tries the batch of this number."""
    programs = drawn(number, size)
    return {"batch": number, "graphs": len(programs), **asdict(tried(programs, device))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=20_000, help="graphs in all")
    parser.add_argument("--batch", type=int, default=100, help="graphs that share a compile")
    parser.add_argument("--device", type=Device, choices=list(Device), default=Device.CPU)
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with a batch of its own")
    parser.add_argument("--out", type=Path, required=True, help="file of results, one line a batch")
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    done = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    made = partial(batch_of, given.batch, given.device)
    with ProcessPoolExecutor(given.jobs, get_context("spawn"), torch.set_num_threads, (1,)) as processes:
        while sum(one["graphs"] for one in done) < given.graphs:
            for found in processes.map(made, range(len(done), len(done) + given.jobs)):
                done.append(found)
                with given.out.open("a") as file:
                    file.write(json.dumps(found) + "\n")
                for text in found["failed"]:
                    print(f"  {text}")
            graphs, failed = sum(one["graphs"] for one in done), sum(len(one["failed"]) for one in done)
            print(f"{graphs} graphs, {failed} failed", flush=True)


if __name__ == "__main__":
    main()
