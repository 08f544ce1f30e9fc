"""Shared parts of the judge's benchmarks: the test suite's small task, raw samples on disk, tables."""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from cuda_agent.cli.support.errors import plainly
from cuda_agent.core.enums import Device
from cuda_agent.core.files import write_durably
from cuda_agent.core.stack import read_stack

ROOT = Path(__file__).resolve().parent.parent
# The tests define the task and its candidates.
sys.path.append(str(ROOT / "tests"))


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser with the common options: --device, --out."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=Device, choices=list(Device), help="default: cuda where there is a GPU")
    parser.add_argument("--out", type=Path, help="file for the raw samples (JSON), default runs/bench/NAME-DEVICE.json")
    return parser


def chosen_device(wanted: Device | None) -> Device:
    return wanted or (Device.CUDA if read_stack().gpus else Device.CPU)


def save(name: str, options: argparse.Namespace, device: Device, found: dict[str, Any]) -> Path:
    """Writes raw samples with the stack and the command. Raises StoreError."""
    path: Path = options.out or ROOT / "runs" / "bench" / f"{name}-{device.value}.json"
    whole = {
        "benchmark": name,
        "command": sys.argv,
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "stack": read_stack().model_dump(mode="json"),
        **found,
    }
    write_durably(path, json.dumps(whole, indent=1))
    return path


def read_tasks(path: Path) -> list[dict[str, Any]]:
    """Reads the tasks in a data set's lines, compressed or not."""
    raw = path.read_bytes()
    lines = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode().splitlines()
    return [json.loads(line)["task"] for line in lines]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def failed(why: str) -> NoReturn:
    """Exits with one line and exit code 1."""
    sys.exit(f"FAILED: {why}")


def run(main: Any) -> NoReturn:
    """Runs `main` and prints errors that the user can correct on one line."""
    sys.exit(plainly(main))
