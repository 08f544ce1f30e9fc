"""Measures the size of a benchmark run's page and the time to open it: `python3 benchmarks/report.py RUNS --tasks 250`.

RUNS is a folder of real `optimize` runs. They are copied under other names until there are enough tasks. Every text of
a copy has one more line and every sample other digits, so that no two tasks share packed data. Times and verdicts are
those of the runs, so the page isn't a benchmark's result.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from cuda_agent.core.bench import BenchManifest, BenchResult, SuiteTask
from cuda_agent.core.inspection import LeastWork, Roofline
from cuda_agent.core.records import Candidate, RunManifest, Task, Trajectory

LEVELS = ("1", "2", "3")
CLASSES = ("memory", "compute", "latency")
PARTS = ("task.json", "config.json", "manifest.json", "best.json", "evaluation.json", "transcript.jsonl")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--tasks", type=int, default=250)
    parser.add_argument("--out", type=Path, default=Path("runs/report-benchmark"))
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    given = parser.parse_args()
    shutil.rmtree(given.out, ignore_errors=True)
    build(given.runs, given.out, given.tasks)
    started = time.monotonic()
    subprocess.run([str(Path(sys.executable).with_name("cuda-agent")), "report", str(given.out)], check=True)
    took, page = time.monotonic() - started, given.out / "report.html"
    print(f"written in {took:.1f} s, {page.stat().st_size / 1e6:.2f} MB")
    if given.chromium:
        print(f"open and usable in {statistics.median(opened(page, given.chromium)):.2f} s (median of 5)")
    return 0


def build(runs: Path, out: Path, count: int) -> None:
    """Writes a benchmark directory of `count` tasks."""
    found = sorted(path.parent for path in runs.glob("*/trajectory.json"))
    manifest = RunManifest.read(found[0])
    draw = random.Random(0)
    results = [copy(found[number % len(found)], out, number, draw) for number in range(count)]
    BenchManifest(
        command=("cuda-agent", "bench", str(runs)),
        suite=f"copies of {len(found)} runs",
        tasks=tuple(result.task for result in results),
        policy="playbook",
        configuration=manifest.configuration,
        version=manifest.version,
        commit=manifest.commit,
        stack=manifest.stack,
        started=manifest.started,
        limits=Roofline(bandwidth_gb_s=4300, fp32_tflops=50, tf32_tflops=380, half_tflops=750),
    ).write(out)
    lines = "".join(result.model_dump_json() + "\n" for result in results)
    (out / "results.jsonl").write_text(lines)


def copy(run: Path, out: Path, number: int, draw: random.Random) -> BenchResult:
    name, mark = f"{run.name}_{number:03d}", f"{draw.getrandbits(96):024x}"
    directory = out / "tasks" / name
    directory.mkdir(parents=True)
    for part in PARTS:
        if (run / part).is_file():
            text = (run / part).read_text()
            lines = text.splitlines() if part.endswith("jsonl") else [text]
            changed = [json.dumps(marked(json.loads(line), mark, draw)) for line in lines]
            (directory / part).write_text("\n".join(changed) + "\n")
    mend(directory)
    task, ended = Task.read(directory), Trajectory.read(run)
    entry = SuiteTask(
        id=name,
        name=task.name,
        key=task.key,
        level=LEVELS[number % 3],
        operators=task.operators,
        roofline=CLASSES[number % 3],
        work=LeastWork(bytes=draw.randrange(10**6, 10**9), product_flops=0, other_flops=draw.randrange(10**7, 10**10)),
    )
    evaluation = ended.evaluation
    if evaluation is not None:
        evaluation = evaluation.model_validate(marked(evaluation.model_dump(mode="json"), mark, draw))
    return BenchResult(
        task=entry,
        outcome=ended.outcome,
        message=ended.message,
        evaluation=evaluation,
        reward=ended.reward,
        turns=len(ended.turns),
        wall_s=ended.budget.wall_s,
        judge_s=ended.budget.judge_s,
        directory=f"tasks/{name}",
    )


def marked(value: Any, mark: str, draw: random.Random) -> Any:
    """Adds a line to texts of several lines, and changes the last digit of samples."""
    if isinstance(value, dict):
        return {name: marked(item, mark, draw) for name, item in value.items()}
    if isinstance(value, list):
        if len(value) > 4 and all(isinstance(item, float) for item in value):
            return [item * draw.uniform(0.999, 1.001) for item in value]
        return [marked(item, mark, draw) for item in value]
    if isinstance(value, str) and "\n" in value:
        return f"{value}\n# {mark}"
    return value


def mend(directory: Path) -> None:
    """Sets the digest of the changed candidate."""
    path = directory / "best.json"
    if path.is_file():
        best = json.loads(path.read_text())
        best["evaluation"]["candidate_digest"] = Candidate(files=best["candidate"]["files"]).digest
        path.write_text(json.dumps(best))


def opened(page: Path, chromium: str, times: int = 5) -> list[float]:
    """Returns the seconds from the request until the page is drawn and its script has run, each in a fresh browser."""
    from playwright.sync_api import sync_playwright

    found = []
    with sync_playwright() as playwright:
        for _ in range(times):
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            tab = browser.new_page(viewport={"width": 1320, "height": 900})
            started = time.monotonic()
            tab.goto(page.absolute().as_uri())
            tab.wait_for_selector("html[data-ready]", state="attached")
            tab.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            found.append(time.monotonic() - started)
            browser.close()
    return found


if __name__ == "__main__":
    sys.exit(main())
