"""Runs the playbook on single blocks of `transformers` at real sizes (blocks.yaml), in bfloat16 and float16.

    .venv/bin/python benchmarks/blocks.py --list
    .venv/bin/python benchmarks/blocks.py --coverage [--only 'llama*' …]
    .venv/bin/python benchmarks/blocks.py --out runs/blocks [--only NAME …] [--seconds 560] [-- options of bench]

`--coverage` captures and plans each block for --device (default cuda) and needs no GPU. Otherwise the blocks are
written to OUT/tasks and run by suite.py in slices: call it until it prints "done". Every call prints the table of the
blocks that are done and writes it to OUT/blocks.json; OUT/bench has the raw samples. `--small` makes the blocks small
enough for a CPU. Weights and inputs are random and seeded; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from common import ROOT, arguments, chosen_device, failed, run, save, table
from coverage import captured, late

from cuda_agent.bench.metrics import keeps_original, metrics_of, queued, speedup, verdict_of
from cuda_agent.core.assets import filled, tables
from cuda_agent.core.baselines import BASELINES
from cuda_agent.core.bench import BenchManifest, BenchResult
from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.errors import NotCovered, TaskError
from cuda_agent.core.files import write_durably
from cuda_agent.playbook.proposal import propose

#: the most seconds to capture and plan one block.
LIMIT_S = 300
_TYPES = ("bfloat16", "float16")


@dataclass(frozen=True)
class Block:
    """A block as a task."""

    name: str
    family: str
    type: str
    source: str


def blocks(*, small: bool) -> list[Block]:
    """Returns all blocks, at real or at small sizes."""
    found = []
    for family, spec in tables(__file__)["blocks"].items():
        for variant, given in spec["variants"].items():
            kind = given.get("like", _TYPES[0])
            name = f"{family}-{variant}"
            found.append(Block(name, family, kind, _source(name, spec, given, kind, small)))
    return found


def _source(name: str, spec: dict[str, Any], variant: dict[str, Any], kind: str, small: bool) -> str:
    call = tables(__file__)["calls"][variant["call"]]
    sizes = spec["sizes"] | variant.get("sizes", {})
    if small:
        sizes |= spec["small"] | variant.get("small", {})
    body = "\n".join(call["body"])
    helpers = [text for word, text in tables(__file__)["helpers"].items() if f"{word}(" in body]
    return filled(
        Path(__file__).with_name("block.py.j2"), name=name, call=variant["call"], sizes=sizes, type=kind,
        imports=sorted(map(_imported, spec["use"])), definitions=helpers, make=variant.get("make", spec["make"]),
        inputs=call["inputs"], body=call["body"],
    )  # fmt: skip


def _imported(word: str) -> str:
    module, _, name = word.rpartition(":")
    return f"from transformers{f'.models.{module}.modeling_{module}' if module else ''} import {name}"


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--list", action="store_true", help="print the blocks' names")
    parser.add_argument("--only", nargs="+", default=["*"], help="names or patterns of blocks")
    parser.add_argument("--small", action="store_true", help="small sizes of the same structure")
    parser.add_argument("--coverage", action="store_true", help="capture and plan; run nothing")
    parser.add_argument("--seconds", type=float, default=560.0, help="of this slice")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = parser.parse_args(sys.argv[1:at])
    chosen = [b for b in blocks(small=options.small) if any(fnmatch(b.name, pattern) for pattern in options.only)]
    if not chosen:
        failed(f"no block is named {' or '.join(options.only)}; --list prints the names")
    if options.list:
        families = len({block.family for block in chosen})
        print("\n".join(f"{block.name} ({block.type})" for block in chosen))
        print(f"{len(chosen)} blocks of {families} families")
    elif options.coverage:
        cover(chosen, options)
    else:
        return measure(chosen, options, sys.argv[at + 1 :])
    return 0


def cover(chosen: Sequence[Block], options: argparse.Namespace) -> None:
    """Prints whether each block is captured and planned, and with which skills; else the reason."""
    device = options.device or Device.CUDA
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, late)
    found: dict[str, dict[str, Any]] = {}
    rows = []
    for block in chosen:
        begin = time.monotonic()
        signal.alarm(LIMIT_S)
        one = found[block.name] = _covered(block, device)
        signal.alarm(0)
        one["seconds"] = round(time.monotonic() - begin, 1)
        steps = ", ".join(f"{count} {skill}" for skill, count in one["steps"].items())
        rows.append(
            [block.name, "yes" if one["captured"] else "no", "yes" if one["planned"] else "no", steps or one["reason"]]
        )
        print(" · ".join(rows[-1]), f"· {one['seconds']} s", flush=True)
    planned = sum(one["planned"] for one in found.values())
    print("\n" + table(["block", "captured", "planned", "steps, or why not"], rows))
    print(f"\n{planned} of {len(found)} blocks covered ({planned / len(found):.1%})")
    print(f"raw samples: {save('blocks-coverage', options, device, {'small': options.small, 'blocks': found})}")


def _covered(block: Block, device: Device) -> dict[str, Any]:
    one: dict[str, Any] = {"captured": False, "planned": False, "reason": "", "steps": {}}
    try:
        graph = captured(block.name, block.source)
        one |= {"captured": True, "operators": dict(Counter(node.op for node in graph.nodes).most_common())}
        plan = propose(graph, device, Precision.TF32).plan
        one |= {"planned": True, "steps": dict(Counter(kernel.skill for kernel in plan.kernels).most_common())}
    except (TaskError, NotCovered) as error:
        one["reason"] = error.cause
    except Exception as error:  # noqa: BLE001 - any block's failure is a row of the table
        one["reason"] = f"{type(error).__name__}: {error}"[:300]
    return one


def measure(chosen: Sequence[Block], options: argparse.Namespace, rest: Sequence[str]) -> int:
    """Runs one slice of the benchmark, and prints the table of what is done."""
    out: Path = options.out or ROOT / "runs" / "blocks"
    for block in chosen:
        write_durably(out / "tasks" / f"{block.name}.py", block.source)
    device = chosen_device(options.device)
    command = [
        sys.executable,
        str(Path(__file__).with_name("suite.py")),
        str(out / "tasks"),
        "--out",
        str(out / "bench"),
    ]
    given = ["--device", device.value] if not (out / "bench" / BenchManifest.file_name).exists() else []
    code = subprocess.run([*command, "--seconds", str(options.seconds), "--", *given, *rest]).returncode
    path = out / "bench" / "results.jsonl"
    if not path.exists():
        return code
    lines = path.read_text().splitlines()
    results = [*{result.task.id: result for result in map(BenchResult.model_validate_json, lines)}.values()]
    rows = [_row(result) for result in results]
    print(table([*rows[0]], [[str(cell) for cell in row.values()] for row in rows]))
    every = metrics_of(results, tasks=len(chosen)).groups[0]
    passed, kept = sum(verdict_of(one) == "passed" for one in results), every.kept
    print(f"\n{len(results)} of {len(chosen)} done, {passed} passed, {kept} kept")
    for against in every.against:
        mean, full = _times(against.geomean_all.value), _times(against.geomean_queued.value)
        print(f"over {against.baseline}: {mean}, in a full queue {full}")
    whole = argparse.Namespace(out=out / "blocks.json")
    found = {"small": options.small, "rows": rows, "metrics": every.model_dump(mode="json")}
    print(f"table: {save('blocks', whole, device, found)}; raw samples: {path}")
    return code


def _row(result: BenchResult) -> dict[str, str]:
    state = "kept" if keeps_original(result) else verdict_of(result)
    row = {"block": result.task.name, "state": state}
    for name in BASELINES:
        ratio = speedup(result, name)
        row[f"over {name}"] = _times(None if ratio is None else ratio.value)
    row["matched, queued"] = _times(queued(result, "matched"))
    row["why"] = "" if state in ("passed", "kept") else result.message[:80]
    return row


def _times(value: float | None) -> str:
    return "—" if value is None or value != value else f"{value:.2f}×"


if __name__ == "__main__":
    run(main)
