"""`apply`: measures the whole model with optimized submodules in it, beside the original."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from cuda_agent.agent.context import Progress
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Verdict
from cuda_agent.core.errors import KeepOriginal, TaskError, UsageError
from cuda_agent.core.extraction import Extraction, LeftOutPart, WholeModel, WholePart
from cuda_agent.core.record import now
from cuda_agent.core.records import Task, Trajectory
from cuda_agent.core.stack import read_stack
from cuda_agent.judge import JudgeSession
from cuda_agent.release.extract.whole_model import Optimized, WholeModelResult, judge_whole_model
from cuda_agent.reward import closest_attempt, keep_original


def optimized(
    extraction: Extraction, runs: Sequence[Path], *, anyway: bool = False
) -> tuple[list[Optimized], list[str]]:
    """Returns the fastest run of each task that passed, and notes on the other runs. `runs` are run directories or
    folders of them. With `anyway` it takes kernels that aren't faster than the original, too. Raises UsageError where
    no run of these tasks passed, KeepOriginal where none is faster."""
    tasks = {task.key: task for task in extraction.tasks}
    best: dict[str, Optimized] = {}
    notes: list[str] = []
    kept = False
    for run in _directories(runs):
        trajectory = Trajectory.read(run)
        task, evaluation, candidate = tasks.get(trajectory.task_key), trajectory.evaluation, trajectory.best
        if task is None:
            notes.append(f"{run.name}: {trajectory.task_name} isn't a task of this extraction")
            continue
        if evaluation is None or evaluation.verdict is not Verdict.PASSED or evaluation.profile is None:
            verdict = "no candidate" if evaluation is None else evaluation.verdict.value.replace("_", " ")
            notes.append(f"{run.name}: {task.name} has no kernel that passed ({verdict})")
            continue
        if evaluation.comparison is not None:
            notes.append(f"{run.name}: {task.name} is a comparison ({evaluation.comparison}), no CUDA extension")
            continue
        if not anyway and (closest := closest_attempt(evaluation)) is not None:
            notes.append(f"{run.name}: {task.name}: {keep_original(closest, evaluation.kernels)}")
            kept = True
            continue
        ratio = evaluation.profile.ratios.get("eager")
        assert candidate is not None
        found = Optimized(task, run, candidate, evaluation.device, ratio.value if ratio is not None else 1.0)
        if task.key not in best or found.speedup > best[task.key].speedup:
            best[task.key] = found
    if not best and kept:
        raise KeepOriginal("No part is faster than the original, which stays", "--anyway puts the parts in place")
    if not best:
        more = f": {notes[0]}" if notes else ""
        raise UsageError(f"No run holds a kernel for this model{more}", "Optimize its tasks first, then give the runs")
    return [best[key] for key in tasks if key in best], notes


def _directories(runs: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in runs:
        if (path / Trajectory.file_name).is_file():
            found.append(path)
            continue
        inside = sorted(item.parent for item in path.glob(f"*/{Trajectory.file_name}")) if path.is_dir() else []
        if not inside:
            raise UsageError(f"{path} holds no finished run", "Give run directories that cuda-agent optimize left")
        found += inside
    return list(dict.fromkeys(found))


def predicted(shares: Sequence[tuple[float, float]]) -> float:
    """Returns Amdahl's speed-up of the whole from (share f, speed-up s) of its parts: 1 / (1 - Σ f + Σ f/s)."""
    covered = min(1.0, sum(share for share, _ in shares))
    left = 1.0 - covered + sum(share / speedup for share, speedup in shares)
    return 1.0 / max(left, 1e-9)


def apply(
    extraction: Extraction,
    parts: Sequence[Optimized],
    options: JudgeOptions,
    *,
    notes: Sequence[str] = (),
    compiled: bool = True,
    say: Progress | None = None,
) -> WholeModel:
    """Measures the model and returns the record, without writing it. With `compiled`, `torch.compile` of the original
    is timed too. Raises UsageError when a part was made on another device, TaskError when the model fails, DeviceError,
    SandboxError, StoreError, WorkerError."""
    for part in parts:
        if part.device is not options.device:
            cause = f"{part.run} was made on {part.device.value}, not {options.device.value}"
            raise UsageError(cause, f"Use --device {part.device.value}, or optimize the task there")
    whole = Task(name=extraction.name, source=extraction.source, origin="whole model")
    folders = tuple(Path(folder) for folder in extraction.folders)
    missing = [folder for folder in folders if not folder.is_dir()]
    if missing:
        raise TaskError(f"The model's code isn't in {missing[0]} any more", "Extract it again")
    with contextlib.closing(JudgeSession(whole, options, progress=say, importable=folders)) as session, session:
        session.baselines.eager_only = not compiled
        judged = judge_whole_model(session, parts)
        level = session.level
    measured = [_part(part, judged) for part in parts]
    used = [part for part in measured if part.calls] if judged.calls else measured
    profile, verify = judged.profile, judged.verify
    trials = [] if verify is None else [trial for trial in verify.trials if trial.candidate_error is not None]
    unused = [f"{part.task}: the original took every call" for part in measured if judged.calls and not part.calls]
    agreed = verify is not None and verify.passed
    return WholeModel(
        model=extraction.model,
        key=whole.key,
        device=options.device,
        precision=options.precision,
        parts=tuple(measured),
        left_out=_left_out(extraction, [part.task.key for part in parts]),
        agreed=agreed,
        reason=judged.reason,
        max_error=max((trial.candidate_error or 0.0 for trial in trials), default=None),
        original_error=max((trial.eager_error or 0.0 for trial in trials), default=None),
        max_abs_error=max((trial.max_abs_error or 0.0 for trial in trials), default=None),
        original=None if profile is None else profile.baselines["eager"],
        patched=None if profile is None else profile.candidate,
        speedup=None if profile is None else profile.ratios["eager"],
        others={} if profile is None else {name: ratio for name, ratio in profile.ratios.items() if name != "eager"},
        covered=min(1.0, sum(part.share for part in used)),
        predicted=predicted([(part.share, part.speedup) for part in used]),
        notes=(*notes, *unused, *(profile.notes if profile is not None else ())),
        sandbox=level,
        stack=read_stack(),
        started=now(),
    )


def _left_out(extraction: Extraction, replaced: Sequence[str]) -> tuple[LeftOutPart, ...]:
    """Returns what stays in PyTorch: parts that are no task, tasks without a kernel, and the model's own forward."""
    left = [
        LeftOutPart(kind=t.kind, paths=t.paths, time_us=t.time_us, share=t.share, reason="it has no faster kernel")
        for t in extraction.tasks
        if t.key not in replaced
    ]
    own, why = extraction.outside_us, "the steps between the parts"
    share = min(1.0, own / extraction.total_us)
    forward = LeftOutPart(kind=extraction.name, paths=("forward",), time_us=own, share=share, reason=why)
    return tuple(sorted([*left, *extraction.left_out, forward], key=lambda one: -one.share))


def _part(part: Optimized, judged: WholeModelResult) -> WholePart:
    calls = [judged.calls.get(path, (0, 0)) for path in part.task.paths]
    return WholePart(
        task=part.task.name,
        key=part.task.key,
        candidate_digest=part.candidate.digest,
        run=str(part.run),
        paths=part.task.paths,
        calls=sum(taken for taken, _ in calls),
        fallbacks=sum(original for _, original in calls),
        share=part.task.share,
        speedup=part.speedup,
    )
