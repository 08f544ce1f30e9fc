"""A benchmark directory for the tests of the report: the evaluations that were recorded on an H200, the examples' own
sources, the golden transcripts, and failures of every kind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from builders import evaluation, stack, verify
from cuda_agent.agent.best import BestRecord
from cuda_agent.core.bench import BenchManifest, BenchResult, SuiteTask
from cuda_agent.core.enums import Milestone, Phase, Verdict
from cuda_agent.core.inspection import LeastWork, Roofline
from cuda_agent.core.records import Budget, Candidate, Evaluation, Reward, RunManifest, Task, Trajectory, Turn
from cuda_agent.reward import reward

ROOT = Path(__file__).parent.parent
#: the newest.
RECORDED = ROOT / "benchmarks/results/2026-11-22-h200-examples"
GOLDEN = ROOT / "tests/golden"
LIMITS = Roofline(bandwidth_gb_s=4300, fp32_tflops=51, tf32_tflops=380, half_tflops=760)
#: what a task's name, code, output and run may hold to take over the page.
HOSTILE = (
    '</script><script>window.broken=1</script><img src=x onerror="window.broken=1">\' "&amp;\u202egnp.exe\u2066{{7*7}}'
)


def bench_directory(path: Path, *, waiting: int = 1) -> Path:
    """15 tasks that passed, one of each kind of failure, and `waiting` that have no result yet."""
    results = [_passed(path, number, file) for number, file in enumerate(sorted(RECORDED.glob("*.json")))]
    results += _failures()
    left = tuple(SuiteTask(id=f"waiting_{number}", name="waiting", key="0" * 64) for number in range(waiting))
    BenchManifest(
        command=("cuda-agent", "bench", "suite"),
        suite="examples",
        tasks=(*(result.task for result in results), *left),
        policy="playbook",
        configuration={"run": {"policy": "playbook"}},
        version="0.1.0",
        commit=None,
        stack=stack(torch="2.11.0"),
        started="2026-11-21T18:00:00+00:00",
        limits=LIMITS,
    ).write(path)
    (path / "results.jsonl").write_text("".join(result.model_dump_json() + "\n" for result in results))
    return path


def hostile_result(path: Path) -> BenchResult:
    """One more task, appended to a benchmark: whatever it says tries to break out."""
    source = f'"""{HOSTILE}"""\n# {HOSTILE}\nclass Model: ...\n'
    files = {
        "model_new.py": f"# {HOSTILE}\n",
        f"kernels/{HOSTILE.replace('/', '')}.cu": f"// {HOSTILE}\n#if {HOSTILE}\n",
    }
    said = evaluation(
        verdict=Verdict.INCORRECT, phase=Phase.VERIFY, reason=HOSTILE, log_tail=HOSTILE, profile=None,
        verify=verify(False), notes=(HOSTILE,),
    )  # fmt: skip
    directory = path / "tasks" / "hostile"
    call = {"id": "1", "tool": HOSTILE, "arguments": {HOSTILE: HOSTILE, "path": "a.cu", "content": f"{HOSTILE}\n" * 40}}
    answer = {"call_id": "1", "text": f"{HOSTILE}\n" * 40, "ok": False}
    turn = Turn.model_validate(
        {
            "index": 0,
            "message": HOSTILE,
            "reasoning": HOSTILE,
            "observation": HOSTILE,
            "calls": [call],
            "results": [answer],
        }
    )
    task = write_run(directory, Task(name=HOSTILE, source=source, origin=HOSTILE), Candidate(files=files), said, [turn])
    entry = SuiteTask(id=HOSTILE, name=task.name, key=task.key, level=HOSTILE, origin=HOSTILE, operators=(HOSTILE,))
    result = BenchResult(
        task=entry, outcome="gave_up", message=HOSTILE, evaluation=said, turns=1, directory="tasks/hostile"
    )
    with (path / "results.jsonl").open("a") as stream:
        stream.write(result.model_dump_json() + "\n")
    return result


def write_run(
    directory: Path, task: Task, candidate: Candidate, found: Evaluation, turns: list[Turn], *, ended: bool = False
) -> Task:
    """What `optimize` leaves, as far as the report reads it."""
    directory.mkdir(parents=True, exist_ok=True)
    task.write(directory)
    found = found.model_copy(update={"candidate_digest": candidate.digest})
    RunManifest(
        command=("cuda-agent", "optimize"), configuration={"policy": "playbook"}, version="0.1.0", commit=None,
        stack=stack(), started="2026-11-21T18:00:00+00:00",
    ).write(directory)  # fmt: skip
    (directory / "transcript.jsonl").write_text("".join(turn.model_dump_json() + "\n" for turn in turns))
    BestRecord(candidate=candidate, evaluation=found).write(directory)
    if ended:
        found.write(directory)
        Trajectory(
            task_key=task.key, task_name=task.name, policy="playbook", turns=tuple(turns), outcome="finished",
            budget=Budget(turns_limit=60, turns_spent=len(turns)), best=candidate, evaluation=found,
        ).write(directory)  # fmt: skip
    return task


def golden_turns(name: str = "edits") -> list[Turn]:
    lines = (GOLDEN / name / "transcript.jsonl").read_text().splitlines()
    return [Turn.model_validate_json(line) for line in lines]


def example_run(directory: Path, name: str, *, ended: bool = True) -> Path:
    """One run of `optimize` on an example."""
    found = Evaluation.model_validate_json((RECORDED / f"{name}.json").read_text())
    if name == "projection_mean" and found.profile is not None:
        # Its record is older than this field.
        found = found.model_copy(update={"profile": found.profile.model_copy(update={"fewer_operations": True})})
    task = Task(name=name, source=(ROOT / "examples" / f"{name}.py").read_text())
    files = json.loads((GOLDEN / "edits" / "files.json").read_text())
    write_run(directory, task, Candidate(files=files), found, golden_turns(), ended=ended)
    return directory


def _passed(path: Path, number: int, file: Path) -> BenchResult:
    directory = example_run(path / "tasks" / file.stem, file.stem, ended=False)
    found = BestRecord.read(directory).evaluation
    if number == 0:
        # This one has lost its folder.
        shutil.rmtree(directory)
    task = SuiteTask(
        id=file.stem,
        name=file.stem,
        key=found.task_key,
        level=str(1 + number % 3),
        roofline=("memory", "compute")[number % 2],
        operators=("aten.mul", "aten.add"),
        work=LeastWork(bytes=10**9 + number * 10**7, product_flops=number * 10**10, other_flops=10**9),
    )
    paid = reward(found)
    return BenchResult(
        task=task, outcome="finished", message="", evaluation=found, reward=paid, turns=7, wall_s=20.0, judge_s=15.0,
        directory=f"tasks/{file.stem}",
    )  # fmt: skip


def _failures() -> list[BenchResult]:
    def result(name: str, outcome: str, message: str, found: Evaluation | None = None) -> BenchResult:
        task = SuiteTask(id=name, name=name, key="1" * 64, level="2", roofline="memory")
        paid = None
        if found is not None:
            paid = Reward(value=-1, milestone=Milestone.FAILED, baseline="published", reason=found.reason)
        return BenchResult(task=task, outcome=outcome, message=message, evaluation=found, reward=paid, turns=3)

    wrong = evaluation(
        verdict=Verdict.INCORRECT,
        phase=Phase.VERIFY,
        reason="relative error 3.2e-01",
        profile=None,
        verify=verify(False),
    )
    broken = evaluation(
        verdict=Verdict.BUILD_FAILED, phase=Phase.BUILD, reason="nvcc: error", profile=None, verify=None, build=None
    )
    fast = evaluation(verdict=Verdict.QUARANTINED, reason="faster than memory allows")
    return [
        result("wrong_answers", "gave_up", "no", wrong),
        result("doesnt_build", "gave_up", "no", broken),
        result("too_fast", "finished", "", fast),
        result("not_for_us", "not_covered", "no skill covers aten.sort"),
        result("no_task", "error", "the reference raised ValueError"),
    ]
