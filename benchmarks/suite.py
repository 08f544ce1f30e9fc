"""Runs a suite in slices, for machines that are lent for minutes. Call it until it prints "done".

    .venv/bin/python benchmarks/suite.py SUITE --out runs/suite [--seconds 560] [--kill-after 200] [-- options of bench]

Each call runs `cuda-agent bench SUITE --out DIR --resume` for that many seconds, then stops it. `--kill-after` kills
the run and its processes once and resumes it. DIR/slices.json holds the seconds of every slice. The last lines show the
times of turns on the device and of the waits for them, in all slices (DIR/turns.jsonl).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from cuda_agent.bench.directory import TURNS_FILE
from cuda_agent.core.bench import BenchManifest
from cuda_agent.core.errors import EXIT_INTERRUPTED
from cuda_agent.core.files import write_durably

_SLICES = "slices.json"
#: the seconds that a stopped run needs to write the results of its running tasks.
_END_S = 18.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=560.0, help="of this slice, the stop included")
    parser.add_argument("--kill-after", type=float, help="seconds, counted from the beginning of this slice")
    own, rest = _split(sys.argv[1:])
    options = parser.parse_args(own)
    begin = time.monotonic()
    left, code = options.seconds - _END_S, EXIT_INTERRUPTED
    if options.kill_after is not None:
        _run(options, rest, left, kill_after=options.kill_after)
        left -= time.monotonic() - begin
        print(f"killed after {time.monotonic() - begin:.0f} s", flush=True)
    if left > 0:
        code = _run(options, rest, left)
    _account(options.out, time.monotonic() - begin, killed=options.kill_after is not None)
    return 0 if code == EXIT_INTERRUPTED else code


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def _run(options: argparse.Namespace, rest: list[str], seconds: float, kill_after: float | None = None) -> int:
    command = [sys.executable, "-c", "from cuda_agent.cli.main import main; main()"]
    # The options with which the run was begun, even if the defaults have changed.
    suite = [] if (options.out / BenchManifest.file_name).exists() else options.suite
    command += ["bench", *suite, "--out", str(options.out), "--resume"]
    command += ["--stop-after", f"{max(1.0, seconds):.0f}", *rest]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        return process.wait(timeout=kill_after)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        return process.wait()


def _account(out: Path, seconds: float, *, killed: bool) -> None:
    path = out / _SLICES
    slices: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    tasks = len(BenchManifest.read(out).tasks)
    results = out / "results.jsonl"
    lines = results.read_bytes().splitlines() if results.exists() else []
    done = len({json.loads(line)["task"]["id"] for line in lines})
    slices.append({"seconds": round(seconds, 1), "done": done, "killed": killed})
    write_durably(path, json.dumps(slices, indent=1))
    spent = sum(one["seconds"] for one in slices)
    each = spent / max(1, done)
    print(f"{done} of {tasks} tasks in {len(slices)} slices, {spent:.0f} s: {each:.1f} s a task", flush=True)
    print("done" if done == tasks else f"about {each * (tasks - done):.0f} s to go", flush=True)
    _say_turns(out / TURNS_FILE)


def _say_turns(path: Path) -> None:
    lines = path.read_text().splitlines() if path.exists() else []
    turns = [turn for turn in map(json.loads, lines) if turn["begun_s"] is not None]
    for kind, step in sorted({(turn["kind"], turn["step"]) for turn in turns}):
        mine = [turn for turn in turns if (turn["kind"], turn["step"]) == (kind, step)]
        waited = statistics.fmean(turn["begun_s"] - turn["asked_s"] for turn in mine)
        held = statistics.fmean(turn["left_s"] - turn["begun_s"] for turn in mine)
        print(f"{kind} {step}: {len(mine)} turns of {held:.1f} s, waited for {waited:.1f} s", flush=True)
    if turns:
        print(f"at most {max(turn['promised_bytes'] for turn in turns) / 2**30:.1f} GiB were promised", flush=True)


if __name__ == "__main__":
    sys.exit(main())
