"""Optimizes every example and prints a table for a page in benchmarks/results.

    .venv/bin/python benchmarks/examples.py --out runs/bench                  # run the missing examples, then the table
    .venv/bin/python benchmarks/examples.py --out runs/bench --limit-s 540    # begin no task after 540 s; call it again
    .venv/bin/python benchmarks/examples.py --out runs/bench --table          # print the table of saved runs

OUT/<task>/ is the run directory of `cuda-agent optimize`: its evaluation.json holds the raw samples and the stack.
Arguments after `--` go to `cuda-agent optimize`, such as `-- --timing-budget 10`.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

from cuda_agent.core.enums import Verdict
from cuda_agent.core.errors import CudaAgentError
from cuda_agent.core.records import Evaluation, ProfileReport, Timing, Trajectory
from cuda_agent.report.tables.evaluation import stack_line
from cuda_agent.report.units import geometric_mean, interval, microseconds, times
from cuda_agent.reward import is_faster

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = (
    "task", "eager µs", "compile µs", "matched µs", "ours µs", "vs eager", "vs compile", "vs matched",
    "queued: compile / matched / ours µs",
)  # fmt: skip
ERRORS = ("error ours / eager / allowed", "reward")


def run_all(tasks: list[Path], out: Path, limit_s: float, more: list[str]) -> None:
    """Runs one process for each task. An unfinished run is begun again."""
    started = time.monotonic()
    command = str(Path(sys.executable).parent / "cuda-agent")
    for task in tasks:
        directory = out / task.stem
        if (directory / "trajectory.json").exists():
            continue
        if time.monotonic() - started > limit_s:
            print(f"time limit: {task.stem} and what follows not begun; call this again", file=sys.stderr)
            return
        shutil.rmtree(directory, ignore_errors=True)
        out.mkdir(parents=True, exist_ok=True)
        begun = time.monotonic()
        with open(out / f"{task.stem}.log", "w") as log:
            call = [command, "optimize", str(task), "--out", str(directory), *more]
            code = subprocess.run(call, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
        print(f"{task.stem}: exit code {code}, {time.monotonic() - begun:.1f} s", file=sys.stderr, flush=True)


def table(tasks: list[Path], out: Path) -> str:
    """Returns Markdown: a row for each task, the geometric means, the counts and the stack."""
    rows, profiles, rewards, failed, missing = [], [], [], 0, 0
    stack = ""
    for task in tasks:
        run = read(out / task.stem)
        if run is None:
            missing += 1
            rows.append(row(task.stem, note="no result"))
            continue
        evaluation = run.evaluation
        if evaluation is None or evaluation.verdict is not Verdict.PASSED or evaluation.profile is None:
            failed += evaluation is not None or run.outcome != "not_covered"
            note = f"{evaluation.verdict.value}: {evaluation.reason}" if evaluation else f"{run.outcome}: {run.message}"
            rows.append(row(task.stem, note=note))
            continue
        stack = stack_line(evaluation.stack, evaluation)
        profiles.append(evaluation.profile)
        rewards.append(run.reward.value if run.reward else -1)
        rows.append(measured(task.stem, evaluation, rewards[-1]))
    rule = "|---" * len(COLUMNS + ERRORS) + "|"
    lines = ["| " + " | ".join(COLUMNS + ERRORS) + " |", rule, *rows, ""]
    return "\n".join([*lines, *totals(profiles, rewards, len(tasks), failed, missing), "", f"Stack: {stack}"])


def read(directory: Path) -> Trajectory | None:
    """Reads a run, or returns None where it left no trajectory."""
    try:
        return Trajectory.read(directory)
    except CudaAgentError:
        return None


def row(name: str, *, note: str) -> str:
    return f"| {name} | " + " | ".join([note.replace("|", "/"), *["—"] * (len(COLUMNS + ERRORS) - 2)]) + " |"


def measured(name: str, evaluation: Evaluation, reward: int) -> str:
    """Returns the row of a task that passed."""
    profile = evaluation.profile
    assert profile is not None
    cells = [name, cell(profile.baselines.get("eager")), cell(profile.baselines.get("compile"))]
    cells += [f"{profile.matched}: {cell(profile.baselines[profile.matched])}", cell(profile.candidate)]
    for baseline in ("eager", "compile", profile.matched):
        ratio = profile.ratios.get(baseline)
        cells.append(f"{times(ratio.value)} [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio else "—")
    cells.append(" / ".join(microseconds(us) if us else "—" for us in queued(profile)))
    return "| " + " | ".join([*cells, errors(evaluation), str(reward)]) + " |"


def queued(profile: ProfileReport) -> tuple[float | None, float | None, float | None]:
    """Returns the µs of a call in a full queue: of compile, of the fastest matched form, and of ours."""
    forms = profile.baselines
    # Where the precision policy changes an operator of the task, only the forms with the policy's name are matched.
    at_policy = [name for name in forms if "_" in name]
    matched = at_policy if any(name.startswith("eager_") for name in at_policy) else list(forms)
    times_us = [us for name in matched if (us := forms[name].queued_us)]
    compiled = forms.get("compile")
    return (compiled.queued_us if compiled else None), min(times_us, default=None), profile.candidate.queued_us


def cell(timing: Timing | None) -> str:
    return f"{microseconds(timing.latency_us)} {interval(timing.low_us, timing.high_us)}" if timing else "—"


def errors(evaluation: Evaluation) -> str:
    """Returns the relative L2 errors against the oracle in the trial that is nearest to its budget."""
    trials = evaluation.verify.trials if evaluation.verify else ()
    judged = [t for t in trials if t.candidate_error is not None]
    if not judged:
        return "—"
    worst = max(judged, key=lambda t: (t.candidate_error or 0.0) / (t.budget or 1.0))
    return " / ".join(
        f"{x:.1e}" if x is not None else "—" for x in (worst.candidate_error, worst.eager_error, worst.budget)
    )


def totals(profiles: list[ProfileReport], rewards: list[int], tasks: int, failed: int, missing: int) -> list[str]:
    """Returns geometric means over the tasks that passed, and over all tasks, where a failed one counts 1.0."""
    lines = [
        f"{tasks} tasks: {len(profiles)} passed, {failed} failed, {missing} without a result, "
        f"{tasks - len(profiles) - failed - missing} not covered. "
        f"Reward 3: {rewards.count(3)}, reward 2: {rewards.count(2)}, reward 1: {rewards.count(1)}.",
        "",
        "| geometric mean | over those that passed | over all, the others as 1.0 | faster by more than 5 % |",
        "|---|---|---|---|",
    ]
    for label in ("eager", "compile", "matched"):
        found = [p.ratios.get(p.matched if label == "matched" else label) for p in profiles]
        values = [ratio.value for ratio in found if ratio is not None]
        whole = geometric_mean([*values, *[1.0] * (tasks - len(values))])
        passed = geometric_mean(values)
        cells = [f"vs {label}", times(passed) if passed else "—", times(whole) if whole else "—"]
        lines.append("| " + " | ".join([*cells, str(sum(is_faster(ratio) for ratio in found))]) + " |")
    for index, label in enumerate(("compile", "matched")):
        seen = [(times_us[index], times_us[2]) for profile in profiles if all(times_us := queued(profile))]
        values = [theirs / ours for theirs, ours in seen if theirs and ours]
        cells = [f"vs {label} in a full queue", times(geometric_mean(values)) if values else "—", "", ""]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=Path, default=ROOT / "examples", help="folder of task files")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="begin no task after this many seconds")
    parser.add_argument("--table", action="store_true", help="only print the table")
    parser.add_argument("more", nargs="*", help="after --: for cuda-agent optimize")
    options = parser.parse_args()
    tasks = sorted(path for path in options.tasks.glob("*.py") if path.name[0] != "_")
    if not options.table:
        run_all(tasks, options.out, options.limit_s, options.more)
    print(table(tasks, options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
